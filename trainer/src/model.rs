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
//! Invariant: a unit is gathered by all processes at the same moment and in the same order, whatever their rows are; a
//! process without rows takes part with one token that predicts nothing.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use espalier_distributed::{Group, Reduction};
use espalier_engine::config::DecoderConfig;
use espalier_engine::fused;
use espalier_engine::models::read_config;
use espalier_engine::weights::Weights;
use espalier_engine::{ModelError, Precision};
use rand::{Rng as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;
use tch::{Device, IndexOp, Kind, Tensor};

use crate::decoder::{self, Adapter, AdapterStep, LayerWeights, Linear, StepShape};
use crate::error::TrainError;
use crate::head::{self, Entropy, HeadOptions, HeadWeights, Predictions, Want};
use crate::layout::{Flat, Part, Place, UnitLayout};
use crate::lora::{LoraConfig, LoraInit, Targets, module_path};
use crate::packing::MicroBatch;

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

struct AdapterPlaces {
    a: Place,
    b: Vec<(usize, Place)>,
}

struct LinearPlaces {
    weight: Place,
    bias: Option<Place>,
    parts: Vec<i64>,
    adapter: Option<AdapterPlaces>,
}

struct LayerPlaces {
    input_norm: Place,
    qkv: LinearPlaces,
    q_norm: Option<Place>,
    k_norm: Option<Place>,
    output: LinearPlaces,
    post_norm: Place,
    gate_up: LinearPlaces,
    down: LinearPlaces,
}

struct RootPlaces {
    embedding: Place,
    norm: Place,
    /// Absent where the embedding is the output layer.
    head: Option<Place>,
    adapter: Option<(Place, Place)>,
}

/// What a model is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role<'a> {
    /// Says log-probabilities and trains.
    Policy,
    /// Says log-probabilities and does not train: a reference, a teacher.
    Frozen,
    /// Says values and trains; its output layer is called `{prefix}.weight`.
    Critic { prefix: &'a str },
}

/// A unit's shards on this process.
pub(crate) struct Unit {
    pub(crate) layout: UnitLayout,
    frozen: Tensor,
    /// Trained parameters.
    pub(crate) master: Tensor,
    /// The same in the type of computation, where that differs.
    pub(crate) compute: Option<Tensor>,
    /// Sum of gradients since the last step.
    pub(crate) gradient: Option<Tensor>,
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
    busy: Cell<Duration>,
}

/// What a pass minimises.
enum Objective<'a> {
    /// A scalar made of the predictions.
    Of(&'a mut dyn FnMut(&Predictions) -> Result<Tensor, TrainError>),
    /// The sum of all log-probabilities, each times its number.
    Weighted(&'a Tensor),
    /// A scalar made of a critic's values.
    OfValues(&'a mut dyn FnMut(&Tensor) -> Result<Tensor, TrainError>),
}

/// A unit while it is whole.
struct Gathered {
    frozen: Tensor,
    /// One tensor for each trained slot.
    leaves: Vec<Tensor>,
}

impl Gathered {
    fn get(&self, layout: &UnitLayout, place: Place) -> Result<Tensor, TrainError> {
        Ok(match place {
            Place::Trained(i) => self.leaves[i].shallow_clone(),
            Place::Frozen(i) => {
                let slot = &layout.frozen.slots()[i];
                self.frozen.f_narrow(0, slot.offset, slot.numel())?.f_view(slot.shape().as_slice())?
            }
        })
    }

    fn linear(&self, layout: &UnitLayout, places: &LinearPlaces, rank: i64) -> Result<Linear, TrainError> {
        let adapter = match &places.adapter {
            None => None,
            Some(adapter) => Some(Adapter {
                a: self.get(layout, adapter.a)?,
                b: adapter
                    .b
                    .iter()
                    .map(|(part, place)| Ok((*part, self.get(layout, *place)?)))
                    .collect::<Result<_, TrainError>>()?,
                rank,
            }),
        };
        Ok(Linear {
            weight: self.get(layout, places.weight)?,
            bias: places.bias.map(|place| self.get(layout, place)).transpose()?,
            parts: places.parts.clone(),
            adapter,
        })
    }
}

/// Where parameters come from when a model is built.
enum Source<'a> {
    Files {
        weights: &'a Weights,
        /// A tensor that is new where the files lack it.
        new: Option<String>,
    },
    Random {
        seed: u64,
    },
}

impl TrainModel {
    /// Loads a model folder in the Hugging Face layout.
    pub fn load(folder: &Path, options: ModelOptions, group: impl Into<Arc<Group>>) -> Result<Self, TrainError> {
        Self::open(folder, &options, group.into(), Role::Policy)
    }

    /// The same without anything that trains: it takes the memory of its weights in the type of computation, shared out over
    /// the processes. Adapters are not for it.
    pub fn load_frozen(folder: &Path, options: ModelOptions, group: impl Into<Arc<Group>>) -> Result<Self, TrainError> {
        let options = ModelOptions { lora: LoraConfig::default(), ..options };
        Self::open(folder, &options, group.into(), Role::Frozen)
    }

    /// The decoder of a folder with a value head in place of its output layer: `{prefix}.weight` of shape (1, hidden), from
    /// the folder where it has one, else normal with standard deviation `1 / (hidden + 1)`. The head is always trained, the
    /// decoder whole or by adapters.
    pub fn load_critic(
        folder: &Path,
        options: ModelOptions,
        prefix: &str,
        group: impl Into<Arc<Group>>,
    ) -> Result<Self, TrainError> {
        Self::open(folder, &options, group.into(), Role::Critic { prefix })
    }

    fn open(folder: &Path, options: &ModelOptions, group: Arc<Group>, role: Role<'_>) -> Result<Self, TrainError> {
        let config = read_config(folder)?.decoder;
        let weights = Weights::open(folder, Precision::F32)?;
        let new = match role {
            Role::Critic { prefix } => {
                Some(format!("{prefix}.weight")).filter(|new| weights.names().all(|name| name != new))
            }
            Role::Policy | Role::Frozen => None,
        };
        let known = Self::build(&config, options, group, &Source::Files { weights: &weights, new }, role)?;
        let names: std::collections::BTreeSet<&str> = known.names().collect();
        let surplus = |name: &&str| {
            let known = names.contains(name) || name.ends_with("rotary_emb.inv_freq");
            !(known || (config.tied || matches!(role, Role::Critic { .. })) && *name == "lm_head.weight")
        };
        if let Some(name) = weights.names().find(surplus) {
            return Err(TrainError::Model(ModelError::Config {
                path: folder.join("config.json"),
                key: "architectures".to_owned(),
                expected: "a family of which this trainer knows all tensors".to_owned(),
                found: format!("an unknown tensor `{name}` in the weights"),
            }));
        }
        Ok(known)
    }

    /// A model with new weights: matrices normal with standard deviation 0.02, norms 1, biases 0.
    pub fn random(
        config: &DecoderConfig,
        options: ModelOptions,
        group: impl Into<Arc<Group>>,
    ) -> Result<Self, TrainError> {
        Self::build(config, &options, group.into(), &Source::Random { seed: options.seed }, Role::Policy)
    }

    fn build(
        config: &DecoderConfig,
        options: &ModelOptions,
        group: Arc<Group>,
        source: &Source<'_>,
        role: Role<'_>,
    ) -> Result<Self, TrainError> {
        let _guard = tch::no_grad_guard();
        options.lora.validate("model.lora")?;
        let targets = if options.lora.rank > 0 { Some(options.lora.targets(config, "model.lora")?) } else { None };
        let full = targets.is_none() && role != Role::Frozen;
        let rank = options.lora.rank;
        let mut layouts = Vec::new();
        let c = config;
        let mut root = UnitLayout::default();
        let embedding = root.push(full, vec![Part::new("model.embed_tokens.weight", &[c.vocab, c.hidden])]);
        let norm = root.push(full, vec![Part::new("model.norm.weight", &[c.hidden])]);
        let critic = matches!(role, Role::Critic { .. });
        let head = match role {
            Role::Critic { prefix } => {
                Some(root.push(true, vec![Part::new(format!("{prefix}.weight"), &[1, c.hidden])]))
            }
            _ => (!c.tied).then(|| root.push(full, vec![Part::new("lm_head.weight", &[c.vocab, c.hidden])])),
        };
        if critic && targets.as_ref().is_some_and(|t| t.lm_head) {
            return Err(TrainError::Config {
                key: "trainer.critic.model.lora.target_modules".to_owned(),
                expected: "modules without `lm_head`: a critic has a value head instead, which is always trained"
                    .to_owned(),
                found: "`lm_head`".to_owned(),
            });
        }
        let adapter = targets.as_ref().is_some_and(|t| t.lm_head).then(|| {
            let a = root.push(true, vec![Part::new("lm_head.lora_A.weight", &[rank, c.hidden])]);
            (a, root.push(true, vec![Part::new("lm_head.lora_B.weight", &[c.vocab, rank])]))
        });
        let root_places = RootPlaces { embedding, norm, head, adapter };
        layouts.push(root);
        let mut layers = Vec::new();
        for index in 0..c.layers as usize {
            let mut unit = UnitLayout::default();
            let chosen = targets.as_ref().map_or([false; 7], |t| t.layers[index]);
            layers.push(layer_places(c, index, full, rank, chosen, &mut unit));
            layouts.push(unit);
        }
        let (rank_of, world) = (group.rank() as i64, group.world_size() as i64);
        let (compute, master) = (options.precision.compute(), options.precision.master());
        let mut units = Vec::new();
        for layout in layouts {
            let shard = |flat: &Flat, kind: Kind| -> Result<Tensor, TrainError> {
                let len = flat.shard_len(world);
                let whole = decoder::zeros(&[len * world], kind)?;
                for (offset, part) in flat.parts() {
                    let value = initial(part, source, options)?;
                    whole.f_narrow(0, offset, part.numel())?.f_copy_(&value.f_view([-1i64])?)?;
                }
                // A copy, so that the rest is freed.
                Ok(if world == 1 { whole } else { decoder::copied(&whole.f_narrow(0, rank_of * len, len)?)? })
            };
            let trained = shard(&layout.trained, master)?;
            units.push(Unit {
                frozen: shard(&layout.frozen, compute)?,
                compute: if compute == master { None } else { Some(trained.f_to_kind(compute)?) },
                master: trained,
                gradient: None,
                layout,
            });
        }
        Ok(Self {
            config: c.clone(),
            options: options.clone(),
            targets,
            group,
            critic,
            root: root_places,
            layers,
            units,
            passes: 0,
            busy: Cell::default(),
        })
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
        let size = |t: &Tensor| t.numel() * t.kind().elt_size_in_bytes();
        let of = |u: &Unit| {
            size(&u.frozen) + size(&u.master) + u.compute.as_ref().map_or(0, size) + u.gradient.as_ref().map_or(0, size)
        };
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

    /// One shard after the other is put together; with one process nothing is copied.
    pub(crate) fn whole(&self, shard: &Tensor) -> Result<Tensor, TrainError> {
        if self.group.world_size() == 1 {
            return Ok(shard.shallow_clone());
        }
        let elements = shard.size()[0] * self.group.world_size() as i64;
        let mut whole = Tensor::f_empty([elements], (shard.kind(), shard.device()))?;
        self.group.all_gather_into(&mut whole, shard)?;
        Ok(whole)
    }

    fn gather(&self, unit: usize, gradients: bool) -> Result<Gathered, TrainError> {
        let unit = &self.units[unit];
        let _guard = tch::no_grad_guard();
        let frozen =
            if unit.layout.frozen.numel() > 0 { self.whole(&unit.frozen)? } else { unit.frozen.shallow_clone() };
        let mut leaves = Vec::new();
        if unit.layout.trained.numel() > 0 {
            let trained = self.whole(unit.compute.as_ref().unwrap_or(&unit.master))?;
            for slot in unit.layout.trained.slots() {
                let leaf =
                    trained.f_narrow(0, slot.offset, slot.numel())?.f_view(slot.shape().as_slice())?.f_detach()?;
                leaves.push(if gradients { leaf.f_set_requires_grad(true)? } else { leaf });
            }
        }
        Ok(Gathered { frozen, leaves })
    }

    fn layer_weights(&self, index: usize, whole: &Gathered) -> Result<LayerWeights, TrainError> {
        let layout = &self.units[index + 1].layout;
        let places = &self.layers[index];
        let rank = self.options.lora.rank;
        let get = |place| whole.get(layout, place);
        Ok(LayerWeights {
            input_norm: get(places.input_norm)?,
            qkv: whole.linear(layout, &places.qkv, rank)?,
            q_norm: places.q_norm.map(get).transpose()?,
            k_norm: places.k_norm.map(get).transpose()?,
            output: whole.linear(layout, &places.output, rank)?,
            post_norm: get(places.post_norm)?,
            gate_up: whole.linear(layout, &places.gate_up, rank)?,
            down: whole.linear(layout, &places.down, rank)?,
        })
    }

    fn head_weights(&self, root: &Gathered) -> Result<HeadWeights, TrainError> {
        let kind = fused::product_kind(self.options.precision.compute());
        let get = |place| root.get(&self.units[0].layout, place)?.f_detach()?.f_to_kind(kind).map_err(TrainError::from);
        let weight = get(self.root.head.unwrap_or(self.root.embedding))?;
        let adapter = match self.root.adapter {
            None => None,
            Some((a, b)) => Some((get(a)?, get(b)?, self.options.lora.scaling())),
        };
        Ok(HeadWeights { weight, adapter })
    }

    fn step_shape<'a>(&'a self, batch: &'a MicroBatch, training: bool) -> Result<StepShape<'a>, TrainError> {
        let kind = self.options.precision.compute();
        let (cos, sin) = decoder::rotation(&self.config, &batch.positions, kind)?;
        let dropout = if training { self.options.lora.dropout } else { 0.0 };
        let adapters = AdapterStep { scaling: self.options.lora.scaling(), dropout };
        Ok(StepShape { config: &self.config, cos, sin, runs: &batch.runs, adapters })
    }

    fn embed(&self, root: &Gathered, batch: &MicroBatch) -> Result<Tensor, TrainError> {
        let table = root.get(&self.units[0].layout, self.root.embedding)?;
        Ok(Tensor::f_embedding(&table, &batch.ids, -1, false, false)?)
    }

    fn check(&self, batch: &MicroBatch) -> Result<(), TrainError> {
        let longest = batch.runs.iter().map(|r| r.len).max().unwrap_or(0);
        if longest > self.config.context {
            let row = batch.rows.last().copied().unwrap_or(0);
            return Err(TrainError::Row {
                row,
                reason: format!("{longest} tokens, the model's context has {}", self.config.context),
            });
        }
        if batch.ids.numel() > 0 {
            let (least, most) = (batch.ids.f_min()?.f_int64_value(&[])?, batch.ids.f_max()?.f_int64_value(&[])?);
            if least < 0 || most >= self.config.vocab {
                let found = if least < 0 { least } else { most };
                return Err(TrainError::Row {
                    row: batch.rows.first().copied().unwrap_or(0),
                    reason: format!("token {found} in it or a row beside it, the vocabulary has {}", self.config.vocab),
                });
            }
        }
        Ok(())
    }

    /// The last norm's output at the tokens that predict something.
    fn finish(&self, root: &Gathered, x: &Tensor, batch: &MicroBatch) -> Result<Tensor, TrainError> {
        let norm = root.get(&self.units[0].layout, self.root.norm)?;
        // The norm is by token: it need not see those that predict nothing.
        let selected = x.f_index_select(0, &batch.select)?;
        Ok(decoder::rms_norm(&selected, &norm, self.config.norm_eps)?)
    }

    /// Log-probabilities without gradients.
    pub fn predict(&self, batch: &MicroBatch, options: HeadOptions) -> Result<Predictions, TrainError> {
        self.predict_with(batch, options, self.options.lora.scaling())
    }

    /// The same of the base, as if there were no adapters.
    pub fn predict_base(&self, batch: &MicroBatch, options: HeadOptions) -> Result<Predictions, TrainError> {
        self.predict_with(batch, options, 0.0)
    }

    /// Values of the tokens that a critic looks at, (predictions), at least 32 bits, without gradients.
    pub fn values(&self, batch: &MicroBatch) -> Result<Tensor, TrainError> {
        let _guard = tch::no_grad_guard();
        self.says(true)?;
        let begun = Instant::now();
        let (root, hidden) = self.hidden(batch, self.options.lora.scaling())?;
        let head = self.head_weights(&root)?;
        let values = value_of(&hidden.f_to_kind(head.weight.kind())?, &head.weight)?;
        self.busy_since(begun);
        Ok(values)
    }

    /// Refuses to be asked for what this model does not say.
    fn says(&self, values: bool) -> Result<(), TrainError> {
        if values == self.critic {
            return Ok(());
        }
        let (expected, found) = if values { ("a critic", "a policy") } else { ("a policy", "a critic") };
        Err(TrainError::Config { key: "model".to_owned(), expected: expected.to_owned(), found: found.to_owned() })
    }

    /// The gathered root and the hidden states that predict something, without gradients.
    fn hidden(&self, batch: &MicroBatch, scaling: f64) -> Result<(Gathered, Tensor), TrainError> {
        self.check(batch)?;
        let root = self.gather(0, false)?;
        let mut step = self.step_shape(batch, false)?;
        step.adapters.scaling = scaling;
        let mut x = self.embed(&root, batch)?;
        for index in 0..self.layers.len() {
            let whole = self.gather(index + 1, false)?;
            x = decoder::layer(&x, &self.layer_weights(index, &whole)?, &step)?;
        }
        let hidden = self.finish(&root, &x, batch)?;
        Ok((root, hidden))
    }

    fn predict_with(&self, batch: &MicroBatch, options: HeadOptions, scaling: f64) -> Result<Predictions, TrainError> {
        let _guard = tch::no_grad_guard();
        self.says(false)?;
        let begun = Instant::now();
        let (root, hidden) = self.hidden(batch, scaling)?;
        let mut head = self.head_weights(&root)?;
        let hidden = hidden.f_to_kind(head.weight.kind())?;
        if let Some((_, _, own)) = &mut head.adapter {
            *own = scaling;
        }
        let predictions = head::forward(&head, &hidden, &batch.targets, options, Want::Predictions)?.predictions;
        self.busy_since(begun);
        Ok(predictions)
    }

    /// One forward and backward pass; gradients are added to those that are there. `loss` takes the predictions, which
    /// record what is done with them, and returns a scalar to minimise. The result is that scalar.
    ///
    /// Errors: a loss that is not finite names the first row whose log-probability is not.
    pub fn forward_backward(
        &mut self,
        batch: &MicroBatch,
        options: HeadOptions,
        loss: &mut dyn FnMut(&Predictions) -> Result<Tensor, TrainError>,
    ) -> Result<f64, TrainError> {
        self.says(false)?;
        self.pass(batch, options, Objective::Of(loss))
    }

    /// The same for the sum of all log-probabilities, each times its number: `weights` is (predictions). As the loss is
    /// known beforehand, logits are computed once, however many there are.
    pub fn forward_backward_weighted(
        &mut self,
        batch: &MicroBatch,
        options: HeadOptions,
        weights: &Tensor,
    ) -> Result<f64, TrainError> {
        self.says(false)?;
        self.pass(batch, options, Objective::Weighted(weights))
    }

    /// The same for a critic: `loss` takes the values, (predictions).
    pub fn value_backward(
        &mut self,
        batch: &MicroBatch,
        loss: &mut dyn FnMut(&Tensor) -> Result<Tensor, TrainError>,
    ) -> Result<f64, TrainError> {
        self.says(true)?;
        self.pass(batch, HeadOptions::default(), Objective::OfValues(loss))
    }

    fn pass(&mut self, batch: &MicroBatch, options: HeadOptions, objective: Objective<'_>) -> Result<f64, TrainError> {
        let begun = Instant::now();
        self.check(batch)?;
        self.passes += 1;
        let root = self.gather(0, true)?;
        let value = if self.group.world_size() > 1 || self.options.gradient_checkpointing {
            self.recomputed(&root, batch, options, objective)?
        } else {
            self.recorded(&root, batch, options, objective)?
        };
        self.busy_since(begun);
        Ok(value)
    }

    /// Seeds torch's generator for a layer of the current pass, where something is drawn. The generator is the whole
    /// process's: it is ours for as long as the guard lives, whatever other models train beside this one.
    fn seed_layer(&self, index: usize) -> Option<MutexGuard<'static, ()>> {
        static GENERATOR: Mutex<()> = Mutex::new(());
        if self.options.lora.dropout <= 0.0 {
            return None;
        }
        let guard = GENERATOR.lock().unwrap_or_else(PoisonError::into_inner);
        let seed = self.options.seed ^ self.passes.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let rank = (self.group.rank() as u64) << 32;
        tch::manual_seed((seed.wrapping_add(rank + index as u64) >> 1) as i64);
        Some(guard)
    }

    /// The whole pass recorded by autograd.
    fn recorded(
        &mut self,
        root: &Gathered,
        batch: &MicroBatch,
        options: HeadOptions,
        objective: Objective<'_>,
    ) -> Result<f64, TrainError> {
        let step = self.step_shape(batch, true)?;
        let first = self.embed(root, batch)?.f_detach()?;
        let first = if self.trained_embedding().is_some() { first.f_set_requires_grad(true)? } else { first };
        let mut x = first.shallow_clone();
        let mut leaves: Vec<Tensor> = Vec::new();
        let mut of_unit = Vec::new();
        for index in 0..self.layers.len() {
            let whole = self.gather(index + 1, true)?;
            let _drawing = self.seed_layer(index);
            x = decoder::layer(&x, &self.layer_weights(index, &whole)?, &step)?;
            of_unit.push((index + 1, whole.leaves.len()));
            leaves.extend(whole.leaves);
        }
        let hidden = self.finish(root, &x, batch)?;
        drop(x);
        drop(step);
        let (value, d_hidden, d_root) = self.head(root, &hidden, batch, options, objective)?;
        let mut gradients = self.root_gradients(d_root)?;
        if hidden.requires_grad() {
            let norm = self.trained_norm();
            let mut inputs: Vec<&Tensor> = leaves.iter().collect();
            inputs.extend(norm.map(|slot| &root.leaves[slot]));
            inputs.extend(self.trained_embedding().map(|_| &first));
            let scalar = hidden.f_mul(&d_hidden)?.f_sum(None)?;
            drop((hidden, d_hidden));
            let mut found = Tensor::f_run_backward(&[scalar], &inputs, false, false)?.into_iter();
            for (unit, count) in of_unit {
                let own: Vec<Option<Tensor>> = found.by_ref().take(count).map(Some).collect();
                self.add_gradients(unit, own)?;
            }
            if let Some(slot) = norm {
                add_to(&mut gradients, slot, found.next().unwrap_or_default())?;
            }
            self.add_embedding(&mut gradients, batch, found.next())?;
        }
        self.add_gradients(0, gradients)?;
        Ok(value)
    }

    /// Layer inputs kept, everything else computed again.
    fn recomputed(
        &mut self,
        root: &Gathered,
        batch: &MicroBatch,
        options: HeadOptions,
        objective: Objective<'_>,
    ) -> Result<f64, TrainError> {
        let mut inputs = Vec::new();
        let leaf = |x: &Tensor| x.f_detach()?.f_set_requires_grad(true);
        {
            let _guard = tch::no_grad_guard();
            let step = self.step_shape(batch, true)?;
            let mut x = self.embed(root, batch)?;
            for index in 0..self.layers.len() {
                let whole = self.gather(index + 1, false)?;
                let _drawing = self.seed_layer(index);
                let y = decoder::layer(&x, &self.layer_weights(index, &whole)?, &step)?;
                inputs.push(std::mem::replace(&mut x, y));
            }
            inputs.push(x);
        }
        let last = leaf(&inputs.pop().unwrap_or_default())?;
        let hidden = self.finish(root, &last, batch)?;
        let (value, d_hidden, d_root) = self.head(root, &hidden, batch, options, objective)?;
        let mut gradients = self.root_gradients(d_root)?;
        let norm = self.trained_norm();
        let mut wanted: Vec<&Tensor> = vec![&last];
        wanted.extend(norm.map(|slot| &root.leaves[slot]));
        let scalar = hidden.f_mul(&d_hidden)?.f_sum(None)?;
        drop((hidden, d_hidden));
        let mut found = Tensor::f_run_backward(&[scalar], &wanted, false, false)?;
        for (slot, gradient) in norm.into_iter().zip(found.drain(1..)) {
            add_to(&mut gradients, slot, gradient)?;
        }
        let mut d_x = found.swap_remove(0);
        let embedding = self.trained_embedding().is_some();
        for index in (0..self.layers.len()).rev() {
            let whole = self.gather(index + 1, true)?;
            // Under the first layer lies only the embedding.
            let through = index > 0 || embedding;
            let input = inputs.pop().unwrap_or_default();
            let x = if through { leaf(&input)? } else { input };
            let y = {
                let step = self.step_shape(batch, true)?;
                let _drawing = self.seed_layer(index);
                decoder::layer(&x, &self.layer_weights(index, &whole)?, &step)?
            };
            let mut wanted: Vec<&Tensor> = whole.leaves.iter().collect();
            if through {
                wanted.push(&x);
            }
            let scalar = y.f_mul(&d_x)?.f_sum(None)?;
            drop(y);
            let mut found =
                if wanted.is_empty() { Vec::new() } else { Tensor::f_run_backward(&[scalar], &wanted, false, false)? };
            if through && let Some(next) = found.pop() {
                d_x = next;
            }
            drop(whole.frozen);
            self.add_gradients(index + 1, found.into_iter().map(Some).collect())?;
        }
        self.add_embedding(&mut gradients, batch, Some(d_x))?;
        self.add_gradients(0, gradients)?;
        Ok(value)
    }

    /// Slot of the last norm, where it is trained.
    fn trained_norm(&self) -> Option<usize> {
        trained_slot(self.root.norm)
    }

    /// Slot of the embedding, where it is trained.
    fn trained_embedding(&self) -> Option<usize> {
        trained_slot(self.root.embedding)
    }

    /// Adds the gradient of the embedded tokens to the rows of the embedding that they came from.
    fn add_embedding(
        &self,
        gradients: &mut [Option<Tensor>],
        batch: &MicroBatch,
        d_x: Option<Tensor>,
    ) -> Result<(), TrainError> {
        let (Some(slot), Some(d_x)) = (self.trained_embedding(), d_x) else { return Ok(()) };
        let _guard = tch::no_grad_guard();
        let kind = decoder::wide(d_x.kind());
        let mut total = match gradients[slot].take() {
            Some(total) => total.f_to_kind(kind)?,
            None => decoder::zeros(&self.units[0].layout.trained.slots()[slot].shape(), kind)?,
        };
        let _ = total.f_index_add_(0, &batch.ids, &d_x.f_to_kind(kind)?)?;
        gradients[slot] = Some(total);
        Ok(())
    }

    fn root_gradients(&self, of_head: head::HeadGradients) -> Result<Vec<Option<Tensor>>, TrainError> {
        let mut gradients: Vec<Option<Tensor>> = self.units[0].layout.trained.slots().iter().map(|_| None).collect();
        let mut put = |place: Place, gradient: Option<Tensor>| match (place, gradient) {
            (Place::Trained(slot), Some(gradient)) => add_to(&mut gradients, slot, gradient),
            _ => Ok(()),
        };
        put(self.root.head.unwrap_or(self.root.embedding), of_head.weight)?;
        if let (Some((a, b)), Some((d_a, d_b))) = (self.root.adapter, of_head.adapter) {
            put(a, Some(d_a))?;
            put(b, Some(d_b))?;
        }
        Ok(gradients)
    }

    /// Output layer and loss: the loss's value, the gradient of the hidden states, gradients of the output layer.
    fn head(
        &self,
        root: &Gathered,
        hidden: &Tensor,
        batch: &MicroBatch,
        options: HeadOptions,
        objective: Objective<'_>,
    ) -> Result<(f64, Tensor, head::HeadGradients), TrainError> {
        let weights = self.head_weights(root)?;
        let kind = hidden.kind();
        let hidden = hidden.f_detach()?.f_to_kind(weights.weight.kind())?;
        let trained = matches!(self.root.head.unwrap_or(self.root.embedding), Place::Trained(_));
        let loss = match objective {
            Objective::Of(loss) => loss,
            Objective::OfValues(loss) => {
                let (value, of_hidden, gradients) = value_head(&hidden, &weights.weight, batch, loss)?;
                return Ok((value, of_hidden.f_to_kind(kind)?, gradients));
            }
            Objective::Weighted(by) => {
                let want = Want::GradientsOf { by, train_weight: trained };
                let pass = head::forward(&weights, &hidden, &batch.targets, options, want)?;
                let logprobs = pass.predictions.logprobs.shallow_clone();
                let value = logprobs.f_mul(&by.f_to_kind(logprobs.kind())?)?.f_sum(Kind::Double)?.f_double_value(&[])?;
                if !value.is_finite() {
                    return Err(Self::not_finite(value, &logprobs, batch)?);
                }
                let found = head::backward(pass, &weights, &hidden, &batch.targets, options, (by, None), trained)?;
                return Ok((value, found.hidden.f_to_kind(kind)?, found));
            }
        };
        let want = Want::Gradients { train_weight: trained };
        let pass = head::forward(&weights, &hidden, &batch.targets, options, want)?;
        let leaf = |t: &Tensor| t.f_detach()?.f_set_requires_grad(true);
        let of_entropy = |t: &Tensor| if options.entropy == Entropy::Gradients { leaf(t) } else { t.f_detach() };
        let leaves = Predictions {
            logprobs: leaf(&pass.predictions.logprobs)?,
            entropy: pass.predictions.entropy.as_ref().map(of_entropy).transpose()?,
        };
        let scalar = loss(&leaves)?;
        let value = scalar.f_double_value(&[])?;
        if !value.is_finite() {
            return Err(Self::not_finite(value, &leaves.logprobs, batch)?);
        }
        let mut wanted = vec![&leaves.logprobs];
        wanted.extend(leaves.entropy.as_ref().filter(|entropy| entropy.requires_grad()));
        let mut found = if scalar.requires_grad() {
            // What the loss does not use has no gradient; asking for it must not be an error.
            let zero = wanted.iter().try_fold(scalar, |sum, leaf| sum.f_add(&leaf.f_mul_scalar(0.0)?.f_sum(None)?))?;
            Tensor::f_run_backward(&[zero], &wanted, false, false)?
        } else {
            wanted.iter().map(|leaf| leaf.f_zeros_like()).collect::<Result<_, _>>()?
        };
        let of_entropy = if found.len() > 1 { found.pop() } else { None };
        let of_logprobs = found.swap_remove(0);
        let gradients = head::backward(
            pass,
            &weights,
            &hidden,
            &batch.targets,
            options,
            (&of_logprobs, of_entropy.as_ref()),
            trained,
        )?;
        Ok((value, gradients.hidden.f_to_kind(kind)?, gradients))
    }

    fn not_finite(value: f64, logprobs: &Tensor, batch: &MicroBatch) -> Result<TrainError, TrainError> {
        let values = Vec::<f64>::try_from(logprobs.f_detach()?.f_to_kind(Kind::Double)?)?;
        let at = values.iter().position(|v| !v.is_finite());
        let place = at.unwrap_or(0) as i64;
        let row = batch.offsets.iter().rposition(|offset| *offset <= place).unwrap_or(0);
        let row = row.min(batch.rows.len().saturating_sub(1));
        Ok(TrainError::NonFinite {
            value,
            row: batch.rows.get(row).copied().unwrap_or(0),
            token: (place - batch.offsets.get(row).copied().unwrap_or(0)) as usize,
            logprob: values.get(place as usize).copied().unwrap_or(f64::NAN),
        })
    }

    /// Sums a unit's gradients over the processes and adds this process's shard to what is there.
    fn add_gradients(&mut self, index: usize, gradients: Vec<Option<Tensor>>) -> Result<(), TrainError> {
        let _guard = tch::no_grad_guard();
        let unit = &mut self.units[index];
        if unit.layout.trained.numel() == 0 {
            return Ok(());
        }
        let kind = unit.master.kind();
        let world = self.group.world_size() as i64;
        if world > 1 {
            let whole = decoder::zeros(&[unit.master.size()[0] * world], kind)?;
            for (slot, gradient) in unit.layout.trained.slots().iter().zip(gradients) {
                let Some(gradient) = gradient.filter(Tensor::defined) else { continue };
                whole.f_narrow(0, slot.offset, slot.numel())?.f_copy_(&gradient.f_reshape([-1i64])?)?;
            }
            let mut own = unit.master.f_empty_like()?;
            self.group.reduce_scatter_into(&mut own, &whole)?;
            match &mut unit.gradient {
                Some(total) => drop(total.f_add_(&own)?),
                none => *none = Some(own),
            }
            return Ok(());
        }
        // The first gradient is copied, so that nothing has to be filled with zeros before.
        let first = unit.gradient.is_none();
        let total = unit.gradient.get_or_insert(unit.master.f_empty_like()?);
        for (slot, gradient) in unit.layout.trained.slots().iter().zip(gradients) {
            let mut place = total.f_narrow(0, slot.offset, slot.numel())?;
            match gradient.filter(Tensor::defined) {
                Some(gradient) if first => place.f_copy_(&gradient.f_reshape([-1i64])?)?,
                Some(gradient) => drop(place.f_add_(&gradient.f_to_kind(kind)?.f_reshape([-1i64])?)?),
                None if first => drop(place.f_zero_()?),
                None => {}
            }
        }
        if first {
            let used = unit.layout.trained.numel();
            let _ = total.f_narrow(0, used, total.size()[0] - used)?.f_zero_()?;
        }
        Ok(())
    }

    /// Forgets all gradients.
    pub fn zero_gradients(&mut self) {
        for unit in &mut self.units {
            unit.gradient = None;
        }
    }

    /// L2 norm of the gradient over all parameters and processes.
    pub fn gradient_norm(&self) -> Result<f64, TrainError> {
        let _guard = tch::no_grad_guard();
        let mut sum = 0.0;
        for gradient in self.units.iter().filter_map(|u| u.gradient.as_ref()) {
            let norm = gradient.f_norm()?.f_double_value(&[])?;
            sum += norm * norm;
        }
        let mut sum = Tensor::f_from_slice(&[sum])?;
        self.group.all_reduce(&mut sum, Reduction::Sum)?;
        Ok(sum.f_double_value(&[0])?.sqrt())
    }

    /// After the trained parameters changed: brings what is computed with up to date.
    pub(crate) fn refresh(&mut self) -> Result<(), TrainError> {
        let _guard = tch::no_grad_guard();
        for unit in &mut self.units {
            if let Some(compute) = &mut unit.compute {
                compute.f_copy_(&unit.master)?;
            }
        }
        Ok(())
    }

    /// Whole tensors by name, one unit at a time: `each` gets a name and a value in the master's type (trained) or the
    /// type of computation (frozen). All processes must call this together.
    pub fn visit(
        &self,
        what: Visit,
        each: &mut dyn FnMut(&str, Tensor) -> Result<(), TrainError>,
    ) -> Result<(), TrainError> {
        let _guard = tch::no_grad_guard();
        for unit in &self.units {
            let mut flats: Vec<(&Flat, Option<&Tensor>)> = Vec::new();
            if what == Visit::All {
                flats.push((&unit.layout.frozen, Some(&unit.frozen)));
            }
            match what {
                Visit::All | Visit::Trained => flats.push((&unit.layout.trained, Some(&unit.master))),
                Visit::Gradients => flats.push((&unit.layout.trained, unit.gradient.as_ref())),
            }
            for (flat, shard) in flats {
                let Some(shard) = shard.filter(|_| flat.numel() > 0) else { continue };
                let whole = self.whole(shard)?;
                for (offset, part) in flat.parts() {
                    let value = whole.f_narrow(0, offset, part.numel())?.f_view(part.shape.as_slice())?;
                    each(&part.name, value)?;
                }
            }
        }
        Ok(())
    }

    /// Replaces trained tensors; `find` gives each by name and shape.
    pub fn set_trained(&mut self, find: &mut Find<'_>) -> Result<(), TrainError> {
        let world = self.group.world_size() as i64;
        let rank = self.group.rank() as i64;
        for unit in &mut self.units {
            let len = unit.layout.trained.shard_len(world);
            scatter(&unit.layout.trained, &mut unit.master, rank * len, len, find)?;
        }
        self.refresh()
    }

    /// The adapters' modules, where there are adapters.
    pub fn targets(&self) -> Option<&Targets> {
        self.targets.as_ref()
    }

    /// Gradients by name, for tests and inspection.
    pub fn gradients(&self) -> Result<BTreeMap<String, Tensor>, TrainError> {
        let mut all = BTreeMap::new();
        self.visit(Visit::Gradients, &mut |name, value| {
            all.insert(name.to_owned(), decoder::copied(&value)?);
            Ok(())
        })?;
        Ok(all)
    }
}

/// Values of hidden states (predictions, hidden) under a head (1, hidden): (predictions), in the type of sums.
fn value_of(hidden: &Tensor, weight: &Tensor) -> Result<Tensor, tch::TchError> {
    let values = hidden.f_linear(weight, None::<Tensor>)?.f_squeeze_dim(1)?;
    values.f_to_kind(decoder::wide(values.kind()))
}

/// Value head and loss: the loss's value, the gradient of the hidden states, the gradient of the head.
fn value_head(
    hidden: &Tensor,
    weight: &Tensor,
    batch: &MicroBatch,
    loss: &mut dyn FnMut(&Tensor) -> Result<Tensor, TrainError>,
) -> Result<(f64, Tensor, head::HeadGradients), TrainError> {
    let leaf = tch::no_grad(|| value_of(hidden, weight))?.f_set_requires_grad(true)?;
    let scalar = loss(&leaf)?;
    let value = scalar.f_double_value(&[])?;
    if !value.is_finite() {
        let row = batch.rows.first().copied().unwrap_or(0);
        return Err(TrainError::Row { row, reason: format!("the critic's loss of its micro-batch is {value}") });
    }
    let d_values = if scalar.requires_grad() {
        Tensor::f_run_backward(&[scalar], &[&leaf], false, false)?.swap_remove(0)
    } else {
        leaf.f_zeros_like()?
    };
    let _guard = tch::no_grad_guard();
    let d_values = d_values.f_unsqueeze(1)?.f_to_kind(hidden.kind())?;
    let of_hidden = d_values.f_matmul(weight)?;
    let wide = decoder::wide(hidden.kind());
    let of_weight = d_values.f_to_kind(wide)?.f_transpose(0, 1)?.f_matmul(&hidden.f_to_kind(wide)?)?;
    let gradients = head::HeadGradients { hidden: of_hidden.shallow_clone(), weight: Some(of_weight), adapter: None };
    Ok((value, of_hidden, gradients))
}

/// Gives a tensor by name and shape.
pub type Find<'a> = dyn FnMut(&str, &[i64]) -> Result<Tensor, TrainError> + 'a;

/// Which tensors to visit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Visit {
    /// Frozen and trained parameters.
    All,
    /// Trained parameters.
    Trained,
    /// Gradients of trained parameters, where there are any.
    Gradients,
}

/// Copies into one shard what lies in it of each named tensor.
pub(crate) fn scatter(
    flat: &Flat,
    shard: &mut Tensor,
    from: i64,
    len: i64,
    find: &mut Find<'_>,
) -> Result<(), TrainError> {
    let _guard = tch::no_grad_guard();
    for (offset, part) in flat.parts() {
        let value = find(&part.name, &part.shape)?;
        let (start, end) = (offset.max(from), (offset + part.numel()).min(from + len));
        if start < end {
            let value = value.f_reshape([-1i64])?.i(start - offset..end - offset);
            shard.f_narrow(0, start - from, end - start)?.f_copy_(&value)?;
        }
    }
    Ok(())
}

fn trained_slot(place: Place) -> Option<usize> {
    match place {
        Place::Trained(slot) => Some(slot),
        Place::Frozen(_) => None,
    }
}

fn add_to(gradients: &mut [Option<Tensor>], slot: usize, gradient: Tensor) -> Result<(), TrainError> {
    if !gradient.defined() {
        return Ok(());
    }
    let _guard = tch::no_grad_guard();
    gradients[slot] = Some(match gradients[slot].take() {
        None => gradient,
        Some(sum) => {
            let kind = decoder::wide(sum.kind());
            sum.f_to_kind(kind)?.f_add(&gradient.f_to_kind(kind)?)?
        }
    });
    Ok(())
}

fn layer_places(
    c: &DecoderConfig,
    index: usize,
    full: bool,
    rank: i64,
    chosen: [bool; 7],
    unit: &mut UnitLayout,
) -> LayerPlaces {
    let (q, kv) = (c.heads * c.head_dim, c.kv_heads * c.head_dim);
    let norm = |unit: &mut UnitLayout, name: &str, width: i64| {
        unit.push(full, vec![Part::new(format!("model.layers.{index}.{name}.weight"), &[width])])
    };
    let linear = |unit: &mut UnitLayout, targets: &[usize], outputs: &[i64], inputs: i64, bias: bool| {
        let parts = |suffix: &str, inputs: Option<i64>| -> Vec<Part> {
            let shaped = targets.iter().zip(outputs);
            shaped
                .map(|(t, out)| {
                    let shape: Vec<i64> = std::iter::once(*out).chain(inputs).collect();
                    Part::new(format!("{}.{suffix}", module_path(index, *t)), &shape)
                })
                .collect()
        };
        let weight = unit.push(full, parts("weight", Some(inputs)));
        let bias = bias.then(|| unit.push(full, parts("bias", None)));
        let adapted: Vec<usize> = (0..targets.len()).filter(|i| chosen[targets[*i]]).collect();
        let adapter = (!adapted.is_empty()).then(|| {
            let name = |i: usize, side: &str| format!("{}.lora_{side}.weight", module_path(index, targets[i]));
            let a = adapted.iter().map(|i| Part::new(name(*i, "A"), &[rank, inputs])).collect();
            let a = unit.push(true, a);
            let b = |i: usize| vec![Part::new(name(i, "B"), &[outputs[i], rank])];
            AdapterPlaces { a, b: adapted.iter().map(|i| (*i, unit.push(true, b(*i)))).collect() }
        });
        LinearPlaces { weight, bias, parts: outputs.to_vec(), adapter }
    };
    LayerPlaces {
        input_norm: norm(unit, "input_layernorm", c.hidden),
        qkv: linear(unit, &[0, 1, 2], &[q, kv, kv], c.hidden, c.qkv_bias),
        q_norm: c.qk_norm.then(|| norm(unit, "self_attn.q_norm", c.head_dim)),
        k_norm: c.qk_norm.then(|| norm(unit, "self_attn.k_norm", c.head_dim)),
        output: linear(unit, &[3], &[c.hidden], q, false),
        post_norm: norm(unit, "post_attention_layernorm", c.hidden),
        gate_up: linear(unit, &[4, 5], &[c.intermediate, c.intermediate], c.hidden, false),
        down: linear(unit, &[6], &[c.hidden], c.intermediate, false),
    }
}

/// A parameter's first value. New ones depend on the seed and their own name only, not on how many processes there are or
/// what else is being built beside this model.
fn initial(part: &Part, source: &Source<'_>, options: &ModelOptions) -> Result<Tensor, TrainError> {
    let shape = part.shape.as_slice();
    let float = (Kind::Float, Device::Cpu);
    let stream = |seed: u64| ChaCha8Rng::seed_from_u64(espalier_generator::seed::derive(seed, &part.name));
    if part.name.ends_with("lora_B.weight") {
        return Ok(Tensor::f_zeros(shape, float)?);
    }
    if part.name.ends_with("lora_A.weight") {
        let mut stream = stream(options.seed);
        let values: Vec<f32> = match options.lora.init_method {
            LoraInit::Kaiming => {
                let bound = 1.0 / (shape[1] as f32).sqrt();
                (0..part.numel()).map(|_| stream.random_range(-bound..bound)).collect()
            }
            LoraInit::Gaussian => normal(&mut stream, part.numel(), 1.0 / shape[0] as f32),
        };
        return Ok(Tensor::f_from_slice(&values)?.f_view(shape)?);
    }
    match source {
        Source::Files { new: Some(new), .. } if *new == part.name => {
            let deviation = 1.0 / (shape[1] as f32 + 1.0);
            Ok(Tensor::f_from_slice(&normal(&mut stream(options.seed), part.numel(), deviation))?.f_view(shape)?)
        }
        Source::Files { weights, .. } => Ok(weights.get(&part.name, shape)?),
        Source::Random { .. } if part.name.ends_with("bias") => Ok(Tensor::f_zeros(shape, float)?),
        Source::Random { .. } if shape.len() == 1 => Ok(Tensor::f_ones(shape, float)?),
        Source::Random { seed } => {
            Ok(Tensor::f_from_slice(&normal(&mut stream(*seed), part.numel(), 0.02))?.f_view(shape)?)
        }
    }
}

/// Normal numbers of mean 0, in pairs (Box and Muller, 1958).
fn normal(stream: &mut ChaCha8Rng, count: i64, deviation: f32) -> Vec<f32> {
    let pairs = (0..(count + 1) / 2).flat_map(|_| {
        let (u, v): (f32, f32) = (1.0 - stream.random::<f32>(), stream.random());
        let radius = deviation * (-2.0 * u.ln()).sqrt();
        let angle = std::f32::consts::TAU * v;
        [radius * angle.cos(), radius * angle.sin()]
    });
    pairs.take(count as usize).collect()
}
