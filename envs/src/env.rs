//! What every environment implements, and what it is given.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use espalier_inference::{Message, StopReason, TokenId};
use thiserror::Error;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::services::Services;

/// What the policy did: one assistant turn.
#[derive(Clone, Debug, PartialEq)]
pub struct Action {
    /// Its text, special tokens left out.
    pub text: String,
    /// Its tokens; empty where the engine knows only text.
    pub tokens: Vec<TokenId>,
    /// Why it ended.
    pub stop: StopReason,
}

/// What happens to the conversation before the observations are appended.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum History {
    /// Nothing: the conversation only grows, and one row holds it.
    #[default]
    Append,
    /// The prompt that stood before the action is removed (the message at this index), as ephemeral prompts are
    /// under `compat = "skyrl"`: a new row starts.
    Remove(usize),
}

/// What the environment answers.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Step {
    /// Messages appended to the conversation.
    pub observations: Vec<Message>,
    /// What happens to the conversation before that.
    pub history: History,
    /// Reward of this turn; finite.
    pub reward: f64,
    /// The task is over.
    pub terminated: bool,
    /// The environment's own limit (turns) ended it.
    pub truncated: bool,
    /// Anything worth recording, as JSON.
    pub metadata: BTreeMap<String, serde_json::Value>,
}

/// What an environment reports once, at the end. Numbers are averaged over rollouts by default, truths count as 0
/// and 1, texts are recorded only.
pub type Metrics = BTreeMap<String, serde_json::Value>;

/// What an environment is given.
#[derive(Clone)]
pub struct EnvContext {
    /// Sub-calls, children, budget.
    pub services: Arc<dyn Services>,
    /// Seeds whatever the environment draws.
    pub seed: u64,
    /// The rollout ends at this moment.
    pub deadline: Instant,
    /// Cancelled when the rollout is.
    pub cancel: CancellationToken,
    /// Most turns of this rollout.
    pub max_turns: u32,
    /// Depth in the rollout tree; the root is 0.
    pub depth: u32,
}

/// Why an environment could not go on.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum EnvError {
    /// No environment of that id.
    #[error("no environment `{id}`; {hint}")]
    Unknown {
        /// The id that came.
        id: String,
        /// The nearest id, or the list.
        hint: String,
    },
    /// An environment of that id is registered already.
    #[error("an environment `{id}` is registered already; deregister it first")]
    Duplicate {
        /// The id.
        id: String,
    },
    /// A parameter or a column of the row is wrong.
    #[error("`{env}`: `{key}` {reason}")]
    Invalid {
        /// The environment's id.
        env: String,
        /// The parameter or column.
        key: String,
        /// What was expected and what came.
        reason: String,
    },
    /// A file or folder that a parameter or an id names cannot be used.
    #[error("`{env}`: `{key}` {reason}")]
    Unusable {
        /// The environment's id.
        env: String,
        /// The parameter, or the file where the id names it.
        key: String,
        /// What was expected and what came.
        reason: String,
    },
    /// The grader failed: the rollout has no reward.
    #[error("`{env}`: the grader failed: {reason}")]
    Grader {
        /// The environment's id.
        env: String,
        /// What happened.
        reason: String,
    },
    /// Something the environment stands on failed (a sandbox, a service).
    #[error("`{env}`: {reason}")]
    Failed {
        /// The environment's id.
        env: String,
        /// What happened.
        reason: String,
    },
}

/// A task that a policy plays turn by turn.
#[async_trait]
pub trait Env: Send {
    /// Starts an episode: the first messages to show the policy.
    async fn init(&mut self, prompt: Vec<Message>, context: EnvContext) -> Result<Vec<Message>, EnvError>;

    /// Answers one action. Not called again after `terminated` or `truncated`.
    async fn step(&mut self, action: Action) -> Result<Step, EnvError>;

    /// What there is to report; read once, after the episode.
    fn metrics(&self) -> Metrics {
        Metrics::new()
    }

    /// What the episode answered, where the environment has such a thing: what a parent's `rlm_query` returns.
    fn answer(&self) -> Option<espalier_sandbox::FinalAnswer> {
        None
    }

    /// Frees what the episode holds.
    async fn close(&mut self) {}
}
