//! The wire objects of `espalier repl --json`. `docs/repl-json.md` describes them; they are stable.

use std::time::Duration;

use base64::Engine as _;
use espalier_sandbox::{Execution, Outcome, Value, VariableInfo};
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value as Json, json};

use espalier_sandbox_server::value as json_value;

/// The name of the REPL that exists from the start.
pub(super) const FIRST_REPL: &str = "0";

/// One line from the driver.
#[derive(Clone, Debug)]
pub(super) struct Line {
    /// Echoed in the answer.
    pub(super) id: Option<Json>,
    /// Which REPL.
    pub(super) repl: String,
    /// What to do.
    pub(super) order: Order,
}

/// What a line asks for.
#[derive(Clone, Debug)]
pub(super) enum Order {
    /// Run a block.
    Execute { code: String, timeout: Option<Duration> },
    /// One more REPL, set up as the first was.
    New,
    /// A second REPL that continues from the same state.
    Fork { reseed: Option<u64> },
    /// The state as bytes.
    Snapshot { file: Option<String> },
    /// A REPL from such bytes.
    Restore { source: SnapshotSource },
    /// A variable, or the next context.
    Bind { name: Option<String>, value: Value },
    /// A variable's value.
    Get { name: String },
    /// Back to how it was set up.
    Reset,
    /// Drop it.
    Close,
    /// The answer to a pending call.
    Return { result: Result<Value, (String, String)> },
}

/// Where a snapshot comes from.
#[derive(Clone, Debug)]
pub(super) enum SnapshotSource {
    /// Base64 text in the line.
    Inline(String),
    /// A file.
    File(String),
}

