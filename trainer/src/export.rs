//! Whole models in the Hugging Face layout.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use tch::{Kind, Tensor};

use crate::decoder::copied;
use crate::error::TrainError;
use crate::files::{PendingFolder, SafetensorsWriter, read_json, write_json};
use crate::layout::Part;
use crate::model::{TrainModel, Visit};

/// Largest weight file; more are several files with an index.
const MAX_FILE_BYTES: u64 = 4 << 30;

/// Writes the model as a folder that `transformers` loads, adapters merged into the weights (`W + scaling B A`). The
/// configuration and the tokenizer are taken from `base`, the folder that the model was loaded from. All processes must
/// call this together; the first one writes.
pub fn save_hf(model: &TrainModel, folder: &Path, base: &Path, kind: Kind) -> Result<(), TrainError> {
    let pending = if model.group().rank() == 0 { Some(PendingFolder::begin(folder)?) } else { None };
    if let Some(pending) = &pending {
        copy_side_files(base, pending.path(), kind)?;
    }
    save_weights(model, pending.as_ref().map(PendingFolder::path), kind, MAX_FILE_BYTES)?;
    pending.map_or(Ok(()), PendingFolder::finish)
}

fn copy_side_files(base: &Path, to: &Path, kind: Kind) -> Result<(), TrainError> {
    let entries = fs::read_dir(base).map_err(TrainError::io("read", base))?;
    let mut names: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
    names.sort();
    for path in names {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let wanted = name == "vocab.json"
            || name == "merges.txt"
            || name == "generation_config.json"
            || name == "chat_template.jinja"
            || name == "special_tokens_map.json"
            || name.starts_with("tokenizer")
            || name.starts_with("added_tokens");
        if wanted && path.is_file() {
            fs::copy(&path, to.join(&name)).map_err(TrainError::io("copy", &path))?;
        }
    }
    let mut config: Value = read_json(&base.join("config.json"))?;
    let name = match kind {
        Kind::BFloat16 => "bfloat16",
        Kind::Half => "float16",
        Kind::Double => "float64",
        _ => "float32",
    };
    for key in ["torch_dtype", "dtype"] {
        if config.get(key).is_some() || key == "torch_dtype" {
            config[key] = json!(name);
        }
    }
    write_json(&to.join("config.json"), &config)
}

/// The weight files alone. `max_bytes` bounds each.
pub fn save_weights(model: &TrainModel, folder: Option<&Path>, kind: Kind, max_bytes: u64) -> Result<(), TrainError> {
    let parts: Vec<Part> = model.base_parts().cloned().collect();
    let size = |part: &Part| part.numel() as u64 * kind.elt_size_in_bytes() as u64;
    let mut files: Vec<Vec<&Part>> = vec![Vec::new()];
    let mut bytes = 0;
    for part in &parts {
        if bytes + size(part) > max_bytes && bytes > 0 {
            files.push(Vec::new());
            bytes = 0;
        }
        bytes += size(part);
        if let Some(last) = files.last_mut() {
            last.push(part);
        }
    }
    let name = |i: usize| match files.len() {
        1 => "model.safetensors".to_owned(),
        n => format!("model-{:05}-of-{n:05}.safetensors", i + 1),
    };
    let mut writers = Vec::new();
    let mut place = BTreeMap::new();
    for (i, own) in files.iter().enumerate() {
        place.extend(own.iter().map(|part| (part.name.clone(), i)));
        if let Some(folder) = folder {
            let tensors: Vec<_> = own.iter().map(|p| (p.name.clone(), p.shape.clone())).collect();
            writers.push(SafetensorsWriter::create(&folder.join(name(i)), &tensors, kind, None)?);
        }
    }
    merged(model, &mut |tensor, value| match place.get(tensor).and_then(|i| writers.get_mut(*i)) {
        Some(writer) => writer.put(tensor, &value),
        None => Ok(()),
    })?;
    writers.into_iter().try_for_each(SafetensorsWriter::finish)?;
    if let Some(folder) = folder.filter(|_| files.len() > 1) {
        let map: BTreeMap<&String, String> = place.iter().map(|(tensor, i)| (tensor, name(*i))).collect();
        let total: u64 = parts.iter().map(size).sum();
        let index = json!({"metadata": {"total_size": total}, "weight_map": map});
        write_json(&folder.join("model.safetensors.index.json"), &index)?;
    }
    Ok(())
}

/// The base's tensors by name with adapters added, in the type of sums.
pub fn merged(
    model: &TrainModel,
    each: &mut dyn FnMut(&str, Tensor) -> Result<(), TrainError>,
) -> Result<(), TrainError> {
    let mut adapters: BTreeMap<String, Tensor> = BTreeMap::new();
    if model.targets().is_some() {
        model.visit(Visit::Trained, &mut |name, value| {
            adapters.insert(name.to_owned(), copied(&value)?);
            Ok(())
        })?;
    }
    let scaling = model.options().lora.scaling();
    model.visit(Visit::All, &mut |name, value| {
        if name.ends_with("lora_A.weight") || name.ends_with("lora_B.weight") {
            return Ok(());
        }
        let module = name.strip_suffix(".weight").unwrap_or(name);
        let side = |side: &str| adapters.get(&format!("{module}.lora_{side}.weight"));
        match (side("A"), side("B")) {
            (Some(a), Some(b)) => {
                let delta = b.f_matmul(a)?.f_mul_scalar(scaling)?;
                each(name, value.f_to_kind(delta.kind())?.f_add(&delta)?)
            }
            _ => each(name, value),
        }
    })
}
