//! Models from files or from a seed.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use espalier_distributed::Group;
use espalier_engine::config::DecoderConfig;
use espalier_engine::models::read_config;
use espalier_engine::weights::Weights;
use espalier_engine::{ModelError, Precision};
use rand::{Rng as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;
use tch::{Device, Kind, Tensor};

use super::unit::{RootPlaces, Unit, layer_places};
use super::{ModelOptions, TrainModel};
use crate::decoder;
use crate::error::TrainError;
use crate::files;
use crate::layout::{Flat, Part, UnitLayout};
use crate::lora::{LoraConfig, LoraInit};

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
    /// What is frozen is that of a model that is there.
    Shared(&'a TrainModel),
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
        let mut known = Self::build(&config, options, group, &Source::Files { weights: &weights, new }, role)?;
        let names: BTreeSet<&str> = known.names().collect();
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
        if known.targets.is_some() || role == Role::Frozen {
            known.base = Some(files::sha256(&weights.outline()?).chars().take(32).collect());
        }
        Ok(known)
    }

    /// A new adapter over the frozen weights of this model, which both use from now on: it takes the memory of its adapter
    /// only. Works over models from [`TrainModel::load_frozen`], and over others with adapters.
    ///
    /// Errors: a model that trains its own weights has none to share.
    pub fn with_adapter(&self, lora: LoraConfig, seed: u64) -> Result<Self, TrainError> {
        let wrong = |key: &str, expected: &str, found: &str| {
            Err(TrainError::Config { key: key.to_owned(), expected: expected.to_owned(), found: found.to_owned() })
        };
        if lora.rank == 0 {
            return wrong("model.lora.rank", "a rank above 0", "0");
        }
        if self.critic || self.units.iter().any(|unit| unit.layout.frozen.numel() == 0) {
            return wrong("model", "a model whose own weights are frozen", "one that trains them");
        }
        let options = ModelOptions { lora, seed, ..self.options.clone() };
        let mut made = Self::build(&self.config, &options, self.shared_group(), &Source::Shared(self), Role::Policy)?;
        made.base.clone_from(&self.base);
        Ok(made)
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
        for (index, layout) in layouts.into_iter().enumerate() {
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
            let frozen = match source {
                Source::Shared(base) => base.units[index].frozen.shallow_clone(),
                _ => shard(&layout.frozen, compute)?,
            };
            units.push(Unit {
                frozen,
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
            base: None,
            busy: Cell::default(),
        })
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
        Source::Shared(_) => Err(TrainError::Config {
            key: "model".to_owned(),
            expected: "adapters alone to be new".to_owned(),
            found: format!("`{}`", part.name),
        }),
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
