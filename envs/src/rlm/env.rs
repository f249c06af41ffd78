//! The episode: one block per turn in a persistent REPL, until an answer or the turn limit.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use async_trait::async_trait;
use espalier_inference::{Message, StopReason};
use espalier_sandbox::{
    Context, Execution, FinalAnswer, HostCalls, Limits, Outcome, Policy, Repl, ReplOptions, Sandbox, SandboxError, Tool,
};
use serde_json::{Value as Json, json};

use super::calls::{Calls, Counts};
use super::config::{self, Params};
use super::observation::{self, Seen, Shown};
use super::parse::{self, Block, TextAnswer};
use super::prompts::{self, Offer, Style, Turn};
use super::task::{Briefing, Grade, Grading, RlmTask};
use super::{metadata, parsed_answer};
use crate::env::{Action, Env, EnvContext, EnvError, History, Metrics, Step};
use crate::row::{self, EnvRow};

/// One episode.
pub struct Episode {
    id: String,
    params: Arc<Params>,
    task: Arc<dyn RlmTask>,
    row: EnvRow,
    playing: Option<Playing>,
    record: Record,
}

/// What exists between `init` and `close`.
struct Playing {
    repl: Repl,
    context: Context,
    services: EnvContext,
    question: String,
    limits: Limits,
    max_turns: u32,
    counts: Arc<Counts>,
    /// Messages of the conversation, the next action not included.
    messages: usize,
    /// Where the prompt stands that only this turn sees; only under compat.
    ephemeral: Option<usize>,
}

/// What is reported at the end.
#[derive(Default)]
struct Record {
    turns: u32,
    blocks: u32,
    valid_blocks: u32,
    timeouts: u32,
    kills: u32,
    truncated: u32,
    sub_calls: u64,
    children: u64,
    reward: f64,
    answer: Option<FinalAnswer>,
    /// What the task reports.
    task: Metrics,
}

/// How a turn's text was read, whichever way.
struct TurnReading {
    code: Option<Block>,
    blocks: usize,
    /// The name is tried before the text.
    name: Option<String>,
    text: Option<String>,
}

impl Episode {
    pub(super) fn new(id: String, params: Arc<Params>, task: Arc<dyn RlmTask>, row: EnvRow) -> Self {
        Self { id, params, task, row, playing: None, record: Record::default() }
    }

    fn failed(&self, reason: impl std::fmt::Display) -> EnvError {
        EnvError::Failed { env: self.id.clone(), reason: reason.to_string() }
    }

    fn sandbox_failed(&self, error: &SandboxError) -> EnvError {
        self.failed(format!("the sandbox failed: {error}"))
    }

    fn read(&self, action: &Action) -> TurnReading {
        if self.params.original() {
            let reading = parse::read_original(&action.text);
            let code = reading.code.is_some();
            return TurnReading {
                code: reading.code,
                blocks: reading.blocks,
                name: reading.final_var.filter(|_| code),
                text: reading.final_text.filter(|_| code),
            };
        }
        let mut fences = self.params.fences();
        // A block that was cut off in the middle is not what the model meant to run.
        fences.unclosed &= !matches!(action.stop, StopReason::MaxTokens | StopReason::ContextOverflow);
        let reading = parse::read(&action.text, &fences);
        let (name, text) = match reading.answer {
            Some(TextAnswer::FinalVar(name)) => (Some(name), None),
            Some(TextAnswer::Final(text)) => (None, Some(text)),
            None => (None, None),
        };
        TurnReading { code: reading.code, blocks: reading.blocks, name, text }
    }

    /// Runs a block. Under compat, what a block that raised had assigned is discarded.
    async fn run(&mut self, code: &str) -> Result<Execution, EnvError> {
        let original = self.params.original();
        let Some(playing) = &mut self.playing else {
            return Err(self.failed("a block came before the episode was set up"));
        };
        let before = if original { Some(playing.repl.fork(None).await) } else { None };
        let execution = playing.repl.execute(code).await;
        let execution = execution.map_err(|error| self.sandbox_failed(&error))?;
        if let Outcome::HostError { reason } = &execution.outcome {
            return Err(self.failed(format!("the sandbox failed: {reason}")));
        }
        if let Some(before) = before {
            let before = before.map_err(|error| self.sandbox_failed(&error))?;
            let raised =
                matches!(execution.outcome, Outcome::Raised { .. } | Outcome::TimedOut | Outcome::MemoryExceeded);
            if raised
                && !execution.rolled_back
                && let Some(playing) = &mut self.playing
            {
                playing.repl = before;
            }
        }
        let record = &mut self.record;
        match &execution.outcome {
            Outcome::Completed => record.valid_blocks += 1,
            Outcome::TimedOut => record.timeouts += 1,
            Outcome::Killed { .. } => record.kills += 1,
            _ => {}
        }
        Ok(execution)
    }

