//! The episode: one query per turn, until a solution or the turn limit.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use espalier_inference::{Message, Role, StopReason};
use espalier_sql::render::{self, Shown};
use espalier_sql::{Database, Limits, Request, SqlError};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::grading::{self, Verdict};
use super::{ID, Params, protocol, skyrl};
use crate::env::{Action, Env, EnvContext, EnvError, Metrics, Step};

/// Characters of the schema that are added to a prompt without one.
const SCHEMA_CHARS: usize = 8000;

/// One episode.
pub(super) struct Episode {
    params: Arc<Params>,
    database: Arc<Database>,
    /// The row's name.
    row: String,
    /// Empty where nothing is graded.
    gold: Vec<String>,
    context: Option<EnvContext>,
    /// What the model said, turn by turn.
    turns: Vec<String>,
    /// The whole conversation after the prompt, as skyrl-gym reads it; only under compat.
    history: String,
    record: Record,
}

#[derive(Default)]
struct Record {
    queries: u32,
    errors: u32,
    timeouts: u32,
    invalid: u32,
    format: Option<bool>,
    correct: bool,
}

/// Ends a query whose episode is dropped or cancelled.
struct EndOnDrop(Arc<AtomicBool>);

impl Drop for EndOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Episode {
    pub(super) fn new(params: Arc<Params>, database: Arc<Database>, row: String, gold: Vec<String>) -> Self {
        Self {
            params,
            database,
            row,
            gold,
            context: None,
            turns: Vec::new(),
            history: String::new(),
            record: Record::default(),
        }
    }

    fn context(&self) -> Result<&EnvContext, EnvError> {
        self.context.as_ref().ok_or_else(|| failed("an action came before the episode was set up"))
    }

    /// Runs something that queries, off the threads that must not block. `time` is cut at the rollout's deadline.
    async fn blocking<T: Send + 'static>(
        &self,
        mut request: Request,
        work: impl FnOnce(&Database, &Request) -> T + Send + 'static,
    ) -> Result<T, EnvError> {
        let context = self.context()?;
        let left = context.deadline.saturating_duration_since(Instant::now());
        request.limits.time = request.limits.time.min(left).max(Duration::from_millis(1));
        let end = EndOnDrop(Arc::clone(&request.cancel));
        let database = Arc::clone(&self.database);
        let mut task = tokio::task::spawn_blocking(move || work(&database, &request));
        let joined = tokio::select! {
            joined = &mut task => joined,
            () = context.cancel.cancelled() => {
                end.0.store(true, Ordering::Relaxed);
                task.await
            }
        };
        joined.map_err(|error| failed(format!("a query's thread failed: {error}")))
    }

    /// The result of a turn's query as the model sees it, with what there is to record of it.
    async fn look(&mut self, sql: &str) -> Result<(String, Option<String>), EnvError> {
        self.record.queries += 1;
        let owned = sql.to_owned();
        let (shown, error) = if self.params.skyrl() {
            let request = skyrl::request(self.params.query_time());
            self.blocking(request, move |database, request| {
                let rows = skyrl::rows(database, &owned, request);
                let shown = skyrl::result(&owned, database.path(), &rows);
                (shown, rows.err().map(|(error, _)| error))
            })
            .await?
        } else {
            let shown = Shown { rows: self.params.shown_rows, chars: self.params.shown_chars, ..Shown::default() };
            let limits = Limits { time: self.params.query_time(), rows: shown.rows, ..Limits::default() };
            let request = Request { limits, ..Request::default() };
            let result = self.blocking(request, move |database, request| {
                database.query(&owned, request).map(|table| render::table(&table, shown))
            });
            match result.await? {
                Ok(text) => (text, None),
                Err(error) => (format!("Error: {error}"), Some(error)),
            }
        };
        if let Some(error) = &error {
            if error.is_fault() && (!self.params.skyrl() || *error == SqlError::Cancelled) {
                return Err(failed(error));
            }
            self.record.errors += 1;
            self.record.timeouts += u32::from(error.is_timeout());
        }
        Ok((shown, error.map(|error| error.to_string())))
    }

    /// The reward of an episode that is over, and why.
    async fn judge(&mut self) -> Result<(f64, String), EnvError> {
        let original = self.params.skyrl();
        let solution = if original {
            protocol::solution_original(&self.history).ok_or("skyrl-gym's format is not kept")
        } else {
            protocol::solution(&self.turns).map_err(protocol::Fault::text)
        };
        self.record.format = Some(solution.is_ok());
        let solution = match solution {
            Ok(solution) => solution.to_owned(),
            Err(fault) => return Ok((-1.0, fault.to_owned())),
        };
        if self.gold.is_empty() {
            return Ok((0.0, "nothing to grade by".to_owned()));
        }
        let gold = self.gold.clone();
        let time = self.params.grade_time();
        let Verdict { correct, timed_out, reason } = if original {
            let request = skyrl::request(time);
            self.blocking(request, move |database, request| {
                grading::grade_original(database, &solution, &gold, request)
            })
            .await?
        } else {
            let request = Request { limits: Limits { time, ..Limits::default() }, ..Request::default() };
            let row = self.row.clone();
            self.blocking(request, move |database, request| grading::grade(database, &solution, &row, &gold, request))
                .await??
        };
        self.record.correct = correct;
        self.record.timeouts += u32::from(timed_out);
        Ok((f64::from(u8::from(correct)), reason))
    }

    /// The tables, for a prompt that does not show them.
    async fn schema(&self) -> Result<String, EnvError> {
        let sql = "SELECT sql FROM sqlite_master WHERE sql IS NOT NULL AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\' ORDER BY rowid";
        let request =
            Request { limits: Limits { time: self.params.query_time(), ..Limits::default() }, ..Request::default() };
        let table = self.blocking(request, move |database, request| database.query(sql, request)).await?;
        let table = table.map_err(|error| failed(format!("the schema cannot be read: {error}")))?;
        let mut schema = String::new();
        for value in table.rows.into_iter().flatten() {
            let espalier_sql::Value::Text(text) = value else { continue };
            if schema.len() + text.len() > SCHEMA_CHARS {
                schema.push_str("-- more is left out; see sqlite_master\n");
                break;
            }
            schema.push_str(&text);
            schema.push_str(";\n");
        }
        Ok(schema)
    }
}

