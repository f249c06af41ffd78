//! The episode: one tool per turn, until a solution or the turn limit.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use espalier_inference::{Message, Role, StopReason};
use serde_json::{Value, json};

use super::calls::{self, Turn};
use super::python::{self, End};
use super::{ID, INSTRUCTION, Params, Truth};
use crate::env::{Action, Env, EnvContext, EnvError, Metrics, Step};
use crate::graders::numeric;
use crate::search::tool::{self, OnFailure, SearchTool};
use crate::search::{original, qa, tags};

/// One episode.
pub(super) struct Episode {
    params: Arc<Params>,
    truth: Truth,
    playing: Option<Playing>,
    record: Record,
}

/// What exists between `init` and `close`.
struct Playing {
    search: Arc<SearchTool>,
    context: EnvContext,
    max_turns: u32,
    /// What was said so far, observations included; only under compat.
    history: Vec<String>,
}

/// What is reported at the end.
#[derive(Default)]
struct Record {
    turns: u32,
    searches: u32,
    search_failures: u32,
    programs: u32,
    program_failures: u32,
    malformed: u32,
    answered: bool,
    correct: bool,
}

impl Episode {
    pub(super) fn new(params: Arc<Params>, truth: Truth) -> Self {
        Self { params, truth, playing: None, record: Record::default() }
    }

    fn playing(&self) -> Result<&Playing, EnvError> {
        self.playing.as_ref().ok_or_else(|| failed("a turn came before the episode was set up"))
    }

    fn timeout(&self) -> Duration {
        Duration::from_secs_f64(self.params.python_timeout)
    }

    /// Runs a program, not longer than the rollout lasts.
    async fn python(&mut self, code: &str) -> Result<python::Ran, EnvError> {
        self.record.programs += 1;
        let (runtime, timeout, playing) = (self.params.runtime(), self.timeout(), self.playing()?);
        let seed = playing.context.seed.wrapping_add(u64::from(self.record.turns));
        let ran = tokio::select! {
            biased;
            () = playing.context.cancel.cancelled() => return Err(failed("the rollout was cancelled")),
            () = tokio::time::sleep_until(playing.context.deadline) => {
                return Err(failed("the rollout's time was over while a program ran"));
            }
            ran = python::run(runtime, code, timeout, seed) => ran,
        };
        let ran = ran.map_err(|error| failed(format!("the Python tool failed: {error}")))?;
        self.record.program_failures += u32::from(ran.end != End::Done);
        Ok(ran)
    }

    async fn search(&mut self, query: &str) -> Result<String, EnvError> {
        self.record.searches += 1;
        let playing = self.playing()?;
        match playing.search.find(query, &tool::limits(&playing.context)).await {
            Ok(hits) => Ok(format!("Found:\n{}\n", tool::show(&hits, self.params.document_chars))),
            Err(error) => {
                self.record.search_failures += 1;
                tracing::warn!("`{ID}`: {error}");
                match self.params.on_failure {
                    OnFailure::Fail => Err(failed(error)),
                    OnFailure::Tell => {
                        Ok("The search failed; nothing is known of what it would have found.\n".to_owned())
                    }
                }
            }
        }
    }

    /// Whether an answer is right.
    fn correct(&self, answer: &str, announced_only: bool) -> Option<bool> {
        match &self.truth {
            Truth::Number(truth) => {
                let number = numeric::worked_answer(answer, !announced_only)?;
                Some(numeric::equal(&number, truth))
            }
            Truth::Text(truth) => {
                let announced = answer.rsplit_once("####").map(|(_, announced)| announced.trim());
                let answer = if announced_only { announced? } else { announced.unwrap_or(answer) };
                Some(qa::score(qa::Metric::Em, answer, std::slice::from_ref(truth)) >= 1.0)
            }
            Truth::Original(_) => None,
        }
    }

    /// The end of an episode with or without a right answer.
    fn ends(&mut self, correct: Option<bool>, solved: bool) -> Step {
        self.record.answered = correct.is_some();
        self.record.correct = correct == Some(true);
        let reward = f64::from(u8::from(self.record.correct));
        Step { reward, terminated: solved, truncated: !solved, ..Step::default() }
    }

