//! Adapters in PEFT's layout: `adapter_config.json` and `adapter_model.safetensors`.
//!
//! Names in the file are `base_model.model.` and the name of the parameter here, for instance
//! `base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight` of shape (rank, in).

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::error::TrainError;
use crate::files::{PendingFolder, SafetensorsReader, SafetensorsWriter, read_json, write_json};
use crate::lora::{LAYER_TARGETS, LoraConfig, LoraInit, TargetModules, Targets};
use crate::model::{TrainModel, Visit};

/// What PEFT's names begin with.
const PREFIX: &str = "base_model.model.";
const WEIGHTS: &str = "adapter_model.safetensors";
const CONFIG: &str = "adapter_config.json";

#[derive(Deserialize)]
struct AdapterConfig {
    peft_type: Option<String>,
    r: i64,
    lora_alpha: f64,
    #[serde(default)]
    lora_dropout: f64,
    target_modules: TargetModules,
    #[serde(default)]
    exclude_modules: Option<TargetModules>,
    #[serde(default)]
    use_rslora: bool,
    #[serde(flatten)]
    rest: BTreeMap<String, Value>,
}

/// Reads `adapter_config.json`. What this trainer does not do (DoRA, biases, ranks that differ by module, whole modules
/// in the adapter) is refused by key.
pub fn read_config(folder: &Path) -> Result<LoraConfig, TrainError> {
    let path = folder.join(CONFIG);
    let file: AdapterConfig = read_json(&path)?;
    let wrong = |key: &str, expected: &str, found: String| TrainError::File {
        path: path.clone(),
        reason: format!("key `{key}`: expected {expected}, found {found}"),
    };
    if let Some(kind) = file.peft_type.filter(|kind| kind != "LORA") {
        return Err(wrong("peft_type", "`LORA`", format!("`{kind}`")));
    }
    let empty = |value: &Value| match value {
        Value::Null | Value::Bool(false) => true,
        Value::Array(all) => all.is_empty(),
        Value::Object(all) => all.is_empty(),
        Value::String(text) => text == "none",
        _ => false,
    };
    for key in [
        "use_dora",
        "rank_pattern",
        "alpha_pattern",
        "modules_to_save",
        "layers_to_transform",
        "layer_replication",
        "bias",
        "lora_bias",
        "trainable_token_indices",
        "target_parameters",
        "fan_in_fan_out",
        "use_qalora",
        "corda_config",
        "eva_config",
        "alora_invocation_tokens",
    ] {
        if let Some(value) = file.rest.get(key).filter(|value| !empty(value)) {
            return Err(wrong(key, "nothing (this trainer does not do it)", value.to_string()));
        }
    }
    let exclude_modules = match file.exclude_modules {
        None => Vec::new(),
        Some(TargetModules::List(names)) => names,
        Some(TargetModules::Pattern(pattern)) => return Err(wrong("exclude_modules", "a list of names", pattern)),
    };
    Ok(LoraConfig {
        rank: file.r,
        alpha: file.lora_alpha,
        dropout: file.lora_dropout,
        target_modules: file.target_modules,
        exclude_modules,
        init_method: LoraInit::Kaiming,
        use_rslora: file.use_rslora,
    })
}

/// Gives a model the weights of an adapter folder. The model must have been built with the folder's own [`read_config`],
/// or one that adapts the same modules; a tensor that is missing, surplus or of another shape is refused by name.
pub fn load(folder: &Path, model: &mut TrainModel) -> Result<(), TrainError> {
    let path = folder.join(WEIGHTS);
    let file = SafetensorsReader::open(&path)?;
    let mut used = std::collections::BTreeSet::new();
    model.set_trained(&mut |name, shape| {
        let stored = format!("{PREFIX}{name}");
        let value = file.get(&stored, shape)?;
        used.insert(stored);
        Ok(value)
    })?;
    // PEFT adds a copy of the base's output layer where that is adapted.
    let surplus = |name: &String| !used.contains(name) && !name.ends_with(".base_layer.weight");
    match file.names().into_iter().find(surplus) {
        None => Ok(()),
        Some(tensor) => Err(TrainError::Tensor {
            path,
            tensor,
            expected: "tensors of the adapted modules only".to_owned(),
            found: "one that the model has no place for".to_owned(),
        }),
    }
}

/// Writes the model's adapter as a folder of its own, which must not be there yet. All processes must call this
/// together; the first one writes. `base` is named in the configuration as the model that the adapter belongs to.
pub fn save(model: &TrainModel, folder: &Path, base: &str) -> Result<(), TrainError> {
    let pending = if model.group().rank() == 0 { Some(PendingFolder::begin(folder)?) } else { None };
    save_into(model, pending.as_ref().map(PendingFolder::path), base)?;
    pending.map_or(Ok(()), PendingFolder::finish)
}

/// Writes into an existing folder; processes without one take part in gathering only.
pub(crate) fn save_into(model: &TrainModel, folder: Option<&Path>, base: &str) -> Result<(), TrainError> {
    let Some(targets) = model.targets() else {
        return Err(TrainError::Config {
            key: "model.lora.rank".to_owned(),
            expected: "a rank above 0 to write an adapter; export the whole model instead".to_owned(),
            found: "0".to_owned(),
        });
    };
    let mut out = None;
    if let Some(folder) = folder {
        write_json(&folder.join(CONFIG), &config_file(&model.options().lora, targets, base))?;
        let tensors: Vec<(String, Vec<i64>)> =
            model.trained_parts().map(|p| (format!("{PREFIX}{}", p.name), p.shape.clone())).collect();
        out = Some(SafetensorsWriter::create(&folder.join(WEIGHTS), &tensors, tch::Kind::Float, None)?);
    }
    model.visit(Visit::Trained, &mut |name, value| match &mut out {
        Some(out) => out.put(&format!("{PREFIX}{name}"), &value),
        None => Ok(()),
    })?;
    out.map_or(Ok(()), SafetensorsWriter::finish)
}

/// `adapter_config.json`. Modules are listed by name, or by whole path where not all layers have the same.
fn config_file(lora: &LoraConfig, targets: &Targets, base: &str) -> Value {
    let uniform = targets.layers.windows(2).all(|pair| pair[0] == pair[1]);
    let mut modules: Vec<String> = if uniform {
        let first = targets.layers.first().copied().unwrap_or_default();
        LAYER_TARGETS.iter().zip(first).filter(|(_, on)| *on).map(|(name, _)| (*name).to_owned()).collect()
    } else {
        let layers = targets.layers.iter().enumerate();
        layers
            .flat_map(|(layer, on)| (0..7).filter(|t| on[*t]).map(move |t| crate::lora::module_path(layer, t)))
            .collect()
    };
    if targets.lm_head {
        modules.push("lm_head".to_owned());
    }
    let mut file = Map::new();
    for (key, value) in [
        ("peft_type", json!("LORA")),
        ("task_type", json!("CAUSAL_LM")),
        ("base_model_name_or_path", json!(base)),
        ("r", json!(lora.rank)),
        ("lora_alpha", json!(lora.alpha)),
        ("lora_dropout", json!(lora.dropout)),
        ("target_modules", json!(modules)),
        ("use_rslora", json!(lora.use_rslora)),
        ("use_dora", json!(false)),
        ("bias", json!("none")),
        ("fan_in_fan_out", json!(false)),
        ("inference_mode", json!(true)),
        ("init_lora_weights", json!(true)),
        ("modules_to_save", Value::Null),
        ("rank_pattern", json!({})),
        ("alpha_pattern", json!({})),
    ] {
        file.insert(key.to_owned(), value);
    }
    Value::Object(file)
}
