//! Model folders: what loads, and how a bad one is refused.

mod tiny;

use std::path::Path;

use espalier_engine::config::{DecoderConfig, RopeScaling};
use espalier_engine::models::read_config;
use espalier_engine::{EngineOptions, LocalEngine, ModelError, Precision};
use espalier_inference::InferenceEngine;
use serde::Deserialize;
use serde_json::{Value, json};
use tiny::{config, folder, greedy, load, options, prompt, request, tensors, write_config, write_weights};

fn error(folder: &Path) -> ModelError {
    load(folder, options()).err().expect("the folder should be refused")
}

fn with(key: &str, value: Value) -> Value {
    let mut changed = config();
    changed[key] = value;
    changed
}

#[test]
fn what_the_engine_does_not_know_is_refused_by_file_and_key() {
    let folder = folder();
    let cases = [
        ("model_type", json!("mistral")),
        ("model_type", json!(null)),
        ("sliding_window", json!(4096)),
        ("use_sliding_window", json!(true)),
        ("layer_types", json!(["full_attention", "sliding_attention"])),
        ("architectures", json!(["LlamaForSequenceClassification"])),
        ("rope_scaling", json!({"rope_type": "dynamic", "factor": 4.0})),
        ("rope_scaling", json!({"rope_type": "llama3", "factor": 8.0})),
        ("rope_scaling", json!({"rope_type": "linear"})),
        ("rope_scaling", json!({"rope_type": "linear", "factor": -2.0})),
        ("rope_scaling", json!({"rope_type": "yarn"})),
        ("rope_scaling", json!({"rope_type": "yarn", "factor": 4.0, "beta_fast": 1.0, "beta_slow": 2.0})),
        ("rope_scaling", json!({"rope_type": "yarn", "factor": 4.0, "truncate": "no"})),
        ("rope_scaling", json!({"rope_type": "yarn", "factor": 4.0, "rope_theta": 1.0})),
        ("rope_parameters", json!({"rope_type": "default", "partial_rotary_factor": 0.5})),
        ("rope_scaling", json!("linear")),
        ("hidden_act", json!("gelu")),
        ("attention_bias", json!(true)),
        ("mlp_bias", json!(true)),
        ("quantization_config", json!({"bits": 4})),
        ("partial_rotary_factor", json!(0.5)),
        ("num_key_value_heads", json!(3)),
        ("num_attention_heads", json!(6)),
        ("head_dim", json!(24)),
        ("hidden_size", json!(-1)),
        ("vocab_size", json!("many")),
        ("rms_norm_eps", json!(0)),
        ("eos_token_id", json!(259)),
        ("max_position_embeddings", json!(null)),
    ];
    for (name, value) in cases {
        write_config(folder.path(), &with(name, value.clone()));
        match error(folder.path()) {
            ModelError::Config { path, key, .. } => {
                assert_eq!((path.file_name().unwrap().to_str(), key.as_str()), (Some("config.json"), name), "{value}");
            }
            other => panic!("{name}: {other}"),
        }
    }
}

#[test]
fn a_wrong_shape_is_named_with_both_shapes() {
    let folder = folder();
    write_config(folder.path(), &with("intermediate_size", json!(128)));
    assert_eq!(
        error(folder.path()).to_string(),
        "tensor `model.layers.0.mlp.gate_proj.weight`: expected shape [128, 64], found [96, 64]"
    );
}

#[test]
fn a_missing_and_a_surplus_tensor_are_named() {
    let folder = folder();
    let weights = folder.path().join("model.safetensors");
    let mut all = tensors(1);
    all.retain(|t| t.0 != "model.layers.1.self_attn.v_proj.weight");
    write_weights(&weights, &all);
    assert!(error(folder.path()).to_string().ends_with("has no tensor `model.layers.1.self_attn.v_proj.weight`"));
    let mut all = tensors(1);
    all.push(("model.layers.1.self_attn.q_norm.weight".to_owned(), vec![16], vec![1.0; 16]));
    write_weights(&weights, &all);
    assert!(error(folder.path()).to_string().contains("unknown tensor `model.layers.1.self_attn.q_norm.weight`"));
}