    /// What `FINAL_VAR(name)` written as text gives: the answer, or why there is none.
    async fn variable(&mut self, name: &str) -> Result<Result<FinalAnswer, String>, EnvError> {
        let Some(playing) = &mut self.playing else {
            return Err(self.failed("an answer came before the episode was set up"));
        };
        match playing.repl.final_var(name).await {
            Ok(answer) => Ok(Ok(answer)),
            Err(SandboxError::NoVariable(_) | SandboxError::Name { .. }) => Ok(Err(format!(
                "FINAL_VAR({name}): there is no variable `{name}`. Make it in a block first, or give the answer \
                 itself with FINAL(...)."
            ))),
            Err(
                error
                @ (SandboxError::TooLarge { .. } | SandboxError::Unreadable { .. } | SandboxError::Stopped { .. }),
            ) => Ok(Err(format!("FINAL_VAR({name}): {error}."))),
            Err(error) => Err(self.sandbox_failed(&error)),
        }
    }

    /// The answer of a turn, and what to tell the model when it named a variable that does not exist.
    async fn answer_of(
        &mut self,
        reading: &TurnReading,
        execution: Option<&Execution>,
    ) -> Result<(Option<FinalAnswer>, Option<String>), EnvError> {
        let original = self.params.original();
        let mut note = None;
        let from_code = execution.and_then(|execution| execution.final_answer.clone());
        let answer = if let Some(answer) = from_code.filter(|answer| !original || !answer.text.is_empty()) {
            Some(answer)
        } else {
            let mut answer = None;
            if let Some(name) = &reading.name {
                match self.variable(name).await? {
                    Ok(found) if original => {
                        let text = found.text.trim().to_owned();
                        answer = (!text.is_empty()).then(|| row::text_answer(text));
                    }
                    Ok(found) => answer = Some(found),
                    Err(reason) => note = Some(reason),
                }
            }
            if answer.is_none()
                && let Some(text) = &reading.text
            {
                answer = Some(if original { row::text_answer(text.clone()) } else { parsed_answer(text) });
            }
            answer
        };
        // Under compat an answer is text, whatever it was.
        Ok((answer.map(|answer| if original { row::text_answer(answer.text) } else { answer }), note))
    }

    /// What the model is shown after a turn without an answer.
    fn observe(&mut self, action: &Action, reading: &TurnReading, execution: Option<&Execution>) -> String {
        let params = &self.params;
        let block_time = self.playing.as_ref().map_or(params.limits.block, |playing| playing.limits.block);
        let contexts = 1;
        let Shown { text, cut } = match (&reading.code, execution) {
            (Some(block), Some(execution)) if params.original() => {
                observation::original(&block.code, execution, contexts, block_time, params.output_chars)
            }
            (Some(_), Some(execution)) => observation::describe(Seen {
                execution,
                blocks: reading.blocks,
                limit: params.output_chars,
                block_time,
                brief: params.prompt == Style::Compact,
            }),
            _ if params.original() => Shown { text: observation::ORIGINAL_NO_BLOCK.to_owned(), cut: false },
            _ => {
                let fence = params.fences().words.first().cloned().unwrap_or_default();
                let why = match action.stop {
                    StopReason::MaxTokens | StopReason::ContextOverflow => {
                        "Your response was cut off at its length limit before a code block was complete. Write less \
                         before the code, and shorter code."
                            .to_owned()
                    }
                    _ => format!(
                        "Your response had no code block to run and no answer. Code goes between a line ```{fence} \
                         and a line ```."
                    ),
                };
                Shown { text: why, cut: false }
            }
        };
        self.record.truncated += u32::from(cut);
        text
    }
}

/// What the task makes of an episode's end: of its answer, or of there being none.
async fn graded(
    id: &str,
    task: &dyn RlmTask,
    answer: Option<&FinalAnswer>,
    row: &EnvRow,
    params: &Params,
    playing: &Playing,
) -> Result<Grade, EnvError> {
    let grader = |reason: String| EnvError::Grader { env: id.to_owned(), reason };
    let children = playing.counts.outcomes();
    let by = Grading {
        row,
        params,
        question: &playing.question,
        context: &playing.context,
        episode: &playing.services,
        children: &children,
    };
    let grade = match answer {
        Some(answer) => task.grade(answer, by).await.map_err(grader)?,
        None => Grade { reward: 0.0, metrics: task.unanswered(by).await },
    };
    if grade.reward.is_finite() {
        return Ok(grade);
    }
    Err(grader(format!("the reward must be finite, got {}", grade.reward)))
}

