//! `aime`: competition mathematics in the format of DAPO, `Answer: ...` on the last line; +1 or -1.
//!
//! By default the whole response is read, its last `Answer:` counts, and answers are compared by equivalence; a row with two truths that differ is refused. `compat = "skyrl"` is skyrl-gym's grader: the
//! last 300 characters, normalised texts, and the first of two truths.

use std::sync::Arc;

use async_trait::async_trait;
use espalier_datasets::error::kind;
use espalier_inference::Message;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::Compat;
use crate::computing::apart;
use crate::env::{Action, Env, EnvContext, EnvError, Metrics, Step};
use crate::graders::aime::{self, INVALID, Reading};
use crate::graders::math::Truth;
use crate::math::{instruct, metadata, read_truth};
use crate::registry::{ColumnSpec, EnvKind, EnvSpec, ParamSpec};
use crate::row::EnvRow;
use crate::thinking::spoken;

const ID: &str = "aime";

/// Added to a prompt that does not ask for an `Answer:` itself.
pub const INSTRUCTION: &str = "Think step by step. End with a line that gives the answer, like this: Answer: 7";

/// The parameters of `aime`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Params {
    /// Grade the last box of the last 100 characters, as text.
    pub strict_box: bool,
    /// Grade as another framework does.
    pub compat: Option<Compat>,
}

/// The kind of environment that plays AIME and DAPO's mathematics.
#[derive(Clone, Copy, Debug)]
pub struct Aime;

impl EnvKind for Aime {
    type Params = Params;

    fn spec(&self) -> EnvSpec {
        EnvSpec {
            id: ID.to_owned(),
            summary: "Competition mathematics in one turn, graded by the last `Answer:`; +1 or -1.".to_owned(),
            params: vec![
                ParamSpec {
                    name: "strict_box",
                    kind: "true or false",
                    default: "false",
                    doc: r"grade the last `\boxed{}` of the last 100 characters instead, compared as text",
                },
                ParamSpec {
                    name: "compat",
                    kind: "\"skyrl\"",
                    default: "none",
                    doc: "grade as skyrl-gym does: the last 300 characters, normalised texts",
                },
            ],
            columns: vec![
                ColumnSpec { name: "prompt", required: true, doc: "the problem" },
                ColumnSpec {
                    name: "reward_model.ground_truth",
                    required: true,
                    doc: "the answer; `reward_spec.ground_truth` does as well, and must agree where both are there",
                },
            ],
        }
    }

    fn make(&self, params: &Arc<Params>, row: &EnvRow) -> Result<Box<dyn Env>, EnvError> {
        let own =
            row.columns.get("reward_model").and_then(|column| column.get("ground_truth")).filter(|own| !own.is_null());
        let (key, value) = match own {
            Some(own) => ("reward_model.ground_truth", own),
            None => ("reward_spec.ground_truth", row.truth(ID)?),
        };
        if params.compat.is_none()
            && let Some(own) = own
            && let Some(other) = row.reward_spec.get("ground_truth").filter(|other| !other.is_null())
            && written(own) != written(other)
        {
            return Err(EnvError::Invalid {
                env: ID.to_owned(),
                key: key.to_owned(),
                reason: format!(
                    "is `{}` and `reward_spec.ground_truth` is `{}` in row `{}`: leave one out, or make them agree",
                    written(own),
                    written(other),
                    row.id
                ),
            });
        }
        let text = match value {
            Value::String(text) => text.clone(),
            Value::Number(number) => number.to_string(),
            other => {
                return Err(EnvError::Invalid {
                    env: ID.to_owned(),
                    key: key.to_owned(),
                    reason: format!("must be a text or a number, got {} in row `{}`", kind(other), row.id),
                });
            }
        };
        let grader = match (params.strict_box, params.compat) {
            (true, _) => Grader::StrictBox(text),
            (false, Some(Compat::Skyrl)) => Grader::Skyrl(text),
            (false, None) => Grader::Equivalence(Box::new(read_truth(ID, key, value, row)?)),
        };
        Ok(Box::new(Episode { compat: params.compat.is_some(), grader: Arc::new(grader), metrics: Metrics::new() }))
    }
}

/// A truth as text, so that the number 25 and the text `25` are one.
fn written(truth: &Value) -> String {
    truth.as_str().map_or_else(|| truth.to_string(), |text| text.trim().to_owned())
}

enum Grader {
    Equivalence(Box<Truth>),
    Skyrl(String),
    StrictBox(String),
}

impl Grader {
    /// The step that a response is answered with, whether it is right, and whether it announces an answer.
    fn step(&self, text: &str) -> (Step, bool, bool) {
        let mut step = Step { terminated: true, ..Step::default() };
        let (correct, answered) = match self {
            Self::Skyrl(truth) => {
                let (correct, pred) = aime::skyrl(text, truth);
                step.metadata.insert("acc".to_owned(), Value::Bool(correct));
                let answered = pred != INVALID;
                step.metadata.insert("pred".to_owned(), Value::String(pred));
                (correct, answered)
            }
            Self::StrictBox(truth) => {
                let (correct, pred) = aime::strict_box(text, truth);
                step.metadata.insert("acc".to_owned(), Value::Bool(correct));
                let answered = pred.is_some();
                step.metadata.insert("pred".to_owned(), json!(pred));
                (correct, answered)
            }
            Self::Equivalence(truth) => {
                let answer = aime::stated(spoken(text), Reading::Whole);
                let verdict = answer.map(|answer| aime::equal(answer, truth));
                metadata(&mut step, verdict.as_ref(), Some(answer.map_or(INVALID, str::trim)));
                (verdict.is_some_and(|verdict| verdict.equal), answer.is_some())
            }
        };
        step.reward = if correct { 1.0 } else { -1.0 };
        (step, correct, answered)
    }
}

struct Episode {
    compat: bool,
    grader: Arc<Grader>,
    metrics: Metrics,
}

#[async_trait]
impl Env for Episode {
    async fn init(&mut self, mut prompt: Vec<Message>, _context: EnvContext) -> Result<Vec<Message>, EnvError> {
        // Published data sets carry the instruction in the prompt; raw problems do not.
        let asks = |message: &Message| message.content.contains("Answer:") || message.content.contains(r"\boxed");
        if !self.compat && !prompt.iter().any(asks) {
            match *self.grader {
                Grader::StrictBox(_) => instruct(&mut prompt, crate::math::INSTRUCTION),
                _ => instruct(&mut prompt, INSTRUCTION),
            }
        }
        Ok(prompt)
    }

    async fn step(&mut self, action: Action) -> Result<Step, EnvError> {
        let grader = Arc::clone(&self.grader);
        let (step, correct, answered) = apart(move || grader.step(&action.text)).await;
        self.metrics.insert("correct".to_owned(), Value::Bool(correct));
        self.metrics.insert("answered".to_owned(), Value::Bool(answered));
        Ok(step)
    }

    fn metrics(&self) -> Metrics {
        self.metrics.clone()
    }
}
