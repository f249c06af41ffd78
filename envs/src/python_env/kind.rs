//! The kind of environment that a file is, and its parameters.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use espalier_sandbox::Limits;
use serde_json::{Map, Value};

use super::episode::Episode;
use super::program::{Program, SourceFile, limits};
use super::{PREFIX, file_of};
use crate::env::{Env, EnvError};
use crate::params;
use crate::registry::{ColumnSpec, EnvKind, EnvSpec, ParamSpec};
use crate::row::EnvRow;

/// Largest file, bytes.
const LARGEST: u64 = 1 << 20;

/// Parameters that every such environment has: name, default, what it bounds.
const OWN: [(&str, f64, &str); 3] = [
    ("timeout_s", 10.0, "execution time of one call of the file's functions, seconds"),
    ("wait_s", 600.0, "time that one call may wait for `llm_query` and `judge`, seconds"),
    ("memory_mb", 256.0, "memory of an episode's sandbox, MiB"),
];

/// An environment written in Python.
///
/// Loading the file takes some tens of milliseconds, once for each set of parameters; an episode starts from a copy.
pub struct PythonEnv {
    file: Arc<SourceFile>,
    /// The file without parameters.
    plain: Arc<Program>,
    /// By the parameters, as text.
    programs: Mutex<BTreeMap<String, Arc<Program>>>,
}

impl PythonEnv {
    /// Reads and loads the file behind an id such as `python:my_env.py`; a relative path is relative to the working
    /// directory, as those of data are. Blocks its thread.
    pub fn open(id: &str) -> Result<Self, EnvError> {
        let invalid = |key: &str, reason: String| EnvError::Invalid { env: id.to_owned(), key: key.to_owned(), reason };
        let path = file_of(id).filter(|path| !path.as_os_str().is_empty()).ok_or_else(|| {
            invalid("id", format!("names no file; expected `{PREFIX}PATH`, such as `{PREFIX}my_env.py`"))
        })?;
        let name = path.display().to_string();
        let text = read(path).map_err(|reason| EnvError::Unusable { env: id.to_owned(), key: name.clone(), reason })?;
        let file = Arc::new(SourceFile { id: id.to_owned(), name, text });
        let none = Map::new();
        let plain = Arc::new(Program::load(&file, &standard_limits(), &none)?);
        if let Some(taken) = plain.declared.params.keys().find(|name| OWN.iter().any(|(own, ..)| own == name)) {
            let reason = format!("holds `{taken}`, which every environment written in Python has; take another name");
            return Err(file.invalid("PARAMS", reason));
        }
        let programs = Mutex::new(BTreeMap::from([(key(&none), Arc::clone(&plain))]));
        Ok(Self { file, plain, programs })
    }

    fn program(&self, params: &Map<String, Value>) -> Option<Arc<Program>> {
        self.programs.lock().unwrap_or_else(PoisonError::into_inner).get(&key(params)).cloned()
    }

    /// The parameters as the file sees them, and what bounds it.
    fn read(&self, given: &Map<String, Value>) -> Result<(Map<String, Value>, Limits), EnvError> {
        let declared = &self.plain.declared.params;
        let mut own = OWN.map(|(_, default, _)| default);
        let mut params = Map::new();
        for (name, value) in given {
            if let Some(index) = OWN.iter().position(|(own, ..)| own == name) {
                own[index] = match value.as_f64() {
                    Some(number) if number > 0.0 && number <= 1e6 => number,
                    _ => {
                        let reason = format!("must be a number above 0 and at most 1000000, got `{value}`");
                        return Err(self.file.invalid(name, reason));
                    }
                };
                continue;
            }
            let Some(default) = declared.get(name) else {
                let known = declared.keys().map(String::as_str).chain(OWN.iter().map(|(name, ..)| *name));
                let reason = format!("is no parameter; {}", params::hint(name, known));
                return Err(self.file.invalid(name, reason));
            };
            let Some(value) = like(default, value) else {
                let reason = format!("must be like its default `{default}`, got `{value}`");
                return Err(self.file.invalid(name, reason));
            };
            params.insert(name.clone(), value);
        }
        let [timeout, waiting, memory] = own;
        let memory = (memory * f64::from(1 << 20)) as u64;
        let (timeout, waiting) = (Duration::from_secs_f64(timeout), Duration::from_secs_f64(waiting));
        Ok((params, limits(timeout, waiting, memory)))
    }
}

fn standard_limits() -> Limits {
    let [timeout, waiting, memory] = OWN.map(|(_, default, _)| default);
    limits(Duration::from_secs_f64(timeout), Duration::from_secs_f64(waiting), (memory as u64) << 20)
}

fn key(params: &Map<String, Value>) -> String {
    // In the order of their names: `params` is the same whatever the order they were written in.
    let sorted: BTreeMap<&String, &Value> = params.iter().collect();
    serde_json::to_string(&sorted).unwrap_or_default()
}

