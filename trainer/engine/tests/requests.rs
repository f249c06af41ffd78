//! What a request may ask, how it ends, and what is refused.

mod tiny;

use std::time::Duration;

use espalier_engine::{EngineOptions, LocalEngine, ModelError};
use espalier_inference::{EngineError, GenerateRequest, InferenceEngine, Message, Prompt, SamplingParams, StopReason};
use tiny::{engine, greedy, options, prompt, request, sampling};
use tokio::time::Instant;

async fn refused(engine: &LocalEngine, request: GenerateRequest) -> String {
    match engine.generate(request).await {
        Err(EngineError::Invalid { reason, .. }) => reason,
        other => panic!("expected a refusal, got {other:?}"),
    }
}

#[tokio::test]
async fn every_bad_parameter_is_refused_by_name() {
    let engine = engine(options());
    let base = || sampling(0, 5);
    let cases: Vec<(&str, SamplingParams)> = vec![
        ("temperature", SamplingParams { temperature: -1.0, ..base() }),
        ("temperature", SamplingParams { temperature: f32::NAN, ..base() }),
        ("temperature", SamplingParams { temperature: 1e-9, ..base() }),
        ("top_p", SamplingParams { top_p: 0.0, ..base() }),
        ("top_p", SamplingParams { top_p: 1.5, ..base() }),
        ("top_p", SamplingParams { top_p: f32::NAN, ..base() }),
        ("min_p", SamplingParams { min_p: -0.1, ..base() }),
        ("min_p", SamplingParams { min_p: 1.1, ..base() }),
        ("max_tokens", SamplingParams { max_tokens: 0, ..base() }),
        ("stop", SamplingParams { stop: vec![String::new()], ..base() }),
        ("stop", SamplingParams { stop: vec!["x".to_owned(); 65], ..base() }),
        ("stop_token_ids", SamplingParams { stop_token_ids: vec![259], ..base() }),
    ];
    for (name, params) in cases {
        let reason = refused(&engine, request(prompt(1, 5), params)).await;
        assert!(reason.starts_with(&format!("`{name}`: expected ")), "{name}: {reason}");
    }
    for n in [0, 1025] {
        let mut bad = request(prompt(1, 5), base());
        bad.n = n;
        assert!(refused(&engine, bad).await.starts_with("`n`: expected "));
    }
    assert!(refused(&engine, request(Vec::new(), base())).await.starts_with("`prompt`: expected at least one token"));
    let reason = refused(&engine, request(vec![1, 2, 259], base())).await;
    assert_eq!(reason, "`prompt`: expected token ids below 259, got 259 at position 2");
}

#[tokio::test]
async fn a_prompt_that_fills_the_context_is_refused_and_one_that_almost_does_ends_there() {
    let engine = engine(options());
    let error = engine.generate(request(prompt(1, 512), greedy(5))).await.unwrap_err();
    assert_eq!(
        error,
        EngineError::ContextOverflow { model: error_model(&engine), prompt_tokens: 512, context_tokens: 512 }
    );
    let answer = engine.generate(request(prompt(1, 508), greedy(50))).await.unwrap().remove(0);
    assert_eq!((answer.stop, answer.tokens.len()), (StopReason::ContextOverflow, 4));
}

fn error_model(engine: &LocalEngine) -> String {
    engine.info().model.clone()
}

#[tokio::test]
async fn a_stop_text_is_found_across_tokens_and_kept() {
    let engine = engine(options());
    let free = engine.generate(request(prompt(7, 20), sampling(3, 60))).await.unwrap().remove(0);
    // Every token is one byte here, so any stop text of two characters lies across a boundary.
    let text = free.text.clone();
    let from = text.char_indices().nth(20).unwrap().0;
    let to = text.char_indices().nth(23).unwrap().0;
    let stop = text[from..to].to_owned();
    let first = text.find(&stop).unwrap() + stop.len();
    let params = SamplingParams { stop: vec!["not there at all".to_owned(), stop.clone()], ..sampling(3, 60) };
    let stopped = engine.generate(request(prompt(7, 20), params)).await.unwrap().remove(0);
    assert_eq!(stopped.stop, StopReason::StopString);
    assert_eq!(stopped.text, text[..first]);
    assert_eq!(stopped.tokens, free.tokens[..stopped.tokens.len()]);
    assert_eq!(stopped.logprobs.len(), stopped.tokens.len());
}