#[test]
fn truncated_and_tampered_weights_are_detected() {
    let folder = folder();
    let path = folder.path().join("model.safetensors");
    let sound = std::fs::read(&path).unwrap();
    for cut in [0, 4, 7, 100, sound.len() / 2, sound.len() - 1] {
        std::fs::write(&path, &sound[..cut]).unwrap();
        assert!(matches!(error(folder.path()), ModelError::Corrupt { .. }), "cut at {cut}");
    }
    let mut longer = sound.clone();
    longer.push(0);
    std::fs::write(&path, &longer).unwrap();
    assert!(matches!(error(folder.path()), ModelError::Corrupt { .. }));
    let mut huge = sound.clone();
    huge[..8].copy_from_slice(&u64::MAX.to_le_bytes());
    std::fs::write(&path, &huge).unwrap();
    assert!(matches!(error(folder.path()), ModelError::Corrupt { .. }));
    let mut garbage = sound;
    garbage[8..40].fill(b'x');
    std::fs::write(&path, &garbage).unwrap();
    assert!(matches!(error(folder.path()), ModelError::Corrupt { .. }));
}

#[test]
fn a_weight_that_the_precision_cannot_hold_is_refused_by_name() {
    let folder = folder();
    let path = folder.path().join("model.safetensors");
    let with_weight = |value: f32| {
        let mut all = tensors(1);
        let down = all.iter_mut().find(|t| t.0 == "model.layers.1.mlp.down_proj.weight").unwrap();
        down.2[77] = value;
        write_weights(&path, &all);
        [Precision::F32, Precision::Bf16]
            .map(|precision| load(folder.path(), EngineOptions { precision, ..options() }).map(drop))
    };
    assert!(with_weight(65_504.0).iter().all(Result::is_ok));
    let [float, half] = with_weight(-65_536.0);
    assert!(float.is_ok());
    let said = half.unwrap_err().to_string();
    assert!(said.contains("`model.layers.1.mlp.down_proj.weight`: expected values up to 65504, found 65536"), "{said}");
    for value in [f32::NAN, f32::INFINITY] {
        assert!(with_weight(value).iter().all(|loaded| matches!(loaded, Err(ModelError::Value { .. }))), "{value}");
    }
}

async fn answer(engine: &LocalEngine) -> Vec<u32> {
    engine.generate(request(prompt(1, 30), greedy(20))).await.unwrap().remove(0).tokens
}

#[tokio::test]
async fn shards_give_the_same_model_as_one_file() {
    let single = folder();
    let sharded = tempfile::tempdir().unwrap();
    write_config(sharded.path(), &config());
    let all = tensors(1);
    let (first, second) = all.split_at(7);
    let mut map = serde_json::Map::new();
    for (file, part) in [("a.safetensors", first), ("b.safetensors", second)] {
        write_weights(&sharded.path().join(file), part);
        map.extend(part.iter().map(|t| (t.0.clone(), json!(file))));
    }
    let index = sharded.path().join("model.safetensors.index.json");
    std::fs::write(&index, json!({"metadata": {}, "weight_map": map}).to_string()).unwrap();
    let (a, b) = (load(single.path(), options()).unwrap(), load(sharded.path(), options()).unwrap());
    assert_eq!(answer(&a).await, answer(&b).await);
    drop(b);
    std::fs::write(&index, json!({"weight_map": {"x": "../elsewhere.safetensors"}}).to_string()).unwrap();
    assert!(matches!(error(sharded.path()), ModelError::Config { key, .. } if key == "weight_map"));
}

#[tokio::test]
async fn an_untied_output_layer_is_used() {
    let untied = folder();
    write_config(untied.path(), &with("tie_word_embeddings", json!(false)));
    assert!(matches!(error(untied.path()), ModelError::MissingTensor { tensor, .. } if tensor == "lm_head.weight"));
    let mut all = tensors(1);
    // The embedding with its rows turned by one: every answer is the tied model's, plus one.
    let embedding = all[0].2.clone();
    let turned: Vec<f32> =
        embedding[embedding.len() - 64..].iter().chain(&embedding[..embedding.len() - 64]).copied().collect();
    all.push(("lm_head.weight".to_owned(), vec![tiny::VOCAB as usize, 64], turned));
    write_weights(&untied.path().join("model.safetensors"), &all);
    let tied = folder();
    let (a, b) = (load(untied.path(), options()).unwrap(), load(tied.path(), options()).unwrap());
    assert_eq!(answer(&a).await[0], (answer(&b).await[0] + 1) % tiny::VOCAB as u32);
}

