//! The episode: a search per turn, until an answer or the turn limit.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use espalier_inference::{Message, Role, StopReason};
use serde_json::{Value, json};

use super::tags::{self, Turn, Why};
use super::tool::{self, OnFailure, SearchTool};
use super::{ID, INSTRUCTION, Params, original, qa};
use crate::env::{Action, Env, EnvContext, EnvError, Metrics, Step};

/// One episode.
pub(super) struct Episode {
    params: Arc<Params>,
    accepted: Vec<String>,
    playing: Option<Playing>,
    record: Record,
}

/// What exists between `init` and `close`.
struct Playing {
    tool: Arc<SearchTool>,
    context: EnvContext,
    max_turns: u32,
    /// Everything said so far, observations included; only under compat.
    history: String,
}

/// What is reported at the end.
#[derive(Default)]
struct Record {
    turns: u32,
    searches: u32,
    failures: u32,
    found_nothing: u32,
    malformed: u32,
    answered: bool,
    score: f64,
}

impl Episode {
    pub(super) fn new(params: Arc<Params>, accepted: Vec<String>) -> Self {
        Self { params, accepted, playing: None, record: Record::default() }
    }

    async fn original_step(&mut self, action: &str) -> Result<Step, EnvError> {
        let turns = self.record.turns;
        let Some(playing) = &mut self.playing else { return Err(not_set_up()) };
        playing.history.push_str(action);
        let answered = original::answers(action);
        if answered || turns >= playing.max_turns {
            let answer = original::answer(&playing.history);
            let correct = answer.is_some_and(|answer| qa::original_em(answer, &self.accepted));
            self.record.answered = answer.is_some();
            self.record.score = f64::from(u8::from(correct));
            let reward = self.record.score;
            return Ok(Step { reward, terminated: answered, truncated: !answered, ..Step::default() });
        }
        let query = original::query(action);
        let result = if let Some(query) = query {
            self.record.searches += 1;
            let seed = playing.context.seed.wrapping_add(u64::from(turns));
            let limits = tool::limits(&playing.context);
            let (text, failed) =
                original::call(&playing.tool, query, &limits, seed).await.map_err(|error| failed(&error))?;
            self.record.failures += u32::from(failed);
            text
        } else {
            self.record.malformed += 1;
            String::new()
        };
        let observation = format!("\n<information>{result}</information>\n");
        playing.history.push_str(&observation);
        Ok(Step {
            observations: vec![Message::user(observation)],
            metadata: BTreeMap::from([
                ("tool_group".to_owned(), json!("SearchToolGroup")),
                ("tool_name".to_owned(), json!("search")),
                ("tool_input".to_owned(), json!([query])),
            ]),
            ..Step::default()
        })
    }

    async fn search(&mut self, query: String) -> Result<Step, EnvError> {
        let turns = self.record.turns;
        let Some(playing) = &self.playing else { return Err(not_set_up()) };
        self.record.searches += 1;
        let found = playing.tool.find(&query, &tool::limits(&playing.context)).await;
        let text = match found {
            Ok(hits) => {
                self.record.found_nothing += u32::from(hits.is_empty());
                tool::show(&hits, self.params.document_chars)
            }
            Err(error) => {
                self.record.failures += 1;
                tracing::warn!("`{ID}`: {error}");
                if self.params.on_failure == OnFailure::Fail {
                    return Err(failed(&error));
                }
                "The search failed; nothing is known of what it would have found.".to_owned()
            }
        };
        let mut observation = format!("\n<information>\n{text}\n</information>\n");
        observation.push_str(last_turn(playing.max_turns - turns));
        Ok(Step {
            observations: vec![Message::user(observation)],
            metadata: BTreeMap::from([("query".to_owned(), Value::String(query))]),
            ..Step::default()
        })
    }

