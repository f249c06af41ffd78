//! The episode: calls, their results, the end.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use espalier_inference::{Message, StopReason};
use espalier_sandbox::FinalAnswer;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::json;

use super::calls::{self, Call};
use super::files::Files;
use super::grade::Check;
use super::python::{self, RunError, Runtime};
use super::tools::{self, Tool};
use super::{ID, Params, prompts};
use crate::env::{Action, Env, EnvContext, EnvError, Metrics, Step};
use crate::row::{EnvRow, text_answer};

/// One episode.
pub(super) struct Episode {
    pub(super) params: Arc<Params>,
    pub(super) row: EnvRow,
    pub(super) start: Files,
    pub(super) check: Option<Check>,
    pub(super) files: Files,
    pub(super) context: Option<EnvContext>,
    pub(super) max_turns: u32,
    pub(super) record: Record,
}

/// What is reported.
#[derive(Default)]
pub(super) struct Record {
    turns: u32,
    calls: BTreeMap<&'static str, u64>,
    errors: u64,
    silent: u64,
    runs: u64,
    answer: Option<String>,
    reward: f64,
}

impl Episode {
    fn failed(reason: impl Into<String>) -> EnvError {
        EnvError::Failed { env: ID.to_owned(), reason: reason.into() }
    }

    fn offered(&self) -> Vec<Tool> {
        let runs = self.params.runtime != Runtime::None;
        tools::TOOLS.into_iter().filter(|tool| runs || tool.name != "run_python").collect()
    }

    /// Makes one call; what the model is shown, and whether it was a mistake. A final answer goes to the record.
    async fn call(&mut self, call: &Call, seed: u64) -> Result<(String, bool), EnvError> {
        let (tool, arguments) = match tools::bind(&self.offered(), &call.name, &call.arguments) {
            Ok(bound) => bound,
            Err(reason) => return Ok((reason, true)),
        };
        *self.record.calls.entry(tool.name).or_default() += 1;
        let told = match tool.name {
            "finish" => {
                self.record.answer = Some(arguments.text("answer").unwrap_or_default().to_owned());
                Ok(String::new())
            }
            "run_python" => {
                let code = arguments.text("code").unwrap_or_default();
                self.record.runs += 1;
                let seed = seed.wrapping_add(self.record.runs);
                match python::run(self.params.runtime, code, &mut self.files, self.params.run_limits(), seed).await {
                    Ok(told) => Ok(told),
                    Err(RunError::Code(reason)) => Err(reason),
                    Err(RunError::Sandbox(reason)) => {
                        return Err(Self::failed(format!("the sandbox failed: {reason}")));
                    }
                }
            }
            name => tools::call(name, &arguments, &mut self.files, self.params.output_chars),
        };
        Ok(match told {
            Ok(text) => (text, false),
            Err(reason) => (reason, true),
        })
    }

    /// Grades what there is.
    async fn grade(&mut self, seed: u64) -> Result<(f64, Option<String>), EnvError> {
        let Some(check) = &self.check else { return Ok((0.0, None)) };
        let answer = self.record.answer.clone().unwrap_or_default();
        let mut rng = ChaCha8Rng::seed_from_u64(seed ^ 0x636b);
        let mark = format!("{:032x}", rng.random::<u128>());
        let graded = check.grade(&answer, &self.files, self.params.run_limits(), &mark).await;
        let (reward, note) = graded.map_err(|reason| EnvError::Grader { env: ID.to_owned(), reason })?;
        if !reward.is_finite() {
            let reason = format!("the reward must be finite, got {reward}");
            return Err(EnvError::Grader { env: ID.to_owned(), reason });
        }
        self.record.reward = reward;
        Ok((reward, note))
    }
}

/// A result as the model is shown it, cut where it is long.
fn result(text: &str, mistake: bool, most: usize) -> String {
    let count = text.chars().count();
    let text = if count <= most {
        text.to_owned()
    } else {
        let head: String = text.chars().take(most / 2).collect();
        let tail: String = text.chars().skip(count - most / 2).collect();
        format!("{head}\n... {} characters left out ...\n{tail}", count - 2 * (most / 2))
    };
    let mark = if mistake { "error: " } else { "" };
    format!("<tool_response>\n{mark}{text}\n</tool_response>")
}

