//! A tiny random Llama, written as a model folder: fast tests without a download.
#![allow(dead_code, reason = "each test binary uses a part")]

pub(crate) mod lora;

use std::path::Path;

use espalier_engine::{EngineOptions, LocalEngine, Precision};
use espalier_inference::{ChatTemplate, GenerateRequest, Prompt, SamplingParams, Tokenizer};
use serde_json::{Value, json};
use tempfile::TempDir;

pub(crate) const VOCAB: i64 = 259;
pub(crate) const CONTEXT: i64 = 512;

/// Numbers in (-1, 1) that depend on the name and the seed only.
pub(crate) fn values(name: &str, seed: u64, count: usize) -> Vec<f32> {
    let mut state = name.bytes().fold(seed ^ 0x9E37_79B9, |h, b| h.wrapping_mul(0x100_0000_01B3) ^ u64::from(b));
    (0..count)
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            ((state >> 40) as f32 / (1u64 << 23) as f32) - 1.0
        })
        .collect()
}

pub(crate) fn config() -> Value {
    json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "hidden_size": 64,
        "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "vocab_size": VOCAB, "max_position_embeddings": CONTEXT, "rope_theta": 10000.0, "rms_norm_eps": 1e-5,
        "tie_word_embeddings": true, "eos_token_id": 258,
    })
}

pub(crate) type Tensors = Vec<(String, Vec<usize>, Vec<f32>)>;

/// A tensor whose numbers follow from its name: about 1 where it has one dimension, about 0 where it has two.
pub(crate) fn tensor(name: &str, shape: &[usize], seed: u64) -> (String, Vec<usize>, Vec<f32>) {
    let raw = values(name, seed, shape.iter().product());
    let scale = if shape.len() == 1 { 0.2 } else { 2.0 / (shape[1] as f32).sqrt() };
    let base = if shape.len() == 1 { 1.0 } else { 0.0 };
    (name.to_owned(), shape.to_vec(), raw.iter().map(|x| base + x * scale).collect())
}

pub(crate) fn tensors(seed: u64) -> Tensors {
    let mut all = Vec::new();
    let mut add = |name: &str, shape: &[usize]| all.push(tensor(name, shape, seed));
    add("model.embed_tokens.weight", &[VOCAB as usize, 64]);
    add("model.norm.weight", &[64]);
    for i in 0..2 {
        let mut layer = |part: &str, shape: &[usize]| add(&format!("model.layers.{i}.{part}.weight"), shape);
        layer("input_layernorm", &[64]);
        layer("post_attention_layernorm", &[64]);
        layer("self_attn.q_proj", &[64, 64]);
        layer("self_attn.k_proj", &[32, 64]);
        layer("self_attn.v_proj", &[32, 64]);
        layer("self_attn.o_proj", &[64, 64]);
        layer("mlp.gate_proj", &[96, 64]);
        layer("mlp.up_proj", &[96, 64]);
        layer("mlp.down_proj", &[64, 96]);
    }
    all
}

pub(crate) fn write_weights(path: &Path, tensors: &[(String, Vec<usize>, Vec<f32>)]) {
    let bytes: Vec<Vec<u8>> = tensors.iter().map(|t| t.2.iter().flat_map(|x| x.to_le_bytes()).collect()).collect();
    let views = tensors.iter().zip(&bytes).map(|((name, shape, _), bytes)| {
        (name.clone(), safetensors::tensor::TensorView::new(safetensors::Dtype::F32, shape.clone(), bytes).unwrap())
    });
    safetensors::serialize_to_file(views, None, path).unwrap();
}

/// A folder with the tiny model.
pub(crate) fn folder() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    write_config(folder.path(), &config());
    write_weights(&folder.path().join("model.safetensors"), &tensors(1));
    folder
}

pub(crate) fn write_config(folder: &Path, config: &Value) {
    std::fs::write(folder.join("config.json"), config.to_string()).unwrap();
}

pub(crate) fn options() -> EngineOptions {
    EngineOptions { precision: Precision::F32, kv_cache_mb: Some(16), threads: Some(1), ..EngineOptions::default() }
}

pub(crate) fn load(folder: &Path, options: EngineOptions) -> Result<LocalEngine, espalier_engine::ModelError> {
    LocalEngine::with_tokenizer(folder, Tokenizer::bytes(), Some(ChatTemplate::chatml()), options)
}

pub(crate) fn engine(options: EngineOptions) -> LocalEngine {
    load(folder().path(), options).unwrap()
}

pub(crate) fn sampling(seed: u64, max_tokens: u32) -> SamplingParams {
    SamplingParams { seed: Some(seed), max_tokens, ignore_eos: true, ..SamplingParams::default() }
}

pub(crate) fn greedy(max_tokens: u32) -> SamplingParams {
    SamplingParams { temperature: 0.0, ..sampling(0, max_tokens) }
}

/// A prompt of printable bytes.
pub(crate) fn prompt(number: usize, len: usize) -> Vec<u32> {
    (0..len).map(|i| 32 + ((number * 31 + i * 7 + i * i * number) % 90) as u32).collect()
}

pub(crate) fn request(tokens: Vec<u32>, sampling: SamplingParams) -> GenerateRequest {
    GenerateRequest::new(Prompt::Tokens(tokens), sampling)
}
