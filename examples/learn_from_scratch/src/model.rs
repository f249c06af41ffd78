//! A random Llama in the Hugging Face layout.

use std::path::Path;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use safetensors::tensor::{Dtype, TensorView};
use serde_json::json;

use crate::{Failure, vocabulary};

/// Tokens that the model sees at once: fewer than any text of the task has.
pub const WINDOW: usize = 128;

const HIDDEN: usize = 128;
const LAYERS: usize = 4;
const HEADS: usize = 4;
const INTERMEDIATE: usize = 352;

/// Names and shapes of all weights.
fn shapes() -> Vec<(String, Vec<usize>)> {
    let mut all = vec![
        ("model.embed_tokens.weight".to_owned(), vec![vocabulary::SIZE, HIDDEN]),
        ("model.norm.weight".to_owned(), vec![HIDDEN]),
        ("lm_head.weight".to_owned(), vec![vocabulary::SIZE, HIDDEN]),
    ];
    for layer in 0..LAYERS {
        let mut push = |name: &str, shape: &[usize]| {
            all.push((format!("model.layers.{layer}.{name}.weight"), shape.to_vec()));
        };
        push("input_layernorm", &[HIDDEN]);
        push("post_attention_layernorm", &[HIDDEN]);
        for name in ["q_proj", "k_proj", "v_proj", "o_proj"] {
            push(&format!("self_attn.{name}"), &[HIDDEN, HIDDEN]);
        }
        push("mlp.gate_proj", &[INTERMEDIATE, HIDDEN]);
        push("mlp.up_proj", &[INTERMEDIATE, HIDDEN]);
        push("mlp.down_proj", &[HIDDEN, INTERMEDIATE]);
    }
    all
}

/// How many weights there are.
pub fn parameters() -> usize {
    shapes().iter().map(|(_, shape)| shape.iter().product::<usize>()).sum()
}

/// Writes `config.json`, `generation_config.json` and `model.safetensors`: norms are one, the embedding is normal with
/// deviation one, and a matrix with one over the root of its inputs, so that a token is not drowned by what the first layer
/// adds to it; where either is 0.02, as for larger models, attention stays flat for a thousand steps. What adds to the
/// residual stream is smaller by the root of how many do (GPT-2), and the output layer starts near even odds.
pub fn write(folder: &Path, seed: u64) -> Result<(), Failure> {
    let config = json!({
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": vocabulary::SIZE,
        "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS,
        "head_dim": HIDDEN / HEADS,
        "max_position_embeddings": WINDOW,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": false,
        "eos_token_id": 2,
        "torch_dtype": "float32",
    });
    std::fs::write(folder.join("config.json"), format!("{config:#}\n"))?;
    std::fs::write(folder.join("generation_config.json"), "{\"eos_token_id\": 2}\n")?;
    let mut stream = ChaCha8Rng::seed_from_u64(seed);
    let tensors: Vec<(String, Vec<usize>, Vec<u8>)> = shapes()
        .into_iter()
        .map(|(name, shape)| {
            let count = shape.iter().product::<usize>();
            let adds = name.ends_with("o_proj.weight") || name.ends_with("down_proj.weight");
            let deviation = match shape[..] {
                _ if name.contains("embed") => 1.0,
                _ if name.contains("lm_head") => 0.02,
                [_, inputs] if adds => 1.0 / (inputs as f32 * 2.0 * LAYERS as f32).sqrt(),
                [_, inputs] => 1.0 / (inputs as f32).sqrt(),
                _ => 0.0,
            };
            let values = (0..count).flat_map(|_| {
                let value = if shape.len() == 1 { 1.0 } else { deviation * normal(&mut stream) };
                value.to_le_bytes()
            });
            let bytes = values.collect();
            (name, shape, bytes)
        })
        .collect();
    let views: Result<Vec<_>, safetensors::SafeTensorError> = tensors
        .iter()
        .map(|(name, shape, bytes)| Ok((name.as_str(), TensorView::new(Dtype::F32, shape.clone(), bytes)?)))
        .collect();
    safetensors::serialize_to_file(views?, None, &folder.join("model.safetensors"))?;
    Ok(())
}

/// One normal number (Box and Muller, 1958).
fn normal(stream: &mut ChaCha8Rng) -> f32 {
    let (u, v): (f32, f32) = (1.0 - stream.random::<f32>(), stream.random());
    (-2.0 * u.ln()).sqrt() * (std::f32::consts::TAU * v).cos()
}
