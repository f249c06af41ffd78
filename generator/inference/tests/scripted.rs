//! The scripted engine behaves as a model would.

mod fixtures;

use std::time::Duration;

use espalier_inference::engine::{EngineError, Fidelity, GenerateRequest, InferenceEngine, Prompt};
use espalier_inference::scripted::{Reply, ScriptError, ScriptedEngine};
use espalier_inference::{ChatTemplate, Message, SamplingParams, StopReason, Tokenizer};
use tokio::time::Instant;

fn request(session: &str) -> GenerateRequest {
    let prompt = Prompt::Messages(vec![Message::user("Hi")]);
    GenerateRequest { session: Some(session.to_owned()), ..GenerateRequest::new(prompt, SamplingParams::default()) }
}

async fn text(engine: &ScriptedEngine, session: &str) -> String {
    engine.generate(request(session)).await.unwrap().remove(0).text
}

#[tokio::test]
async fn every_session_plays_the_list_from_its_start() {
    let engine = ScriptedEngine::replies(["one", "two"]).build();
    assert_eq!(text(&engine, "a").await, "one");
    assert_eq!(text(&engine, "b").await, "one");
    assert_eq!(text(&engine, "a").await, "two");
    let error = engine.generate(request("a")).await.unwrap_err();
    assert!(error.to_string().contains("2 replies"), "{error}");
    engine.finish_session("a");
    assert_eq!(text(&engine, "a").await, "one");
}

#[tokio::test]
async fn a_cycle_starts_again() {
    let engine = ScriptedEngine::replies(["one", "two"]).cycle().build();
    let mut said = Vec::new();
    for _ in 0..3 {
        said.push(text(&engine, "a").await);
    }
    assert_eq!(said, ["one", "two", "one"]);
}

#[tokio::test]
async fn a_generation_holds_ids_logprobs_and_the_end_of_turn() {
    let engine = ScriptedEngine::replies(["one", "one"]).build();
    let first = engine.generate(request("a")).await.unwrap().remove(0);
    let tokenizer = Tokenizer::bytes();
    assert_eq!(first.tokens, [u32::from(b'o'), u32::from(b'n'), u32::from(b'e'), tokenizer.eos_ids()[0]]);
    assert_eq!(first.stop, StopReason::EndOfTurn);
    assert_eq!(first.fidelity, Fidelity::Tokens);
    assert_eq!(first.logprobs.len(), 4);
    assert!(first.logprobs.iter().all(|p| p.is_finite() && *p <= 0.0));
    assert_eq!(first.usage.completion_tokens, 4);
    let again = engine.generate(request("b")).await.unwrap().remove(0);
    assert_eq!(first, again);
}

#[tokio::test]
async fn replies_are_cut_as_a_model_would_be() {
    let reply = || ScriptedEngine::replies(["say FINAL(7) and more"]).cycle().build();
    let with = |change: fn(&mut SamplingParams)| async move {
        let mut request = request("a");
        change(&mut request.sampling);
        let generation = reply().generate(request).await.unwrap().remove(0);
        (generation.text, generation.stop)
    };
    assert_eq!(with(|s| s.max_tokens = 3).await, ("say".to_owned(), StopReason::MaxTokens));
    assert_eq!(with(|s| s.max_tokens = 21).await.1, StopReason::MaxTokens);
    assert_eq!(with(|s| s.max_tokens = 22).await.1, StopReason::EndOfTurn);
    assert_eq!(with(|s| s.stop = vec!["7)".into()]).await, ("say FINAL(7)".to_owned(), StopReason::StopString));
    assert_eq!(with(|s| s.stop_token_ids = vec![u32::from(b'F')]).await, ("say F".to_owned(), StopReason::EndOfTurn));
    assert_eq!(with(|s| s.ignore_eos = true).await.1, StopReason::MaxTokens);
}

#[tokio::test]
async fn the_context_is_bounded() {
    let prompt = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n";
    let tokenizer = Tokenizer::bytes();
    let length = tokenizer.encode(prompt).unwrap().len() as u32;
    let engine = ScriptedEngine::replies(["one"]).cycle().context_tokens(length + 2).build();
    let generation = engine.generate(request("a")).await.unwrap().remove(0);
    assert_eq!((generation.text.as_str(), generation.stop), ("on", StopReason::ContextOverflow));
    let engine = ScriptedEngine::replies(["one"]).context_tokens(length).build();
    let error = engine.generate(request("a")).await.unwrap_err();
    assert!(matches!(error, EngineError::ContextOverflow { prompt_tokens, .. } if prompt_tokens == length), "{error}");
}

#[tokio::test]
async fn samples_have_seeds_of_their_own_and_come_in_order() {
    let engine = ScriptedEngine::function(|request| {
        let delay_ms = u64::from(3 - request.sample) * 5;
        Ok(Reply {
            text: format!("{} {} {}", request.index, request.sample, request.seed),
            delay_ms,
            ..Reply::default()
        })
    })
    .build();
    let mut request = request("a");
    request.n = 3;
    request.sampling.seed = Some(40);
    let texts: Vec<_> = engine.generate(request).await.unwrap().into_iter().map(|one| one.text).collect();
    assert_eq!(texts, ["0 0 40", "1 1 41", "2 2 42"]);
}

