//! A file, loaded and configured in a sandbox: what episodes are forked from.

use std::sync::Arc;
use std::time::Duration;

use espalier_sandbox::{Execution, Limits, Outcome, Policy, Repl, ReplOptions, Sandbox, SandboxError, Tool, Value};
use serde_json::{Map, Value as Json};
use tokio::sync::Mutex;

use super::asks::Asks;
use crate::env::EnvError;
use crate::rlm::python;

/// What runs the author's functions.
const DRIVER: &str = include_str!("driver.py");
/// The driver's one function, and the variable that holds what it is asked.
const ENVIRONMENT: &str = "environment";
const REQUEST: &str = "request";
const BLOCK: &str = "FINAL(environment(request))";

/// Largest value that a function may return, bytes.
const VALUE_BYTES: usize = 8 << 20;
/// What is kept of what a function prints, bytes.
const OUTPUT_BYTES: usize = 16 << 10;
/// Longest reason of an error, bytes.
const REASON_BYTES: usize = 6000;

/// An author's file.
#[derive(Debug)]
pub(super) struct SourceFile {
    /// The environment's id.
    pub(super) id: String,
    /// The path, as it was given.
    pub(super) name: String,
    pub(super) text: String,
}

impl SourceFile {
    /// The file's name in tracebacks.
    fn shown(&self) -> &str {
        self.name.rsplit('/').next().unwrap_or(&self.name)
    }

    pub(super) fn invalid(&self, key: &str, reason: impl Into<String>) -> EnvError {
        EnvError::Invalid { env: self.id.clone(), key: key.to_owned(), reason: reason.into() }
    }
}

/// What a file says of itself.
#[derive(Clone, Debug, Default)]
pub(super) struct Declared {
    /// The functions that it defines.
    pub(super) functions: Vec<String>,
    /// `PARAMS`: names and defaults.
    pub(super) params: Map<String, Json>,
    /// `COLUMNS`: what a row must have.
    pub(super) columns: Vec<String>,
    /// Its docstring.
    pub(super) doc: String,
}

/// A file, loaded and configured.
pub(super) struct Program {
    pub(super) file: Arc<SourceFile>,
    pub(super) declared: Declared,
    pub(super) limits: Limits,
    /// Never runs an episode itself.
    template: Mutex<Repl>,
}

/// What a call of the driver came to.
pub(super) struct Answered {
    pub(super) fields: Vec<(Value, Value)>,
    /// What the author's code printed.
    pub(super) printed: String,
}

impl Answered {
    /// Takes a field.
    pub(super) fn take(&mut self, name: &str) -> Value {
        let place = self.fields.iter().position(|(key, _)| key.as_str() == Some(name));
        place.map_or(Value::None, |place| self.fields.swap_remove(place).1)
    }
}

/// What the author's code may use.
pub(super) fn limits(timeout: Duration, waiting: Duration, memory_bytes: u64) -> Limits {
    Limits {
        block: timeout,
        waiting,
        memory_bytes,
        allocation_bytes: memory_bytes / 4,
        output_bytes: OUTPUT_BYTES,
        value_bytes: VALUE_BYTES,
        calls_per_block: 1000,
        calls_total: 100_000,
        ..Limits::default()
    }
}

impl Program {
    /// Loads and configures a file, on a thread with a runtime of its own: parameters are read where none may be.
    pub(super) fn load(file: &Arc<SourceFile>, limits: &Limits, params: &Map<String, Json>) -> Result<Self, EnvError> {
        let failed = |reason: String| EnvError::Failed { env: file.id.clone(), reason };
        std::thread::scope(|scope| {
            let loading = scope.spawn(|| {
                let runtime = tokio::runtime::Builder::new_current_thread()
                    .enable_time()
                    .build()
                    .map_err(|error| failed(format!("a runtime to load it in: {error}")))?;
                runtime.block_on(Self::start(Arc::clone(file), limits.clone(), params))
            });
            loading.join().unwrap_or_else(|_| Err(failed("loading it panicked".to_owned())))
        })
    }

