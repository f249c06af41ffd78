//! What an author changes of the RLM environment: prompt, tools, reward.

use std::sync::Arc;

use async_trait::async_trait;
use espalier_sandbox::{Context, FinalAnswer, HostCalls, Tool};

use super::config::Params;
use super::grading::{self, Leniency, RewardKind};
use super::prompts::Offer;
use crate::Compat;
use crate::computing::{apart, reading};
use crate::env::{EnvContext, EnvError, Metrics};
use crate::reasoning;
use crate::row::EnvRow;

/// A function that the author adds to the REPL.
#[derive(Clone)]
pub struct RlmTool {
    /// Name and description, and the source where it is written in Python.
    pub tool: Tool,
    /// Serves a [`Tool::Host`]; unused otherwise.
    pub serve: Option<Arc<dyn HostCalls>>,
}

/// What a task's prompt may depend on.
#[derive(Clone, Copy)]
pub struct Briefing<'a> {
    /// The row.
    pub row: &'a EnvRow,
    /// The parameters.
    pub params: &'a Params,
    /// Depth in the rollout tree; the root is 0.
    pub depth: u32,
    /// Most turns.
    pub max_turns: u32,
    /// What the REPL offers.
    pub offer: &'a Offer,
    /// The context.
    pub context: &'a Context,
}

/// A child that the episode's own blocks asked for.
#[derive(Clone, Debug)]
pub struct ChildOutcome {
    /// Its question.
    pub prompt: String,
    /// Its context, where it was given one.
    pub context: Option<Context>,
    /// Its answer; `None` where it gave none or failed.
    pub answer: Option<FinalAnswer>,
}

/// What there is to grade by.
#[derive(Clone, Copy)]
pub struct Grading<'a> {
    /// The row.
    pub row: &'a EnvRow,
    /// The parameters.
    pub params: &'a Params,
    /// The question, as the policy was asked it.
    pub question: &'a str,
    /// The host's own copy of the context.
    pub context: &'a Context,
    /// Services, seed, deadline, depth.
    pub episode: &'a EnvContext,
    /// The children, in the order in which they were asked for.
    pub children: &'a [ChildOutcome],
}

/// What an answer earns, and what is reported of it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Grade {
    /// The reward; finite.
    pub reward: f64,
    /// Joins the episode's metrics.
    pub metrics: Metrics,
}

/// An RLM task. Every method has a default; a task overrides what it does differently.
///
/// Everything here runs on the host, over the host's own copy of the context: no block can reach it.
#[async_trait]
pub trait RlmTask: Send + Sync {
    /// A system prompt of the task's own, as a template that may hold [`super::prompts::TOOLS_PLACEHOLDER`]. The
    /// parameter `system_prompt` goes before it.
    fn system_prompt(&self, _row: &EnvRow, _depth: u32) -> Option<String> {
        None
    }

    /// The same, for a task whose prompt depends on more than the row; what the episode asks for.
    fn prompt(&self, about: Briefing<'_>) -> Option<String> {
        self.system_prompt(about.row, about.depth)
    }

    /// Refuses an episode that could not be graded where it is played, before anything is sampled.
    fn start(&self, _row: &EnvRow, _params: &Params, _episode: &EnvContext) -> Result<(), EnvError> {
        Ok(())
    }

    /// The task's own functions. Called once per episode, when the context is known. A name that begins with `_` is in
    /// the REPL, and in no prompt.
    fn tools(&self, _row: &EnvRow, _context: &Context) -> Vec<RlmTool> {
        Vec::new()
    }

    /// Refuses a row that cannot be graded, before anything is played.
    fn check(&self, row: &EnvRow, params: &Params, env: &str) -> Result<(), EnvError> {
        if row.graded && has_verifier(row, params) {
            let invalid =
                |(key, reason): (&str, String)| EnvError::Invalid { env: env.to_owned(), key: key.to_owned(), reason };
            reasoning::verifier(row).map_err(invalid)?;
        } else if row.graded && reward_kind(row, params) != RewardKind::NonEmpty {
            checked(reward_kind(row, params), row, env)?;
        }
        Ok(())
    }

    /// The reward of an answer; finite.
    async fn reward(&self, answer: &FinalAnswer, row: &EnvRow, params: &Params) -> Result<f64, String> {
        if row.graded && has_verifier(row, params) {
            let (family, facts) = reasoning::verifier(row).map_err(|(key, reason)| format!("`{key}` {reason}"))?;
            let text = answer.text.clone();
            let score = apart(move || family.score(&facts, &text)).await.map_err(|error| error.to_string())?;
            return Ok(f64::from(u8::from(score.correct)));
        }
        let kind = reward_kind(row, params);
        if !row.graded && kind != RewardKind::NonEmpty {
            return Ok(0.0);
        }
        let leniency = Leniency {
            unordered: params
                .unordered
                .or_else(|| row.reward_spec.get("unordered").and_then(serde_json::Value::as_bool))
                .unwrap_or(false),
            ignore_case: params.ignore_case.unwrap_or(kind == RewardKind::Contains),
        };
        let truth = row.reward_spec.get("ground_truth").unwrap_or(&NOTHING).clone();
        let (length, answer) = (answer.text.len(), answer.clone());
        reading(length, move || grading::grade(kind, leniency, &answer, &truth)).await
    }

    /// The reward of an answer, for a task that grades by more than answer and row; what the episode asks for.
    async fn grade(&self, answer: &FinalAnswer, by: Grading<'_>) -> Result<Grade, String> {
        Ok(Grade { reward: self.reward(answer, by.row, by.params).await?, metrics: Metrics::new() })
    }

    /// What is reported of an episode that ended without an answer.
    async fn unanswered(&self, _by: Grading<'_>) -> Metrics {
        Metrics::new()
    }
}

/// Whether a row of `reasoning/*` is graded by the verifier of its family, which accepts every right answer and not
/// only the stored one: unless a parameter says how to grade.
fn has_verifier(row: &EnvRow, params: &Params) -> bool {
    let method = row.reward_spec.get("method").and_then(serde_json::Value::as_str);
    method == Some(reasoning::METHOD) && params.reward.is_none() && params.compat != Some(Compat::Skyrl)
}

/// How a row is graded: by the parameter, else by what `reward_spec.method` names, else exactly. Under compat an
/// answer needs only to be there.
fn reward_kind(row: &EnvRow, params: &Params) -> RewardKind {
    params
        .reward
        .or_else(|| row.reward_spec.get("method").and_then(|method| RewardKind::from_method(method.as_str()?)))
        .unwrap_or(if params.compat == Some(Compat::Skyrl) { RewardKind::NonEmpty } else { RewardKind::Exact })
}

/// Refuses a truth that no answer can be compared with.
pub(crate) fn checked(kind: RewardKind, row: &EnvRow, env: &str) -> Result<(), EnvError> {
    let truth = row.truth(env)?;
    grading::check(kind, truth).map_err(|reason| EnvError::Invalid {
        env: env.to_owned(),
        key: "reward_spec.ground_truth".to_owned(),
        reason: format!("cannot be graded by in row `{}`: {reason}", row.id),
    })
}

/// A truth that is missing.
static NOTHING: serde_json::Value = serde_json::Value::Null;

/// The task without anything of its own.
#[derive(Clone, Copy, Debug, Default)]
pub struct DefaultTask;

#[async_trait]
impl RlmTask for DefaultTask {}
