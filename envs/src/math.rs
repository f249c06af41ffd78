//! `math`: the last `\boxed{}` against the truth, by mathematical equivalence.
//!
//! The truth is a bare answer, or a worked solution whose own last box is the answer. A truth that cannot be read is an
//! error before anything is played; an answer that cannot be read, or costs more than it may, is wrong, and the
//! metadata says so: no policy can turn a 0 into a grader's failure.

use std::sync::Arc;

use async_trait::async_trait;
use espalier_datasets::error::kind;
use espalier_inference::{Message, Role};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::computing::apart;
use crate::env::{Action, Env, EnvContext, EnvError, Metrics, Step};
use crate::graders::math::{self, Truth, Verdict};
use crate::registry::{ColumnSpec, EnvKind, EnvSpec, ParamSpec};
use crate::row::EnvRow;
use crate::thinking::spoken;

const ID: &str = "math";

/// Added to a prompt that does not speak of `\boxed` itself.
pub const INSTRUCTION: &str = r"Think step by step. Then give the final answer within \boxed{}, like this: \boxed{7}";

/// Characters of an answer that are recorded.
const RECORDED: usize = 300;

/// The parameters of `math`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Params {
    /// Compare as texts only.
    pub strict: bool,
    /// Take the last line of a response that boxes nothing.
    pub fallback: bool,
}

/// The kind of environment that grades boxed answers.
#[derive(Clone, Copy, Debug)]
pub struct Math;

impl EnvKind for Math {
    type Params = Params;

    fn spec(&self) -> EnvSpec {
        EnvSpec {
            id: ID.to_owned(),
            summary: r"Mathematics in one turn, graded by the last `\boxed{}` through equivalence.".to_owned(),
            params: vec![
                ParamSpec {
                    name: "strict",
                    kind: "true or false",
                    default: "false",
                    doc: "compare the answers as texts, white space at the ends left out",
                },
                ParamSpec {
                    name: "fallback",
                    kind: "true or false",
                    default: "false",
                    doc: "take the last line of a response that boxes nothing, or its last number",
                },
            ],
            columns: vec![
                ColumnSpec { name: "prompt", required: true, doc: "the problem" },
                ColumnSpec {
                    name: "reward_spec.ground_truth",
                    required: true,
                    doc: r"the answer, or a solution with its answer in `\boxed{}`",
                },
            ],
        }
    }

    fn make(&self, params: &Arc<Params>, row: &EnvRow) -> Result<Box<dyn Env>, EnvError> {
        let truth = read_truth(ID, "reward_spec.ground_truth", row.truth(ID)?, row)?;
        Ok(Box::new(Episode { params: **params, truth: Arc::new(truth), metrics: Metrics::new() }))
    }
}

/// The truth of a row, read: a text or number, bare or boxed.
pub(crate) fn read_truth(env: &str, key: &str, truth: &Value, row: &EnvRow) -> Result<Truth, EnvError> {
    let invalid = |reason| EnvError::Invalid { env: env.to_owned(), key: key.to_owned(), reason };
    let text = match truth {
        Value::String(text) => text.clone(),
        Value::Number(number) => number.to_string(),
        other => return Err(invalid(format!("must be a text or a number, got {} in row `{}`", kind(other), row.id))),
    };
    let bare = math::last_boxed(&text).unwrap_or(&text);
    Truth::read(bare).map_err(|error| invalid(format!("is no answer to grade by in row `{}`: {error}", row.id)))
}

/// What a verdict says, for a step's metadata.
pub(crate) fn metadata(step: &mut Step, verdict: Option<&Verdict>, answer: Option<&str>) {
    let pred = answer.map(|answer| answer.chars().take(RECORDED).collect::<String>());
    step.metadata.insert("pred".to_owned(), json!(pred));
    step.metadata.insert("acc".to_owned(), Value::Bool(verdict.is_some_and(|verdict| verdict.equal)));
    if let Some(verdict) = verdict {
        step.metadata.insert("grading".to_owned(), Value::String(verdict.reason.name().to_owned()));
        if matches!(&verdict.reason, math::Reason::Unread(math::Stop::Budget(_))) {
            step.metadata.insert("over_budget".to_owned(), Value::Bool(true));
        }
        if let math::Reason::Unread(stop) = &verdict.reason {
            step.metadata.insert("unread".to_owned(), Value::String(stop.to_string()));
        }
    }
}

struct Episode {
    params: Params,
    truth: Arc<Truth>,
    metrics: Metrics,
}

fn graded(truth: &Truth, params: Params, text: &str) -> (Option<Verdict>, Option<String>) {
    let text = spoken(text);
    if let Some(answer) = math::last_boxed(text) {
        let verdict = if params.strict {
            let equal = answer.trim() == truth.text();
            Verdict { equal, reason: math::Reason::Text, steps: 0 }
        } else {
            truth.check(answer)
        };
        return (Some(verdict), Some(answer.to_owned()));
    }
    if !params.fallback {
        return (None, None);
    }
    let Some(line) = math::last_line(text) else { return (None, None) };
    let verdict = truth.check(line);
    let number = line
        .rsplit([' ', '=', '$'])
        .map(|word| word.trim_end_matches(['.', '*', ')']))
        .find(|word| word.contains(|c: char| c.is_ascii_digit()));
    match number {
        Some(number) if !verdict.equal => (Some(truth.check(number)), Some(number.to_owned())),
        _ => (Some(verdict), Some(line.to_owned())),
    }
}

#[async_trait]
impl Env for Episode {
    async fn init(&mut self, mut prompt: Vec<Message>, _context: EnvContext) -> Result<Vec<Message>, EnvError> {
        // Published data sets carry the instruction in the prompt; raw problems do not.
        if !prompt.iter().any(|message| message.content.contains(r"\boxed")) {
            instruct(&mut prompt, INSTRUCTION);
        }
        Ok(prompt)
    }

    async fn step(&mut self, action: Action) -> Result<Step, EnvError> {
        let (truth, params) = (Arc::clone(&self.truth), self.params);
        let (verdict, answer) = apart(move || graded(&truth, params, &action.text)).await;
        let correct = verdict.as_ref().is_some_and(|verdict| verdict.equal);
        let mut step = Step { reward: f64::from(u8::from(correct)), terminated: true, ..Step::default() };
        metadata(&mut step, verdict.as_ref(), answer.as_deref());
        let over = step.metadata.contains_key("over_budget");
        for (key, value) in [("correct", correct), ("answered", answer.is_some()), ("over_budget", over)] {
            self.metrics.insert(key.to_owned(), Value::Bool(value));
        }
        Ok(step)
    }

    fn metrics(&self) -> Metrics {
        self.metrics.clone()
    }
}

/// Adds an instruction to the last user message.
pub(crate) fn instruct(prompt: &mut Vec<Message>, instruction: &str) {
    match prompt.iter_mut().rfind(|message| message.role == Role::User) {
        Some(message) => message.content = format!("{}\n\n{instruction}", message.content.trim_end()),
        None => prompt.push(Message::user(instruction)),
    }
}
