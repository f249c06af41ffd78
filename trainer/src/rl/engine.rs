//! Whatever samples, and how new weights reach it.

use std::collections::BTreeMap;
use std::sync::Arc;

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

/// The local engine: the policy is an adapter of it, or its own weights.
pub struct LocalSampler {
    engine: Arc<LocalEngine>,
    template: Arc<ModelTemplate>,
}

/// What the policy's adapter is called.
const ADAPTER: &str = "policy";

impl LocalSampler {
    /// A sampler over an engine that holds the policy's base.
    pub fn new(engine: Arc<LocalEngine>, template: Arc<ModelTemplate>) -> Self {
        Self { engine, template }
    }
}

impl Sampler for LocalSampler {
    fn players(&self, sampling: SamplingParams) -> Players {
        let adapter = self.engine.adapters().iter().any(|(name, _)| name == ADAPTER).then(|| ADAPTER.to_owned());
        let engine = Arc::new(PolicyEngine { engine: Arc::clone(&self.engine), adapter });
        Players::policy(Player { engine, template: Some(Arc::clone(&self.template)), sampling, trained: true })
    }

    fn publish(&self, weights: Weights, _version: u64) -> Result<(), TrainError> {
        match weights {
            Weights::Adapter { tensors, config } => {
                let model = &self.engine.config().decoder;
                let wrong = |reason: String| TrainError::Sampling { reason };
                let weights =
                    AdapterWeights::from_tensors(&config, model, tensors).map_err(|e| wrong(e.to_string()))?;
                let known = self.engine.adapters().iter().any(|(name, _)| name == ADAPTER);
                let published = if known {
                    self.engine.update_adapter(ADAPTER, &weights)
                } else {
                    self.engine.load_adapter(ADAPTER, &weights)
                };
                published.map_err(|e| wrong(e.to_string()))?;
            }
            Weights::Whole(tensors) => {
                self.engine.update_base(tensors)?;
            }
        }
        Ok(())
    }
}

/// The engine with the policy's adapter.
struct PolicyEngine {
    engine: Arc<LocalEngine>,
    adapter: Option<String>,
}

#[async_trait]
impl InferenceEngine for PolicyEngine {
    fn info(&self) -> &EngineInfo {
        self.engine.info()
    }

    async fn generate(&self, mut request: GenerateRequest) -> Result<Vec<Generation>, EngineError> {
        request.adapter.clone_from(&self.adapter);
        self.engine.generate(request).await
    }
}
