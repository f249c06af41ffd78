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
use crate::computing::reading;
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
        let truth = Truth::of(ID, row, params.compat)?;
        Ok(Box::new(Episode { params: **params, truth, metrics: Metrics::new() }))
    }
}

/// What an answer is compared with.
#[derive(Clone, Debug)]
pub(crate) enum Truth {
    /// By value.
    Number(numeric::Number),
    /// As skyrl-gym does.
    Text(String),
}

/// What a response was found to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Graded {
    pub(crate) answered: bool,
    pub(crate) correct: bool,
}

impl Truth {
    /// The truth of a row: a number, or a worked answer of the published data that announces one after `####`.
    pub(crate) fn of(env: &str, row: &EnvRow, compat: Option<Compat>) -> Result<Self, EnvError> {
        let invalid =
            |reason| EnvError::Invalid { env: env.to_owned(), key: "reward_spec.ground_truth".to_owned(), reason };
        let text = match row.truth(env)? {
            Value::String(text) => text.clone(),
            Value::Number(number) => number.to_string(),
            other => return Err(invalid(format!("must be a number or a text, got {}", kind(other)))),
        };
        if compat == Some(Compat::Skyrl) {
            return Ok(Self::Text(text));
        }
        match numeric::parse(&text).or_else(|| numeric::worked_answer(&text, false)) {
            Some(number) => Ok(Self::Number(number)),
            None => Err(invalid(format!("must be a number, got `{text}` in row `{}`", row.id))),
        }
    }

    /// Grades a response, where whoever waits can give up on a long one.
    pub(crate) async fn judge(&self, response: String, flexible: bool) -> Graded {
        let truth = self.clone();
        reading(response.len(), move || truth.grade(&response, flexible)).await
    }

    fn grade(&self, response: &str, flexible: bool) -> Graded {
        match self {
            Self::Text(truth) => {
                let answer = numeric::strict_answer(response);
                Graded { answered: answer.is_some(), correct: answer.as_ref() == Some(truth) }
            }
            Self::Number(truth) => {
                let answer = numeric::worked_answer(response, flexible);
                let correct = answer.as_ref().is_some_and(|answer| numeric::equal(answer, truth));
                Graded { answered: answer.is_some(), correct }
            }
        }
    }
}

struct Episode {
    params: Params,
    truth: Truth,
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
        let Graded { answered, correct } = self.truth.judge(action.text, self.params.flexible).await;
        self.metrics.insert("correct".to_owned(), Value::Bool(correct));
        self.metrics.insert("answered".to_owned(), Value::Bool(answered));
        Ok(Step { reward: f64::from(u8::from(correct)), terminated: true, ..Step::default() })
    }

    fn metrics(&self) -> Metrics {
        self.metrics.clone()
    }
}
