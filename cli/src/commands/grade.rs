//! `espalier grade`: recorded responses, one JSON object per line, through an environment's own grader.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Read as _};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use espalier_datasets::error::kind;
use espalier_datasets::{Prompt, Row};
use espalier_envs::grade::{GradeOptions, Graded, grade, said, stop_reason};
use espalier_envs::{Action, EnvRow, NoServices, Prepared, Registry};
use futures::StreamExt as _;
use serde_json::{Map, Value, json};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::arguments::GradeArguments;
use crate::failure::Failure;
use crate::output::{outln, say};
use crate::{interrupt, output, settings};

/// Longest line, bytes.
const MAX_LINE: u64 = 1 << 28;

/// Longest time for one line, seconds.
const LONGEST: u64 = 1_000_000_000;

const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// What became of one line.
struct Answer {
    line: u64,
    id: Option<Value>,
    outcome: Result<Graded, Refusal>,
}

/// Why a line has no reward.
enum Refusal {
    /// The line is wrong.
    Line(String),
    /// The grader failed.
    Grader(String),
}

pub(crate) async fn run(arguments: GradeArguments) -> Result<(), Failure> {
    let params = settings::table_of("`--param`", &arguments.param)?;
    let grader = Arc::new(Grader::new(&arguments, params)?);
    let (file, input) = open(arguments.file.as_deref())?;
    let cancel = grader.options.cancel.clone();
    let stopper = tokio::spawn(interrupt::stop_and_keep(cancel.clone()));
    let (sender, receiver) = mpsc::channel(arguments.in_flight.get());
    let reader = tokio::task::spawn_blocking(move || read(&file, input, &sender));
    let lines = futures::stream::unfold(receiver, |mut receiver| async { Some((receiver.recv().await?, receiver)) });
    let answers = lines
        .map(|(line, text)| {
            let grader = Arc::clone(&grader);
            async move {
                // A task of its own, so that grading uses every core.
                let graded = tokio::spawn(async move { grader.line(line, &text).await }).await;
                graded.unwrap_or_else(|_| Answer {
                    line,
                    id: None,
                    outcome: Err(Refusal::Grader("the grader panicked".to_owned())),
                })
            }
        })
        .buffered(arguments.in_flight.get());
    let mut answers = std::pin::pin!(answers);
    let mut tally = Tally::default();
    loop {
        let answer = tokio::select! {
            biased;
            () = cancel.cancelled() => break,
            answer = answers.next() => answer,
        };
        let Some(answer) = answer else { break };
        tally.count(&answer);
        show(&answer, arguments.json)?;
        output::flush()?;
    }
    stopper.abort();
    tally.say();
    if cancel.is_cancelled() {
        return Err(Failure::Interrupted(format!("{} lines were graded", tally.lines)));
    }
    reader.await.map_err(|error| Failure::Internal(error.to_string()))??;
    tally.verdict()
}

/// An environment and what it grades with.
struct Grader {
    registry: Registry,
    env: String,
    params: Map<String, Value>,
    prepared: Prepared,
    options: GradeOptions,
}

impl Grader {
    fn new(arguments: &GradeArguments, params: Map<String, Value>) -> Result<Self, Failure> {
        let registry = Registry::standard();
        let prepared = registry.prepare(&arguments.env, &params).map_err(Failure::from)?;
        // What no clock can count to is refused too.
        let counted = |time: &Duration| !time.is_zero() && time.as_secs() <= LONGEST;
        let deadline = Duration::try_from_secs_f64(arguments.timeout).ok().filter(counted);
        let Some(deadline) = deadline else {
            return Err(Failure::Usage {
                what: "`--timeout`".to_owned(),
                expected: "seconds above 0, at most 1e9".to_owned(),
                got: format!("{:?}", arguments.timeout),
            });
        };
        let options = GradeOptions {
            services: Arc::new(NoServices),
            seed: arguments.seed,
            deadline,
            cancel: CancellationToken::new(),
        };
        Ok(Self { registry, env: arguments.env.clone(), params, prepared, options })
    }

    async fn line(&self, line: u64, text: &[u8]) -> Answer {
        let mut record = match espalier_json::line(text) {
            Ok(record) => record,
            Err(got) => {
                let reason = format!("expected one JSON object, got: {got}");
                return Answer { line, id: None, outcome: Err(Refusal::Line(reason)) };
            }
        };
        let id = record.get("id").or_else(|| record.get("uid")).cloned();
        let outcome = self.record(line, &mut record).await;
        Answer { line, id, outcome }
    }

