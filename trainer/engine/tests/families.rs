//! Tiny models of each family beside `transformers`: `fixtures/families.json` was made by `fixtures/make_families.py`.

mod tiny;

use espalier_inference::InferenceEngine;
use serde::Deserialize;
use serde_json::Value;

#[derive(Deserialize)]
struct Case {
    name: String,
    config: Value,
    tensors: Vec<(String, Vec<usize>)>,
    prompt: Vec<u32>,
    tokens: Vec<u32>,
    logprobs: Vec<f32>,
}

async fn check(name: &str) {
    let cases: Vec<Case> = serde_json::from_str(include_str!("fixtures/families.json")).unwrap();
    let case = cases.into_iter().find(|c| c.name == name).unwrap();
    let folder = tempfile::tempdir().unwrap();
    tiny::write_config(folder.path(), &case.config);
    let tensors: Vec<_> = case.tensors.into_iter().map(|(name, shape)| tiny::tensor(&name, &shape, 1)).collect();
    tiny::write_weights(&folder.path().join("model.safetensors"), &tensors);
    let engine = tiny::load(folder.path(), tiny::options()).unwrap();
    let answer = engine.generate(tiny::request(case.prompt, tiny::greedy(24))).await.unwrap().remove(0);
    assert_eq!(answer.tokens, case.tokens);
    let worst = answer.logprobs.iter().zip(&case.logprobs).map(|(a, b)| (a - b).abs()).fold(0f32, f32::max);
    assert!(worst < 1e-4, "log-probabilities differ by up to {worst}");
}

#[tokio::test]
async fn llama_with_scaled_rotation_and_its_own_output_layer() {
    check("llama").await;
}

#[tokio::test]
async fn llama_with_every_wavelength_stretched() {
    check("llama_linear").await;
}

#[tokio::test]
async fn llama_with_some_wavelengths_stretched_and_sharper_attention() {
    check("llama_yarn").await;
}

#[tokio::test]
async fn qwen2_with_biases() {
    check("qwen2").await;
}

#[tokio::test]
async fn qwen3_with_head_norms() {
    check("qwen3").await;
}