#[async_trait]
impl Env for Episode {
    async fn init(&mut self, prompt: Vec<Message>, context: EnvContext) -> Result<Vec<Message>, EnvError> {
        let params = Arc::clone(&self.params);
        let original = params.original();
        let question = row::question(&prompt);
        let data = match &self.row.context {
            Some(data) => data.clone(),
            None => Context::new(row::context_from_text(question.clone())),
        };
        self.task.start(&self.row, &params, &context)?;
        let counts = Arc::new(Counts::default());
        let own = self.task.tools(&self.row, &data);
        let mut serve: HashMap<String, Arc<dyn HostCalls>> = HashMap::new();
        let mut tools: Vec<Tool> = params.tools.iter().map(Tool::from).collect();
        for tool in own {
            let (Tool::Host { name, .. } | Tool::Python { name, .. }) = &tool.tool;
            config::check_name(name).map_err(|reason| EnvError::Invalid {
                env: self.id.clone(),
                key: format!("tool {name}"),
                reason,
            })?;
            if let Some(host) = tool.serve {
                serve.insert(name.clone(), host);
            }
            tools.push(tool.tool);
        }
        let llm = params.sub_calls && context.services.has_llm();
        let children = params.children && context.services.has_children();
        // The original offers all four whenever it has a model; ours also where only children are served.
        let offer = Offer {
            llm,
            rlm: children || (llm && original),
            tools: tools
                .iter()
                .map(|tool| {
                    let (Tool::Host { name, description } | Tool::Python { name, description, .. }) = tool;
                    (name.clone(), description.clone())
                })
                .filter(|(name, _)| !name.starts_with('_'))
                .collect(),
        };
        let mut functions = Vec::new();
        if llm {
            functions.extend(["llm_query", "llm_query_batched"]);
        }
        if llm || children {
            functions.extend(["rlm_query", "rlm_query_batched"]);
        }
        let limits = params.limits(&self.row);
        let options = ReplOptions {
            policy: params.policy.unwrap_or(if original { Policy::Strict } else { Policy::Default }),
            limits: limits.clone(),
            seed: context.seed,
            deterministic: params.deterministic,
            echo: params.echo.unwrap_or(params.prompt == Style::Compact && !original),
            contexts: vec![data.clone()],
            functions: functions.into_iter().map(str::to_owned).collect(),
            tools,
            host: Arc::new(Calls::new(Arc::clone(&context.services), children, original, serve, Arc::clone(&counts))),
            ..ReplOptions::default()
        };
        // Loading the interpreter for the first time reads and checks files.
        let sandbox = tokio::task::spawn_blocking(Sandbox::shared)
            .await
            .map_err(|error| self.failed(format!("the sandbox could not be loaded: {error}")))?
            .map_err(|error| self.sandbox_failed(&error))?;
        let repl = sandbox.repl(options).await.map_err(|error| self.sandbox_failed(&error))?;

        let max_turns = params.max_turns(&self.row, context.max_turns);
        let briefing = Briefing {
            row: &self.row,
            params: &params,
            depth: context.depth,
            max_turns,
            offer: &offer,
            context: &data,
        };
        let task_prompt = self.task.prompt(briefing);
        let template = config::template(&params, task_prompt.as_deref());
        let system = Message::system(prompts::system(template, params.prompt, &offer));
        let turn = Turn { question: &question, turn: 0, max_turns };
        let messages = if original {
            vec![
                system,
                Message::user(metadata::sentence(data.value(), usize::MAX)),
                Message::user(prompts::ephemeral(&question, 0)),
            ]
        } else {
            let about = metadata::sentence(data.value(), metadata::LISTED);
            let mut messages = vec![system];
            // A prompt of the author's own knows its own examples.
            if params.system_prompt.is_none() && task_prompt.is_none() {
                messages.extend(prompts::examples(params.prompt, &offer));
            }
            messages.push(Message::user(prompts::first_message(params.prompt, &about, turn)));
            messages
        };
        self.record = Record::default();
        self.playing = Some(Playing {
            repl,
            context: data,
            services: context,
            limits,
            max_turns,
            counts,
            messages: messages.len(),
            ephemeral: original.then(|| messages.len() - 1),
            question,
        });
        Ok(messages)
    }