    fn malformed(&mut self, why: Why, stop: StopReason) -> Result<Step, EnvError> {
        let turns = self.record.turns;
        let Some(playing) = &self.playing else { return Err(not_set_up()) };
        self.record.malformed += 1;
        let cut = matches!(stop, StopReason::MaxTokens | StopReason::ContextOverflow);
        let said = match why {
            Why::CutOff | Why::NoTags if cut => "Your turn was cut off: it was too long.",
            Why::NoTags => "Your turn neither searched nor answered.",
            Why::CutOff => "A tag in your turn is not closed.",
            Why::Unopened => "A tag in your turn is closed but not opened.",
            Why::Empty => "There is nothing between your <search> tags.",
        };
        let mut text = format!(
            "\n{said} Write <search>what to look for</search> to search, or <answer>the answer</answer> to answer.\n"
        );
        text.push_str(last_turn(playing.max_turns - turns));
        Ok(Step { observations: vec![Message::user(text)], ..Step::default() })
    }
}

/// What the model is told when one turn is left: a search in it would not be run.
fn last_turn(left: u32) -> &'static str {
    if left == 1 { "This is your last turn: answer now, between <answer> and </answer>.\n" } else { "" }
}

fn failed(error: &espalier_retrieval::RetrievalError) -> EnvError {
    EnvError::Failed { env: ID.to_owned(), reason: error.to_string() }
}

fn not_set_up() -> EnvError {
    EnvError::Failed { env: ID.to_owned(), reason: "a turn came before the episode was set up".to_owned() }
}

#[async_trait]
impl Env for Episode {
    async fn init(&mut self, mut prompt: Vec<Message>, context: EnvContext) -> Result<Vec<Message>, EnvError> {
        let params = &self.params;
        let tool = params.source().open(ID, &params.shared, &context).await?;
        let max_turns = params.max_turns.map_or(context.max_turns, |turns| turns.min(context.max_turns)).max(1);
        // Published data sets carry the instruction in the prompt; raw questions do not.
        if params.compat.is_none() && !prompt.iter().any(|message| message.content.contains("<search>")) {
            match prompt.iter_mut().rfind(|message| message.role == Role::User) {
                Some(message) => message.content = format!("{}\n\n{INSTRUCTION}", message.content.trim_end()),
                None => prompt.push(Message::user(INSTRUCTION)),
            }
        }
        self.playing = Some(Playing { tool, context, max_turns, history: String::new() });
        Ok(prompt)
    }

    async fn step(&mut self, action: Action) -> Result<Step, EnvError> {
        self.record.turns += 1;
        if self.params.compat.is_some() {
            return self.original_step(&action.text).await;
        }
        let complete = matches!(action.stop, StopReason::EndOfTurn | StopReason::StopString);
        let over = self.playing.as_ref().is_some_and(|playing| self.record.turns >= playing.max_turns);
        match tags::read(&action.text, complete) {
            Turn::Answer(answer) => {
                let score = qa::score(self.params.metric, &answer, &self.accepted);
                (self.record.answered, self.record.score) = (true, score);
                let metadata = BTreeMap::from([("answer".to_owned(), Value::String(answer))]);
                Ok(Step { reward: score, terminated: true, metadata, ..Step::default() })
            }
            _ if over => Ok(Step { truncated: true, ..Step::default() }),
            Turn::Search(query) => self.search(query).await,
            Turn::Nothing(why) => self.malformed(why, action.stop),
        }
    }

    fn metrics(&self) -> Metrics {
        let record = &self.record;
        let mut metrics = Metrics::new();
        let mut put = |name: &str, value: Value| metrics.insert(name.to_owned(), value);
        put("score", json!(record.score));
        put("correct", json!(record.score >= 1.0));
        put("answered", json!(record.answered));
        put("turns", json!(record.turns));
        put("searches", json!(record.searches));
        put("search_failures", json!(record.failures));
        put("found_nothing", json!(record.found_nothing));
        put("malformed_turns", json!(record.malformed));
        metrics
    }

    async fn close(&mut self) {
        self.playing = None;
    }
}
