//! The records of offline runs: `wandb_internal.Record` and what it holds.
//!
//! `wandb/proto/wandb_internal.proto` of the official client. Values are JSON texts in which `NaN`, `Infinity` and
//! `-Infinity` stand for themselves.

use std::time::Duration;

use serde_json::Value;

use crate::protobuf::{Fields, Message};

/// The field of `Record` that holds a `HistoryRecord`.
const HISTORY: u32 = 2;
const SUMMARY: u32 = 3;
/// The field of `Record` that holds a `RunRecord`.
const RUN: u32 = 17;
const EXIT: u32 = 18;
const HEADER: u32 = 21;

/// The oldest reader that understands the records, in the numbering of the official client's own header.
const MIN_CONSUMER: &str = "0.70.0";

/// What a run is called and how it began.
#[derive(Debug, Clone, Copy)]
pub struct Run<'a> {
    /// Its id.
    pub id: &'a str,
    /// Its project.
    pub project: &'a str,
    /// Its name, or nothing.
    pub name: &'a str,
    /// Its tags.
    pub tags: &'a [String],
    /// The machine it runs on.
    pub host: &'a str,
    /// Its configuration, an object.
    pub config: &'a Value,
    /// When it began, since 1970.
    pub started: Duration,
    /// Whether it goes on with an earlier run of this id.
    pub resumed: bool,
}

/// Makes the records of a file, which are numbered from 1.
#[derive(Debug, Default)]
pub struct Records(i64);

impl Records {
    /// The first record.
    pub fn header(&mut self) -> Vec<u8> {
        let version = Message::new().string(1, "espalier").string(2, MIN_CONSUMER);
        self.record(HEADER, &Message::new().message(1, &version))
    }

    /// The second record.
    pub fn run(&mut self, run: &Run<'_>) -> Vec<u8> {
        let mut config = Message::new();
        for (key, value) in config_items(run.config) {
            config = config.message(1, &Message::new().string(1, key).string(16, &value.to_string()));
        }
        let mut message = Message::new().string(1, run.id).string(3, run.project).message(4, &config);
        message = message.string(8, run.name);
        for tag in run.tags {
            message = message.bytes(10, tag.as_bytes());
        }
        let started = Message::new().int(1, run.started.as_secs() as i64).int(2, i64::from(run.started.subsec_nanos()));
        message = message.string(13, run.host).message(17, &started).int(24, i64::from(run.resumed));
        self.record(RUN, &message)
    }

    /// A row: names and values as JSON.
    pub fn history(&mut self, step: u64, row: &[(String, String)]) -> Vec<u8> {
        let mut history = Message::new();
        for (name, value) in row {
            // A name is one key, however many dots and slashes it has: the list of nested keys has one item.
            history = history.message(1, &Message::new().bytes(2, name.as_bytes()).string(16, value));
        }
        self.record(HISTORY, &history.message(2, &Message::new().int(1, step as i64)))
    }

    /// The last values of names, as of now.
    pub fn summary(&mut self, row: &[(String, String)], runtime: Duration) -> Vec<u8> {
        let mut summary = Message::new();
        for (name, value) in row {
            summary = summary.message(1, &Message::new().bytes(2, name.as_bytes()).string(16, value));
        }
        let runtime = runtime.as_secs().to_string();
        let runtime = Message::new().bytes(2, b"_wandb").bytes(2, b"runtime").string(16, &runtime);
        self.record(SUMMARY, &summary.message(1, &runtime))
    }

    /// The last record of a run that ended by itself.
    pub fn exit(&mut self, exit_code: i32, runtime: Duration) -> Vec<u8> {
        let runtime = i64::from(i32::try_from(runtime.as_secs()).unwrap_or(i32::MAX));
        self.record(EXIT, &Message::new().int(1, i64::from(exit_code)).int(2, runtime))
    }

    fn record(&mut self, field: u32, message: &Message) -> Vec<u8> {
        self.0 += 1;
        // In the order of the fields' numbers: 1 is the record's number.
        Message::new().int(1, self.0).message(field, message).as_bytes().to_vec()
    }
}

const STEP: &str = "_step";
const RUNTIME: &str = "_runtime";
const TIMESTAMP: &str = "_timestamp";

/// Whether a name is one that each row has by itself.
pub fn is_reserved(name: &str) -> bool {
    [STEP, RUNTIME, TIMESTAMP].contains(&name)
}

/// What each row has by itself: its step, the seconds since the run began, and since 1970.
pub fn reserved(step: u64, now: Duration, runtime: Duration) -> [(String, String); 3] {
    [(STEP, step.to_string()), (RUNTIME, number(runtime.as_secs_f64())), (TIMESTAMP, number(now.as_secs_f64()))]
        .map(|(name, value)| (name.to_owned(), value))
}

/// A number as JSON.
pub fn number(value: f64) -> String {
    match serde_json::Number::from_f64(value) {
        Some(number) => number.to_string(),
        None if value.is_nan() => "NaN".to_owned(),
        None => if value > 0.0 { "Infinity" } else { "-Infinity" }.to_owned(),
    }
}

/// A text as JSON.
pub fn string(text: &str) -> String {
    Value::from(text).to_string()
}

/// The keys of a configuration at its top, with their values; a configuration that is no object has one, `config`.
pub fn config_items(config: &Value) -> Vec<(&str, &Value)> {
    match config {
        Value::Null => Vec::new(),
        Value::Object(items) => items.iter().map(|(key, value)| (key.as_str(), value)).collect(),
        other => vec![("config", other)],
    }
}

/// The project and the name of a run, if this is a run's record.
pub fn project_and_name(record: &[u8]) -> Option<(&str, &str)> {
    let run = Fields::bytes(record, RUN)?;
    let text = |field| std::str::from_utf8(Fields::bytes(run, field).unwrap_or_default()).ok();
    Some((text(3)?, text(8)?))
}

/// The step of a row, if this is a row's record.
pub fn step_of_row(record: &[u8]) -> Option<u64> {
    let step = Fields::bytes(Fields::bytes(record, HISTORY)?, 2)?;
    u64::try_from(Fields::int(step, 1).unwrap_or_default()).ok()
}
