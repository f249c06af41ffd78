//! One episode: a copy of the loaded file, asked turn by turn.

use std::sync::Arc;

use async_trait::async_trait;
use espalier_inference::{Message, Role};
use espalier_sandbox::{FinalAnswer, Repl, SandboxError, Value};
use serde_json::{Map, Value as Json, json};

use super::asks;
use super::program::{Answered, Program, Said, ask, cut, request, to_json};
use crate::env::{Action, Env, EnvContext, EnvError, Metrics, Step};
use crate::rlm::python;
use crate::row::{EnvRow, text_answer};
use crate::services::Services;

/// One episode.
pub(super) struct Episode {
    program: Arc<Program>,
    row: EnvRow,
    playing: Option<Playing>,
    turns: u32,
    reward: f64,
    /// What the file's own `metrics` said last.
    own: Map<String, Json>,
    answer: Option<FinalAnswer>,
}

/// What exists between `init` and `close`.
struct Playing {
    repl: Repl,
    services: Arc<dyn Services>,
    max_turns: u32,
}

impl Episode {
    pub(super) fn new(program: Arc<Program>, row: EnvRow) -> Self {
        Self { program, row, playing: None, turns: 0, reward: 0.0, own: Map::new(), answer: None }
    }

    fn id(&self) -> &str {
        &self.program.file.id
    }

    fn failed(&self, reason: impl Into<String>) -> EnvError {
        EnvError::Failed { env: self.id().to_owned(), reason: reason.into() }
    }

    fn sandbox_failed(&self, error: &SandboxError) -> EnvError {
        self.failed(format!("the sandbox failed: {error}"))
    }

    /// Puts a request to the driver on behalf of a function of the file, which errors name.
    async fn ask(&mut self, function: &str, request: Value) -> Result<Answered, EnvError> {
        let (program, id) = (Arc::clone(&self.program), self.id().to_owned());
        let Some(playing) = &mut self.playing else {
            return Err(self.failed("a turn came before the episode was set up"));
        };
        let asking = ask(&mut playing.repl, request, &program.file, &program.limits);
        match asks::with(Arc::clone(&playing.services), asking).await {
            Ok(answered) => Ok(answered),
            Err(Said::Ended(reason)) if function == "reward" => {
                Err(EnvError::Grader { env: id, reason: format!("`reward`: {reason}") })
            }
            Err(Said::Ended(reason)) => Err(EnvError::Failed { env: id, reason: format!("`{function}`: {reason}") }),
            Err(said) => Err(said.into_error(&id)),
        }
    }

    /// The row as the file sees it: a dict of its columns.
    fn columns(&self, prompt: &[Message]) -> Map<String, Json> {
        let row = &self.row;
        let mut columns = Map::new();
        columns.insert("uid".to_owned(), Json::from(row.id.as_str()));
        let prompt = prompt.iter().map(|message| serde_json::to_value(message).unwrap_or_default()).collect();
        columns.insert("prompt".to_owned(), Json::Array(prompt));
        if let Some(env) = &row.env {
            columns.insert("env_class".to_owned(), Json::from(env.as_str()));
        }
        columns.insert("reward_spec".to_owned(), Json::Object(row.reward_spec.clone()));
        columns.insert("extra_info".to_owned(), Json::Object(row.extra_info.clone()));
        if let Some(turns) = row.max_turns {
            columns.insert("max_turns".to_owned(), Json::from(turns));
        }
        columns.extend(row.columns.iter().map(|(name, value)| (name.clone(), value.clone())));
        columns
    }

    fn has(&self, function: &str) -> bool {
        self.program.declared.functions.iter().any(|name| name == function)
    }
}

/// The driver's pairs of role and text.
fn messages(value: Value) -> Option<Vec<Message>> {
    let Value::List(items) = value else { return None };
    let read = items.into_iter().filter_map(|item| match item {
        Value::List(pair) | Value::Tuple(pair) => match <[Value; 2]>::try_from(pair) {
            Ok([Value::Str(role), Value::Str(text)]) => {
                let role = match role.as_str() {
                    "system" => Role::System,
                    "assistant" => Role::Assistant,
                    "tool" => Role::Tool,
                    _ => Role::User,
                };
                Some(Message::new(role, text))
            }
            _ => None,
        },
        _ => None,
    });
    Some(read.collect())
}

#[async_trait]
impl Env for Episode {
    async fn init(&mut self, prompt: Vec<Message>, context: EnvContext) -> Result<Vec<Message>, EnvError> {
        let mut repl = self.program.fork(context.seed).await.map_err(|error| self.sandbox_failed(&error))?;
        let has_context = self.row.context.is_some();
        if let Some(context) = &self.row.context {
            repl.bind_context(context.clone()).await.map_err(|error| self.sandbox_failed(&error))?;
        }
        let max_turns = match (self.has("step"), self.row.max_turns) {
            (false, _) => 1,
            (true, Some(turns)) => turns.min(context.max_turns),
            (true, None) => context.max_turns,
        };
        self.playing = Some(Playing { repl, services: Arc::clone(&context.services), max_turns });
        let row = python::from_json(Json::Object(self.columns(&prompt)));
        let asked = request(
            "init",
            [("row", row), ("context", has_context.into()), ("max_turns", i64::from(max_turns).into())],
        );
        let mut answered = self.ask("init", asked).await?;
        (self.turns, self.reward, self.own, self.answer) = (0, 0.0, Map::new(), None);
        Ok(messages(answered.take("messages")).unwrap_or(prompt))
    }

    async fn step(&mut self, action: Action) -> Result<Step, EnvError> {
        let function = if self.has("step") { "step" } else { "reward" };
        let asked = request("step", [("action", action.text.as_str().into()), ("graded", self.row.graded.into())]);
        let mut answered = self.ask(function, asked).await?;
        let reward = match answered.take("reward") {
            Value::Float(reward) if reward.is_finite() => reward,
            other => {
                let reason = format!("`{function}` came to the reward {}, expected a finite number", other.repr());
                return Err(EnvError::Grader { env: self.id().to_owned(), reason });
            }
        };
        self.turns += 1;
        self.reward += reward;
        if let Json::Object(own) = to_json(answered.take("metrics")) {
            self.own = own;
        }
        let terminated = answered.take("done") == Value::Bool(true);
        let most = self.playing.as_ref().map_or(0, |playing| playing.max_turns);
        let truncated = !terminated && (answered.take("truncated") == Value::Bool(true) || self.turns >= most);
        if terminated {
            self.answer = Some(text_answer(action.text));
        }
        let mut step = Step { reward, terminated, truncated, ..Step::default() };
        step.observations = messages(answered.take("messages")).unwrap_or_default();
        if let Json::Object(metadata) = to_json(answered.take("metadata")) {
            step.metadata.extend(metadata);
        }
        if !answered.printed.is_empty() {
            step.metadata.entry("printed".to_owned()).or_insert_with(|| json!(cut(&answered.printed)));
        }
        Ok(step)
    }

    fn metrics(&self) -> Metrics {
        let mut metrics = Metrics::new();
        metrics.insert("turns".to_owned(), json!(self.turns));
        metrics.insert("reward".to_owned(), json!(self.reward));
        metrics.extend(self.own.iter().map(|(name, value)| (name.clone(), value.clone())));
        metrics
    }

    fn answer(&self) -> Option<FinalAnswer> {
        self.answer.clone()
    }

    async fn close(&mut self) {
        self.playing = None;
    }
}
