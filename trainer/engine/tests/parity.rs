//! The real model beside `transformers`: `fixtures/parity.json` was made by `fixtures/make_parity.py`.
//!
//! Needs the folder that `scripts/setup-model.sh` makes, and says so when it is not there.

use std::path::PathBuf;

use espalier_engine::{EngineOptions, LocalEngine, Precision};
use espalier_inference::{GenerateRequest, InferenceEngine, Prompt, SamplingParams};
use futures::future::try_join_all;
use serde::Deserialize;

#[derive(Deserialize)]
struct Case {
    prompt: Vec<u32>,
    tokens: Vec<u32>,
    logprobs: Vec<f32>,
}

fn model() -> Option<PathBuf> {
    let own = std::env::var_os("ESPALIER_MODELS").map(PathBuf::from);
    let cache = std::env::var_os("ESPALIER_CACHE")
        .map(PathBuf::from)
        .or_else(|| std::env::var_os("XDG_CACHE_HOME").map(|c| PathBuf::from(c).join("espalier")))
        .or_else(|| std::env::var_os("HOME").map(|h| PathBuf::from(h).join(".cache/espalier")));
    let folders = own.into_iter().chain(cache.map(|c| c.join("models")));
    let found = folders.map(|f| f.join("smollm2-135m-instruct")).find(|f| f.join("model.safetensors").exists());
    if found.is_none() {
        skip("no `smollm2-135m-instruct` in ESPALIER_MODELS or the cache; run `scripts/setup-model.sh`");
    }
    found
}

#[expect(clippy::print_stderr, reason = "a skipped test says so")]
fn skip(why: &str) {
    eprintln!("skipped: {why}");
}

fn cases() -> Vec<Case> {
    serde_json::from_str(include_str!("fixtures/parity.json")).unwrap()
}

fn options(precision: Precision) -> EngineOptions {
    EngineOptions { precision, kv_cache_mb: Some(1024), ..EngineOptions::default() }
}

#[tokio::test]
async fn greedy_tokens_equal_those_of_transformers_in_32_bits() {
    let Some(folder) = model() else { return };
    let engine = LocalEngine::load(&folder, options(Precision::F32)).unwrap();
    let cases = cases();
    assert_eq!(cases.len(), 20);
    let sampling = SamplingParams { temperature: 0.0, max_tokens: 64, ignore_eos: true, ..SamplingParams::default() };
    let answers = try_join_all(
        cases.iter().map(|c| engine.generate(GenerateRequest::new(Prompt::Tokens(c.prompt.clone()), sampling.clone()))),
    )
    .await
    .unwrap();
    let mut worst = 0f32;
    for (number, (case, answer)) in cases.iter().zip(&answers).enumerate() {
        assert_eq!(answer[0].tokens, case.tokens, "case {number}");
        for (ours, theirs) in answer[0].logprobs.iter().zip(&case.logprobs) {
            worst = worst.max((ours - theirs).abs());
        }
    }
    assert!(worst < 1e-4, "log-probabilities differ by up to {worst}");
}

#[tokio::test]
async fn sixteen_bit_weights_keep_log_probabilities_within_two_hundredths() {
    let Some(folder) = model() else { return };
    let engine = LocalEngine::load(&folder, options(Precision::Bf16)).unwrap();
    // Each answer is followed as long as it is the same: after a different token there is nothing to compare.
    let (mut worst, mut compared) = (0f32, 0);
    let cases = cases();
    let sampling = SamplingParams { temperature: 0.0, max_tokens: 64, ignore_eos: true, ..SamplingParams::default() };
    let answers = try_join_all(
        cases.iter().map(|c| engine.generate(GenerateRequest::new(Prompt::Tokens(c.prompt.clone()), sampling.clone()))),
    )
    .await
    .unwrap();
    for (case, answer) in cases.iter().zip(answers.iter().flatten()) {
        for i in 0..64 {
            if answer.tokens[i] != case.tokens[i] {
                break;
            }
            worst = worst.max((answer.logprobs[i] - case.logprobs[i]).abs());
            compared += 1;
        }
    }
    assert!(worst < 2e-2 && compared > 1000, "log-probabilities of {compared} tokens differ by up to {worst}");
}