    async fn record(&self, line: u64, record: &mut Map<String, Value>) -> Result<Graded, Refusal> {
        let actions = actions(record.remove("response"), record.remove("stop")).map_err(Refusal::Line)?;
        let mut turns = self.params.get("max_turns").cloned();
        let prepared = match record.remove("params") {
            None | Some(Value::Null) => self.prepared.clone(),
            Some(Value::Object(own)) => {
                let mut params = self.params.clone();
                params.extend(own);
                turns = params.get("max_turns").cloned();
                self.registry.prepare(&self.env, &params).map_err(|error| Refusal::Line(error.to_string()))?
            }
            Some(other) => {
                return Err(Refusal::Line(format!("`params` must be an object, got {}", kind(&other))));
            }
        };
        let mut row = row(line, record).map_err(Refusal::Line)?;
        // A turn limit among the parameters is the episode's, as in a suite.
        if let Some(own) = turns.and_then(|turns| u32::try_from(turns.as_u64()?).ok()) {
            row.max_turns = Some(row.max_turns.map_or(own, |rows| rows.min(own)));
        }
        if let Err(error) = prepared.make(&row) {
            return Err(Refusal::Line(error.to_string()));
        }
        let mut graded = grade(&prepared, &row, &actions, &self.options)
            .await
            .map_err(|error| Refusal::Grader(error.to_string()))?;
        if graded.turns < actions.len() {
            // The episode was over before: nobody should think that these were looked at.
            graded.metadata.insert("unplayed".to_owned(), json!(actions.len() - graded.turns));
        }
        Ok(graded)
    }
}

/// The actions of a line: one text, or a list of texts for an environment of several turns; and how they ended.
fn actions(response: Option<Value>, stop: Option<Value>) -> Result<Vec<Action>, String> {
    let mut actions: Vec<Action> = texts(response)?.into_iter().map(said).collect();
    let ended = |action: &mut Action, stop: &Value, key: &str| {
        let Value::String(name) = stop else { return Err(format!("`{key}` must be a text, got {}", kind(stop))) };
        action.stop = stop_reason(name).map_err(|reason| format!("`{key}` {reason}"))?;
        Ok(())
    };
    match stop {
        None | Some(Value::Null) => {}
        Some(Value::Array(stops)) => {
            if stops.len() != actions.len() {
                let (stops, turns) = (stops.len(), actions.len());
                return Err(format!("`stop` must say how each turn ended: {turns} expected, got {stops}"));
            }
            for (index, (action, stop)) in actions.iter_mut().zip(&stops).enumerate() {
                ended(action, stop, &format!("stop[{index}]"))?;
            }
        }
        // One reason is that of the last turn: those before it were answered.
        Some(stop) => {
            if let Some(last) = actions.last_mut() {
                ended(last, &stop, "stop")?;
            }
        }
    }
    Ok(actions)
}

fn texts(response: Option<Value>) -> Result<Vec<String>, String> {
    match response {
        None => Err("`response` is missing: the text to grade, or a list of texts, one per turn".to_owned()),
        Some(Value::String(text)) => Ok(vec![text]),
        Some(Value::Array(texts)) if !texts.is_empty() => texts
            .into_iter()
            .enumerate()
            .map(|(index, text)| match text {
                Value::String(text) => Ok(text),
                other => Err(format!("`response[{index}]` must be a text, got {}", kind(&other))),
            })
            .collect(),
        Some(Value::Array(_)) => Err("`response` holds no text".to_owned()),
        Some(other) => Err(format!("`response` must be a text or a list of texts, got {}", kind(&other))),
    }
}

/// The row that a line describes: a data set's columns, of which none is required here but what the environment needs.
/// `ground_truth` is short for `reward_spec.ground_truth`.
fn row(line: u64, record: &mut Map<String, Value>) -> Result<EnvRow, String> {
    let named = record.remove("id").or_else(|| record.get("uid").cloned());
    let id = match named {
        Some(Value::String(id)) => id,
        Some(Value::Number(id)) => id.to_string(),
        _ => line.to_string(),
    };
    let prompt = match record.remove("prompt") {
        None | Some(Value::Null) => Prompt::Text(String::new()),
        Some(Value::String(text)) => Prompt::Text(text),
        Some(Value::Array(messages)) => Prompt::Messages(
            messages
                .into_iter()
                .map(|message| match message {
                    Value::Object(message) => Ok(message),
                    other => Err(format!("`prompt` must hold messages, got {}", kind(&other))),
                })
                .collect::<Result<_, _>>()?,
        ),
        Some(other) => return Err(format!("`prompt` must be a text or a list of messages, got {}", kind(&other))),
    };
    if let Some(truth) = record.remove("ground_truth") {
        let spec = record.entry("reward_spec").or_insert_with(|| json!({}));
        let Value::Object(spec) = spec else {
            return Err(format!("`reward_spec` must be an object, got {}", kind(spec)));
        };
        if spec.insert("ground_truth".to_owned(), truth).is_some() {
            return Err("`ground_truth` and `reward_spec.ground_truth` are both there; keep one".to_owned());
        }
    }
    let columns = std::mem::take(record);
    EnvRow::from_row(Row { id, prompt, env: None, columns }).map_err(|error| error.to_string())
}

