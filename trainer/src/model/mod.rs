//! A decoder that trains: units in shards, forward and backward passes, gradients.
//!
//! Every process holds one shard of each unit (see [`layout`](crate::layout)); with one process the shard is the whole.
//! A pass gathers a unit, uses it and drops it. Its gradient is summed over the processes and each keeps its shard of it.
//!
//! - Without checkpointing (one process only) autograd records the whole pass.
//! - With it only the input of each layer is kept. The backward pass takes the layers in reverse: gather, compute again
//!   with autograd, backward through `(y * g).sum()`, reduce-scatter, drop. Sharded training always works this way, as a
//!   recorded pass would keep every gathered unit alive.
//!
//!
//! | module | what lives there |
//! |---|---|
//! | `unit` | where each tensor of a unit lies; a unit in shards, and whole |
//! | this one | the model: what it is made of, and what it says of itself |
//! | `load` | models from files or from a seed |
//! | `shards` | gathering units, summing their gradients, tensors by name |
//! | `forward` | from tokens to hidden states, predictions and values |
//! | `loss` | the output layer under a loss, and what comes back from it |
//! | `backward` | passes with gradients, recorded or computed again |
//!
//! Each uses those above it.
//!
//! Invariant: a unit is gathered by all processes at the same moment and in the same order, whatever their rows are; a
//! process without rows takes part with one token that predicts nothing.

mod backward;
mod forward;
mod load;
mod loss;
mod shards;
mod unit;

use std::cell::Cell;
use std::sync::Arc;
use std::time::{Duration, Instant};

use espalier_distributed::Group;
use espalier_engine::config::DecoderConfig;
use tch::{Kind, Tensor};

pub(crate) use self::shards::scatter;
pub use self::shards::{Find, Gradients, Visit};
pub(crate) use self::unit::Unit;
use self::unit::{LayerPlaces, RootPlaces};
use crate::decoder;
use crate::layout::Part;
use crate::lora::{LoraConfig, Targets};

/// In which type the model computes. Trained parameters, gradients and optimiser states are 32-bit floats under both of
/// the first two (master weights), 64-bit under the last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TrainPrecision {
    /// bfloat16: the fast path on processors that know it.
    #[default]
    Bf16,
    /// 32 bits.
    F32,
    /// 64 bits: to compare implementations.
    F64,
}

impl TrainPrecision {
    /// The type of activations and weights in use.
    pub fn compute(self) -> Kind {
        match self {
            Self::Bf16 => Kind::BFloat16,
            Self::F32 => Kind::Float,
            Self::F64 => Kind::Double,
        }
    }

    /// The type of trained parameters, gradients and moments.
    pub fn master(self) -> Kind {
        decoder::wide(self.compute())
    }
}

/// What a model is built with.
#[derive(Clone, Debug, Default)]
pub struct ModelOptions {
    /// In which type it computes.
    pub precision: TrainPrecision,
    /// Adapters; rank 0 trains all weights.
    pub lora: LoraConfig,
    /// Whether layers are computed again in the backward pass instead of being remembered.
    pub gradient_checkpointing: bool,
    /// Seed of new parameters and of dropout.
    pub seed: u64,
}

/// A decoder that trains.
pub struct TrainModel {
    config: DecoderConfig,
    options: ModelOptions,
    targets: Option<Targets>,
    group: Arc<Group>,
    /// Whether the output layer says values.
    critic: bool,
    root: RootPlaces,
    layers: Vec<LayerPlaces>,
    /// The root, then the layers.
    pub(crate) units: Vec<Unit>,
    /// Passes so far, which seed the dropout.
    passes: u64,
    /// Identity of the folder that it was loaded from.
    base: Option<String>,
    busy: Cell<Duration>,
}

impl TrainModel {
    /// Identity of the folder that a frozen model, or one with adapters, was loaded from.
    pub fn base(&self) -> Option<&str> {
        self.base.as_deref()
    }

    /// The decoder's shape.
    pub fn config(&self) -> &DecoderConfig {
        &self.config
    }

    /// What the model was built with.
    pub fn options(&self) -> &ModelOptions {
        &self.options
    }

    /// The processes that share the model.
    pub fn group(&self) -> &Group {
        &self.group
    }

    /// The same, for other models that these processes share: a reference, a critic.
    pub fn shared_group(&self) -> Arc<Group> {
        Arc::clone(&self.group)
    }

    /// Whether it says values instead of log-probabilities.
    pub fn is_critic(&self) -> bool {
        self.critic
    }

    /// Names of all tensors, adapters included.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.parts().map(|part| part.name.as_str())
    }

    fn parts(&self) -> impl Iterator<Item = &Part> {
        let flats = self.units.iter().flat_map(|u| [&u.layout.frozen, &u.layout.trained]);
        flats.flat_map(|flat| flat.slots().iter().flat_map(|slot| slot.parts.iter()))
    }

    /// Name and shape of every trained tensor.
    pub fn trained_parts(&self) -> impl Iterator<Item = &Part> {
        self.units.iter().flat_map(|u| u.layout.trained.slots().iter().flat_map(|slot| slot.parts.iter()))
    }

    /// Name and shape of every tensor that is not an adapter's.
    pub fn base_parts(&self) -> impl Iterator<Item = &Part> {
        self.parts().filter(|p| !p.name.ends_with("lora_A.weight") && !p.name.ends_with("lora_B.weight"))
    }

    /// Number of trained and of all parameters.
    pub fn parameters(&self) -> (i64, i64) {
        let trained: i64 = self.units.iter().map(|u| u.layout.trained.numel()).sum();
        (trained, trained + self.units.iter().map(|u| u.layout.frozen.numel()).sum::<i64>())
    }

    /// Bytes of parameters and gradients that this process holds between passes.
    pub fn resident_bytes(&self) -> usize {
        self.adapter_bytes() + self.units.iter().map(|u| size(&u.frozen)).sum::<usize>()
    }

    /// The same of what is trained alone: what a model costs that shares the rest with others.
    pub fn adapter_bytes(&self) -> usize {
        let of = |u: &Unit| size(&u.master) + u.compute.as_ref().map_or(0, size) + u.gradient.as_ref().map_or(0, size);
        self.units.iter().map(of).sum()
    }

    /// Passes so far; dropout is seeded by it, so a resumed run drops what the whole run would have.
    pub fn passes(&self) -> u64 {
        self.passes
    }

    /// Time spent in passes and in optimiser steps so far.
    pub fn busy(&self) -> Duration {
        self.busy.get()
    }

    /// Counts the time since then as spent.
    pub(crate) fn busy_since(&self, begun: Instant) {
        self.busy.set(self.busy.get() + begun.elapsed());
    }

    /// Goes on counting passes from here.
    pub fn set_passes(&mut self, passes: u64) {
        self.passes = passes;
    }

    /// The adapters' modules, where there are adapters.
    pub fn targets(&self) -> Option<&Targets> {
        self.targets.as_ref()
    }
}

fn size(tensor: &Tensor) -> usize {
    tensor.numel() * tensor.kind().elt_size_in_bytes()
}
