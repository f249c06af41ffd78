//! Adapters and models as files: PEFT's and Hugging Face's layouts, in and out.

mod common;

use std::collections::BTreeMap;

use common::{Rows, distance, expected, fixture};
use espalier_distributed::Group;
use espalier_trainer::files::SafetensorsReader;
use espalier_trainer::head::HeadOptions;
use espalier_trainer::lora::{LoraConfig, TargetModules};
use espalier_trainer::packing::MicroBatch;
use espalier_trainer::{Kind, ModelOptions, TrainModel, TrainPrecision, export, peft};
use tch::Tensor;

fn options(lora: LoraConfig) -> ModelOptions {
    ModelOptions { precision: TrainPrecision::F32, lora, ..ModelOptions::default() }
}

fn adapted(case: &str) -> TrainModel {
    let folder = fixture(&format!("lora/{case}"));
    let lora = peft::read_config(&folder).unwrap();
    let base = fixture(if case.starts_with("llama") { "models/llama" } else { "models/qwen3" });
    let mut model = TrainModel::load(&base, options(lora), Group::single()).unwrap();
    peft::load(&folder, &mut model).unwrap();
    model
}

fn batch() -> MicroBatch {
    Rows::read(&expected("models/llama").0).packed().0
}

fn logprobs(model: &TrainModel) -> Tensor {
    model.predict(&batch(), HeadOptions::default()).unwrap().logprobs
}

#[test]
fn an_adapter_that_is_written_is_pefts_own_file_tensor_by_tensor() {
    for case in ["llama_all_linear", "llama_qv", "qwen3_qv_rslora"] {
        let out = tempfile::tempdir().unwrap();
        let folder = out.path().join("adapter");
        peft::save(&adapted(case), &folder, "base").unwrap();
        let theirs = SafetensorsReader::open(&fixture(&format!("lora/{case}/adapter_model.safetensors"))).unwrap();
        let ours = SafetensorsReader::open(&folder.join("adapter_model.safetensors")).unwrap();
        assert_eq!(ours.names(), theirs.names(), "{case}");
        let mut shapes: BTreeMap<String, Vec<i64>> = BTreeMap::new();
        for part in adapted(case).trained_parts() {
            shapes.insert(format!("base_model.model.{}", part.name), part.shape.clone());
        }
        for (name, shape) in &shapes {
            assert!(ours.get(name, shape).unwrap().equal(&theirs.get(name, shape).unwrap()), "{case}, {name}");
        }
        let (ours, theirs) =
            (peft::read_config(&folder).unwrap(), peft::read_config(&fixture(&format!("lora/{case}"))).unwrap());
        assert_eq!((ours.rank, ours.alpha, ours.use_rslora), (theirs.rank, theirs.alpha, theirs.use_rslora));
    }
}

#[test]
fn merging_an_adapter_into_a_whole_model_changes_nothing_it_says() {
    for case in ["llama_all_linear", "llama_lm_head"] {
        let out = tempfile::tempdir().unwrap();
        let folder = out.path().join("model");
        let model = adapted(case);
        export::save_hf(&model, &folder, &fixture("models/llama"), Kind::Float).unwrap();
        let merged = TrainModel::load(&folder, options(LoraConfig::default()), Group::single()).unwrap();
        let far = distance(&logprobs(&merged), &logprobs(&model));
        assert!(far < 1e-5, "{case}: {far}");
    }
}

#[test]
fn a_model_written_in_several_files_comes_back() {
    let out = tempfile::tempdir().unwrap();
    let model = TrainModel::load(&fixture("models/qwen3"), options(LoraConfig::default()), Group::single()).unwrap();
    std::fs::copy(fixture("models/qwen3/config.json"), out.path().join("config.json")).unwrap();
    export::save_weights(&model, Some(out.path()), Kind::Float, 40_000).unwrap();
    assert!(out.path().join("model.safetensors.index.json").exists());
    let again = TrainModel::load(out.path(), options(LoraConfig::default()), Group::single()).unwrap();
    assert!(logprobs(&again).equal(&logprobs(&model)));
}

#[test]
fn an_untrained_adapter_changes_nothing_and_depends_on_the_seed_alone() {
    let base = TrainModel::load(&fixture("models/llama"), options(LoraConfig::default()), Group::single()).unwrap();
    let lora = LoraConfig { rank: 4, ..LoraConfig::default() };
    let load = |seed| {
        let options = ModelOptions { seed, ..options(lora.clone()) };
        TrainModel::load(&fixture("models/llama"), options, Group::single()).unwrap()
    };
    assert!(distance(&logprobs(&load(1)), &logprobs(&base)) < 1e-6);
    let first = |model: &TrainModel| {
        let mut found = None;
        model
            .visit(espalier_trainer::model::Visit::Trained, &mut |name, value| {
                if name.ends_with("layers.1.mlp.down_proj.lora_A.weight") {
                    found = Some(value.copy());
                }
                Ok(())
            })
            .unwrap();
        found.unwrap()
    };
    assert!(first(&load(1)).equal(&first(&load(1))));
    assert!(!first(&load(1)).equal(&first(&load(2))));
    let bound = 1.0 / (48.0_f64).sqrt();
    assert!(first(&load(1)).abs().max().double_value(&[]) <= bound);
}