fn read(path: &Path) -> Result<String, String> {
    let cannot = |error: std::io::Error| format!("cannot be read: {error}");
    let about = std::fs::metadata(path).map_err(cannot)?;
    if !about.is_file() {
        return Err("is no file; expected one with Python code".to_owned());
    }
    if about.len() > LARGEST {
        return Err(format!("has {} bytes; expected a Python file of at most {LARGEST}", about.len()));
    }
    let bytes = std::fs::read(path).map_err(cannot)?;
    let text = String::from_utf8(bytes).map_err(|error| {
        let good = &error.as_bytes()[..error.utf8_error().valid_up_to()];
        format!("is not UTF-8 (line {})", good.split(|byte| *byte == b'\n').count())
    })?;
    // A byte order mark is no part of the text.
    Ok(text.strip_prefix('\u{feff}').map(str::to_owned).unwrap_or(text))
}

/// The value as the default's type, where it is one; a default of `None` takes everything.
fn like(default: &Value, given: &Value) -> Option<Value> {
    let same = match (default, given) {
        (Value::Null, _)
        | (Value::Bool(_), Value::Bool(_))
        | (Value::String(_), Value::String(_))
        | (Value::Array(_), Value::Array(_))
        | (Value::Object(_), Value::Object(_)) => true,
        (Value::Number(default), Value::Number(given)) => {
            if default.is_f64() && !given.is_f64() {
                return given.as_f64().map(Value::from);
            }
            default.is_f64() || !given.is_f64()
        }
        _ => false,
    };
    same.then(|| given.clone())
}

impl EnvKind for PythonEnv {
    type Params = Map<String, Value>;

    fn spec(&self) -> EnvSpec {
        let declared = &self.plain.declared;
        let turns = if declared.functions.iter().any(|name| name == "step") { "several turns" } else { "one turn" };
        let first = declared.doc.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default();
        let summary = if first.is_empty() {
            format!("Written in Python: {turns}.")
        } else {
            format!("{} (written in Python: {turns})", first.trim_end_matches('.'))
        };
        let mut params: Vec<ParamSpec> = declared
            .params
            .iter()
            .map(|(name, default)| ParamSpec {
                name: kept(name),
                kind: kind_of(default),
                default: kept(&default.to_string()),
                doc: "the file's own",
            })
            .collect();
        params.extend(OWN.iter().map(|(name, default, doc)| ParamSpec {
            name,
            kind: "number above 0",
            default: kept(&default.to_string()),
            doc,
        }));
        let mut columns = vec![ColumnSpec {
            name: "prompt",
            required: true,
            doc: "what the policy is asked, unless `init` says something else",
        }];
        columns.extend(declared.columns.iter().filter(|name| *name != "prompt").map(|name| ColumnSpec {
            name: kept(name),
            required: true,
            doc: "declared by the file",
        }));
        EnvSpec { id: self.file.id.clone(), summary, params, columns }
    }

    fn check(&self, given: &Map<String, Value>) -> Result<(), EnvError> {
        if self.program(given).is_some() {
            return Ok(());
        }
        let (params, limits) = self.read(given)?;
        let program = Arc::new(Program::load(&self.file, &limits, &params)?);
        self.programs.lock().unwrap_or_else(PoisonError::into_inner).insert(key(given), program);
        Ok(())
    }

    fn make(&self, params: &Arc<Map<String, Value>>, row: &EnvRow) -> Result<Box<dyn Env>, EnvError> {
        let Some(program) = self.program(params) else {
            let reason = "was not prepared with these parameters".to_owned();
            return Err(EnvError::Failed { env: self.file.id.clone(), reason });
        };
        for column in &program.declared.columns {
            if !has(row, column) {
                return Err(self.file.invalid(column, format!("is missing in row `{}`", row.id)));
            }
        }
        Ok(Box::new(Episode::new(program, row.clone())))
    }
}

/// Whether a row has a column; dots lead into objects.
fn has(row: &EnvRow, column: &str) -> bool {
    let (first, rest) = column.split_once('.').map_or((column, None), |(first, rest)| (first, Some(rest)));
    let within = |mut object: &Map<String, Value>, path: &str| {
        let mut steps = path.split('.').peekable();
        while let Some(step) = steps.next() {
            match object.get(step) {
                None | Some(Value::Null) => return false,
                Some(Value::Object(next)) if steps.peek().is_some() => object = next,
                Some(_) => return steps.peek().is_none(),
            }
        }
        true
    };
    match (first, rest) {
        ("prompt" | "uid", None) => true,
        ("env_class", None) => row.env.is_some(),
        ("max_turns", None) => row.max_turns.is_some(),
        ("reward_spec", None) => !row.reward_spec.is_empty(),
        ("extra_info", None) => !row.extra_info.is_empty() || row.context.is_some(),
        ("extra_info", Some("context_text")) => row.context.is_some(),
        ("reward_spec", Some(path)) => within(&row.reward_spec, path),
        ("extra_info", Some(path)) => within(&row.extra_info, path),
        _ => within(&row.columns, column),
    }
}

fn kind_of(default: &Value) -> &'static str {
    match default {
        Value::Null => "anything",
        Value::Bool(_) => "true or false",
        Value::Number(number) if number.is_f64() => "number",
        Value::Number(_) => "whole number",
        Value::String(_) => "text",
        Value::Array(_) => "list",
        Value::Object(_) => "table",
    }
}

/// A text that lives as long as the process: descriptions of environments hold such texts. Each is kept once.
fn kept(text: &str) -> &'static str {
    static KEPT: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());
    let mut texts = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = texts.get(text) {
        return known;
    }
    let new: &'static str = Box::leak(text.to_owned().into_boxed_str());
    texts.insert(new);
    new
}
