//! What an environment may ask of the rollout that plays it.
//!
//! The rollout tree implements [`Services`]; it alone counts the budget, so no environment can spend more than the
//! tree has.

use std::sync::Arc;

use async_trait::async_trait;
use espalier_inference::{JsonSchema, Message};
use espalier_sandbox::{Context, FinalAnswer};
use thiserror::Error;
use tokio_util::sync::CancellationToken;

/// One `llm_query`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubQuery {
    /// The prompt, one user message.
    pub prompt: String,
    /// The model asked for, where the caller named one.
    pub model: Option<String>,
}

/// One `rlm_query`: a copy of the environment with a REPL of its own.
#[derive(Clone, Debug)]
pub struct ChildRequest {
    /// The child's question.
    pub prompt: String,
    /// The child's context; `None` gives it its prompt as context.
    pub context: Option<Context>,
}

/// One question to the judge: a model that grades, and is not the policy.
#[derive(Clone, Debug, PartialEq)]
pub struct JudgeRequest {
    /// The conversation, the judge's turn to come.
    pub messages: Vec<Message>,
    /// The form that the answer should have; a hint to the engine, so the messages say it too.
    pub schema: Option<Arc<JsonSchema>>,
    /// Most tokens of the answer.
    pub max_tokens: u32,
}

/// What a child answered.
#[derive(Clone, Debug, PartialEq)]
pub struct ChildAnswer {
    /// Its final answer; `None` when it gave none.
    pub answer: Option<FinalAnswer>,
}

/// Why a sub-call or child failed. Shown to the block that made it.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum SubCallError {
    /// A budget of the tree is spent.
    #[error("the {budget} budget of this rollout is spent ({limit})")]
    Budget {
        /// Which: `depth`, `children`, `sub-calls`, `judge calls`, `tokens`, `time`.
        budget: &'static str,
        /// The limit.
        limit: u64,
    },
    /// The rollout was cancelled or its deadline passed.
    #[error("the rollout was cancelled")]
    Cancelled,
    /// The engine or the child failed.
    #[error("{0}")]
    Failed(String),
}

/// What an environment may ask of the rollout that plays it.
#[async_trait]
pub trait Services: Send + Sync {
    /// Whether `llm_query` can be served.
    fn has_llm(&self) -> bool;

    /// Whether `rlm_query` can spawn children here (an engine for them, and depth left).
    fn has_children(&self) -> bool;

    /// Asks a model once per query, side by side; answers in order, one bad one spoils none of the others.
    async fn llm_query(&self, queries: Vec<SubQuery>, cancel: CancellationToken) -> Vec<Result<String, SubCallError>>;

    /// Plays one child per request, side by side; answers in order.
    async fn rlm_query(
        &self,
        requests: Vec<ChildRequest>,
        cancel: CancellationToken,
    ) -> Vec<Result<ChildAnswer, SubCallError>>;

    /// Whether a judge can be asked.
    fn has_judge(&self) -> bool {
        false
    }

    /// Asks the judge once, at temperature 0; what it said, as it said it. Judge calls have a budget of their own and
    /// take nothing of the policy's. [`crate::llm_judge::ask()`] asks until the answer has the form it should have.
    async fn judge(&self, _request: JudgeRequest, _cancel: CancellationToken) -> Result<String, SubCallError> {
        Err(SubCallError::Failed("no model serves as the judge here; a suite names one with `judge`".to_owned()))
    }
}

/// No sub-calls and no children.
#[derive(Clone, Copy, Debug)]
pub struct NoServices;

#[async_trait]
impl Services for NoServices {
    fn has_llm(&self) -> bool {
        false
    }

    fn has_children(&self) -> bool {
        false
    }

    async fn llm_query(&self, queries: Vec<SubQuery>, _: CancellationToken) -> Vec<Result<String, SubCallError>> {
        queries.iter().map(|_| Err(SubCallError::Failed("no model serves `llm_query` here".to_owned()))).collect()
    }

    async fn rlm_query(
        &self,
        requests: Vec<ChildRequest>,
        _: CancellationToken,
    ) -> Vec<Result<ChildAnswer, SubCallError>> {
        requests.iter().map(|_| Err(SubCallError::Failed("no engine serves children here".to_owned()))).collect()
    }
}
