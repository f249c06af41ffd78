//! What an endpoint is and how to reach it.

use std::collections::BTreeMap;

use reqwest::Url;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use thiserror::Error;

use crate::engine::LogprobKind;
pub use crate::http::EndpointLimits;

/// Which of an endpoint's doors is used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Api {
    /// `/chat/completions`: messages in, text out.
    #[default]
    Chat,
    /// `/completions`: text or token ids in; text out, and token ids where the dialect gives them.
    Completions,
    /// `/inference/v1/generate`, as vLLM and SkyRL serve it: token ids in, token ids out.
    Generate,
}

/// What an endpoint understands beyond OpenAI's parameters. A parameter that an endpoint does not know is refused here,
/// rather than left out silently.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Dialect {
    /// Nothing.
    #[default]
    OpenAi,
    /// `top_k` and `min_p`.
    OpenRouter,
    /// All sampling parameters, `return_token_ids`, `include_stop_str_in_output`, `X-Session-ID`.
    Vllm,
}

/// An OpenAI-compatible endpoint.
///
/// ```toml
/// base_url = "http://localhost:8000/v1"
/// model = "Qwen/Qwen3-8B"
/// api = "completions"        # chat (default), completions, generate
/// dialect = "vllm"           # open_ai (default), open_router, vllm
/// api_key_env = "VLLM_KEY"   # the variable's name, never the key
/// context_tokens = 32768
///
/// [limits]
/// concurrency = 256
/// retries = 5
///
/// [extra_body.provider]
/// sort = "price"
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EndpointConfig {
    /// Where the API begins: `https://openrouter.ai/api/v1`, `http://localhost:8000/v1`.
    pub base_url: String,
    /// The model's name, as the endpoint knows it.
    pub model: String,
    /// Which door.
    #[serde(default)]
    pub api: Api,
    /// What it understands.
    #[serde(default)]
    pub dialect: Dialect,
    /// The environment variable that holds the key. Without this no key is sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api_key_env: Option<String>,
    /// Headers that go along with every request. Not for keys: configurations are printed.
    #[serde(default)]
    pub headers: BTreeMap<String, String>,
    /// Fields that go along in every body (`provider`, `reasoning`, ...). They cannot replace what is sent anyway.
    #[serde(default)]
    pub extra_body: Map<String, Value>,
    /// Tokens of prompt and output together that fit, where it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context_tokens: Option<u32>,
    /// What its log-probabilities mean. vLLM's default (`raw_logprobs`) is the softmax before the temperature, which is
    /// none of the kinds unless the temperature is 1: say `raw` only then, or where it runs with `processed_logprobs`
    /// and no top-p, top-k or min-p.
    #[serde(default = "unknown")]
    pub logprobs: LogprobKind,
    /// The field that carries the most tokens to generate: `max_tokens`, or `max_completion_tokens` for OpenAI's
    /// reasoning models.
    #[serde(default = "max_tokens")]
    pub max_tokens_field: String,
    /// What the client puts up with.
    #[serde(default)]
    pub limits: EndpointLimits,
}

fn unknown() -> LogprobKind {
    LogprobKind::Unknown
}

fn max_tokens() -> String {
    "max_tokens".to_owned()
}

/// Why an endpoint cannot be used as it is configured.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum EndpointError {
    /// The key is not there.
    #[error("the key for `{model}` is expected in the environment variable `{variable}`, which {}", if *empty { "is empty" } else { "is not set" })]
    MissingKey {
        /// The model.
        model: String,
        /// The variable.
        variable: String,
        /// It is set, but empty.
        empty: bool,
    },
    /// A field of the configuration is wrong.
    #[error("`{field}` of the endpoint for `{model}`: {reason}")]
    Field {
        /// The model.
        model: String,
        /// Which field.
        field: String,
        /// What was expected and what came.
        reason: String,
    },
    /// The endpoint takes ids and a tokenizer is needed.
    #[error("the endpoint for `{model}` speaks in token ids; it needs the model's tokenizer")]
    NeedsTokenizer {
        /// The model.
        model: String,
    },
}

impl EndpointConfig {
    /// An endpoint of OpenAI's kind, without a key.
    pub fn new(base_url: impl Into<String>, model: impl Into<String>) -> Self {
        Self {
            base_url: base_url.into(),
            model: model.into(),
            api: Api::default(),
            dialect: Dialect::default(),
            api_key_env: None,
            headers: BTreeMap::new(),
            extra_body: Map::new(),
            context_tokens: None,
            logprobs: unknown(),
            max_tokens_field: max_tokens(),
            limits: EndpointLimits::default(),
        }
    }

    /// OpenRouter, with the key from `OPENROUTER_API_KEY`.
    pub fn open_router(model: impl Into<String>) -> Self {
        Self {
            dialect: Dialect::OpenRouter,
            api_key_env: Some("OPENROUTER_API_KEY".to_owned()),
            ..Self::new("https://openrouter.ai/api/v1", model)
        }
    }

    pub(super) fn wrong(&self, field: &str, reason: impl Into<String>) -> EndpointError {
        EndpointError::Field { model: self.model.clone(), field: field.to_owned(), reason: reason.into() }
    }

    /// The address to post to.
    pub(super) fn url(&self) -> Result<Url, EndpointError> {
        let base = self.base_url.trim_end_matches('/');
        let url = match self.api {
            Api::Chat => format!("{base}/chat/completions"),
            Api::Completions => format!("{base}/completions"),
            // This door lies beside `/v1`, not behind it.
            Api::Generate => format!("{}/inference/v1/generate", base.strip_suffix("/v1").unwrap_or(base)),
        };
        let wrong = |reason: String| self.wrong("base_url", format!("`{}` {reason}", self.base_url));
        let url = Url::parse(&url).map_err(|error| wrong(format!("is not an address: {error}")))?;
        if !matches!(url.scheme(), "http" | "https") {
            return Err(wrong(format!("begins with `{}:`; `http:` or `https:` was expected", url.scheme())));
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err(wrong("holds a name or password; keys come from `api_key_env`".to_owned()));
        }
        Ok(url)
    }
}
