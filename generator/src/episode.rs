//! What is played, how, and what comes of it.
//!
//! | item | what it is |
//! |---|---|
//! | [`LoopOptions`] | turn limit, row layout, deadlines |
//! | [`Episode`] | an environment, who plays it, within which bounds |
//! | [`Played`] | what came of it |

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use espalier_envs::{Env, Services};
use espalier_inference::{Fidelity, Message};
use espalier_sandbox::FinalAnswer;
use futures::FutureExt;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::budget::{TreeBudget, check_seconds};
use crate::player::Player;
use crate::row::Row;
use crate::trajectory::{RolloutStop, Timings, TokenUsage, Turn};

/// How turns become rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RowMode {
    /// One row for as long as the conversation only grows; a new one where history is rewritten.
    #[default]
    Merged,
    /// One row per turn: the whole prompt of that turn, and what was sampled.
    StepWise,
}

/// How an episode is played.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LoopOptions {
    /// Most turns.
    pub max_turns: u32,
    /// Longest prompt of a turn, tokens; the engine's context bounds it as well.
    pub max_input_tokens: Option<u32>,
    /// How turns become rows.
    pub rows: RowMode,
    /// Longest wait for one answer of the engine, seconds.
    pub engine_timeout_s: f64,
    /// Longest wait for one answer of the environment, sub-calls and children included, seconds.
    pub env_timeout_s: f64,
    /// How often a request that failed or got no answer in time is sent again.
    pub engine_retries: u32,
}

impl Default for LoopOptions {
    fn default() -> Self {
        Self {
            max_turns: 10,
            max_input_tokens: None,
            rows: RowMode::Merged,
            engine_timeout_s: 600.0,
            env_timeout_s: 1800.0,
            engine_retries: 1,
        }
    }
}

impl LoopOptions {
    /// Refuses options under which no turn can be played: the key and why.
    pub fn check(&self) -> Result<(), (&'static str, String)> {
        for (key, least) in [("max_turns", Some(self.max_turns)), ("max_input_tokens", self.max_input_tokens)] {
            if least == Some(0) {
                return Err((key, "must be at least 1, got 0".to_owned()));
            }
        }
        check_seconds("engine_timeout_s", self.engine_timeout_s)?;
        check_seconds("env_timeout_s", self.env_timeout_s)
    }
}

/// What is played, by whom, within which bounds.
pub struct Episode {
    /// The environment, fresh.
    pub env: Box<dyn Env>,
    /// The data set's prompt.
    pub prompt: Vec<Message>,
    /// Who plays.
    pub player: Player,
    /// How.
    pub options: LoopOptions,
    /// What the environment may ask for.
    pub services: Arc<dyn Services>,
    /// Counts tokens.
    pub budget: Arc<TreeBudget>,
    /// Seeds environment and sampling.
    pub seed: u64,
    /// Depth in the tree.
    pub depth: u32,
    /// The episode ends at this moment.
    pub deadline: Instant,
    /// Ends the episode.
    pub cancel: CancellationToken,
    /// Names the conversation to the engine.
    pub session: String,
    /// Set to the turn being played, for whoever records sub-calls.
    pub turn: Arc<AtomicU32>,
}

/// What came of an episode.
#[derive(Clone, Debug, PartialEq)]
pub struct Played {
    /// Why it ended.
    pub stop: RolloutStop,
    /// What went wrong.
    pub error: Option<String>,
    /// Rows, their masks cleared where the episode must not train.
    pub rows: Vec<Row>,
    /// The conversation.
    pub messages: Vec<Message>,
    /// The turns.
    pub turns: Vec<Turn>,
    /// How exactly tokens are known.
    pub fidelity: Fidelity,
    /// What the environment answered.
    pub answer: Option<FinalAnswer>,
    /// What the environment reported.
    pub metrics: espalier_envs::Metrics,
    /// Where the time went.
    pub timings: Timings,
    /// What the turns cost.
    pub usage: TokenUsage,
}

/// What kept a future from its answer.
pub(crate) enum Interrupt {
    Cancelled,
    Deadline,
    Panicked(String),
}

/// Awaits an answer until the deadline or the cancellation; a panic inside is caught.
pub(crate) async fn guarded<T>(
    future: impl Future<Output = T>,
    deadline: Instant,
    cancel: &CancellationToken,
) -> Result<T, Interrupt> {
    tokio::select! {
        biased;
        () = cancel.cancelled() => Err(Interrupt::Cancelled),
        answer = AssertUnwindSafe(future).catch_unwind() => answer.map_err(|panic| Interrupt::Panicked(panic_text(&*panic))),
        () = tokio::time::sleep_until(deadline) => Err(Interrupt::Deadline),
    }
}

/// What a panic said.
pub(crate) fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "a panic without a message".to_owned())
}

/// Microseconds since a moment.
pub(crate) fn micros(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_micros()).unwrap_or(u64::MAX)
}
