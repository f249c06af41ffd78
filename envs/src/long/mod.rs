//! `long`: questions over long contexts that the project generates, and the environment that asks them in one turn.
//!
//! [`tasks`] makes rows of what [`espalier_procedural::long`] generates; [`verify`] finds an answer again by an
//! independent scan of the text.
//!
//! A row's question is its prompt and its text is its context, so one row is asked in two ways: of `rlm`, where the
//! text lies in the REPL, and of `long`, where it stands in the prompt.
//!
//! One environment plays every task, since a row says itself how it is graded. `long/needle`, `long/code` and so on are
//! the same environment for rows of one task: a row of another data set is refused.
//!
//! Invariants: the same seed and parameters give the same bytes on every machine; a text has exactly the size that
//! was asked for; every answer is exact.

pub mod tasks;

use std::sync::Arc;

use async_trait::async_trait;
use espalier_inference::Message;
use espalier_sandbox::FinalAnswer;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::computing::reading;
use crate::env::{Action, Env, EnvContext, EnvError, Metrics, Step};
use crate::registry::{ColumnSpec, EnvKind, EnvSpec, ParamSpec};
use crate::rlm::grading::{self, Leniency, RewardKind};
use crate::rlm::parsed_answer;
use crate::rlm::task::checked;
use crate::row::EnvRow;

pub use espalier_procedural::long::verify;
pub use tasks::{LongParams, LongTask};

const ID: &str = "long";

/// The parameters of `long`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Params {
    /// How the answer is graded; `reward_spec.method` of the row, else `exact`.
    pub reward: Option<RewardKind>,
}

/// The kind of environment that asks about a context within the prompt.
#[derive(Clone, Copy, Debug, Default)]
pub struct Long {
    /// The only task whose rows are played, under an id of its own; none for any row with a context.
    pub task: Option<LongTask>,
}

impl Long {
    /// `long`, or `long/needle` and the like.
    fn id(self) -> String {
        match self.task {
            None => ID.to_owned(),
            Some(task) => task.name().replacen('_', "/", 1),
        }
    }
}

/// The environments of one task each.
pub fn kinds() -> impl Iterator<Item = Long> {
    LongTask::ALL.into_iter().map(|task| Long { task: Some(task) })
}

impl EnvKind for Long {
    type Params = Params;

    fn spec(&self) -> EnvSpec {
        EnvSpec {
            id: self.id(),
            summary: match self.task {
                None => "A question about a context that stands in the prompt, in one turn.".to_owned(),
                Some(task) => format!("`long` for rows of the data set `{}`.", task.name()),
            },
            params: vec![ParamSpec {
                name: "reward",
                kind: "\"exact\", \"contains\", \"numeric\" or \"non_empty\"",
                default: "reward_spec.method, else exact",
                doc: "how the answer is graded against reward_spec.ground_truth",
            }],
            columns: vec![
                ColumnSpec { name: "prompt", required: true, doc: "the question" },
                ColumnSpec { name: "extra_info.context_text", required: true, doc: "the context" },
                ColumnSpec { name: "reward_spec.ground_truth", required: true, doc: "the truth" },
            ],
        }
    }

    fn make(&self, params: &Arc<Params>, row: &EnvRow) -> Result<Box<dyn Env>, EnvError> {
        let id = self.id();
        row.truth(&id)?;
        let invalid = |key: &str, reason: String| EnvError::Invalid { env: id.clone(), key: key.to_owned(), reason };
        if row.context.is_none() {
            let reason = format!("is missing in row `{}`: there is nothing to ask about", row.id);
            return Err(invalid("extra_info.context_text", reason));
        }
        if let Some(task) = self.task {
            let given = row.extra_info.get("task").and_then(Value::as_str).unwrap_or("none");
            if given != task.name() {
                let reason =
                    format!("must be `{}` in row `{}`, got `{given}`; `long` plays every task", task.name(), row.id);
                return Err(invalid("extra_info.task", reason));
            }
        }
        let kind = params
            .reward
            .or_else(|| row.reward_spec.get("method").and_then(|method| RewardKind::from_method(method.as_str()?)))
            .unwrap_or(RewardKind::Exact);
        if kind != RewardKind::NonEmpty {
            checked(kind, row, &id)?;
        }
        Ok(Box::new(Episode { id, kind, row: row.clone(), answer: None, reward: 0.0 }))
    }
}

struct Episode {
    id: String,
    kind: RewardKind,
    row: EnvRow,
    answer: Option<FinalAnswer>,
    reward: f64,
}

#[async_trait]
impl Env for Episode {
    async fn init(&mut self, prompt: Vec<Message>, _context: EnvContext) -> Result<Vec<Message>, EnvError> {
        let question = crate::row::question(&prompt);
        let context = self.row.context.as_ref().map(|context| context.value().display()).unwrap_or_default();
        Ok(vec![Message::user(format!(
            "{context}\n\n{question}\n\nGive the answer alone on the last line, after `Answer:`."
        ))])
    }

    async fn step(&mut self, action: Action) -> Result<Step, EnvError> {
        let unordered = self.row.reward_spec.get("unordered").and_then(Value::as_bool).unwrap_or(false);
        let leniency = Leniency { unordered, ignore_case: self.kind == RewardKind::Contains };
        let (kind, truth) = (self.kind, self.row.truth(&self.id)?.clone());
        let graded = reading(action.text.len(), move || {
            let Some(answer) = answer_line(&action.text).map(parsed_answer) else { return Ok(None) };
            grading::grade(kind, leniency, &answer, &truth).map(|reward| Some((answer, reward)))
        });
        let graded = graded.await.map_err(|reason| EnvError::Grader { env: self.id.clone(), reason })?;
        if let Some((answer, reward)) = graded {
            (self.answer, self.reward) = (Some(answer), reward);
        }
        Ok(Step { reward: self.reward, terminated: true, ..Step::default() })
    }

    fn metrics(&self) -> Metrics {
        let text = self.answer.as_ref().map_or("", |answer| answer.text.as_str());
        Metrics::from([
            ("correct".to_owned(), json!(self.reward > 0.0)),
            ("answered".to_owned(), json!(self.answer.is_some())),
            ("final_answer".to_owned(), json!(text)),
        ])
    }

    fn answer(&self) -> Option<FinalAnswer> {
        self.answer.clone()
    }
}

/// What the last `Answer:` announces; without one, a response of a single line is the answer itself.
fn answer_line(text: &str) -> Option<&str> {
    let text = crate::rlm::parse::without_trailing_specials(text);
    let line = match text.rsplit_once("Answer:") {
        Some((_, after)) => after.trim_start_matches(['*', ' ', '\n']).lines().next().unwrap_or_default(),
        None => text,
    };
    let line = line.trim().trim_end_matches(['.', '*', ' ']);
    (!line.is_empty() && !line.contains('\n')).then_some(line)
}
