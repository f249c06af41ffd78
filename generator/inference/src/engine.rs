//! The one interface to whatever samples.

use std::time::Duration;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use thiserror::Error;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::{Message, SamplingParams, StopReason, TokenId};

/// What to continue.
#[derive(Clone, Debug, PartialEq)]
pub enum Prompt {
    /// Exact tokens. The only form whose rollouts can train.
    Tokens(Vec<TokenId>),
    /// Raw text, without a template.
    Text(String),
    /// A conversation; the engine applies the model's template.
    Messages(Vec<Message>),
}

/// One request: a prompt, and how to continue it `n` times.
#[derive(Clone, Debug)]
pub struct GenerateRequest {
    /// What to continue.
    pub prompt: Prompt,
    /// How.
    pub sampling: SamplingParams,
    /// How many independent continuations; they share the prompt's prefill. Sample `i` uses seed `seed + i`.
    pub n: u32,
    /// The adapter that answers, by name; the base model where absent. An engine that has no adapter of that name refuses
    /// the request.
    pub adapter: Option<String>,
    /// Requests of one conversation carry one session name, so that an engine or router can keep its cache warm.
    pub session: Option<String>,
    /// The request ends as [`StopReason::Cancelled`] or [`EngineError::Deadline`] at this moment.
    pub deadline: Instant,
    /// Cancels the request.
    pub cancel: CancellationToken,
}

impl GenerateRequest {
    /// A request for one continuation, ten minutes at most.
    pub fn new(prompt: Prompt, sampling: SamplingParams) -> Self {
        Self {
            prompt,
            sampling,
            n: 1,
            adapter: None,
            session: None,
            deadline: Instant::now() + Duration::from_mins(10),
            cancel: CancellationToken::new(),
        }
    }
}

/// How exactly what was sampled is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fidelity {
    /// Prompt ids were taken as sent, sampled ids came back, log-probabilities are the sampler's.
    Tokens,
    /// Only text is known. Rollouts can be evaluated, and are refused for training.
    Text,
}

/// One continuation.
#[derive(Clone, Debug, PartialEq)]
pub struct Generation {
    /// The text of `tokens`, special tokens left out, the stop string (if one ended it) included.
    pub text: String,
    /// Sampled ids, the end-of-turn token included. Empty where the engine knows only text.
    pub tokens: Vec<TokenId>,
    /// Log-probability of each sampled id under the distribution named by [`EngineInfo::logprobs`]. As long as
    /// `tokens`, or empty where it was not asked for or is not known.
    pub logprobs: Vec<f32>,
    /// Why it ended.
    pub stop: StopReason,
    /// The policy's version at each sampled token, as runs `(first token, version)`: a policy whose weights change while
    /// it samples has several. Engines with fixed weights say `[(0, 0)]`.
    pub versions: Vec<(u32, u64)>,
    /// How exactly it is known.
    pub fidelity: Fidelity,
    /// What it cost.
    pub usage: Usage,
}

/// What a generation cost, in tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// Of these, how many came from a cache.
    pub cached_tokens: u32,
    /// Tokens sampled.
    pub completion_tokens: u32,
}

/// Which distribution log-probabilities belong to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LogprobKind {
    /// The softmax of the logits divided by the temperature, before top-p, top-k and min-p.
    Raw,
    /// What was really drawn from, renormalised over the kept tokens.
    Processed,
    /// The endpoint does not say.
    Unknown,
}

/// What an engine is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EngineInfo {
    /// The model's name.
    pub model: String,
    /// The best fidelity this engine reaches.
    pub fidelity: Fidelity,
    /// Tokens of prompt and output together that fit; `None` where the endpoint does not say.
    pub context_tokens: Option<u32>,
    /// What its log-probabilities mean.
    pub logprobs: LogprobKind,
}

/// Why a request failed.
#[derive(Clone, Debug, Error, PartialEq)]
pub enum EngineError {
    /// The request itself is wrong; sending it again changes nothing.
    #[error("{model}: {reason}")]
    Invalid {
        /// The model or endpoint.
        model: String,
        /// What was expected and what came.
        reason: String,
    },
    /// The request names an adapter that the engine does not have.
    #[error("{model}: `adapter`: expected {}, got `{adapter}`", known_adapters(known))]
    UnknownAdapter {
        /// The model or endpoint.
        model: String,
        /// The name that came.
        adapter: String,
        /// The names that the engine knows.
        known: Vec<String>,
    },
    /// The prompt does not fit.
    #[error("{model}: a prompt of {prompt_tokens} tokens does not fit a context of {context_tokens}")]
    ContextOverflow {
        /// The model or endpoint.
        model: String,
        /// The prompt's length.
        prompt_tokens: u32,
        /// What fits.
        context_tokens: u32,
    },
    /// The deadline passed.
    #[error("{model}: no answer within the request's deadline")]
    Deadline {
        /// The model or endpoint.
        model: String,
    },
    /// The request was cancelled.
    #[error("the request was cancelled")]
    Cancelled,
    /// The endpoint or engine failed, after retries where they make sense.
    #[error("{model}: {reason}")]
    Failed {
        /// The model or endpoint.
        model: String,
        /// What happened.
        reason: String,
    },
}

fn known_adapters(known: &[String]) -> String {
    if known.is_empty() {
        return "none, as no adapter is loaded".to_owned();
    }
    let names: Vec<String> = known.iter().map(|name| format!("`{name}`")).collect();
    format!("one of {}", names.join(", "))
}

/// Whatever samples: an HTTP endpoint, the local engine, a script.
#[async_trait]
pub trait InferenceEngine: Send + Sync {
    /// What this engine is.
    fn info(&self) -> &EngineInfo;

    /// Continues a prompt `request.n` times; the answers are in sample order.
    async fn generate(&self, request: GenerateRequest) -> Result<Vec<Generation>, EngineError>;

    /// A conversation ended: its cache may go.
    fn finish_session(&self, _session: &str) {}
}
