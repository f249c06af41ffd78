//! What an author changes of the RLM environment: prompt, tools, reward.

use std::sync::Arc;

use async_trait::async_trait;
use espalier_sandbox::{Context, FinalAnswer, HostCalls, Tool};

use super::config::Params;
use super::grading::{self, Leniency, RewardKind};
use crate::Compat;
use crate::env::EnvError;
use crate::row::EnvRow;

/// A function that the author adds to the REPL.
#[derive(Clone)]
pub struct RlmTool {
    /// Name and description, and the source where it is written in Python.
    pub tool: Tool,
    /// Serves a [`Tool::Host`]; unused otherwise.
    pub serve: Option<Arc<dyn HostCalls>>,
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

    /// The task's own functions. Called once per episode, when the context is known.
    fn tools(&self, _row: &EnvRow, _context: &Context) -> Vec<RlmTool> {
        Vec::new()
    }

    /// Refuses a row that cannot be graded, before anything is played.
    fn check(&self, row: &EnvRow, params: &Params, env: &str) -> Result<(), EnvError> {
        if row.graded && reward_kind(row, params) != RewardKind::NonEmpty {
            row.truth(env)?;
        }
        Ok(())
    }

    /// The reward of an answer; finite.
    async fn reward(&self, answer: &FinalAnswer, row: &EnvRow, params: &Params) -> Result<f64, String> {
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
        let truth = row.reward_spec.get("ground_truth").unwrap_or(&NOTHING);
        grading::grade(kind, leniency, answer, truth)
    }
}

/// How a row is graded: by the parameter, else by what `reward_spec.method` names, else exactly. Under compat an
/// answer needs only to be there.
fn reward_kind(row: &EnvRow, params: &Params) -> RewardKind {
    params
        .reward
        .or_else(|| row.reward_spec.get("method").and_then(|method| RewardKind::from_method(method.as_str()?)))
        .unwrap_or(if params.compat == Some(Compat::Skyrl) { RewardKind::NonEmpty } else { RewardKind::Exact })
}

/// A truth that is missing.
static NOTHING: serde_json::Value = serde_json::Value::Null;

/// The task without anything of its own.
#[derive(Clone, Copy, Debug, Default)]
pub struct DefaultTask;

#[async_trait]
impl RlmTask for DefaultTask {}
