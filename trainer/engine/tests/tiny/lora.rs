//! Adapters for the tiny model: as tensors, as PEFT folders, and merged into the model's own weights.

use espalier_engine::config::DecoderConfig;
use espalier_engine::models::read_config;
use espalier_engine::{AdapterConfig, AdapterWeights};
use serde_json::{Value, json};
use tch::Tensor;
use tempfile::TempDir;

use super::{Tensors, VOCAB, config, tensors, values, write_config, write_weights};

/// Modules of the tiny model: path, inputs, outputs.
pub(crate) fn modules() -> Vec<(String, usize, usize)> {
    let of_a_layer = [
        ("self_attn.q_proj", 64, 64),
        ("self_attn.k_proj", 64, 32),
        ("self_attn.v_proj", 64, 32),
        ("self_attn.o_proj", 64, 64),
        ("mlp.gate_proj", 64, 96),
        ("mlp.up_proj", 64, 96),
        ("mlp.down_proj", 96, 64),
    ];
    let layers = (0..2)
        .flat_map(|i| of_a_layer.map(|(path, inputs, outputs)| (format!("model.layers.{i}.{path}"), inputs, outputs)));
    layers.chain([("lm_head".to_owned(), 64, VOCAB as usize)]).collect()
}

/// An adapter of some modules, each with a rank.
pub(crate) fn adapter(seed: u64, ranks: impl Fn(&str) -> Option<usize>) -> Tensors {
    let mut all = Vec::new();
    for (path, inputs, outputs) in modules() {
        let Some(rank) = ranks(&path) else { continue };
        for (half, shape) in [("lora_A", [rank, inputs]), ("lora_B", [outputs, rank])] {
            let name = format!("base_model.model.{path}.{half}.weight");
            let scale = if half == "lora_A" { 0.5 } else { 0.2 };
            let raw = values(&name, seed, shape[0] * shape[1]);
            all.push((name, shape.to_vec(), raw.iter().map(|x| x * scale).collect()));
        }
    }
    all
}

/// All linear layers but the output layer, with one rank.
pub(crate) fn everywhere(seed: u64, rank: usize) -> Tensors {
    adapter(seed, |path| (path != "lm_head").then_some(rank))
}

/// The model's weights with an adapter's product added.
pub(crate) fn merged(model: Tensors, adapter: &Tensors, scaling: impl Fn(&str) -> f32) -> Tensors {
    let find = |name: String| adapter.iter().find(|t| t.0 == name);
    let add = |(name, shape, mut weight): (String, Vec<usize>, Vec<f32>)| {
        let path = name.strip_suffix(".weight").unwrap();
        let half = |half: &str| find(format!("base_model.model.{path}.{half}.weight"));
        if let (Some(a), Some(b)) = (half("lora_A"), half("lora_B")) {
            let (rank, inputs) = (a.1[0], a.1[1]);
            for (o, row) in weight.chunks_exact_mut(inputs).enumerate() {
                for (i, value) in row.iter_mut().enumerate() {
                    let product: f64 =
                        (0..rank).map(|k| f64::from(b.2[o * rank + k]) * f64::from(a.2[k * inputs + i])).sum();
                    *value += (product * f64::from(scaling(path))) as f32;
                }
            }
        }
        (name, shape, weight)
    };
    model.into_iter().map(add).collect()
}

/// The tiny model with an output layer of its own, so that an adapter can change it and nothing else.
pub(crate) fn untied() -> Tensors {
    let mut all = tensors(1);
    all.push(super::tensor("lm_head.weight", &[VOCAB as usize, 64], 1));
    all
}

pub(crate) fn model_folder(tensors: &Tensors) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let mut config = config();
    // Long enough that a request never ends before a test has done what it does.
    config["max_position_embeddings"] = json!(50_000);
    config["tie_word_embeddings"] = json!(!tensors.iter().any(|t| t.0 == "lm_head.weight"));
    write_config(folder.path(), &config);
    write_weights(&folder.path().join("model.safetensors"), tensors);
    folder
}

/// What PEFT writes into `adapter_config.json`, as far as it matters.
pub(crate) fn peft_config(rank: usize, alpha: f64, targets: Value) -> Value {
    json!({
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "r": rank, "lora_alpha": alpha, "lora_dropout": 0.05,
        "target_modules": targets, "bias": "none", "fan_in_fan_out": false, "use_dora": false, "use_rslora": false,
        "init_lora_weights": true, "modules_to_save": null, "layers_to_transform": null, "layers_pattern": null,
        "rank_pattern": {}, "alpha_pattern": {}, "megatron_config": null, "inference_mode": true,
        "base_model_name_or_path": "tiny",
    })
}

pub(crate) fn peft_folder(config: &Value, tensors: &Tensors) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("adapter_config.json"), config.to_string()).unwrap();
    write_weights(&folder.path().join("adapter_model.safetensors"), tensors);
    folder
}

/// The tiny tied model's shape.
pub(crate) fn tiny_shape() -> DecoderConfig {
    read_config(super::folder().path()).unwrap().decoder
}

pub(crate) fn in_memory(tensors: &Tensors) -> Vec<(String, Tensor)> {
    let tensor = |shape: &[usize], values: &[f32]| {
        Tensor::from_slice(values).view(shape.iter().map(|d| *d as i64).collect::<Vec<_>>().as_slice())
    };
    tensors.iter().map(|(name, shape, values)| (name.clone(), tensor(shape, values))).collect()
}

/// An adapter of all linear layers but the output layer, for the tiny tied model, with scaling 2.
pub(crate) fn weights(seed: u64, rank: usize) -> AdapterWeights {
    let config = AdapterConfig::new(rank as i64, 2.0 * rank as f64);
    AdapterWeights::from_tensors(&config, &tiny_shape(), in_memory(&everywhere(seed, rank))).unwrap()
}