/// Every key a line may have; which belong together is checked by [`Line::parse`].
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Fields {
    id: Option<Json>,
    repl: Option<Json>,
    code: Option<String>,
    timeout_s: Option<f64>,
    op: Option<String>,
    name: Option<String>,
    #[serde(default, deserialize_with = "present")]
    value: Option<Box<RawValue>>,
    #[serde(default, deserialize_with = "present")]
    context: Option<Box<RawValue>>,
    seed: Option<u64>,
    snapshot: Option<String>,
    file: Option<String>,
    #[serde(rename = "return", default, deserialize_with = "present")]
    returned: Option<Box<RawValue>>,
    raise: Option<Raise>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Raise {
    #[serde(rename = "type", default = "runtime_error")]
    kind: String,
    message: String,
}

fn runtime_error() -> String {
    "RuntimeError".to_owned()
}

/// Tells a `null` that is there from a key that is not.
fn present<'de, D: serde::Deserializer<'de>>(input: D) -> Result<Option<Box<RawValue>>, D::Error> {
    Box::deserialize(input).map(Some)
}

/// A line that cannot be served: its `id`, where it has one, and why.
#[derive(Debug)]
pub(super) struct BadLine {
    pub(super) id: Option<Json>,
    pub(super) reason: String,
}

impl Line {
    /// Reads a line; the error says what was expected.
    pub(super) fn parse(text: &str) -> Result<Self, BadLine> {
        let text = text.trim();
        Self::read(text).map_err(|reason| {
            // What else is wrong with the line does not keep its sender from knowing which one it was.
            let id = serde_json::from_str::<Json>(text).ok().and_then(|mut line| line.get_mut("id").map(Json::take));
            BadLine { id, reason }
        })
    }

    fn read(text: &str) -> Result<Self, String> {
        match text.as_bytes().first() {
            Some(b'{') => {}
            None => return Err("expected a JSON object, got a blank line".to_owned()),
            Some(_) => {
                let shown: String = text.chars().take(60).collect();
                return Err(format!("expected a JSON object, got `{shown}`"));
            }
        }
        let fields: Fields = serde_json::from_str(text).map_err(|error| {
            // The line is one of many: a line number within it says nothing.
            let reason = error.to_string();
            let reason = reason.rsplit_once(" at line ").map_or(reason.as_str(), |(reason, _)| reason);
            format!("expected a JSON object of this protocol: {reason} (column {})", error.column())
        })?;
        let read = |json: Box<RawValue>| json_value::parse(&json);
        let repl = match fields.repl {
            None => FIRST_REPL.to_owned(),
            Some(Json::String(name)) => name,
            Some(Json::Number(number)) => number.to_string(),
            Some(other) => return Err(format!("`repl` must be a string, got {other}")),
        };
        let order = match (fields.code, fields.op.as_deref(), fields.returned, fields.raise) {
            (Some(code), None, None, None) => Order::Execute { code, timeout: timeout(fields.timeout_s)? },
            (None, None, Some(value), None) => Order::Return { result: Ok(read(value)?) },
            (None, None, None, Some(raise)) => Order::Return { result: Err((raise.kind, raise.message)) },
            (None, Some("new"), None, None) => Order::New,
            (None, Some("fork"), None, None) => Order::Fork { reseed: fields.seed },
            (None, Some("snapshot"), None, None) => Order::Snapshot { file: fields.file },
            (None, Some("restore"), None, None) => Order::Restore {
                source: match (fields.snapshot, fields.file) {
                    (Some(text), None) => SnapshotSource::Inline(text),
                    (None, Some(file)) => SnapshotSource::File(file),
                    _ => return Err("`restore` needs either `snapshot` (base64) or `file`".to_owned()),
                },
            },
            (None, Some("bind"), None, None) => match (fields.name, fields.value, fields.context) {
                (Some(name), Some(value), None) => Order::Bind { name: Some(name), value: read(value)? },
                (None, None, Some(value)) => Order::Bind { name: None, value: read(value)? },
                _ => return Err("`bind` needs either `name` and `value`, or `context`".to_owned()),
            },
            (None, Some("get"), None, None) => {
                Order::Get { name: fields.name.ok_or_else(|| "`get` needs `name`".to_owned())? }
            }
            (None, Some("reset"), None, None) => Order::Reset,
            (None, Some("close"), None, None) => Order::Close,
            (None, Some(op), None, None) => {
                return Err(format!(
                    "`op` must be new, fork, snapshot, restore, bind, get, reset or close, got `{op}`"
                ));
            }
            _ => return Err("expected exactly one of `code`, `op`, `return`, `raise`".to_owned()),
        };
        Ok(Self { id: fields.id, repl, order })
    }
}

fn timeout(seconds: Option<f64>) -> Result<Option<Duration>, String> {
    seconds
        .map(|seconds| {
            Duration::try_from_secs_f64(seconds)
                .ok()
                .filter(|duration| !duration.is_zero())
                .ok_or_else(|| format!("`timeout_s` must be a positive number of seconds, got {seconds}"))
        })
        .transpose()
}

/// The answer to a block.
pub(super) fn executed(execution: &Execution) -> Map<String, Json> {
    let mut answer = Map::new();
    answer.insert("outcome".into(), execution.outcome.name().into());
    answer.insert("stdout".into(), execution.stdout.text.clone().into());
    answer.insert("stderr".into(), execution.stderr.text.clone().into());
    let final_answer = execution.final_answer.as_ref();
    answer.insert("final_answer".into(), final_answer.map_or(Json::Null, |answer| answer.text.clone().into()));
    if let Some(final_answer) = final_answer {
        answer.insert("final_value".into(), json_value::to_json(&final_answer.value));
        answer.insert("final_type".into(), final_answer.value.type_name().into());
    }
    answer.insert("variables".into(), variables(&execution.variables));
    answer.insert("cpu_s".into(), execution.cpu.as_secs_f64().into());
    answer.insert("wait_s".into(), execution.waiting.as_secs_f64().into());
    answer.insert("calls".into(), execution.calls.into());
    answer.insert("stdout_bytes".into(), execution.stdout.bytes.into());
    answer.insert("stderr_bytes".into(), execution.stderr.bytes.into());
    answer.insert("rolled_back".into(), execution.rolled_back.into());
    match &execution.outcome {
        Outcome::Raised { type_name, message } => {
            answer.insert("error".into(), json!({"type": type_name, "message": message}));
        }
        Outcome::Killed { reason } | Outcome::HostError { reason } => {
            answer.insert("error".into(), json!({"type": null, "message": reason}));
        }
        Outcome::Completed | Outcome::TimedOut | Outcome::MemoryExceeded => {}
    }
    answer
}

/// Variables as `{name: type}`.
pub(super) fn variables(variables: &[VariableInfo]) -> Json {
    Json::Object(variables.iter().map(|info| (info.name.clone(), info.type_name.clone().into())).collect())
}

/// Snapshot bytes as text.
pub(super) fn to_base64(bytes: &[u8]) -> String {
    base64::engine::general_purpose::STANDARD.encode(bytes)
}

/// Snapshot bytes from text.
pub(super) fn from_base64(text: &str) -> Result<Vec<u8>, String> {
    base64::engine::general_purpose::STANDARD
        .decode(text)
        .map_err(|error| format!("`snapshot` must be base64: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_key_is_refused_by_name() {
        let error = Line::parse(r#"{"code": "1", "timeout": 3}"#).unwrap_err();
        assert!(error.reason.contains("timeout"), "{error:?}");
    }

    #[test]
    fn a_line_that_cannot_be_served_keeps_its_id() {
        for line in [r#"{"code": "1", "zzz": 1, "id": 5}"#, r#"{"op": "zz", "id": 5}"#, r#"{"code": 1, "id": 5}"#] {
            assert_eq!(Line::parse(line).unwrap_err().id, Some(json!(5)), "{line}");
        }
        for line in ["", "[]", "7", "{\"id\": 5", "null"] {
            let error = Line::parse(line).unwrap_err();
            assert!(error.id.is_none() && error.reason.starts_with("expected a JSON object"), "{error:?}");
        }
    }

    #[test]
    fn a_returned_null_is_an_answer() {
        let line = Line::parse(r#"{"return": null}"#).unwrap();
        assert!(matches!(line.order, Order::Return { result: Ok(Value::None) }));
    }

    #[test]
    fn code_and_op_together_are_refused() {
        assert!(Line::parse(r#"{"code": "1", "op": "fork"}"#).is_err());
    }

    #[test]
    fn a_timeout_that_is_no_duration_is_refused() {
        for seconds in ["0", "-1", "1e300"] {
            assert!(Line::parse(&format!(r#"{{"code": "1", "timeout_s": {seconds}}}"#)).is_err(), "{seconds}");
        }
    }
}