#[tokio::test]
async fn stop_tokens_and_the_end_of_turn_end_a_turn() {
    let engine = engine(options());
    let free = engine.generate(request(prompt(8, 20), sampling(4, 40))).await.unwrap().remove(0);
    let token = free.tokens[10];
    let first = free.tokens.iter().position(|t| *t == token).unwrap();
    let params = SamplingParams { stop_token_ids: vec![token], ..sampling(4, 40) };
    let stopped = engine.generate(request(prompt(8, 20), params)).await.unwrap().remove(0);
    assert_eq!((stopped.stop, &stopped.tokens[..]), (StopReason::EndOfTurn, &free.tokens[..=first]));
    // With the end of turn as the only likely token at high min-p this would be slow to hit by chance: look for a seed.
    let mut ended = None;
    for seed in 0..200 {
        let params = SamplingParams { ignore_eos: false, temperature: 3.0, ..sampling(seed, 60) };
        let answer = engine.generate(request(prompt(8, 20), params)).await.unwrap().remove(0);
        if answer.stop == StopReason::EndOfTurn {
            ended = Some((seed, answer));
            break;
        }
    }
    let (seed, answer) = ended.expect("no seed of 200 ended a turn");
    assert_eq!(answer.tokens.last(), Some(&258));
    let params = SamplingParams { ignore_eos: true, temperature: 3.0, ..sampling(seed, 60) };
    let longer = engine.generate(request(prompt(8, 20), params)).await.unwrap().remove(0);
    assert_eq!((longer.stop, longer.tokens.len()), (StopReason::MaxTokens, 60));
    assert_eq!(longer.tokens[..answer.tokens.len()], answer.tokens);
}

#[tokio::test]
async fn log_probabilities_come_only_when_asked_for() {
    let engine = engine(options());
    let params = SamplingParams { logprobs: false, ..sampling(1, 8) };
    let answer = engine.generate(request(prompt(1, 8), params)).await.unwrap().remove(0);
    assert_eq!((answer.tokens.len(), answer.logprobs.len()), (8, 0));
}

#[tokio::test]
async fn a_cancelled_request_returns_what_it_has_and_frees_its_place() {
    let engine = engine(options());
    let mut long = request(prompt(1, 10), sampling(1, 400));
    long.n = 3;
    let cancel = long.cancel.clone();
    let mut events = engine.generate_stream(long).await.unwrap();
    let first = events.recv().await.unwrap();
    assert!(matches!(first, espalier_engine::StreamEvent::Token { .. }));
    cancel.cancel();
    let done = loop {
        if let espalier_engine::StreamEvent::Done(result) = events.recv().await.unwrap() {
            break result.unwrap();
        }
    };
    assert_eq!(done.len(), 3);
    assert!(done.iter().any(|g| g.stop == StopReason::Cancelled && !g.tokens.is_empty()));
    assert_eq!(engine.stats().running, 0);
}

#[tokio::test]
async fn a_request_cancelled_before_it_began_is_an_error() {
    let engine = engine(options());
    let early = request(prompt(1, 10), sampling(1, 400));
    early.cancel.cancel();
    assert_eq!(engine.generate(early).await, Err(EngineError::Cancelled));
}

#[tokio::test]
async fn a_passed_deadline_is_an_error_or_returns_what_there_is() {
    let engine = engine(options());
    let mut late = request(prompt(1, 10), sampling(1, 400));
    late.deadline = Instant::now().checked_sub(Duration::from_millis(1)).unwrap();
    assert_eq!(engine.generate(late).await, Err(EngineError::Deadline { model: error_model(&engine) }));
}

#[tokio::test]
async fn a_dropped_future_frees_its_place() {
    let engine = engine(EngineOptions { max_batch: 1, max_requests: 2, ..options() });
    for _ in 0..8 {
        let future = engine.generate(request(prompt(1, 10), sampling(1, 490)));
        assert!(tokio::time::timeout(Duration::from_millis(1), future).await.is_err());
        // With one place and two open requests at most, this fails unless the dropped ones go.
        while engine.generate(request(prompt(2, 10), greedy(1))).await.is_err() {
            tokio::task::yield_now().await;
        }
    }
}

#[tokio::test]
async fn too_many_open_requests_are_refused() {
    let engine = engine(EngineOptions { max_requests: 1, ..options() });
    let _running = engine.generate_stream(request(prompt(1, 10), sampling(1, 480))).await.unwrap();
    let second = engine.generate(request(prompt(1, 10), sampling(1, 4))).await;
    assert!(matches!(second, Err(EngineError::Failed { reason, .. }) if reason.contains("requests are open")));
}

#[tokio::test]
async fn messages_go_through_the_template_and_text_does_not() {
    let engine = engine(options());
    let chat = engine.encode(&Prompt::Messages(vec![Message::user("hi")])).await.unwrap();
    let rendered = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n";
    assert_eq!(chat, engine.tokenizer().encode(rendered).unwrap());
    let text = GenerateRequest::new(Prompt::Text("hi".to_owned()), greedy(2));
    assert_eq!(engine.generate(text).await.unwrap()[0].usage.prompt_tokens, 2);
}

#[test]
fn every_bad_option_is_refused_by_name() {
    let folder = tiny::folder();
    let cases = [
        ("threads", EngineOptions { threads: Some(0), ..options() }),
        ("max_batch", EngineOptions { max_batch: 0, ..options() }),
        ("prefill_chunk", EngineOptions { prefill_chunk: 0, ..options() }),
        ("max_requests", EngineOptions { max_requests: 0, ..options() }),
        ("kv_cache_mb", EngineOptions { kv_cache_mb: Some(0), ..options() }),
    ];
    for (name, bad) in cases {
        match tiny::load(folder.path(), bad) {
            Err(ModelError::Option { option, .. }) => assert_eq!(option, name),
            other => panic!("{name}: expected a refusal, got {:?}", other.err()),
        }
    }
}
