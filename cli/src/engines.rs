//! Engines by kind: what the generator makes, and the local one, which needs libtorch.

use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use async_trait::async_trait;
use espalier_generator::suite::{BuiltEngine, EngineFactory, EngineSpec, StandardEngines, SuiteError};
use espalier_inference::{ChatTemplate, ScriptedEngine, Tokenizer};

use crate::failure::Failure;

#[cfg(feature = "torch")]
pub(crate) use local::{load, open, precision};

/// Makes every kind of engine that this build has, for a suite.
///
/// What a suite says of an engine that could not be made is text; the failure itself, which knows the exit code, is
/// kept here ([`Engines::failure`]).
#[derive(Debug, Default)]
pub(crate) struct Engines {
    failed: Mutex<Option<Failure>>,
}

impl Engines {
    /// The failure of the engine that could not be made, if one could not.
    pub(crate) fn failure(&self) -> Option<Failure> {
        self.failed.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

#[async_trait]
impl EngineFactory for Engines {
    fn kinds(&self) -> Vec<&'static str> {
        kinds()
    }

    async fn make(&self, spec: &EngineSpec) -> Result<BuiltEngine, SuiteError> {
        build(spec).await.map_err(|failure| {
            let error = SuiteError::Engine { engine: spec.name.clone(), reason: failure.to_string() };
            *self.failed.lock().unwrap_or_else(PoisonError::into_inner) = Some(failure);
            error
        })
    }
}

fn kinds() -> Vec<&'static str> {
    let mut kinds = StandardEngines.kinds();
    if cfg!(feature = "torch") {
        kinds.push("local");
    }
    kinds
}

/// Makes an engine of any kind.
pub(crate) async fn build(spec: &EngineSpec) -> Result<BuiltEngine, Failure> {
    match spec.kind.as_str() {
        #[cfg(feature = "torch")]
        "local" => local::make(spec).await,
        #[cfg(not(feature = "torch"))]
        "local" => {
            Err(Failure::Configuration("this build has no local engine; build with the `torch` feature".to_owned()))
        }
        kind if StandardEngines.kinds().contains(&kind) => {
            // Nothing is asked of a model yet: what goes wrong here is a file or an option.
            StandardEngines.make(spec).await.map_err(|error| match unusable_file(spec) {
                Some(said) => Failure::Data(said),
                None => Failure::Configuration(reason(error)),
            })
        }
        _ => Err(Failure::Configuration(reason(StandardEngines::unknown(spec, &kinds())))),
    }
}

/// What an error says, without the engine's name.
fn reason(error: SuiteError) -> String {
    match error {
        SuiteError::Engine { reason, .. } => reason,
        other => other.to_string(),
    }
}

/// What is wrong with a file that an engine's options name, if one of them cannot be used.
fn unusable_file(spec: &EngineSpec) -> Option<String> {
    let named = |key: &str| spec.options.get(key)?.as_str().map(PathBuf::from);
    let script = |path: PathBuf| ScriptedEngine::from_file(path).err().map(|error| error.to_string());
    let tokenizer = |folder: PathBuf| {
        let tokenizer = Tokenizer::from_dir(&folder).err().map(|error| error.to_string());
        tokenizer.or_else(|| ChatTemplate::from_dir(&folder).err().map(|error| error.to_string()))
    };
    let scripted = spec.kind == "scripted";
    named("script").filter(|_| scripted).and_then(script).or_else(|| named("tokenizer").and_then(tokenizer))
}

#[cfg(feature = "torch")]
mod local {
    use std::path::PathBuf;
    use std::sync::Arc;

    use espalier_engine::{EngineOptions, LocalEngine, Precision, sampling};
    use espalier_generator::player::ModelTemplate;
    use espalier_generator::suite::{BuiltEngine, EngineSpec};
    use espalier_inference::SamplingParams;
    use serde::Deserialize;

    use crate::failure::Failure;
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

    pub(super) async fn make(spec: &EngineSpec) -> Result<BuiltEngine, Failure> {
        let options: Options = espalier_envs::params::read("local", &spec.options)?;
        let defaults = EngineOptions::default();
        let engine_options = EngineOptions {
            name: None,
            precision: precision(&options.precision).map_err(Failure::Configuration)?,
            kv_cache_mb: options.kv_cache_mb,
            threads: options.threads,
            max_batch: options.max_batch.unwrap_or(defaults.max_batch),
            seed: options.seed,
            ..defaults
        };
        load(model_folder(&options.model), engine_options, &spec.sampling).await
    }

    /// Loads a model for conversations that are sampled so.
    pub(crate) async fn load(
        folder: PathBuf,
        options: EngineOptions,
        sampling: &SamplingParams,
    ) -> Result<BuiltEngine, Failure> {
        // The vocabulary is not known yet; the engine itself looks at ids.
        sampling::check(sampling, u32::MAX)
            .map_err(|reason| Failure::Configuration(format!("sampling parameter {reason}")))?;
        let engine = open(folder.clone(), options).await?;
        let template = engine.template().ok_or_else(|| {
            Failure::Data(format!(
                "`{}` has no chat template, which conversations need: expected `chat_template.jinja`, or \
                 `chat_template` in `tokenizer_config.json`; take a model that was trained to chat",
                folder.display()
            ))
        })?;
        let template = Some(Arc::new(ModelTemplate::new(engine.tokenizer().clone(), template.clone())));
        Ok(BuiltEngine { engine: Arc::new(engine), template })
    }

    /// Loads a model folder.
    pub(crate) async fn open(folder: PathBuf, options: EngineOptions) -> Result<LocalEngine, Failure> {
        let loaded = tokio::task::spawn_blocking(move || LocalEngine::load(&folder, options)).await;
        Ok(loaded.map_err(|error| Failure::Internal(format!("the model was not loaded: {error}")))??)
    }

    /// The precision of that name.
    pub(crate) fn precision(name: &str) -> Result<Precision, String> {
        match name {
            "bf16" => Ok(Precision::Bf16),
            "f32" => Ok(Precision::F32),
            other => Err(format!("`precision`: expected `bf16` or `f32`, got `{other}`")),
        }
    }
}