    async fn step(&mut self, action: Action) -> Result<Step, EnvError> {
        let reading = self.read(&action);
        self.record.turns += 1;
        self.record.blocks += u32::from(reading.code.is_some());
        let execution = match &reading.code {
            Some(block) => Some(self.run(&block.code).await?),
            None => None,
        };
        let (answer, note) = self.answer_of(&reading, execution.as_ref()).await?;
        let mut step = Step { metadata: describe_turn(&reading, execution.as_ref()), ..Step::default() };
        if let Some(playing) = &self.playing {
            self.record.sub_calls = playing.counts.sub_calls.load(Ordering::Relaxed);
            self.record.children = playing.counts.children.load(Ordering::Relaxed);
        }
        if let Some(answer) = answer {
            let Some(playing) = &self.playing else {
                return Err(self.failed("an answer came before the episode was set up"));
            };
            let grade = graded(&self.id, self.task.as_ref(), Some(&answer), &self.row, &self.params, playing).await?;
            step.reward = grade.reward;
            self.record.task = grade.metrics;
            step.terminated = true;
            step.metadata.insert("answer".to_owned(), Json::String(answer.text.clone()));
            self.record.reward = step.reward;
            self.record.answer = Some(answer);
            return Ok(step);
        }
        let observed = self.observe(&action, &reading, execution.as_ref());
        let (turns, timeouts) = (self.record.turns, self.record.timeouts + self.record.kills);
        let params = Arc::clone(&self.params);
        let Some(playing) = &mut self.playing else {
            return Err(self.failed("a turn came before the episode was set up"));
        };
        if params.abort_after_timeouts.is_some_and(|most| timeouts >= most) {
            step.truncated = true;
            step.metadata.insert("aborted".to_owned(), json!("timeouts"));
            return Ok(step);
        }
        if turns >= playing.max_turns {
            step.truncated = true;
            self.record.task = graded(&self.id, self.task.as_ref(), None, &self.row, &params, playing).await?.metrics;
            return Ok(step);
        }
        // From here on the conversation goes on: the action and what follows it are part of it.
        let turn = Turn { question: &playing.question, turn: turns, max_turns: playing.max_turns };
        if params.original() {
            if let Some(index) = playing.ephemeral.take() {
                step.history = History::Remove(index);
                playing.messages -= 1;
            }
            step.observations =
                vec![Message::user(observed), Message::user(prompts::ephemeral(&playing.question, turns))];
        } else {
            let instruction = prompts::next_instruction(params.prompt, turn);
            let note = note.map(|note| format!("\n{note}")).unwrap_or_default();
            step.observations = vec![Message::user(format!("{observed}{note}\n\n{instruction}"))];
        }
        playing.messages += 1 + step.observations.len();
        playing.ephemeral = params.original().then(|| playing.messages - 1);
        Ok(step)
    }

    fn metrics(&self) -> Metrics {
        let record = &self.record;
        let mut metrics = Metrics::new();
        for (key, value) in [
            ("turns_used", json!(record.turns)),
            ("blocks", json!(record.blocks)),
            ("valid_blocks", json!(record.valid_blocks)),
            ("final_value_set", json!(record.answer.is_some())),
            ("final_answer", json!(record.answer.as_ref().map_or("", |answer| answer.text.as_str()))),
            ("reward", json!(record.reward)),
            ("sub_calls", json!(record.sub_calls)),
            ("children", json!(record.children)),
            ("timeouts", json!(record.timeouts)),
            ("kills", json!(record.kills)),
            ("truncated_outputs", json!(record.truncated)),
        ] {
            metrics.insert(key.to_owned(), value);
        }
        metrics.extend(record.task.clone());
        metrics
    }

    fn answer(&self) -> Option<FinalAnswer> {
        self.record.answer.clone()
    }

    async fn close(&mut self) {
        self.playing = None;
    }
}

/// What is recorded of a turn.
fn describe_turn(reading: &TurnReading, execution: Option<&Execution>) -> BTreeMap<String, Json> {
    let mut about = BTreeMap::from([("blocks".to_owned(), json!(reading.blocks))]);
    if let Some(execution) = execution {
        about.insert("outcome".to_owned(), json!(execution.outcome.name()));
        if let Outcome::Raised { type_name, .. } = &execution.outcome {
            about.insert("exception".to_owned(), json!(type_name));
        }
        about.insert("rolled_back".to_owned(), json!(execution.rolled_back));
        about.insert("calls".to_owned(), json!(execution.calls));
        about.insert("output_bytes".to_owned(), json!(execution.stdout.bytes + execution.stderr.bytes));
    }
    about
}