    async fn start(file: Arc<SourceFile>, limits: Limits, params: &Map<String, Json>) -> Result<Self, EnvError> {
        let broken = |error: SandboxError| EnvError::Failed {
            env: file.id.clone(),
            reason: format!("the sandbox failed: {error}"),
        };
        let options = ReplOptions {
            policy: Policy::Default,
            limits: limits.clone(),
            // Time would be the one thing that differs from run to run.
            deterministic: true,
            functions: ["llm_query", "llm_query_batched"].map(str::to_owned).to_vec(),
            tools: vec![
                Tool::Host { name: "judge".to_owned(), description: "judge(prompt, max_tokens=512)".to_owned() },
                Tool::Python { name: ENVIRONMENT.to_owned(), description: String::new(), source: DRIVER.to_owned() },
            ],
            host: Arc::new(Asks),
            ..ReplOptions::default()
        };
        let mut repl = Sandbox::shared().map_err(broken)?.repl(options).await.map_err(broken)?;
        let request = request("load", [("file", file.shown().into()), ("source", file.text.as_str().into())]);
        let mut said = ask(&mut repl, request, &file, &limits).await.map_err(|said| match said {
            Said::Wrong { place, reason } if place.is_empty() => file.invalid(&file.name, reason),
            Said::Wrong { place, reason } => file.invalid(&place, reason),
            Said::Ended(reason) => file.invalid(&file.name, format!("cannot be loaded: {reason}")),
            Said::Failed(reason) => EnvError::Failed { env: file.id.clone(), reason },
        })?;
        let declared = Declared {
            functions: texts(said.take("functions")),
            params: match to_json(said.take("params")) {
                Json::Object(params) => params,
                _ => Map::new(),
            },
            columns: texts(said.take("columns")),
            doc: said.take("doc").as_str().unwrap_or_default().to_owned(),
        };
        let params = python::from_json(Json::Object(params.clone()));
        let configured = ask(&mut repl, self::request("configure", [("params", params)]), &file, &limits).await;
        if let Err(said) = configured {
            return Err(said.into_error(&file.id));
        }
        // From here on a fork is a copy of what is there.
        drop(repl.fork(None).await.map_err(broken)?);
        Ok(Self { file: Arc::clone(&file), declared, limits, template: Mutex::new(repl) })
    }

    /// A copy in the state after loading, with randomness of its own.
    pub(super) async fn fork(&self, seed: u64) -> Result<Repl, SandboxError> {
        // Others wait for the template only while it is copied, not while the copy is seeded.
        let mut copy = self.template.lock().await.fork(None).await?;
        copy.fork(Some(seed)).await
    }
}

/// A request to the driver.
pub(super) fn request<const N: usize>(op: &str, fields: [(&str, Value); N]) -> Value {
    let fields = fields.into_iter().map(|(name, value)| (Value::from(name), value));
    Value::Dict(std::iter::once((Value::from("op"), Value::from(op))).chain(fields).collect())
}

/// Why a call of the driver has no answer.
pub(super) enum Said {
    /// The author's code raised, or returned what it must not.
    Wrong {
        /// The function or name; empty for the file itself.
        place: String,
        reason: String,
    },
    /// It was ended by a limit.
    Ended(String),
    /// The sandbox failed.
    Failed(String),
}

impl Said {
    /// As an episode's error: what goes wrong with a reward is the grader's failure.
    pub(super) fn into_error(self, id: &str) -> EnvError {
        let env = id.to_owned();
        match self {
            Self::Wrong { place, reason } if place == "reward" => {
                let reason = if reason.starts_with('`') { reason } else { format!("`reward` {reason}") };
                EnvError::Grader { env, reason }
            }
            Self::Wrong { place, reason } if place.is_empty() => EnvError::Failed { env, reason },
            Self::Wrong { place, reason } => EnvError::Failed { env, reason: format!("`{place}` {reason}") },
            Self::Ended(reason) | Self::Failed(reason) => EnvError::Failed { env, reason },
        }
    }
}

