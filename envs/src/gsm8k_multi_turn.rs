//! `gsm8k_multi_turn`: GSM8K with several tries and a reward for each turn.
//!
//! A wrong answer after `####` earns 0.2 over the number of turns, none earns nothing; a right one ends the episode and
//! earns what is left of 1, so that no episode earns more than a right answer at once. Answers are read as
//! [`crate::gsm8k`] reads them. `compat = "skyrl"` reads as skyrl-gym does and pays a right answer 1 at any turn, on
//! top of what the wrong ones earned.

use std::sync::Arc;

use async_trait::async_trait;
use espalier_inference::Message;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::Compat;
use crate::env::{Action, Env, EnvContext, EnvError, Metrics, Step};
use crate::gsm8k::{self, INSTRUCTION, Truth};
use crate::math::instruct;
use crate::metrics;
use crate::registry::{ColumnSpec, EnvKind, EnvSpec, ParamSpec};
use crate::row::EnvRow;

const ID: &str = "gsm8k_multi_turn";

/// Shared by all turns: what wrong answers in the right format earn together.
const FORMAT_REWARD: f64 = 0.2;

/// Turns where neither the parameters nor the row say how many.
const TURNS: u32 = 5;

/// What skyrl-gym says while there are tries left, letter by letter: policies were trained on it.
const SKYRL_AGAIN: &str = "Please provide your step-by-step reasoning, and also include a tentative numeric answer at the \
                           end in the exact format: '#### ANSWER'.";

/// What skyrl-gym says before the last try.
const SKYRL_LAST: &str = "Now provide only the final numeric answer in the exact format: '#### ANSWER'.";

const AGAIN: &str = "That is not settled yet. Go on reasoning step by step, and end with the answer you have so far in \
                     this format: #### 7";
const LAST: &str = "This is your last turn. Give nothing but the final number, in this format: #### 7";

/// The parameters of `gsm8k_multi_turn`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Params {
    /// Most turns; the row's `max_turns` or `extra_info.max_turns` where it is left out, else 5.
    pub max_turns: Option<u32>,
    /// Grade as another framework does.
    pub compat: Option<Compat>,
}

/// The kind of environment that plays GSM8K in several turns.
#[derive(Clone, Copy, Debug)]
pub struct Gsm8kMultiTurn;

impl EnvKind for Gsm8kMultiTurn {
    type Params = Params;

    fn spec(&self) -> EnvSpec {
        EnvSpec {
            id: ID.to_owned(),
            summary: "Mathematics word problems in several turns, each graded by the number after `####`.".to_owned(),
            params: vec![
                ParamSpec {
                    name: "max_turns",
                    kind: "number",
                    default: "the row's, else 5",
                    doc: "most turns; never more than the rollout has",
                },
                ParamSpec {
                    name: "compat",
                    kind: "\"skyrl\"",
                    default: "none",
                    doc: "as skyrl-gym does: the rollout's turns, the first `#### ` answer, compared as text",
                },
            ],
            columns: vec![
                ColumnSpec { name: "prompt", required: true, doc: "the question" },
                ColumnSpec { name: "reward_spec.ground_truth", required: true, doc: "the number, as text or number" },
                ColumnSpec { name: "extra_info.max_turns", required: false, doc: "most turns" },
            ],
        }
    }

    fn check(&self, params: &Params) -> Result<(), EnvError> {
        if params.max_turns == Some(0) {
            return Err(invalid("max_turns", "must be at least 1, got 0".to_owned()));
        }
        Ok(())
    }

    fn make(&self, params: &Arc<Params>, row: &EnvRow) -> Result<Box<dyn Env>, EnvError> {
        let truth = Truth::of(ID, row, params.compat)?;
        let told = match row.extra_info.get("max_turns") {
            None | Some(Value::Null) => None,
            Some(value) => {
                match value.as_u64().and_then(|turns| u32::try_from(turns).ok()).filter(|turns| *turns > 0) {
                    Some(turns) => Some(turns),
                    None => {
                        return Err(invalid(
                            "extra_info.max_turns",
                            format!("must be a whole number from 1, got `{value}`"),
                        ));
                    }
                }
            }
        };
        let own = params.max_turns.or(row.max_turns).or(told).unwrap_or(TURNS);
        Ok(Box::new(Episode { compat: params.compat, truth, max_turns: own, turns: 0, paid: 0.0, correct: false }))
    }

    fn aggregate(&self, episodes: &[Metrics]) -> Metrics {
        let mut means = metrics::mean(episodes);
        if let Some(steps) = means.remove("steps") {
            means.insert("avg_steps".to_owned(), steps);
        }
        means
    }
}

fn invalid(key: &str, reason: String) -> EnvError {
    EnvError::Invalid { env: ID.to_owned(), key: key.to_owned(), reason }
}

struct Episode {
    compat: Option<Compat>,
    truth: Truth,
    max_turns: u32,
    turns: u32,
    /// What the turns so far earned.
    paid: f64,
    correct: bool,
}

#[async_trait]
impl Env for Episode {
    async fn init(&mut self, mut prompt: Vec<Message>, context: EnvContext) -> Result<Vec<Message>, EnvError> {
        let allowed = context.max_turns.max(1);
        // skyrl-gym's generator writes its own limit over the row's.
        self.max_turns = if self.compat.is_some() { allowed } else { self.max_turns.min(allowed) };
        if self.compat.is_none() && !prompt.iter().any(|message| message.content.contains("####")) {
            instruct(&mut prompt, INSTRUCTION);
        }
        Ok(prompt)
    }

    async fn step(&mut self, action: Action) -> Result<Step, EnvError> {
        self.turns += 1;
        let gsm8k::Graded { answered, correct } = self.truth.judge(action.text, false).await;
        self.correct |= correct;
        let last = self.turns >= self.max_turns;
        let mut step = Step { terminated: correct, truncated: last && !correct, ..Step::default() };
        step.reward = match (correct, answered) {
            (true, _) if self.compat.is_some() => 1.0,
            (true, _) => 1.0 - self.paid,
            (false, true) => FORMAT_REWARD / f64::from(self.max_turns),
            (false, false) => 0.0,
        };
        self.paid += step.reward;
        if !correct && !last {
            let message = match (self.compat, self.max_turns - self.turns > 1) {
                (None, true) => AGAIN,
                (None, false) => LAST,
                (Some(Compat::Skyrl), true) => SKYRL_AGAIN,
                (Some(Compat::Skyrl), false) => SKYRL_LAST,
            };
            step.observations.push(Message::user(message));
        }
        Ok(step)
    }

    fn metrics(&self) -> Metrics {
        Metrics::from([("steps".to_owned(), json!(self.turns)), ("correct".to_owned(), Value::Bool(self.correct))])
    }
}
