//! OpenAI-compatible endpoints: OpenAI, OpenRouter, vLLM, SGLang, llama.cpp, our own `serve openai`.
//!
//! | module | what lives there |
//! |---|---|
//! | this one | [`OpenAiEngine`] |
//! | `config` | [`EndpointConfig`]: address, key, dialect, limits |
//! | `wire` | bodies and answers |
//!
//! What is known of a generation depends on the door ([`Api`]). `/chat/completions` gives text: [`Fidelity::Text`].
//! `/completions` given token ids gives [`Fidelity::Tokens`] where the endpoint returns the sampled ids and the prompt's
//! as it saw them (vLLM's `return_token_ids`), and these are the ones that were sent; an endpoint that saw others is
//! caught. vLLM's and SkyRL's `/inference/v1/generate` speaks in ids alone.
//!
//! A request's adapter goes out as the model's name, which is how vLLM and our own server choose one; OpenRouter has none.
//!
//! Invariants: `n` samples are `n` requests, each with a seed of its own; a parameter that an endpoint does not know is
//! refused, not left out; a log-probability that is not finite is refused; the key comes from the environment and is
//! never shown.

mod config;
mod wire;

use async_trait::async_trait;
use reqwest::Url;
use reqwest::header::{AUTHORIZATION, HeaderMap, HeaderName, HeaderValue};

pub use self::config::{Api, Dialect, EndpointConfig, EndpointError, EndpointLimits};
use crate::engine::{EngineError, EngineInfo, Fidelity, GenerateRequest, Generation, InferenceEngine, Prompt};
use crate::http::{HttpClient, HttpError};
use crate::template::{ChatTemplate, Kwargs};
use crate::tokenizer::Tokenizer;

/// An OpenAI-compatible endpoint as an engine.
pub struct OpenAiEngine {
    info: EngineInfo,
    config: EndpointConfig,
    url: Url,
    http: HttpClient,
    vocabulary: Option<(Tokenizer, ChatTemplate)>,
}

impl std::fmt::Debug for OpenAiEngine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OpenAiEngine").field("config", &self.config).finish_non_exhaustive()
    }
}

impl OpenAiEngine {
    /// An engine for an endpoint. The key is read from the environment now.
    pub fn new(config: EndpointConfig) -> Result<Self, EndpointError> {
        if config.api == Api::Generate {
            return Err(EndpointError::NeedsTokenizer { model: config.model });
        }
        Self::build(config, None)
    }

    /// An engine that also knows the model's vocabulary: messages can go to `/completions` and `/inference/v1/generate`,
    /// and sampled ids are decoded here.
    pub fn with_vocabulary(
        config: EndpointConfig,
        tokenizer: Tokenizer,
        template: ChatTemplate,
    ) -> Result<Self, EndpointError> {
        Self::build(config, Some((tokenizer, template)))
    }

    fn build(config: EndpointConfig, vocabulary: Option<(Tokenizer, ChatTemplate)>) -> Result<Self, EndpointError> {
        if config.model.is_empty() {
            return Err(config.wrong("model", "a name was expected, it is empty"));
        }
        let limits = &config.limits;
        let bounds = [
            ("limits.concurrency", limits.concurrency),
            ("limits.response_bytes", limits.response_bytes),
            ("limits.connect_timeout_ms", limits.connect_timeout_ms as usize),
            ("limits.attempt_timeout_ms", limits.attempt_timeout_ms as usize),
        ];
        if let Some((field, _)) = bounds.iter().find(|(_, value)| *value == 0) {
            return Err(config.wrong(field, "at least 1 was expected, it is 0"));
        }
        if !matches!(config.max_tokens_field.as_str(), "max_tokens" | "max_completion_tokens") {
            let reason =
                format!("`max_tokens` or `max_completion_tokens` was expected, `{}` came", config.max_tokens_field);
            return Err(config.wrong("max_tokens_field", reason));
        }
        if let Some(name) = wire::OWN_FIELDS.iter().find(|name| config.extra_body.contains_key(**name)) {
            return Err(config.wrong("extra_body", format!("`{name}` is set by the request itself")));
        }
        let url = config.url()?;
        let (headers, secret) = headers(&config)?;
        let http = HttpClient::new(config.limits.clone(), headers, secret)
            .map_err(|reason| config.wrong("limits", format!("no client could be made: {reason}")))?;
        let info = EngineInfo {
            model: config.model.clone(),
            fidelity: if wire::gives_ids(&config) { Fidelity::Tokens } else { Fidelity::Text },
            context_tokens: config.context_tokens,
            logprobs: config.logprobs,
        };
        Ok(Self { info, config, url, http, vocabulary })
    }

    fn invalid(&self, reason: impl Into<String>) -> EngineError {
        EngineError::Invalid { model: self.config.model.clone(), reason: reason.into() }
    }

    fn failed(&self, reason: impl Into<String>) -> EngineError {
        EngineError::Failed { model: self.config.model.clone(), reason: reason.into() }
    }

    /// The prompt in a form that the endpoint takes.
    fn prepare(&self, prompt: &Prompt) -> Result<Prompt, EngineError> {
        let Some((tokenizer, template)) = self.vocabulary.as_ref().filter(|_| self.config.api != Api::Chat) else {
            return Ok(prompt.clone());
        };
        let ids = match prompt {
            Prompt::Messages(messages) => template
                .encode(tokenizer, messages, &[], true, &Kwargs::new())
                .map_err(|error| self.invalid(error.to_string()))?,
            Prompt::Text(text) => tokenizer.encode_untrusted(text).map_err(|error| self.invalid(error.to_string()))?,
            Prompt::Tokens(ids) => ids.clone(),
        };
        Ok(Prompt::Tokens(ids))
    }

