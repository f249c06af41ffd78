//! `gsm8k`: grade-school mathematics in one turn.
//!
//! The answer is the number that the last `####` announces, compared by value. `compat = "skyrl"` is skyrl-gym's
//! grader instead: the first `#### ` answer, compared as text.

use std::sync::Arc;

use async_trait::async_trait;
use espalier_datasets::error::kind;
use espalier_inference::{Message, Role};
use serde::Deserialize;
use serde_json::Value;

use crate::Compat;
use crate::env::{Action, Env, EnvContext, EnvError, Metrics, Step};
use crate::graders::numeric;
use crate::registry::{ColumnSpec, EnvKind, EnvSpec, ParamSpec};
use crate::row::EnvRow;

const ID: &str = "gsm8k";

/// Added to a prompt that does not speak of `####` itself.
pub const INSTRUCTION: &str =
    "Think step by step. Then give the final number alone on the last line, after `####`, like this: #### 7";

/// The parameters of `gsm8k`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Params {
    /// Take the last number of a response that announces none.
    pub flexible: bool,
    /// Grade as another framework does.
    pub compat: Option<Compat>,
}

/// The kind of environment that plays GSM8K.
#[derive(Clone, Copy, Debug)]
pub struct Gsm8k;

impl EnvKind for Gsm8k {
    type Params = Params;

    fn spec(&self) -> EnvSpec {
        EnvSpec {
            id: ID.to_owned(),
            summary: "Mathematics word problems in one turn, graded by the number after `####`.".to_owned(),
            params: vec![
                ParamSpec {
                    name: "flexible",
                    kind: "true or false",
                    default: "false",
                    doc: "take the last number of a response that announces none with `####`",
                },
                ParamSpec {
                    name: "compat",
                    kind: "\"skyrl\"",
                    default: "none",
                    doc: "grade as skyrl-gym does: the first `#### ` answer, compared as text",
                },
            ],
            columns: vec![
                ColumnSpec { name: "prompt", required: true, doc: "the question" },
                ColumnSpec { name: "reward_spec.ground_truth", required: true, doc: "the number, as text or number" },
            ],
        }
    }

    fn make(&self, params: &Arc<Params>, row: &EnvRow) -> Result<Box<dyn Env>, EnvError> {
        let truth = row.truth(ID)?;
        let text = match truth {
            Value::String(text) => text.trim().to_owned(),
            Value::Number(number) => number.to_string(),
            other => {
                return Err(invalid_truth(format!("must be a number or a text, got {}", kind(other))));
            }
        };
        let number = numeric::parse(&text);
        if params.compat.is_none() && number.is_none() {
            return Err(invalid_truth(format!("must be a number, got `{text}` in row `{}`", row.id)));
        }
        Ok(Box::new(Episode { params: **params, text, number, metrics: Metrics::new() }))
    }
}

fn invalid_truth(reason: String) -> EnvError {
    EnvError::Invalid { env: ID.to_owned(), key: "reward_spec.ground_truth".to_owned(), reason }
}

struct Episode {
    params: Params,
    /// The truth as text, for the comparison under compat.
    text: String,
    /// The truth as a number; there whenever the comparison is by value.
    number: Option<numeric::Number>,
    metrics: Metrics,
}

#[async_trait]
impl Env for Episode {
    async fn init(&mut self, mut prompt: Vec<Message>, _context: EnvContext) -> Result<Vec<Message>, EnvError> {
        // Published data sets carry the instruction in the prompt; raw questions do not.
        if self.params.compat.is_none() && !prompt.iter().any(|message| message.content.contains("####")) {
            match prompt.iter_mut().rfind(|message| message.role == Role::User) {
                Some(message) => message.content = format!("{}\n\n{INSTRUCTION}", message.content.trim_end()),
                None => prompt.push(Message::user(INSTRUCTION)),
            }
        }
        Ok(prompt)
    }

    async fn step(&mut self, action: Action) -> Result<Step, EnvError> {
        let (answered, correct) = if self.params.compat == Some(Compat::Skyrl) {
            let answer = numeric::strict_answer(&action.text);
            (answer.is_some(), answer.is_some_and(|answer| answer == self.text))
        } else {
            let answer = numeric::worked_answer(&action.text, self.params.flexible);
            let correct = match (&answer, &self.number) {
                (Some(answer), Some(truth)) => numeric::equal(answer, truth),
                _ => false,
            };
            (answer.is_some(), correct)
        };
        self.metrics.insert("correct".to_owned(), Value::Bool(correct));
        self.metrics.insert("answered".to_owned(), Value::Bool(answered));
        Ok(Step { reward: f64::from(u8::from(correct)), terminated: true, ..Step::default() })
    }

    fn metrics(&self) -> Metrics {
        self.metrics.clone()
    }
}