#[test]
fn llama3_frequencies_are_kept_blended_and_stretched() {
    let folder = folder();
    let scaling = json!({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                         "original_max_position_embeddings": 8192});
    let mut llama = with("rope_scaling", scaling);
    llama["rope_theta"] = json!(500000.0);
    llama["head_dim"] = json!(128);
    write_config(folder.path(), &llama);
    let read = read_config(folder.path()).unwrap().decoder;
    let plain = DecoderConfig { rope_scaling: RopeScaling::Default, ..read.clone() };
    let ratios: Vec<f64> = read.rope_frequencies().iter().zip(plain.rope_frequencies()).map(|(a, b)| a / b).collect();
    // Wavelengths below 2048 stay, those above 8192 are stretched eightfold, those between are blended.
    assert_eq!((ratios[0], ratios[28]), (1.0, 1.0));
    assert!((ratios[40] - 0.125).abs() < 1e-12 && (ratios[63] - 0.125).abs() < 1e-12);
    assert!(ratios.windows(2).all(|w| w[1] <= w[0]) && ratios.iter().any(|r| (0.2..0.9).contains(r)));
}

#[test]
fn rotations_are_scaled_as_by_transformers() {
    #[derive(Deserialize)]
    struct Case {
        head_dim: i64,
        rope_theta: f64,
        max_position_embeddings: i64,
        rope_scaling: Value,
        frequencies: Vec<f64>,
        attention_factor: f64,
    }
    let cases: Vec<Case> = serde_json::from_str(include_str!("../../tests/fixtures/rope.json")).unwrap();
    let folder = folder();
    for case in cases {
        let mut llama = with("rope_scaling", case.rope_scaling.clone());
        llama["rope_theta"] = json!(case.rope_theta);
        llama["head_dim"] = json!(case.head_dim);
        llama["max_position_embeddings"] = json!(case.max_position_embeddings);
        write_config(folder.path(), &llama);
        let read = read_config(folder.path()).unwrap().decoder;
        let frequencies = read.rope_frequencies();
        assert_eq!(frequencies.len(), case.frequencies.len());
        // The reference computes in 32-bit floats.
        for (i, (found, expected)) in frequencies.iter().zip(&case.frequencies).enumerate() {
            assert!((found / expected - 1.0).abs() < 2e-6, "{}: {i}: {found} for {expected}", case.rope_scaling);
        }
        assert!((read.rope_attention_factor() - case.attention_factor).abs() < 1e-12, "{}", case.rope_scaling);
    }
}

#[test]
fn a_rotation_reads_the_same_under_its_newer_key() {
    let folder = folder();
    let mut older = with("rope_scaling", json!({"type": "yarn", "factor": 4.0, "truncate": false}));
    older["rope_theta"] = json!(5000.0);
    write_config(folder.path(), &older);
    let expected = read_config(folder.path()).unwrap();
    let newer = json!({"rope_type": "yarn", "factor": 4.0, "truncate": false, "rope_theta": 5000.0, "beta_fast": null});
    write_config(folder.path(), &with("rope_parameters", newer));
    assert_eq!(read_config(folder.path()).unwrap(), expected);
}

#[test]
fn a_window_that_is_switched_off_is_no_window() {
    let folder = folder();
    let mut qwen = with("sliding_window", json!(4096));
    qwen["model_type"] = json!("qwen2");
    qwen["architectures"] = json!(["Qwen2ForCausalLM"]);
    qwen["use_sliding_window"] = json!(false);
    qwen["layer_types"] = json!(["full_attention", "full_attention"]);
    write_config(folder.path(), &qwen);
    assert!(read_config(folder.path()).unwrap().decoder.qkv_bias);
    qwen["layer_types"] = json!(["full_attention", "sliding_attention"]);
    write_config(folder.path(), &qwen);
    let said = read_config(folder.path()).unwrap_err().to_string();
    assert!(said.contains("key `layer_types`: expected `full_attention` in every layer"), "{said}");
    assert!(said.contains("layer 1 has \"sliding_attention\""), "{said}");
}

#[test]
fn an_unknown_family_is_told_the_known_ones() {
    let folder = folder();
    write_config(folder.path(), &with("model_type", json!("mistral")));
    let said = read_config(folder.path()).unwrap_err().to_string();
    let known = "`llama` (LlamaForCausalLM), `qwen2` (Qwen2ForCausalLM), `qwen3` (Qwen3ForCausalLM)";
    assert!(said.contains(known) && said.ends_with("found \"mistral\""), "{said}");
}

#[test]
fn end_of_turn_tokens_come_from_the_generation_config_first() {
    let folder = folder();
    assert_eq!(read_config(folder.path()).unwrap().eos, [258]);
    std::fs::write(folder.path().join("generation_config.json"), r#"{"eos_token_id": [5, 6]}"#).unwrap();
    assert_eq!(read_config(folder.path()).unwrap().eos, [5, 6]);
}
