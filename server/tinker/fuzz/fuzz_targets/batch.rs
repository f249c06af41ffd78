//! Any bytes as the body of `forward_backward`: read or refused, and what is read fits together.
#![no_main]
#![allow(dead_code, reason = "the readers are taken as files, and a part of them is used")]

#[path = "../../src/datum.rs"]
mod datum;
#[path = "../../src/proto.rs"]
mod proto;
#[path = "../../src/tensor.rs"]
mod tensor;

use libfuzzer_sys::fuzz_target;
use prost::Message as _;

fuzz_target!(|bytes: &[u8]| {
    let Ok(request) = proto::ForwardBackwardRequest::decode(bytes) else { return };
    // What is written again is the same message.
    let again = proto::ForwardBackwardRequest::decode(request.encode_to_vec().as_slice()).expect("what was written");
    assert_eq!(request.encode_to_vec(), again.encode_to_vec());
    let Ok(data) = datum::read(&request.data) else { return };
    for datum in data {
        assert_ne!(datum.tokens(), Some(0));
        for tensor in datum.loss_inputs.values() {
            assert!(datum.tokens().is_none_or(|tokens| tokens == tensor.shape[0]));
            match &tensor.sparsity {
                None => assert_eq!(tensor.shape.iter().product::<usize>(), tensor.numbers.len()),
                Some(sparsity) => {
                    assert_eq!((sparsity.rows.len(), sparsity.columns.len()), (tensor.shape[0] + 1, tensor.numbers.len()));
                    assert!(sparsity.columns.iter().all(|column| *column < tensor.shape[1]));
                }
            }
        }
    }
});
