//! Messages survive the seam, and no bytes break the decoder.

use espalier_sandbox_protocol::{
    BlockEnd, Decode, DecodeError, Encode, ExecuteReply, ExecuteRequest, FinalAnswer, HostCall, HostReply, ReplConfig,
    Reply, Request, Value, VariableInfo,
};
use proptest::prelude::*;

fn values() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::None),
        any::<bool>().prop_map(Value::Bool),
        any::<i64>().prop_map(Value::Int),
        "-?[1-9][0-9]{19,30}".prop_map(Value::BigInt),
        any::<f64>().prop_filter("NaN equals nothing", |number| !number.is_nan()).prop_map(Value::Float),
        any::<String>().prop_map(Value::Str),
        proptest::collection::vec(any::<u8>(), 0..50).prop_map(Value::Bytes),
        (any::<String>(), any::<String>()).prop_map(|(type_name, repr)| Value::Opaque { type_name, repr }),
    ];
    leaf.prop_recursive(5, 60, 8, |inner| {
        let list = proptest::collection::vec(inner.clone(), 0..8);
        prop_oneof![
            list.clone().prop_map(Value::List),
            list.clone().prop_map(Value::Tuple),
            list.prop_map(Value::Set),
            proptest::collection::vec((inner.clone(), inner), 0..8).prop_map(Value::Dict),
        ]
    })
}

fn config() -> ReplConfig {
    ReplConfig {
        strict: true,
        functions: vec!["llm_query".into()],
        tools: vec![("lookup".into(), "Looks up.".into())],
        python_tools: vec![("twice".into(), "def twice(x): return 2 * x".into())],
        recursion_limit: 1000,
        soft_memory_bytes: 1 << 28,
        max_allocation_bytes: 1 << 25,
        max_value_bytes: 1 << 20,
        seed: 7,
    }
}

#[test]
fn every_request_and_reply_survives() {
    let requests = [
        Request::Configure(config()),
        Request::Execute(ExecuteRequest { code: "x = 1".into(), block: 3, echo: true, max_host_calls: 64 }),
        Request::BindContext { index: 2, value: "text".into() },
        Request::Bind { name: "x".into(), value: 1.5.into() },
        Request::Get { name: "x".into() },
        Request::FinalVar { name: "'x'".into() },
        Request::Variables,
        Request::Reseed { seed: u64::MAX },
    ];
    for request in requests {
        assert_eq!(Request::from_bytes(&request.to_bytes()), Ok(request));
    }
    let answer = FinalAnswer { text: "1".into(), value: Value::Int(1) };
    let variables = vec![VariableInfo { name: "x".into(), type_name: "int".into(), length: None }];
    let replies = [
        Reply::Done,
        Reply::Executed(ExecuteReply {
            end: BlockEnd::Raised { type_name: "ValueError".into(), message: "no".into() },
            final_answer: Some(answer.clone()),
            variables: variables.clone(),
            heap_bytes: 5,
        }),
        Reply::Value(Value::None),
        Reply::Answer(answer),
        Reply::Variables(variables),
        Reply::Refused("no".into()),
    ];
    for reply in replies {
        assert_eq!(Reply::from_bytes(&reply.to_bytes()), Ok(reply));
    }
}

#[test]
fn nesting_beyond_the_depth_is_refused() {
    let nest = |levels: usize| (0..levels).fold(Value::None, |value, _| Value::List(vec![value]));
    assert!(Value::from_bytes(&nest(64).to_bytes()).is_ok());
    assert_eq!(Value::from_bytes(&nest(65).to_bytes()), Err(DecodeError::Depth));
}

#[test]
fn a_length_that_lies_is_refused_before_it_is_believed() {
    assert!(matches!(Value::from_bytes(&[7, 255, 255, 255, 255, 0]), Err(DecodeError::End { .. })));
    assert!(matches!(Value::from_bytes(&[5, 255, 255, 255, 255]), Err(DecodeError::End { .. })));
}

proptest! {
    #[test]
    fn every_value_survives(value in values()) {
        prop_assert_eq!(Value::from_bytes(&value.to_bytes()), Ok(value));
    }

    #[test]
    fn every_host_call_survives(function in any::<String>(), args in proptest::collection::vec(values(), 0..4), name in any::<String>(), kwarg in values()) {
        let call = HostCall { function, args, kwargs: vec![(name, kwarg)] };
        prop_assert_eq!(HostCall::from_bytes(&call.to_bytes()), Ok(call));
    }

    #[test]
    fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let _ = Value::from_bytes(&bytes);
        let _ = Request::from_bytes(&bytes);
        let _ = Reply::from_bytes(&bytes);
        let _ = HostCall::from_bytes(&bytes);
        let _ = HostReply::from_bytes(&bytes);
    }

    #[test]
    fn cut_messages_are_refused(value in values(), cut in any::<proptest::sample::Index>()) {
        let bytes = value.to_bytes();
        let cut = cut.index(bytes.len());
        prop_assert!(Value::from_bytes(&bytes[..cut]).is_err());
    }
}