#[async_trait]
impl Env for Episode {
    async fn init(&mut self, prompt: Vec<Message>, context: EnvContext) -> Result<Vec<Message>, EnvError> {
        let native = self.params.runtime == Runtime::Process || matches!(self.check, Some(Check::Python(_)));
        // Known before anything is sampled.
        if native && let Err(RunError::Sandbox(reason) | RunError::Code(reason)) = python::processes().await {
            return Err(Self::failed(reason));
        }
        self.max_turns = self
            .params
            .max_turns
            .or(self.row.max_turns)
            .map_or(context.max_turns, |own| own.min(context.max_turns))
            .max(1);
        self.files = self.start.clone();
        self.record = Record::default();
        self.context = Some(context);
        let system =
            prompts::system(&self.offered(), self.params.runtime, self.max_turns, self.params.python_timeout_s);
        let mut messages = vec![Message::system(system)];
        messages.extend(prompt);
        Ok(messages)
    }

    async fn step(&mut self, action: Action) -> Result<Step, EnvError> {
        let Some(seed) = self.context.as_ref().map(|context| context.seed) else {
            return Err(Self::failed("a turn came before the start"));
        };
        self.record.turns += 1;
        let mut step = Step::default();
        let found = calls::read(&action.text);
        let mut shown = Vec::new();
        let mut names = Vec::new();
        for call in &found {
            let (text, mistake) = match call {
                Ok(call) => {
                    names.push(json!(call.name));
                    self.call(call, seed).await?
                }
                Err(reason) => (reason.clone(), true),
            };
            self.record.errors += u64::from(mistake);
            if self.record.answer.is_some() {
                break;
            }
            shown.push(result(&text, mistake, self.params.output_chars));
        }
        step.metadata.insert("calls".to_owned(), json!(names));
        let last = self.record.turns >= self.max_turns;
        if self.record.answer.is_some() || last {
            step.terminated = self.record.answer.is_some();
            step.truncated = !step.terminated;
            // Work that stands in files counts also where nobody said that it is done.
            if step.terminated || self.check.as_ref().is_some_and(Check::looks_at_files) {
                let (reward, note) = self.grade(seed).await?;
                step.reward = reward;
                if let Some(note) = note {
                    step.metadata.insert("check".to_owned(), json!(note));
                }
            }
            return Ok(step);
        }
        if found.is_empty() {
            self.record.silent += 1;
            shown.push(match action.stop {
                StopReason::MaxTokens | StopReason::ContextOverflow => {
                    format!("Your response was cut off at its length limit. {}", prompts::NO_CALL)
                }
                _ => prompts::NO_CALL.to_owned(),
            });
        }
        let left = prompts::left(self.max_turns - self.record.turns);
        if !left.is_empty() {
            shown.push(left);
        }
        step.observations = vec![Message::user(shown.join("\n"))];
        Ok(step)
    }

    fn metrics(&self) -> Metrics {
        let record = &self.record;
        let total: u64 = record.calls.values().sum();
        let mut metrics = Metrics::new();
        for tool in self.offered() {
            let count = record.calls.get(tool.name).copied().unwrap_or(0);
            metrics.insert(format!("calls/{}", tool.name), json!(count));
        }
        for (key, value) in [
            ("turns", json!(record.turns)),
            ("tool_calls", json!(total)),
            ("tool_errors", json!(record.errors)),
            ("turns_without_call", json!(record.silent)),
            ("finished", json!(record.answer.is_some())),
            ("files", json!(self.files.len())),
            ("reward", json!(record.reward)),
        ] {
            metrics.insert(key.to_owned(), value);
        }
        metrics
    }

    fn answer(&self) -> Option<FinalAnswer> {
        self.record.answer.clone().map(text_answer)
    }

    async fn close(&mut self) {
        self.context = None;
        self.files = Files::default();
    }
}
