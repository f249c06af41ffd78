//! Makes engines by kind.
//!
//! | kind | options |
//! |---|---|
//! | `scripted` | `script` (a JSONL file), `cycle`, `context_tokens`, `text_only` |
//! | `openai` | [`EndpointConfig`]'s fields |
//! | `openrouter` | the same; address, dialect and key variable have OpenRouter's defaults |
//!
//! Each also takes `tokenizer` (a model's folder with its tokenizer and chat template) and `template_kwargs`.

use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use espalier_inference::{
    ChatTemplate, ConversationOptions, EndpointConfig, Fidelity, InferenceEngine, OpenAiEngine, ScriptedEngine,
    Tokenizer,
};
use serde::Deserialize;
use serde_json::{Map, Value};

use super::SuiteError;
use super::config::EngineSpec;
use crate::player::{ModelTemplate, Player};

/// An engine, and how its conversations become tokens where that is known.
#[derive(Clone)]
pub struct BuiltEngine {
    /// What samples.
    pub engine: Arc<dyn InferenceEngine>,
    /// The model's tokenizer and chat template.
    pub template: Option<Arc<ModelTemplate>>,
}

impl BuiltEngine {
    /// A player that samples as the suite says.
    pub fn player(&self, spec: &EngineSpec) -> Player {
        Player {
            engine: Arc::clone(&self.engine),
            template: self.template.clone(),
            sampling: spec.sampling.clone(),
            trained: true,
        }
    }
}

/// Makes engines by kind. The command implements this for what needs libtorch, and asks [`StandardEngines`] for the
/// rest.
#[async_trait]
pub trait EngineFactory: Send + Sync {
    /// The kinds it makes.
    fn kinds(&self) -> Vec<&'static str>;

    /// Makes one. `options` that the kind does not know are refused.
    async fn make(&self, spec: &EngineSpec) -> Result<BuiltEngine, SuiteError>;
}

/// The engines that need nothing but this crate and below.
#[derive(Clone, Copy, Debug, Default)]
pub struct StandardEngines;

impl StandardEngines {
    /// The error for a kind that a factory does not make.
    pub fn unknown(spec: &EngineSpec, kinds: &[&str]) -> SuiteError {
        let hint = espalier_envs::params::hint(&spec.kind, kinds.iter().copied());
        SuiteError::Engine { engine: spec.name.clone(), reason: format!("no kind of engine `{}`; {hint}", spec.kind) }
    }
}

/// The options that every kind takes.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Vocabulary {
    tokenizer: Option<PathBuf>,
    template_kwargs: Map<String, Value>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ScriptOptions {
    script: PathBuf,
    #[serde(default)]
    cycle: bool,
    #[serde(default)]
    context_tokens: Option<u32>,
    #[serde(default)]
    text_only: bool,
}

impl Vocabulary {
    /// Takes the common options out of the others.
    fn take(options: &mut Map<String, Value>) -> Result<Self, String> {
        let mut own = Map::new();
        for key in ["tokenizer", "template_kwargs"] {
            if let Some(value) = options.remove(key) {
                own.insert(key.to_owned(), value);
            }
        }
        serde_json::from_value(Value::Object(own)).map_err(|error| format!("`options`: {error}"))
    }

    fn load(&self) -> Result<Option<(Tokenizer, ChatTemplate)>, String> {
        let Some(folder) = &self.tokenizer else { return Ok(None) };
        let tokenizer = Tokenizer::from_dir(folder).map_err(|error| error.to_string())?;
        let template = ChatTemplate::from_dir(folder).map_err(|error| error.to_string())?;
        Ok(Some((tokenizer, template)))
    }

    fn template(&self, tokenizer: Tokenizer, template: ChatTemplate) -> Arc<ModelTemplate> {
        let options = ConversationOptions { kwargs: self.template_kwargs.clone(), ..ConversationOptions::default() };
        Arc::new(ModelTemplate { tokenizer, template, options })
    }
}

/// Reads a kind's options; unknown ones are refused with the nearest valid name.
fn read<T: serde::de::DeserializeOwned>(options: &Map<String, Value>) -> Result<T, String> {
    espalier_envs::params::read("options", options).map_err(|error| match error {
        espalier_envs::EnvError::Invalid { key, reason, .. } => format!("option `{key}` {reason}"),
        other => other.to_string(),
    })
}

fn scripted(mut options: Map<String, Value>) -> Result<BuiltEngine, String> {
    let vocabulary = Vocabulary::take(&mut options)?;
    let options: ScriptOptions = read(&options)?;
    let mut builder = ScriptedEngine::from_file(&options.script).map_err(|error| error.to_string())?;
    // Without a model's own: one token per byte, and ChatML, as the scripted engine itself assumes.
    let (tokenizer, template) = vocabulary.load()?.unwrap_or_else(|| (Tokenizer::bytes(), ChatTemplate::chatml()));
    builder = builder.vocabulary(tokenizer.clone(), template.clone());
    if let Some(tokens) = options.context_tokens {
        builder = builder.context_tokens(tokens);
    }
    if options.cycle {
        builder = builder.cycle();
    }
    if options.text_only {
        builder = builder.text_only();
    }
    let template = vocabulary.template(tokenizer, template);
    Ok(BuiltEngine { engine: Arc::new(builder.build()), template: Some(template) })
}

fn endpoint(mut options: Map<String, Value>, open_router: bool) -> Result<BuiltEngine, String> {
    let vocabulary = Vocabulary::take(&mut options)?;
    if open_router {
        let defaults = serde_json::to_value(EndpointConfig::open_router("")).map_err(|error| error.to_string())?;
        for (key, value) in defaults.as_object().into_iter().flatten() {
            if key != "model" && !options.contains_key(key) {
                options.insert(key.clone(), value.clone());
            }
        }
    }
    let config: EndpointConfig = read(&options)?;
    let Some((tokenizer, template)) = vocabulary.load()? else {
        let engine = OpenAiEngine::new(config).map_err(|error| error.to_string())?;
        return Ok(BuiltEngine { engine: Arc::new(engine), template: None });
    };
    let engine = OpenAiEngine::with_vocabulary(config, tokenizer.clone(), template.clone())
        .map_err(|error| error.to_string())?;
    let exact = engine.info().fidelity == Fidelity::Tokens;
    let template = exact.then(|| vocabulary.template(tokenizer, template));
    Ok(BuiltEngine { engine: Arc::new(engine), template })
}

#[async_trait]
impl EngineFactory for StandardEngines {
    fn kinds(&self) -> Vec<&'static str> {
        vec!["openai", "openrouter", "scripted"]
    }

    async fn make(&self, spec: &EngineSpec) -> Result<BuiltEngine, SuiteError> {
        let options = spec.options.clone();
        let built = match spec.kind.as_str() {
            "scripted" => scripted(options),
            "openai" => endpoint(options, false),
            "openrouter" => endpoint(options, true),
            _ => return Err(Self::unknown(spec, &self.kinds())),
        };
        built.map_err(|reason| SuiteError::Engine { engine: spec.name.clone(), reason })
    }
}