    async fn sample(&self, request: &GenerateRequest, prompt: &Prompt, sample: u32) -> Result<Generation, EngineError> {
        let body = wire::body(&self.config, prompt, &request.sampling, request.adapter.as_deref(), sample)
            .map_err(|reason| self.invalid(reason))?;
        let mut headers = HeaderMap::new();
        if let Some(session) = request.session.as_deref().filter(|_| self.config.dialect == Dialect::Vllm) {
            // A hint for routers; a name that cannot be a header is left out.
            if let Ok(value) = HeaderValue::from_str(session) {
                headers.insert(HeaderName::from_static("x-session-id"), value);
            }
        }
        let answer = self.http.post(&self.url, headers, &body, request.deadline, &request.cancel).await;
        let answer = answer.map_err(|error| self.refusal(error))?;
        let answer = wire::answer(&self.config, &request.sampling, &answer).map_err(|reason| self.failed(reason))?;
        self.generation(prompt, answer)
    }

    fn generation(&self, prompt: &Prompt, answer: wire::Answer) -> Result<Generation, EngineError> {
        let wire::Answer { text, tokens, prompt_tokens, logprobs, stop, usage } = answer;
        if let (Prompt::Tokens(sent), Some(seen)) = (prompt, &prompt_tokens)
            && sent != seen
        {
            let at = sent.iter().zip(seen).take_while(|(sent, seen)| sent == seen).count();
            return Err(self.failed(format!(
                "the endpoint saw another prompt than it was sent: {} tokens in place of {}, the first difference at {at}",
                seen.len(),
                sent.len()
            )));
        }
        let exact = match (self.config.api, prompt) {
            (Api::Generate, Prompt::Tokens(_)) => true,
            (Api::Completions, Prompt::Tokens(_)) => prompt_tokens.is_some(),
            _ => false,
        };
        let tokens = tokens.filter(|_| exact);
        let fidelity = if tokens.is_some() { Fidelity::Tokens } else { Fidelity::Text };
        let text = match (&tokens, &self.vocabulary, text) {
            (Some(tokens), Some((tokenizer, _)), _) => tokenizer.decode(tokens),
            (_, _, Some(text)) => text,
            (_, _, None) => return Err(self.failed("the answer has no text")),
        };
        let logprobs = if fidelity == Fidelity::Tokens { logprobs.unwrap_or_default() } else { Vec::new() };
        let tokens = tokens.unwrap_or_default();
        Ok(Generation { text, tokens, logprobs, stop, versions: vec![(0, 0)], fidelity, usage })
    }

    fn refusal(&self, error: HttpError) -> EngineError {
        let model = self.config.model.clone();
        match error {
            HttpError::Deadline => EngineError::Deadline { model },
            HttpError::Cancelled => EngineError::Cancelled,
            HttpError::Refused { status: 400 | 413 | 422, body } => match wire::overflow(&body) {
                Some((context_tokens, prompt_tokens)) => {
                    EngineError::ContextOverflow { model, prompt_tokens, context_tokens }
                }
                None => self.invalid(format!("the endpoint refused the request: {body}")),
            },
            HttpError::Refused { status: 401 | 403, body } => {
                let key = match &self.config.api_key_env {
                    Some(variable) => format!("the key from `{variable}`"),
                    None => "a request without a key (`api_key_env` names none)".to_owned(),
                };
                self.invalid(format!("the endpoint refused {key}: {body}"))
            }
            HttpError::Refused { .. } => self.invalid(format!("{error} (`{}`)", self.url)),
            HttpError::Exhausted { .. } | HttpError::TooLarge { .. } => self.failed(error.to_string()),
        }
    }
}

/// Headers of every request, and the key that must not be quoted.
fn headers(config: &EndpointConfig) -> Result<(HeaderMap, Option<String>), EndpointError> {
    let mut headers = HeaderMap::new();
    for (name, value) in &config.headers {
        let field = format!("headers.{name}");
        let name =
            HeaderName::from_bytes(name.as_bytes()).map_err(|_| config.wrong(&field, "this is not a header's name"))?;
        if name == AUTHORIZATION {
            return Err(config.wrong(&field, "keys come from the variable that `api_key_env` names"));
        }
        let value = HeaderValue::from_str(value).map_err(|_| config.wrong(&field, "this is not a header's value"))?;
        headers.insert(name, value);
    }
    let Some(variable) = &config.api_key_env else { return Ok((headers, None)) };
    let key = std::env::var(variable).unwrap_or_default();
    let key = key.trim();
    if key.is_empty() {
        let empty = std::env::var_os(variable).is_some();
        return Err(EndpointError::MissingKey { model: config.model.clone(), variable: variable.clone(), empty });
    }
    let mut value = HeaderValue::from_str(&format!("Bearer {key}"))
        .map_err(|_| config.wrong("api_key_env", format!("what `{variable}` holds cannot be a key")))?;
    value.set_sensitive(true);
    headers.insert(AUTHORIZATION, value);
    Ok((headers, Some(key.to_owned())))
}

#[async_trait]
impl InferenceEngine for OpenAiEngine {
    fn info(&self) -> &EngineInfo {
        &self.info
    }

    async fn generate(&self, request: GenerateRequest) -> Result<Vec<Generation>, EngineError> {
        let prompt = self.prepare(&request.prompt)?;
        let samples = (0..request.n).map(|sample| self.sample(&request, &prompt, sample));
        futures::future::try_join_all(samples).await
    }
}
