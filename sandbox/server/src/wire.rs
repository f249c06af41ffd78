//! What requests hold and answers look like. The names and shapes are those of `espalier repl --json`
//! (`docs/repl-json.md`); what differs comes of HTTP: a REPL's name stands in the path.

use std::sync::Arc;
use std::time::Duration;

use espalier_sandbox::{
    Context, Execution, HostCall, HostCalls, Limits, Outcome, Policy, ReplOptions, Tool, Value, VariableInfo,
};
use serde::de::{DeserializeOwned, Error as _, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use serde_json::{Map, Value as Json, json};

use crate::error::ApiError;
use crate::value::{self, Entries};

/// Functions of the scaffold that the client may serve.
pub const FUNCTIONS: [&str; 4] = ["llm_query", "llm_query_batched", "rlm_query", "rlm_query_batched"];

/// Bytes of the list of variables in an answer; what comes after is counted only.
const VARIABLES: usize = 1 << 20;

/// An object of an answer.
pub type Answer = Map<String, Json>;

/// `POST /v1/repls`, and what a restored REPL needs beside its snapshot.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Create {
    policy: Policy,
    limits: Asked,
    seed: u64,
    deterministic: bool,
    echo: bool,
    #[serde(deserialize_with = "present")]
    context: Option<Box<RawValue>>,
    contexts: Vec<Box<RawValue>>,
    functions: Vec<String>,
    tools: Vec<ToolSpec>,
}

/// Limits by name, none of them twice.
#[derive(Clone, Debug, Default)]
struct Asked(Map<String, Json>);

impl<'de> Deserialize<'de> for Asked {
    fn deserialize<D: Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
        struct Once;
        impl<'de> Visitor<'de> for Once {
            type Value = Asked;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a map")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Asked, A::Error> {
                let mut asked = Map::new();
                while let Some((key, value)) = map.next_entry::<String, Json>()? {
                    if asked.contains_key(&key) {
                        return Err(A::Error::custom(format!("the key `{key}` stands there twice")));
                    }
                    asked.insert(key, value);
                }
                Ok(Asked(asked))
            }
        }
        input.deserialize_map(Once)
    }
}

/// A body that says nothing: `POST /v1/repls/{repl}/reset` and `.../snapshot`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Nothing {}

/// A function of the client's, or one written in Python.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ToolSpec {
    name: String,
    #[serde(default)]
    description: String,
    source: Option<String>,
}

/// `POST /v1/repls/restore`
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Restore {
    /// The snapshot, base64.
    pub snapshot: String,
    #[serde(default)]
    limits: Asked,
    #[serde(default, deserialize_with = "present")]
    context: Option<Box<RawValue>>,
    #[serde(default)]
    contexts: Vec<Box<RawValue>>,
}

/// `POST /v1/repls/{repl}/execute`
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Execute {
    /// The block.
    pub code: String,
    timeout_s: Option<f64>,
    wait_s: Option<f64>,
    /// Echoed in every answer about this block.
    pub id: Option<Json>,
}

/// `POST /v1/repls/{repl}/wait`
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Wait {
    wait_s: Option<f64>,
}

