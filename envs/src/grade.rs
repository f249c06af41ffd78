//! Grading a recorded response: an episode whose actions are given.
//!
//! There is no second way to grade: a response is put to the environment as its policy would put it, so what this says
//! of a response is what a rollout with that response earns. The turn limit is the row's; where the row has none, the last
//! action is the last turn.

use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use espalier_inference::StopReason;
use futures::FutureExt as _;
use serde_json::Value;
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;

use crate::env::{Action, Env, EnvContext, EnvError};
use crate::registry::Prepared;
use crate::row::EnvRow;
use crate::services::Services;

/// What a response earned.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Graded {
    /// The sum of the turns' rewards; a finite 32-bit number.
    pub reward: f64,
    /// What the last turn's step and the episode's metrics say. Where both have a key, the step's stands.
    pub metadata: BTreeMap<String, Value>,
    /// Whether the environment ended the episode; otherwise it wanted more turns than there are actions.
    pub ended: bool,
    /// Actions that were played; those behind the end are left out.
    pub turns: usize,
}

/// How a response is graded.
#[derive(Clone)]
pub struct GradeOptions {
    /// Judges and sub-calls.
    pub services: Arc<dyn Services>,
    /// Seeds what the environment draws.
    pub seed: u64,
    /// Most time for one response.
    pub deadline: Duration,
    /// Cancelled when nobody waits for the answer any more.
    pub cancel: CancellationToken,
}

/// What ended a recorded turn, by the names that records use: ours, and those of OpenAI's `finish_reason`.
const STOPS: [(&str, StopReason); 7] = [
    ("stop", StopReason::EndOfTurn),
    ("length", StopReason::MaxTokens),
    ("end_of_turn", StopReason::EndOfTurn),
    ("stop_string", StopReason::StopString),
    ("max_tokens", StopReason::MaxTokens),
    ("context_overflow", StopReason::ContextOverflow),
    ("tool_calls", StopReason::EndOfTurn),
];

/// The reason that a record names; otherwise what was expected.
pub fn stop_reason(name: &str) -> Result<StopReason, String> {
    STOPS.iter().find(|(known, _)| *known == name).map(|(_, stop)| *stop).ok_or_else(|| {
        let names = STOPS.map(|(known, _)| format!("`{known}`")).join(", ");
        format!("must be one of {names}, got `{name}`")
    })
}

/// A recorded turn of which nothing is known but its text: the model ended it.
pub fn said(text: impl Into<String>) -> Action {
    Action { text: text.into(), tokens: Vec::new(), stop: StopReason::EndOfTurn }
}

/// Plays a row with these actions and nothing else. An environment that panics or takes
/// longer than the deadline is an error.
pub async fn grade(
    prepared: &Prepared,
    row: &EnvRow,
    actions: &[Action],
    options: &GradeOptions,
) -> Result<Graded, EnvError> {
    let failed = |reason: String| EnvError::Failed { env: prepared.id().to_owned(), reason };
    let deadline = Instant::now() + options.deadline;
    let context = EnvContext {
        services: Arc::clone(&options.services),
        seed: options.seed,
        deadline,
        cancel: options.cancel.child_token(),
        max_turns: row.max_turns.unwrap_or_else(|| u32::try_from(actions.len()).unwrap_or(u32::MAX)).max(1),
        depth: 0,
    };
    // Whatever the environment still has under way ends with this call.
    let _stops = context.cancel.clone().drop_guard();
    let mut env = prepared.make(row)?;
    let played = AssertUnwindSafe(play(prepared.id(), &mut *env, row, actions, context)).catch_unwind();
    let graded = tokio::select! {
        biased;
        () = options.cancel.cancelled() => Err(failed("cancelled".to_owned())),
        played = timeout_at(deadline, played) => match played {
            Ok(Ok(graded)) => graded,
            Ok(Err(_)) => return Err(failed("the environment panicked".to_owned())),
            Err(_) => Err(failed(format!("no verdict within {} s", options.deadline.as_secs_f64()))),
        },
    };
    let closing = AssertUnwindSafe(env.close()).catch_unwind();
    let _ = timeout_at(Instant::now() + Duration::from_secs(5), closing).await;
    graded
}

async fn play(
    id: &str,
    env: &mut dyn Env,
    row: &EnvRow,
    actions: &[Action],
    context: EnvContext,
) -> Result<Graded, EnvError> {
    env.init(row.prompt.clone(), context).await?;
    let mut graded = Graded::default();
    for action in actions {
        let step = env.step(action.clone()).await?;
        graded.reward += step.reward;
        // What a rollout keeps is a 32-bit number; what it refuses is no reward here either.
        if [step.reward, graded.reward].iter().any(|reward| !(*reward as f32).is_finite()) {
            let reason = format!("a reward of {:?}, expected a finite 32-bit number", step.reward);
            return Err(EnvError::Grader { env: id.to_owned(), reason });
        }
        graded.turns += 1;
        graded.metadata = step.metadata;
        graded.ended = step.terminated || step.truncated;
        if graded.ended {
            break;
        }
    }
    for (key, value) in env.metrics() {
        graded.metadata.entry(key).or_insert(value);
    }
    Ok(graded)
}