fn failed(reason: impl std::fmt::Display) -> EnvError {
    EnvError::Failed { env: ID.to_owned(), reason: reason.to_string() }
}

/// What a database holds must not end the observation.
fn harmless(text: &str) -> String {
    text.replace("</observation", "&lt;/observation").replace("<observation", "&lt;observation")
}

fn observation(result: &str, turns_left: u32) -> String {
    let left = match turns_left {
        1 => "This is the last turn: give the solution.".to_owned(),
        more => format!("{more} turns are left."),
    };
    format!("<observation>\n{}\n</observation>\n<reminder>{left}</reminder>", harmless(result))
}

#[async_trait]
impl Env for Episode {
    async fn init(&mut self, mut prompt: Vec<Message>, context: EnvContext) -> Result<Vec<Message>, EnvError> {
        self.context = Some(context);
        // Published data sets carry the format and the schema in the prompt; raw questions do not.
        if !self.params.skyrl() && !prompt.iter().any(|message| message.content.contains("<solution>")) {
            let schema = self.schema().await?;
            let added = format!("The database:\n{schema}\n{}", protocol::INSTRUCTION);
            match prompt.iter_mut().rfind(|message| message.role == Role::User) {
                Some(message) => message.content = format!("{}\n\n{added}", message.content.trim_end()),
                None => prompt.push(Message::user(added)),
            }
        }
        Ok(prompt)
    }

    async fn step(&mut self, action: Action) -> Result<Step, EnvError> {
        let original = self.params.skyrl();
        let max_turns = self.context()?.max_turns;
        let mut text = action.text;
        if !original
            && action.stop == StopReason::StopString
            && let Some(whole) = protocol::completed(&text)
        {
            text = whole;
        }
        if original {
            self.history.push_str(&text);
        }
        let (finished, query) = if original {
            (protocol::is_final_original(&text), protocol::query_original(&text).map(str::to_owned))
        } else {
            let turn = protocol::Turn::read(&text);
            (turn.is_final(), turn.query.map(|query| protocol::unfenced(query).to_owned()))
        };
        self.turns.push(text);
        let played = u32::try_from(self.turns.len()).unwrap_or(u32::MAX);
        let mut step = Step::default();
        if finished || played >= max_turns {
            let (reward, reason) = self.judge().await?;
            step.reward = reward;
            step.metadata.insert("verdict".to_owned(), Value::String(reason));
            step.terminated = finished;
            step.truncated = !finished;
            return Ok(step);
        }
        let turns_left = max_turns - played;
        let message = match query {
            Some(sql) => {
                let (result, error) = self.look(&sql).await?;
                if let Some(error) = error {
                    step.metadata.insert("error".to_owned(), Value::String(error));
                }
                step.metadata.insert("sql".to_owned(), Value::String(sql));
                if original { skyrl::observation(Some(&result), turns_left) } else { observation(&result, turns_left) }
            }
            None => {
                self.record.invalid += 1;
                if original {
                    skyrl::observation(None, turns_left)
                } else {
                    let hint = "There was no query. Write one between <sql> and </sql>, or the final one between <solution> and </solution>.";
                    observation(hint, turns_left)
                }
            }
        };
        if original {
            self.history.push_str(&message);
        }
        step.observations.push(Message::user(message));
        Ok(step)
    }

    fn metrics(&self) -> Metrics {
        let record = &self.record;
        let mut metrics = Metrics::from([
            ("turns".to_owned(), json!(self.turns.len())),
            ("queries".to_owned(), json!(record.queries)),
            ("errors".to_owned(), json!(record.errors)),
            ("timeouts".to_owned(), json!(record.timeouts)),
            ("invalid".to_owned(), json!(record.invalid)),
            ("correct".to_owned(), json!(record.correct)),
        ]);
        if let Some(format) = record.format {
            metrics.insert("format".to_owned(), json!(format));
        }
        metrics
    }
}
