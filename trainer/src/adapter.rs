//! Adapters that train beside others over one base, and the folders that they are kept in.
//!
//! ```text
//! adapter_config.json, adapter_model.safetensors   the adapter in PEFT's layout, 32-bit floats
//! state.json                                       how it was made; steps of its optimiser
//! moments.safetensors                              `exp_avg.NAME` and `exp_avg_sq.NAME`, where kept
//! gradients.safetensors                            what has been added up since the last step, where kept
//! manifest.json                                    size and SHA-256 of every other file, and which base they belong to
//! ```
//!
//! Invariant: an adapter's weights, gradients, moments and counts are its own; what adapters share is frozen.

use std::path::Path;

use serde::{Deserialize, Serialize};
use tch::Tensor;

use crate::checkpoint::{Saved, moment, save_moments};
use crate::error::TrainError;
use crate::files::{PendingFolder, SafetensorsReader, SafetensorsWriter, read_json, write_json};
use crate::lora::LoraConfig;
use crate::manifest::{self, Manifest};
use crate::model::{TrainModel, Visit};
use crate::optimizer::{AdamW, OptimizerConfig};
use crate::peft;

const STATE: &str = "state.json";
const MOMENTS: &str = "moments.safetensors";
const GRADIENTS: &str = "gradients.safetensors";

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct State {
    lora: LoraConfig,
    seed: u64,
    optimizer_steps: u64,
    skipped_steps: u64,
}

/// What of an adapter is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Keep {
    /// Its weights.
    Weights,
    /// And what its optimiser remembers.
    Moments,
    /// And the gradients that were not applied yet: the adapter goes on as if it had never been away.
    Gradients,
}

/// An adapter that trains.
pub struct Adapter {
    /// Its weights over the shared base.
    pub model: TrainModel,
    /// Its optimiser.
    pub optimizer: AdamW,
}

impl Adapter {
    /// A new one.
    pub fn new(base: &TrainModel, lora: LoraConfig, seed: u64) -> Result<Self, TrainError> {
        let model = base.with_adapter(lora, seed)?;
        let optimizer = AdamW::new(OptimizerConfig::default(), &model)?;
        Ok(Self { model, optimizer })
    }

    /// How it was made.
    pub fn lora(&self) -> &LoraConfig {
        &self.model.options().lora
    }

    /// The largest of its weights in magnitude; not a number where one is none.
    pub fn largest(&self) -> Result<f64, TrainError> {
        let mut largest = 0.0_f64;
        self.model.visit(Visit::Trained, &mut |_, value| {
            let own = value.f_abs()?.f_max()?.f_double_value(&[])?;
            // `max` would pass over what is no number.
            largest = if own.is_nan() || largest.is_nan() { f64::NAN } else { largest.max(own) };
            Ok(())
        })?;
        Ok(largest)
    }

    /// Bytes of its weights, gradients and moments.
    pub fn resident_bytes(&self) -> usize {
        self.model.adapter_bytes() + self.optimizer.resident_bytes()
    }

    /// Writes a folder, which must not be there yet and appears whole. `base` is named as the model it belongs to. Gives the
    /// bytes of its files.
    pub fn save(&self, folder: &Path, base: &str, keep: Keep) -> Result<u64, TrainError> {
        let pending = PendingFolder::begin(folder)?;
        let to = pending.path();
        peft::save_into(&self.model, Some(to), base)?;
        let moments = keep >= Keep::Moments;
        if moments {
            save_moments(Saved { model: &self.model, optimizer: &self.optimizer }, Some(to))?;
        }
        if keep >= Keep::Gradients && self.model.has_gradients() {
            let tensors: Vec<_> = self.model.trained_parts().map(|p| (p.name.clone(), p.shape.clone())).collect();
            let kind = self.model.options().precision.master();
            let all = self.model.gradients()?;
            let mut out = SafetensorsWriter::create(&to.join(GRADIENTS), &tensors, kind, None)?;
            for (name, shape) in &tensors {
                match all.get(name) {
                    Some(gradient) => out.put(name, gradient)?,
                    None => out.put(name, &crate::decoder::zeros(shape, kind)?)?,
                }
            }
            out.finish()?;
        }
        let options = self.model.options();
        let state = State {
            lora: options.lora.clone(),
            seed: options.seed,
            optimizer_steps: if moments { self.optimizer.steps() } else { 0 },
            skipped_steps: if moments { self.optimizer.skipped() } else { 0 },
        };
        write_json(&to.join(STATE), &state)?;
        let bytes = Manifest::seal(to, self.model.base().map(str::to_owned))?;
        pending.finish()?;
        Ok(bytes)
    }

    /// Reads a folder that [`Adapter::save`] wrote; every file is checked against its hash. Moments and gradients come along
    /// where they were kept and `keep` asks for them.
    pub fn open(base: &TrainModel, folder: &Path, keep: Keep) -> Result<Self, TrainError> {
        let broken = |reason: String| TrainError::File { path: folder.to_owned(), reason };
        if !folder.join(manifest::FILE).exists() {
            return Err(broken("expected an adapter with a `manifest.json`, found none".to_owned()));
        }
        let manifest = Manifest::verify(folder)?.map_err(broken)?;
        if manifest.base.is_some() && manifest.base.as_deref() != base.base() {
            return Err(broken("it belongs to another base model".to_owned()));
        }
        let state: State = read_json(&folder.join(STATE))?;
        let mut adapter = Self::new(base, state.lora, state.seed)?;
        peft::load(folder, &mut adapter.model)?;
        if keep >= Keep::Moments && state.optimizer_steps > 0 {
            let moments = SafetensorsReader::open(&folder.join(MOMENTS))?;
            let find = &mut |name: &str, shape: &[i64]| -> Result<(Tensor, Tensor), TrainError> {
                Ok((moments.get(&moment(0, name), shape)?, moments.get(&moment(1, name), shape)?))
            };
            adapter.optimizer.restore(&adapter.model, state.optimizer_steps, state.skipped_steps, find)?;
        }
        let gradients = folder.join(GRADIENTS);
        if keep >= Keep::Gradients && gradients.exists() {
            let gradients = SafetensorsReader::open(&gradients)?;
            adapter.model.set_gradients(&mut |name, shape| gradients.get(name, shape))?;
        }
        Ok(adapter)
    }
}