#[test]
fn targets_are_chosen_by_name_path_pattern_and_exclusion() {
    let load = |targets: TargetModules, exclude: &[&str]| {
        let lora = LoraConfig {
            rank: 2,
            target_modules: targets,
            exclude_modules: exclude.iter().map(|s| (*s).to_owned()).collect(),
            ..LoraConfig::default()
        };
        let model = TrainModel::load(&fixture("models/llama"), options(lora), Group::single());
        model.map(|m| {
            let names = m.trained_parts().filter_map(|p| p.name.strip_suffix(".lora_A.weight").map(str::to_owned));
            names.collect::<Vec<_>>()
        })
    };
    let list = |names: &[&str]| TargetModules::List(names.iter().map(|s| (*s).to_owned()).collect());
    let pattern = |text: &str| TargetModules::Pattern(text.to_owned());
    assert_eq!(load(pattern("all-linear"), &[]).unwrap().len(), 14);
    assert_eq!(load(pattern("all-linear"), &["down_proj", "layers.0.mlp.up_proj"]).unwrap().len(), 11);
    assert_eq!(load(list(&["q_proj", "lm_head"]), &[]).unwrap().len(), 3);
    assert_eq!(load(list(&["layers.1.self_attn.v_proj"]), &[]).unwrap(), ["model.layers.1.self_attn.v_proj"]);
    assert_eq!(load(pattern(r"model\.layers\.0\.mlp\..*"), &[]).unwrap().len(), 3);
    for (targets, expected) in [
        (list(&["q_prj"]), "`q_prj`, which no module is called"),
        (pattern("nothing_like_it"), "a choice that leaves no module"),
        (pattern("("), "`(`"),
    ] {
        let error = load(targets, &[]).err().unwrap().to_string();
        assert!(error.contains("model.lora.target_modules") && error.contains(expected), "{error}");
    }
}

#[test]
fn what_peft_can_and_this_trainer_cannot_is_refused_by_key() {
    let folder = tempfile::tempdir().unwrap();
    let text = std::fs::read_to_string(fixture("lora/llama_qv/adapter_config.json")).unwrap();
    let original: serde_json::Value = serde_json::from_str(&text).unwrap();
    for (key, value) in [
        ("use_dora", serde_json::json!(true)),
        ("bias", serde_json::json!("all")),
        ("rank_pattern", serde_json::json!({"q_proj": 8})),
        ("modules_to_save", serde_json::json!(["lm_head"])),
        ("peft_type", serde_json::json!("IA3")),
    ] {
        let mut config = original.clone();
        config[key] = value;
        std::fs::write(folder.path().join("adapter_config.json"), config.to_string()).unwrap();
        let error = peft::read_config(folder.path()).unwrap_err().to_string();
        assert!(error.contains("adapter_config.json") && error.contains(&format!("`{key}`")), "{error}");
    }
}

#[test]
fn an_adapter_of_another_shape_is_refused_with_tensor_and_shapes() {
    let folder = fixture("lora/llama_qv");
    let lora = LoraConfig { rank: 8, ..peft::read_config(&folder).unwrap() };
    let mut model = TrainModel::load(&fixture("models/llama"), options(lora), Group::single()).unwrap();
    let error = peft::load(&folder, &mut model).unwrap_err().to_string();
    assert!(error.contains("adapter_model.safetensors") && error.contains("q_proj.lora_A.weight"), "{error}");
    assert!(error.contains("[8, 32]") && error.contains("[4, 32]"), "{error}");
    let all = peft::read_config(&fixture("lora/llama_all_linear")).unwrap();
    let mut model = TrainModel::load(&fixture("models/llama"), options(all), Group::single()).unwrap();
    let error = peft::load(&folder, &mut model).unwrap_err().to_string();
    assert!(error.contains("no such tensor"), "{error}");
}

#[test]
fn nothing_is_written_over() {
    let out = tempfile::tempdir().unwrap();
    let folder = out.path().join("adapter");
    peft::save(&adapted("llama_qv"), &folder, "base").unwrap();
    let error = peft::save(&adapted("llama_qv"), &folder, "base").unwrap_err().to_string();
    assert!(error.contains("exists already"), "{error}");
}

#[test]
fn models_that_are_built_side_by_side_begin_as_they_would_alone() {
    let build = |seed: u64| {
        let lora = LoraConfig { rank: 4, ..LoraConfig::default() };
        let options = ModelOptions { seed, ..options(lora) };
        let model = TrainModel::load(&fixture("models/llama"), options, Group::single()).unwrap();
        let mut all = Vec::new();
        model
            .visit(espalier_trainer::model::Visit::Trained, &mut |_, value| {
                all.extend(Vec::<f32>::try_from(value.flatten(0, -1)).unwrap());
                Ok(())
            })
            .unwrap();
        all
    };
    let alone: Vec<Vec<f32>> = (0..4).map(build).collect();
    let threads: Vec<_> = (0..4).map(|seed| std::thread::spawn(move || build(seed))).collect();
    for (thread, alone) in threads.into_iter().zip(alone) {
        assert_eq!(thread.join().unwrap(), alone);
    }
}