/// `POST /v1/repls/{repl}/return`
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Return {
    /// The call's block, where the client says which call it answers.
    pub block: Option<u64>,
    /// The call's number in its block.
    pub index: Option<u32>,
    wait_s: Option<f64>,
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

/// `POST /v1/repls/{repl}/fork`
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Fork {
    /// Other randomness than the parent's.
    pub seed: Option<u64>,
}

/// `POST /v1/repls/{repl}/bind`
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Bind {
    name: Option<String>,
    #[serde(deserialize_with = "present")]
    value: Option<Box<RawValue>>,
    #[serde(deserialize_with = "present")]
    context: Option<Box<RawValue>>,
}

/// What is bound.
pub enum Bound {
    /// A variable.
    Variable(String, Value),
    /// The next context.
    Context(Context),
}

/// `POST /v1/repls/{repl}/get`
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Get {
    /// The variable.
    pub name: String,
}

fn runtime_error() -> String {
    "RuntimeError".to_owned()
}

/// Tells a `null` that is there from a key that is not.
fn present<'de, D: Deserializer<'de>>(input: D) -> Result<Option<Box<RawValue>>, D::Error> {
    Box::deserialize(input).map(Some)
}

/// Reads a body. An empty one is `{}`.
pub fn read<T: DeserializeOwned>(body: &[u8]) -> Result<T, ApiError> {
    let body = if body.iter().all(u8::is_ascii_whitespace) { b"{}" } else { body };
    // Structs would be read from arrays too.
    let first = body.iter().find(|byte| !byte.is_ascii_whitespace());
    if first != Some(&b'{') {
        return Err(ApiError::request("expected a JSON object as the body"));
    }
    serde_json::from_slice(body).map_err(|error| ApiError::request(complaint(body, &error)))
}

/// What is wrong with a body: the key, what was expected, what came.
fn complaint(body: &[u8], error: &serde_json::Error) -> String {
    // Numbers that no float holds count as bad syntax, and stand in a value all the same.
    let Ok(Entries(entries)) = serde_json::from_slice(body) else {
        return format!("the body is no JSON object: {error}");
    };
    let before: usize =
        body.split_inclusive(|byte| *byte == b'\n').take(error.line().saturating_sub(1)).map(<[u8]>::len).sum();
    let at = before + error.column();
    let start = body.as_ptr() as usize;
    let within = |value: &RawValue| {
        let from = value.get().as_ptr() as usize - start;
        (from..=from + value.get().len()).contains(&at)
    };
    let key = entries.iter().find(|(_, value)| within(value)).map(|(key, _)| format!("`{key}`"));
    format!("{}: {}", key.as_deref().unwrap_or("the body"), plainly(error))
}

/// What serde says of a value, without the names of Rust's types.
fn plainly(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let message = text.rsplit_once(" at line ").map_or(text.as_str(), |(message, _)| message);
    let mismatch = message.strip_prefix("invalid type: ").or_else(|| message.strip_prefix("invalid value: "));
    let Some((got, expected)) = mismatch.and_then(|mismatch| mismatch.rsplit_once(", expected ")) else {
        return message.to_owned();
    };
    let expected = match expected {
        "u64" | "u32" | "usize" => "a whole number from 0",
        "f64" => "a number",
        "a string" => "a text",
        "a boolean" => "true or false",
        "a map" => "an object",
        "a sequence" => "a list",
        other if other.starts_with("struct ") => "an object",
        other => other,
    };
    let value = ["integer ", "floating point ", "boolean ", "string "].iter().find_map(|kind| got.strip_prefix(kind));
    let got = match (got, value) {
        ("sequence", _) => "a list",
        ("map", _) => "an object",
        (got, value) => value.unwrap_or(got),
    };
    format!("expected {expected}, got {got}")
}

fn context(json: &RawValue, what: &str) -> Result<Context, ApiError> {
    value::parse(json).map(Context::new).map_err(|reason| ApiError::request(format!("`{what}`: {reason}")))
}

fn contexts(one: Option<&RawValue>, many: &[Box<RawValue>]) -> Result<Vec<Context>, ApiError> {
    match (one, many) {
        (Some(_), [_, ..]) => Err(ApiError::request("`context` and `contexts` exclude each other")),
        (Some(one), []) => Ok(vec![context(one, "context")?]),
        (None, many) => many.iter().enumerate().map(|(i, json)| context(json, &format!("contexts[{i}]"))).collect(),
    }
}

/// The least memory with which a REPL can run a block.
const LEAST_MEMORY: u64 = 1 << 20;

/// What is asked for over what the server gives; the stricter of both holds.
fn limits(Asked(asked): Asked, given: &Limits) -> Result<Limits, ApiError> {
    let wrong = |reason: String| ApiError::request(format!("`limits`: {reason}"));
    let Ok(Json::Object(mut merged)) = serde_json::to_value(given) else {
        return Err(ApiError::internal("the server's limits cannot be written"));
    };
    let own = merged.clone();
    // One by one, so that a message names the one that is wrong.
    for (name, value) in asked {
        let mut alone = own.clone();
        alone.insert(name.clone(), value.clone());
        serde_json::from_value::<Limits>(Json::Object(alone)).map_err(|error| {
            if own.contains_key(&name) {
                ApiError::request(format!("`limits.{name}`: {}", plainly(&error)))
            } else {
                wrong(plainly(&error))
            }
        })?;
        merged.insert(name, value);
    }
    let limits: Limits = serde_json::from_value(Json::Object(merged)).map_err(|error| wrong(plainly(&error)))?;
    let nothing = [
        ("block", limits.block.is_zero()),
        ("set_up", limits.set_up.is_zero()),
        ("waiting", limits.waiting.is_zero()),
        ("memory_bytes", limits.memory_bytes == 0),
        ("allocation_bytes", limits.allocation_bytes == 0),
        ("value_bytes", limits.value_bytes == 0),
        ("recursion", limits.recursion == 0),
    ];
    if limits.memory_bytes < LEAST_MEMORY && limits.memory_bytes > 0 {
        return Err(wrong(format!("`memory_bytes` must be at least {LEAST_MEMORY}, got {}", limits.memory_bytes)));
    }
    match nothing.iter().find(|(_, nothing)| *nothing) {
        Some((name, _)) => Err(wrong(format!("`{name}` must be above 0"))),
        None => Ok(limits.stricter(given)),
    }
}

impl Create {
    /// How the REPL is set up, by a server that gives `given` at most.
    pub fn options(self, given: &Limits, host: Arc<dyn HostCalls>) -> Result<ReplOptions, ApiError> {
        for (index, name) in self.functions.iter().enumerate() {
            if !FUNCTIONS.contains(&name.as_str()) {
                let known = FUNCTIONS.join(", ");
                let message =
                    format!("`functions[{index}]`: expected one of {known}, got `{name}`; others are `tools`");
                return Err(ApiError::request(message));
            }
        }
        let tools = self.tools.into_iter().map(|ToolSpec { name, description, source }| match source {
            None => Tool::Host { name, description },
            Some(source) => Tool::Python { name, description, source },
        });
        Ok(ReplOptions {
            policy: self.policy,
            limits: limits(self.limits, given)?,
            seed: self.seed,
            deterministic: self.deterministic,
            echo: self.echo,
            contexts: contexts(self.context.as_deref(), &self.contexts)?,
            functions: self.functions,
            tools: tools.collect(),
            host,
            calls_spent: 0,
        })
    }
}

impl Restore {
    /// Nothing beside the snapshot.
    pub(crate) fn plain() -> Self {
        Self::default()
    }

    /// What the snapshot does not carry.
    pub fn options(&self, given: &Limits, host: Arc<dyn HostCalls>) -> Result<ReplOptions, ApiError> {
        Ok(ReplOptions {
            limits: limits(self.limits.clone(), given)?,
            contexts: contexts(self.context.as_deref(), &self.contexts)?,
            host,
            ..ReplOptions::default()
        })
    }
}

fn seconds(name: &str, given: Option<f64>) -> Result<Option<Duration>, ApiError> {
    let wrong = |seconds: f64| {
        ApiError::request(format!("`{name}` must be a number of seconds from 0 to 1e19, got {seconds:?}"))
    };
    given.map(|seconds| Duration::try_from_secs_f64(seconds).map_err(|_| wrong(seconds))).transpose()
}

impl Execute {
    /// Execution time of this block.
    pub fn timeout(&self) -> Result<Option<Duration>, ApiError> {
        match seconds("timeout_s", self.timeout_s)? {
            Some(Duration::ZERO) => Err(ApiError::request("`timeout_s` must be above 0")),
            given => Ok(given),
        }
    }

    /// How long the request waits.
    pub fn wait(&self) -> Result<Option<Duration>, ApiError> {
        seconds("wait_s", self.wait_s)
    }
}

impl Wait {
    /// How long the request waits.
    pub fn wait(&self) -> Result<Option<Duration>, ApiError> {
        seconds("wait_s", self.wait_s)
    }
}

impl Return {
    /// How long the request waits for what comes next.
    pub fn wait(&self) -> Result<Option<Duration>, ApiError> {
        seconds("wait_s", self.wait_s)
    }

    /// The answer: a value, or an exception's type and message.
    pub fn result(&self) -> Result<Result<Value, (String, String)>, ApiError> {
        match (&self.returned, &self.raise) {
            (Some(json), None) => {
                value::parse(json).map(Ok).map_err(|reason| ApiError::request(format!("`return`: {reason}")))
            }
            (None, Some(raise)) => Ok(Err((raise.kind.clone(), raise.message.clone()))),
            _ => Err(ApiError::request("expected exactly one of `return` and `raise`")),
        }
    }
}

impl Bind {
    /// What is bound.
    pub fn bound(self) -> Result<Bound, ApiError> {
        match (self.name, self.value, self.context) {
            (Some(name), Some(json), None) => match value::parse(&json) {
                Ok(value) => Ok(Bound::Variable(name, value)),
                Err(reason) => Err(ApiError::request(format!("`value` of `{name}`: {reason}"))),
            },
            (None, None, Some(json)) => context(&json, "context").map(Bound::Context),
            _ => Err(ApiError::request("expected either `name` and `value`, or `context`")),
        }
    }
}

/// What a block did.
pub fn executed(execution: &Execution) -> Answer {
    let mut answer = Answer::new();
    let mut put = |key: &str, value: Json| answer.insert(key.to_owned(), value);
    put("outcome", execution.outcome.name().into());
    put("stdout", execution.stdout.text.clone().into());
    put("stderr", execution.stderr.text.clone().into());
    match &execution.final_answer {
        None => {
            put("final_answer", Json::Null);
        }
        Some(answer) => {
            put("final_answer", answer.text.clone().into());
            put("final_value", value::to_json(&answer.value));
            put("final_type", answer.value.type_name().into());
        }
    }
    put("cpu_s", execution.cpu.as_secs_f64().into());
    put("wait_s", execution.waiting.as_secs_f64().into());
    put("calls", execution.calls.into());
    put("stdout_bytes", execution.stdout.bytes.into());
    put("stderr_bytes", execution.stderr.bytes.into());
    put("rolled_back", execution.rolled_back.into());
    match &execution.outcome {
        Outcome::Raised { type_name, message } => {
            put("error", json!({"type": type_name, "message": message}));
        }
        Outcome::Killed { reason } | Outcome::HostError { reason } => {
            put("error", json!({"type": null, "message": reason}));
        }
        Outcome::Completed | Outcome::TimedOut | Outcome::MemoryExceeded => {}
    }
    answer.extend(variables(&execution.variables));
    answer
}

/// Variables as `{name: type}`; `variables_left_out` counts those that a list of bounded length has no room for.
pub fn variables(variables: &[VariableInfo]) -> Answer {
    let mut listed = Map::new();
    let mut bytes = 0;
    for info in variables {
        bytes += info.name.len() + info.type_name.len() + 8;
        if bytes > VARIABLES {
            break;
        }
        listed.insert(info.name.clone(), info.type_name.clone().into());
    }
    let left_out = variables.len() - listed.len();
    let mut answer = Answer::from_iter([("variables".to_owned(), Json::Object(listed))]);
    if left_out > 0 {
        answer.insert("variables_left_out".to_owned(), left_out.into());
    }
    answer
}

/// A call that the client is to answer.
pub fn call(repl: &str, block: u64, index: u32, call: &HostCall) -> Answer {
    let kwargs: Answer = call.kwargs.iter().map(|(key, given)| (key.clone(), value::to_json(given))).collect();
    let call = json!({
        "repl": repl,
        "block": block,
        "index": index,
        "function": call.function,
        "args": call.args.iter().map(value::to_json).collect::<Vec<_>>(),
        "kwargs": kwargs,
    });
    Answer::from_iter([("call".to_owned(), call)])
}