/// Puts a request to the driver.
pub(super) async fn ask(repl: &mut Repl, request: Value, file: &SourceFile, limits: &Limits) -> Result<Answered, Said> {
    let failed = |error: SandboxError| Said::Failed(format!("the sandbox failed: {error}"));
    repl.bind(REQUEST, request).await.map_err(|error| match error {
        SandboxError::TooLarge { needed, limit, .. } => Said::Ended(format!(
            "what it is given needs {needed} bytes, more than the {limit} that fit; raise `memory_mb`"
        )),
        error => failed(error),
    })?;
    let execution = repl.execute(BLOCK).await.map_err(failed)?;
    let printed = execution.stdout.text.clone();
    match answer(execution, file, limits)? {
        Value::Dict(fields) => {
            let mut answered = Answered { fields, printed };
            if let Value::Dict(error) = answered.take("error") {
                let mut error = Answered { fields: error, printed: String::new() };
                let place = error.take("where").as_str().unwrap_or_default().to_owned();
                let reason = cut(error.take("said").as_str().unwrap_or_default());
                return Err(Said::Wrong { place, reason });
            }
            Ok(answered)
        }
        Value::Opaque { .. } => {
            Err(Said::Ended(format!("what it returns is larger than {VALUE_BYTES} bytes, or nested too deeply")))
        }
        other => Err(Said::Failed(format!("its driver answered a {}", other.type_name()))),
    }
}

fn answer(execution: Execution, file: &SourceFile, limits: &Limits) -> Result<Value, Said> {
    let ended = |reason: String| Err(Said::Ended(reason));
    match execution.outcome {
        Outcome::Completed => match execution.final_answer {
            Some(answer) => Ok(answer.value),
            None => Err(Said::Failed("its driver answered nothing".to_owned())),
        },
        Outcome::TimedOut if execution.waiting >= limits.waiting => {
            ended(format!("it waited longer than {:?} for models (`wait_s`)", limits.waiting))
        }
        Outcome::TimedOut => ended(format!("it ran longer than {:?} (`timeout_s`)", limits.block)),
        Outcome::MemoryExceeded => {
            ended(format!("it used more than {} MiB of memory (`memory_mb`)", limits.memory_bytes >> 20))
        }
        Outcome::Killed { reason } => ended(reason),
        Outcome::Raised { type_name, message } => Err(Said::Failed(format!(
            "its driver raised {type_name}: {}\n{}",
            cut(&message),
            cut(&execution.stderr.text.replace("<tool environment>", file.shown()))
        ))),
        Outcome::HostError { reason } => Err(Said::Failed(format!("the sandbox failed: {reason}"))),
    }
}

/// The start and the end of a long text.
pub(super) fn cut(text: &str) -> String {
    if text.len() <= REASON_BYTES {
        return text.to_owned();
    }
    let half = REASON_BYTES / 2;
    let (start, end) = (text.floor_char_boundary(half), text.ceil_char_boundary(text.len() - half));
    format!("{}\n[...]\n{}", &text[..start], &text[end..])
}

fn texts(value: Value) -> Vec<String> {
    match value {
        Value::List(items) => items.iter().filter_map(|item| item.as_str().map(str::to_owned)).collect(),
        _ => Vec::new(),
    }
}

/// A value that the driver found plain, as JSON.
pub(super) fn to_json(value: Value) -> Json {
    match value {
        Value::Bool(truth) => Json::Bool(truth),
        Value::Int(number) => Json::from(number),
        Value::Float(number) => Json::from(number),
        Value::Str(text) => Json::String(text),
        Value::List(items) | Value::Tuple(items) => Json::Array(items.into_iter().map(to_json).collect()),
        Value::Dict(entries) => {
            Json::Object(entries.into_iter().map(|(key, value)| (key.display(), to_json(value))).collect())
        }
        Value::None => Json::Null,
        // Integers beyond 64 bits keep their digits.
        other => Json::String(other.display()),
    }
}
