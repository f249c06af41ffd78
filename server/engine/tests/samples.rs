//! The wire's requests as the engine gets them, and its answers as the wire gets them.

use std::sync::Arc;
use std::time::Duration;

use espalier_inference::{Prompt, Reply, SamplingParams, ScriptedEngine};
use espalier_tinker::operation::{Kind, Sample};
use espalier_tinker::proto::StopReason;
use espalier_tinker::{Backend, Category, Operation, OperationError, Outcome, wire};
use espalier_tinker_engine::{EngineBackend, UnfitEngine};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

const LIMIT: Duration = Duration::from_mins(1);

fn sample(params: Value, more: Value) -> Operation {
    let mut body = json!({"num_samples": 2, "prompt": {"chunks": [{"type": "encoded_text", "tokens": [104, 105]}]},
                          "sampling_params": params, "sampling_session_id": "s:sample:0", "seq_id": 0});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let request = wire::read(body.to_string().as_bytes()).unwrap();
    Operation::Sample(Sample { request, base_model: "m".to_owned(), weights: None })
}

async fn execute(engine: ScriptedEngine, operation: Operation) -> Result<Outcome, OperationError> {
    let backend = EngineBackend::new(Arc::new(engine), "m", LIMIT).unwrap();
    backend.execute(operation, CancellationToken::new()).await
}

fn engine(reply: impl Into<Reply>) -> ScriptedEngine {
    ScriptedEngine::replies([reply.into()]).cycle().context_tokens(64).recording().build()
}

/// What the engine gets.
async fn asked(params: Value) -> (SamplingParams, u32, Prompt) {
    let engine = Arc::new(engine("abc"));
    let backend = EngineBackend::new(engine.clone(), "m", LIMIT).unwrap();
    backend.execute(sample(params, json!({})), CancellationToken::new()).await.unwrap();
    let request = engine.requests().remove(0);
    (request.sampling, request.n, request.prompt)
}

#[tokio::test]
async fn parameters_arrive_as_they_were_meant() {
    let (sampling, n, prompt) =
        asked(json!({"max_tokens": 3, "seed": 7, "temperature": 0.5, "top_p": 0.9, "top_k": 5})).await;
    assert_eq!((n, prompt), (2, Prompt::Tokens(vec![104, 105])));
    let expected = SamplingParams {
        max_tokens: 3,
        seed: Some(7),
        temperature: 0.5,
        top_p: 0.9,
        top_k: 5,
        logprobs: true,
        ..SamplingParams::default()
    };
    assert_eq!(sampling, expected);
    // Absent: to the end of the context, everything kept.
    let (sampling, ..) = asked(json!({})).await;
    assert_eq!((sampling.max_tokens, sampling.top_k, sampling.seed), (62, 0, None));
    assert!(asked(json!({"seed": -1})).await.0.seed == Some(u64::MAX));
}

#[tokio::test]
async fn stops_arrive_in_all_their_forms() {
    let cases = [
        (json!(null), (vec![], vec![], false)),
        (json!([]), (vec![], vec![], true)),
        (json!("x"), (vec!["x"], vec![], false)),
        (json!(["x", "yz"]), (vec!["x", "yz"], vec![], false)),
        (json!([1, 2]), (vec![], vec![1, 2], false)),
    ];
    for (stop, (texts, tokens, ignored)) in cases {
        let (sampling, ..) = asked(json!({"stop": stop})).await;
        let texts: Vec<String> = texts.into_iter().map(str::to_owned).collect();
        assert_eq!((sampling.stop, sampling.stop_token_ids, sampling.ignore_eos), (texts, tokens, ignored), "{stop}");
    }
}

#[tokio::test]
async fn samples_come_back_with_as_many_logprobs_as_tokens() {
    let outcome = execute(engine("abcdef"), sample(json!({"stop": "d", "max_tokens": 20}), json!({}))).await.unwrap();
    let Outcome::Sampled(sampled) = outcome else { panic!("{outcome:?}") };
    assert_eq!(sampled.sequences.len(), 2);
    for sequence in &sampled.sequences {
        // The stop text is part of the sample.
        assert_eq!((sequence.tokens.as_slice(), sequence.stop), (&b"abcd".map(u32::from)[..], StopReason::Stop));
        assert_eq!(sequence.logprobs.len(), 4);
    }
    let outcome = execute(engine("abcdef"), sample(json!({"max_tokens": 2}), json!({}))).await.unwrap();
    let Outcome::Sampled(sampled) = outcome else { panic!("{outcome:?}") };
    assert_eq!(sampled.sequences[1].stop, StopReason::Length);
}

#[tokio::test]
async fn what_is_not_served_says_so() {
    for (field, value) in [
        ("prompt_logprobs", json!(true)),
        ("topk_prompt_logprobs", json!(2)),
        ("topk_sample_logprobs", json!(2)),
        ("prompt_alt_tokens_k", json!(2)),
        ("target_prompt_logprobs", json!({"data": [1], "dtype": "int64", "shape": [1]})),
    ] {
        let error = execute(engine("a"), sample(json!({}), json!({field: value}))).await.unwrap_err();
        assert_eq!(error.category, Category::User);
        assert!(
            error.message.starts_with(&format!("`{field}`: ")) && error.message.contains("not served yet"),
            "{error}"
        );
    }
    let body = json!({"session_id": "s", "model_seq_id": 0, "base_model": "m"}).to_string();
    let create = Operation::read(Kind::CreateModel, body.as_bytes()).unwrap();
    let error = execute(engine("a"), create).await.unwrap_err();
    assert_eq!(error.category, Category::User);
    assert_eq!(error.message, "`create_model`: training is not served yet; this server only samples");
}

#[tokio::test]
async fn an_engines_failure_is_the_servers() {
    let failing = engine(Reply { fail: Some("the machine is gone".to_owned()), ..Reply::default() });
    let error = execute(failing, sample(json!({}), json!({}))).await.unwrap_err();
    assert_eq!((error.category, error.message.contains("the machine is gone")), (Category::Server, true));
    // A cancelled sample ends.
    let stalled = Arc::new(engine(Reply { stall: true, ..Reply::default() }));
    let backend = EngineBackend::new(stalled, "m", LIMIT).unwrap();
    let cancel = CancellationToken::new();
    cancel.cancel();
    assert!(backend.execute(sample(json!({}), json!({})), cancel).await.is_err());
}

#[test]
fn an_engine_that_knows_text_only_is_refused() {
    let text = ScriptedEngine::replies(["a"]).context_tokens(64).text_only().build();
    assert!(matches!(EngineBackend::new(Arc::new(text), "m", LIMIT), Err(UnfitEngine::Text(_))));
    let endless = ScriptedEngine::replies(["a"]).build();
    assert!(matches!(EngineBackend::new(Arc::new(endless), "m", LIMIT), Err(UnfitEngine::Context(_))));
}