fn show(answer: &Answer, as_json: bool) -> Result<(), Failure> {
    if as_json {
        let mut shown = Map::new();
        shown.insert("id".to_owned(), answer.id.clone().unwrap_or(Value::Null));
        let (reward, metadata, error) = match &answer.outcome {
            Ok(graded) => {
                let mut metadata = graded.metadata.clone();
                if !graded.ended {
                    metadata.insert("ended".to_owned(), json!(false));
                }
                (json!(graded.reward), metadata, Value::Null)
            }
            Err(Refusal::Line(reason)) => {
                (Value::Null, BTreeMap::new(), json!(format!("line {}: {reason}", answer.line)))
            }
            Err(Refusal::Grader(reason)) => (Value::Null, BTreeMap::new(), json!(reason)),
        };
        shown.insert("reward".to_owned(), reward);
        shown.insert("metadata".to_owned(), json!(metadata));
        shown.insert("error".to_owned(), error);
        return outln!("{}", Value::Object(shown));
    }
    let name = match &answer.id {
        Some(Value::String(id)) => id.clone(),
        Some(id) => id.to_string(),
        None => format!("line {}", answer.line),
    };
    match &answer.outcome {
        Ok(graded) => outln!("{name:<20}  {:>8.3}", graded.reward),
        Err(Refusal::Line(reason)) => outln!("{name:<20}  {:>8}  line {}: {reason}", "-", answer.line),
        Err(Refusal::Grader(reason)) => outln!("{name:<20}  {:>8}  {reason}", "-"),
    }
}

/// How many lines ended in which way.
#[derive(Default)]
struct Tally {
    lines: u64,
    rewards: f64,
    wrong: u64,
    failed: u64,
}

impl Tally {
    fn count(&mut self, answer: &Answer) {
        self.lines += 1;
        match &answer.outcome {
            Ok(graded) => self.rewards += graded.reward,
            Err(Refusal::Line(_)) => self.wrong += 1,
            Err(Refusal::Grader(_)) => self.failed += 1,
        }
    }

    /// The mean is over what was graded: a line without a verdict is no 0.
    fn say(&self) {
        let graded = self.lines - self.wrong - self.failed;
        if graded > 0 {
            say!("graded {graded} of {} lines, mean reward {:.4}", self.lines, self.rewards / graded as f64);
        } else {
            say!("graded none of {} lines", self.lines);
        }
    }

    fn verdict(&self) -> Result<(), Failure> {
        if self.failed > 0 {
            return Err(Failure::Environment(format!("the grader failed on {} of {} lines", self.failed, self.lines)));
        }
        if self.wrong > 0 {
            return Err(Failure::Data(format!("{} of {} lines cannot be graded", self.wrong, self.lines)));
        }
        Ok(())
    }
}

/// The input and its name.
fn open(file: Option<&Path>) -> Result<(String, Box<dyn BufRead + Send>), Failure> {
    match file {
        Some(path) if path != Path::new("-") => {
            let input = File::open(path).map_err(|error| Failure::unreadable(path, &error))?;
            Ok((path.display().to_string(), Box::new(BufReader::with_capacity(1 << 16, input))))
        }
        _ => Ok(("stdin".to_owned(), Box::new(BufReader::new(std::io::stdin())))),
    }
}

/// Reads lines until nobody takes them any more. Blank ones are skipped.
fn read(file: &str, mut input: Box<dyn BufRead + Send>, sender: &mpsc::Sender<(u64, Vec<u8>)>) -> Result<(), Failure> {
    let wrong =
        |line: u64, reason: String| Failure::Input { file: file.to_owned(), reason: format!("line {line}: {reason}") };
    let mut line = 0;
    loop {
        line += 1;
        let mut bytes = Vec::new();
        let read = (&mut input).take(MAX_LINE + 1).read_until(b'\n', &mut bytes);
        match read {
            Err(error) => return Err(wrong(line, format!("cannot be read: {error}"))),
            Ok(0) => return Ok(()),
            Ok(_) if bytes.len() as u64 > MAX_LINE => {
                return Err(wrong(line, format!("is longer than {MAX_LINE} bytes")));
            }
            Ok(_) => {}
        }
        // Some editors begin a file with a byte order mark.
        if line == 1 && bytes.starts_with(BYTE_ORDER_MARK) {
            bytes.drain(..BYTE_ORDER_MARK.len());
        }
        // What is no UTF-8 is refused as a line that holds no JSON.
        if !bytes.trim_ascii().is_empty() && sender.blocking_send((line, bytes)).is_err() {
            return Ok(());
        }
    }
}