    async fn original_step(&mut self, action: &str) -> Result<Step, EnvError> {
        let turns = self.record.turns;
        let Some(playing) = &mut self.playing else { return Err(failed("a turn came before the episode was set up")) };
        playing.history.push(action.to_owned());
        let solved = action.contains("<solution>") && action.contains("</solution>");
        if solved || turns >= playing.max_turns {
            let history = playing.history.join("\n");
            let answer = numeric::strict_answer(&history);
            let correct = match &self.truth {
                Truth::Original(Some(truth)) => answer.map(|answer| answer == *truth),
                _ => answer.map(|_| false),
            };
            return Ok(self.ends(correct, solved));
        }
        let call = calls::original(action);
        let tools = json!([["search"], ["python"]]);
        let mut metadata = BTreeMap::from([("tools".to_owned(), tools)]);
        let mut describe = |group: Value, name: Value, input: Value| {
            for (key, value) in [("tool_group", group), ("tool_name", name), ("tool_input", input)] {
                metadata.insert(key.to_owned(), value);
            }
        };
        let observation = match call {
            Ok((name, query)) if name == "search" => {
                describe(json!("SearchToolGroup"), json!(name), json!([query]));
                self.record.searches += 1;
                let playing = self.playing()?;
                let seed = playing.context.seed.wrapping_add(u64::from(turns));
                let limits = tool::limits(&playing.context);
                let (text, bad) = original::call(&playing.search, &query, &limits, seed).await.map_err(failed)?;
                self.record.search_failures += u32::from(bad);
                text
            }
            Ok((name, code)) => {
                if let Some(refusal) = python::original_refusal(&code) {
                    describe(Value::Null, Value::Null, json!(""));
                    refusal.to_owned()
                } else {
                    describe(json!("PythonCodeExecutorToolGroup"), json!(name), json!([code]));
                    self.python(&code).await?.original(self.params.python_timeout)
                }
            }
            Err(error) => {
                describe(Value::Null, Value::Null, json!(""));
                self.record.malformed += 1;
                error
            }
        };
        let mut observations = Vec::new();
        // A program that printed nothing is answered by nothing.
        if !observation.is_empty() {
            if let Some(playing) = &mut self.playing {
                playing.history.push(observation.clone());
            }
            observations.push(Message::user(observation));
        }
        Ok(Step { observations, metadata, ..Step::default() })
    }
}

fn failed(reason: impl Display) -> EnvError {
    EnvError::Failed { env: ID.to_owned(), reason: reason.to_string() }
}

#[async_trait]
impl Env for Episode {
    async fn init(&mut self, mut prompt: Vec<Message>, context: EnvContext) -> Result<Vec<Message>, EnvError> {
        let params = &self.params;
        let search = params.source().open(ID, &params.shared, &context).await?;
        let max_turns = params.max_turns.map_or(context.max_turns, |turns| turns.min(context.max_turns)).max(1);
        if params.compat.is_none() && !prompt.iter().any(|message| message.content.contains("<tool>")) {
            match prompt.iter_mut().rfind(|message| message.role == Role::User) {
                Some(message) => message.content = format!("{}\n\n{INSTRUCTION}", message.content.trim_end()),
                None => prompt.push(Message::user(INSTRUCTION)),
            }
        }
        self.playing = Some(Playing { search, context, max_turns, history: Vec::new() });
        Ok(prompt)
    }

    async fn step(&mut self, action: Action) -> Result<Step, EnvError> {
        self.record.turns += 1;
        if self.params.compat.is_some() {
            return self.original_step(&action.text).await;
        }
        let left = self.playing()?.max_turns.saturating_sub(self.record.turns);
        let complete = matches!(action.stop, StopReason::EndOfTurn | StopReason::StopString);
        let (mut text, metadata) = match calls::read(&action.text, complete) {
            Turn::Solution(solution) => {
                let correct = self.correct(&solution, false);
                return Ok(self.ends(correct, true));
            }
            _ if left == 0 => {
                let correct = self.correct(&tags::spoken(&action.text), true);
                return Ok(self.ends(correct, false));
            }
            Turn::Search(query) => (self.search(&query).await?, json!({"tool": "search", "input": query})),
            Turn::Python(code) => {
                let timeout = self.timeout();
                let shown = self.python(&code).await?.show(timeout, self.params.output_chars);
                (shown, json!({"tool": "python", "input": code}))
            }
            Turn::Nothing(said) => {
                self.record.malformed += 1;
                let text = format!(
                    "{said} Write <tool><search>what to look for</search></tool>, <tool><python>a program</python></tool> \
                     or <solution>#### the answer</solution>.\n"
                );
                (text, json!({"tool": null}))
            }
        };
        if left == 1 {
            text.push_str("This is your last turn: give your solution now, between <solution> and </solution>.\n");
        }
        let metadata = match metadata {
            Value::Object(fields) => fields.into_iter().collect(),
            _ => BTreeMap::new(),
        };
        Ok(Step { observations: vec![Message::user(text)], metadata, ..Step::default() })
    }

    fn metrics(&self) -> Metrics {
        let record = &self.record;
        let mut metrics = Metrics::new();
        let mut put = |name: &str, value: Value| metrics.insert(name.to_owned(), value);
        put("correct", json!(record.correct));
        put("answered", json!(record.answered));
        put("turns", json!(record.turns));
        put("searches", json!(record.searches));
        put("search_failures", json!(record.search_failures));
        put("programs", json!(record.programs));
        put("program_failures", json!(record.program_failures));
        put("malformed_turns", json!(record.malformed));
        metrics
    }

    async fn close(&mut self) {
        self.playing = None;
    }
}