#[tokio::test]
async fn exact_tokens_come_as_they_are() {
    let tokenizer = Tokenizer::from_dir(fixtures::path("tiny")).unwrap();
    let reply = Reply { tokens: Some(vec![77, 78, 2]), ..Reply::default() };
    let engine = ScriptedEngine::replies([reply]).vocabulary(tokenizer, ChatTemplate::chatml()).build();
    let generation = engine.generate(request("a")).await.unwrap().remove(0);
    assert_eq!((generation.tokens, generation.stop), (vec![77, 78, 2], StopReason::EndOfTurn));
}

#[tokio::test]
async fn a_stall_ends_by_its_deadline_or_by_cancellation() {
    let engine = ScriptedEngine::replies([Reply { stall: true, ..Reply::default() }]).cycle().build();
    let mut late = request("a");
    late.deadline = Instant::now() + Duration::from_millis(10);
    assert_eq!(engine.generate(late).await, Err(EngineError::Deadline { model: "scripted".into() }));
    let cancelled = request("a");
    let cancel = cancelled.cancel.clone();
    let (answer, ()) = tokio::join!(engine.generate(cancelled), async { cancel.cancel() });
    assert_eq!(answer, Err(EngineError::Cancelled));
}

#[tokio::test]
async fn a_delay_past_the_deadline_is_a_deadline() {
    let engine =
        ScriptedEngine::replies([Reply { delay_ms: 600_000, ..Reply::from("late") }, Reply::from("now")]).build();
    let mut late = request("a");
    late.deadline = Instant::now() + Duration::from_millis(10);
    assert!(matches!(engine.generate(late).await, Err(EngineError::Deadline { .. })));
    assert_eq!(text(&engine, "a").await, "now");
}

#[tokio::test]
async fn a_failure_is_a_failure() {
    let engine = ScriptedEngine::replies([Reply { fail: Some("boom".into()), ..Reply::default() }]).build();
    let expected = EngineError::Failed { model: "scripted".into(), reason: "boom".into() };
    assert_eq!(engine.generate(request("a")).await, Err(expected));
}

#[tokio::test]
async fn rules_answer_by_what_the_prompt_says() {
    let rule = Reply { when: Some("Hi<|im_end|>".into()), ..Reply::from("rule") };
    let engine = ScriptedEngine::replies([Reply::from("list"), rule]).build();
    assert_eq!(text(&engine, "a").await, "rule");
    let other = GenerateRequest::new(Prompt::Text("other".into()), SamplingParams::default());
    assert_eq!(engine.generate(other).await.unwrap()[0].text, "list");
}

#[tokio::test]
async fn text_only_engines_give_no_ids() {
    let engine = ScriptedEngine::replies(["one"]).text_only().build();
    let generation = engine.generate(request("a")).await.unwrap().remove(0);
    assert_eq!((generation.fidelity, generation.tokens.len(), generation.logprobs.len()), (Fidelity::Text, 0, 0));
    assert_eq!(engine.info().fidelity, Fidelity::Text);
}

#[tokio::test]
async fn a_prompt_outside_the_vocabulary_is_refused() {
    let engine = ScriptedEngine::replies(["one"]).recording().build();
    let request = GenerateRequest::new(Prompt::Tokens(vec![9999]), SamplingParams::default());
    let error = engine.generate(request).await.unwrap_err();
    assert!(matches!(&error, EngineError::Invalid { reason, .. } if reason.contains("9999")), "{error}");
    assert_eq!(engine.requests().len(), 1);
}

#[tokio::test]
async fn a_script_file_names_the_line_that_is_wrong() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("script.jsonl");
    std::fs::write(&file, "\"one\"\n\n{\"text\": \"two\", \"unfinished\": true}\n").unwrap();
    let engine = ScriptedEngine::from_file(&file).unwrap().build();
    assert_eq!(text(&engine, "a").await, "one");
    let second = engine.generate(request("a")).await.unwrap().remove(0);
    assert_eq!((second.text.as_str(), second.stop), ("two", StopReason::MaxTokens));
    std::fs::write(&file, "\"one\"\n{\"txt\": \"two\"}\n").unwrap();
    let error = ScriptedEngine::from_file(&file).err().unwrap();
    assert!(matches!(&error, ScriptError::Line { line: 2, reason, .. } if reason.contains("txt")), "{error}");
    std::fs::write(&file, "\n").unwrap();
    assert!(matches!(ScriptedEngine::from_file(&file), Err(ScriptError::Empty { .. })));
    assert!(matches!(ScriptedEngine::from_file("/no/such"), Err(ScriptError::Read { .. })));
}
