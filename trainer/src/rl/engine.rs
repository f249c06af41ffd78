//! Whatever samples, and how new weights reach it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use espalier_engine::LocalEngine;
use espalier_engine::adapters::{AdapterConfig, AdapterWeights};
use espalier_generator::player::ModelTemplate;
use espalier_generator::{Player, Players};
use espalier_inference::{EngineError, EngineInfo, GenerateRequest, Generation, InferenceEngine, SamplingParams};
use tch::Tensor;

use crate::decoder::copied;
use crate::error::TrainError;
use crate::export::merged;
use crate::model::{TrainModel, Visit};

/// Samples for the loop.
pub trait Sampler: Send + Sync {
    /// Who plays, with these sampling parameters.
    fn players(&self, sampling: SamplingParams) -> Players;

    /// Whether it wants adapters rather than whole weights.
    fn wants_adapters(&self) -> bool {
        true
    }

    /// Takes the weights of a version: the adapter's, with what its product is multiplied with, or the whole model's.
    fn publish(&self, weights: Weights, version: u64) -> Result<(), TrainError>;
}

/// Weights on their way to a sampler.
pub enum Weights {
    /// `A` and `B` by module name, rank and alpha of the configuration.
    Adapter {
        /// Tensors by name, as [`TrainModel::visit`] names them.
        tensors: BTreeMap<String, Tensor>,
        /// How they are scaled.
        config: AdapterConfig,
    },
    /// Every tensor of the model by name.
    Whole(BTreeMap<String, Tensor>),
}

/// Sends a model's weights to the sampler of the first process. All processes must call this together.
pub fn publish(model: &TrainModel, sampler: Option<&dyn Sampler>, version: u64) -> Result<(), TrainError> {
    let first = model.group().rank() == 0;
    let mut tensors = BTreeMap::new();
    let mut take = |name: &str, value: Tensor| {
        if first {
            tensors.insert(name.to_owned(), copied(&value)?);
        }
        Ok(())
    };
    let adapter = model.targets().is_some() && sampler.is_none_or(Sampler::wants_adapters);
    if adapter {
        model.visit(Visit::Trained, &mut take)?;
    } else {
        merged(model, &mut take)?;
    }
    let Some(sampler) = sampler.filter(|_| first) else { return Ok(()) };
    let lora = &model.options().lora;
    let weights = if adapter {
        let mut config = AdapterConfig::new(lora.rank, lora.alpha).with_targets(modules(model));
        if lora.use_rslora {
            config = config.rank_stabilised();
        }
        Weights::Adapter { tensors, config }
    } else {
        Weights::Whole(tensors)
    };
    sampler.publish(weights, version)
}

/// Paths of the modules that have an adapter.
fn modules(model: &TrainModel) -> Vec<String> {
    model.trained_parts().filter_map(|part| Some(part.name.strip_suffix(".lora_A.weight")?.to_owned())).collect()
}

/// The local engine: the policy is an adapter of it, or its own weights. Weights are swapped while requests run; each
/// token says which of the loop's versions sampled it.
pub struct LocalSampler {
    engine: Arc<LocalEngine>,
    template: Arc<ModelTemplate>,
    versions: Arc<Versions>,
}

/// The loop's version for each version of the engine, which counts its own changes.
#[derive(Default)]
struct Versions(Mutex<BTreeMap<u64, u64>>);

impl Versions {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, u64>> {
        // Nothing panics while it holds the lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The engine's next version is the loop's `version`. Said before the engine has it, as tokens may come at once.
    fn announce(&self, engine: u64, version: u64) {
        self.lock().insert(engine, version);
    }

    /// The loop's version; where nothing was announced, that of the announcement before.
    fn of(&self, engine: u64) -> u64 {
        let known = self.lock();
        known.range(..=engine).next_back().map_or(0, |(_, version)| *version)
    }
}

/// What the policy's adapter is called.
const ADAPTER: &str = "policy";

impl LocalSampler {
    /// A sampler over an engine that holds the policy's base.
    pub fn new(engine: Arc<LocalEngine>, template: Arc<ModelTemplate>) -> Self {
        Self { engine, template, versions: Arc::default() }
    }
}

impl Sampler for LocalSampler {
    fn players(&self, sampling: SamplingParams) -> Players {
        let adapter = self.adapter_version().map(|_| ADAPTER.to_owned());
        let (engine, versions) = (Arc::clone(&self.engine), Arc::clone(&self.versions));
        let engine = Arc::new(PolicyEngine { engine, versions, adapter });
        Players::policy(Player { engine, template: Some(Arc::clone(&self.template)), sampling, trained: true })
    }

    fn publish(&self, weights: Weights, version: u64) -> Result<(), TrainError> {
        match weights {
            Weights::Adapter { tensors, config } => {
                let model = &self.engine.config().decoder;
                let wrong = |reason: String| TrainError::Sampling { reason };
                let weights =
                    AdapterWeights::from_tensors(&config, model, tensors).map_err(|e| wrong(e.to_string()))?;
                let known = self.adapter_version();
                self.versions.announce(known.map_or(1, |current| current + 1), version);
                let published = if known.is_some() {
                    self.engine.update_adapter(ADAPTER, &weights)
                } else {
                    self.engine.load_adapter(ADAPTER, &weights)
                };
                let engine = published.map_err(|e| wrong(e.to_string()))?;
                self.versions.announce(engine, version);
            }
            Weights::Whole(tensors) => {
                let next = self.versions.lock().last_key_value().map_or(1, |(engine, _)| engine + 1);
                self.versions.announce(next, version);
                let engine = self.engine.update_base(tensors)?;
                self.versions.announce(engine, version);
            }
        }
        Ok(())
    }
}

impl LocalSampler {
    /// The engine's version of the policy's adapter, once there is one.
    fn adapter_version(&self) -> Option<u64> {
        self.engine.adapters().iter().find(|(name, _)| name == ADAPTER).map(|(_, version)| *version)
    }
}

/// The engine with the policy's adapter.
struct PolicyEngine {
    engine: Arc<LocalEngine>,
    versions: Arc<Versions>,
    adapter: Option<String>,
}

#[async_trait]
impl InferenceEngine for PolicyEngine {
    fn info(&self) -> &EngineInfo {
        self.engine.info()
    }

    async fn generate(&self, mut request: GenerateRequest) -> Result<Vec<Generation>, EngineError> {
        request.adapter.clone_from(&self.adapter);
        let mut generations = self.engine.generate(request).await?;
        for (_, version) in generations.iter_mut().flat_map(|generation| &mut generation.versions) {
            *version = self.versions.of(*version);
        }
        Ok(generations)
    }
}
