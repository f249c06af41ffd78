//! Engines by kind: what the generator makes, and the local one, which needs libtorch.

use async_trait::async_trait;
use espalier_generator::suite::{BuiltEngine, EngineFactory, EngineSpec, StandardEngines, SuiteError};

/// Makes every kind of engine that this build has.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Engines;

#[async_trait]
impl EngineFactory for Engines {
    fn kinds(&self) -> Vec<&'static str> {
        let mut kinds = StandardEngines.kinds();
        if cfg!(feature = "torch") {
            kinds.push("local");
        }
        kinds
    }

    async fn make(&self, spec: &EngineSpec) -> Result<BuiltEngine, SuiteError> {
        match spec.kind.as_str() {
            #[cfg(feature = "torch")]
            "local" => local::make(spec).await,
            #[cfg(not(feature = "torch"))]
            "local" => Err(SuiteError::Engine {
                engine: spec.name.clone(),
                reason: "this build has no local engine; build with the `torch` feature".to_owned(),
            }),
            kind if StandardEngines.kinds().contains(&kind) => StandardEngines.make(spec).await,
            _ => Err(StandardEngines::unknown(spec, &self.kinds())),
        }
    }
}

#[cfg(feature = "torch")]
mod local {
    use std::sync::Arc;

    use espalier_engine::{EngineOptions, LocalEngine, Precision};
    use espalier_generator::player::ModelTemplate;
    use espalier_generator::suite::{BuiltEngine, EngineSpec, SuiteError};
    use serde::Deserialize;

    use crate::settings::model_folder;

    /// `options` of an engine of kind `local`.
    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Options {
        /// The model's folder, or its name in `$ESPALIER_MODELS` or the cache.
        model: String,
        /// `bf16` or `f32`.
        #[serde(default = "bf16")]
        precision: String,
        kv_cache_mb: Option<u64>,
        threads: Option<usize>,
        max_batch: Option<usize>,
        #[serde(default)]
        seed: u64,
    }

    fn bf16() -> String {
        "bf16".to_owned()
    }

    pub(super) async fn make(spec: &EngineSpec) -> Result<BuiltEngine, SuiteError> {
        let wrong = |reason: String| SuiteError::Engine { engine: spec.name.clone(), reason };
        let options: Options =
            espalier_envs::params::read("local", &spec.options).map_err(|error| wrong(error.to_string()))?;
        let precision = precision(&options.precision).map_err(&wrong)?;
        let folder = model_folder(&options.model);
        let defaults = EngineOptions::default();
        let engine_options = EngineOptions {
            name: None,
            precision,
            kv_cache_mb: options.kv_cache_mb,
            threads: options.threads,
            max_batch: options.max_batch.unwrap_or(defaults.max_batch),
            seed: options.seed,
            ..defaults
        };
        let engine = tokio::task::spawn_blocking(move || LocalEngine::load(&folder, engine_options))
            .await
            .map_err(|error| wrong(error.to_string()))?
            .map_err(|error| wrong(error.to_string()))?;
        let template = engine
            .template()
            .map(|template| Arc::new(ModelTemplate::new(engine.tokenizer().clone(), template.clone())));
        Ok(BuiltEngine { engine: Arc::new(engine), template })
    }

    /// The precision of that name.
    pub(crate) fn precision(name: &str) -> Result<Precision, String> {
        match name {
            "bf16" => Ok(Precision::Bf16),
            "f32" => Ok(Precision::F32),
            other => Err(format!("`precision` must be `bf16` or `f32`, got `{other}`")),
        }
    }
}

#[cfg(feature = "torch")]
pub(crate) use local::precision;
