//! A suite as TOML.
//!
//! ```toml
//! name = "long-contexts"
//! seed = 7
//! samples = 4
//! pass_k = [1, 4]
//!
//! [[engine]]
//! name = "small"
//! kind = "openai"
//! options = { model = "small", base_url = "http://localhost:8000/v1" }
//! sampling = { temperature = 0.7, max_tokens = 512 }
//!
//! [[task]]
//! name = "needle"
//! env = "long"
//! modes = ["alone", "repl", "recursive"]
//! data = { builtin = "long_needle", params = { rows = 8, size = 16384 } }
//! rlm = { prompt = "compact" }
//! ```

use std::path::Path;

use espalier_envs::EnvError;
use espalier_inference::SamplingParams;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::SuiteError;
use crate::budget::TreeLimits;
use crate::episode::LoopOptions;
use crate::output::OutputOptions;

/// A suite.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SuiteConfig {
    /// Its name.
    pub name: String,
    /// Seeds everything.
    pub seed: u64,
    /// Samples per row.
    pub samples: u32,
    /// Roots that are played at once.
    pub in_flight: usize,
    /// The k of pass@k; those above `samples` are left out.
    pub pass_k: Vec<u32>,
    /// A sample passes whose reward is at least this.
    pub pass_reward: f32,
    /// What one tree may spend.
    pub limits: TreeLimits,
    /// How an episode is played.
    pub rollout: LoopOptions,
    /// The engine that answers `llm_query`; the one that plays, by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub calls: Option<String>,
    /// The engine that plays children; the one that plays, by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub children: Option<String>,
    /// The engine that grades, for environments that ask a judge.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub judge: Option<String>,
    /// What is written.
    pub output: OutputOptions,
    /// The models.
    #[serde(rename = "engine")]
    pub engines: Vec<EngineSpec>,
    /// The tasks.
    #[serde(rename = "task")]
    pub tasks: Vec<TaskConfig>,
}

impl Default for SuiteConfig {
    fn default() -> Self {
        Self {
            name: "suite".to_owned(),
            seed: 0,
            samples: 1,
            in_flight: 16,
            pass_k: vec![1],
            pass_reward: 1.0,
            limits: TreeLimits::default(),
            rollout: LoopOptions::default(),
            calls: None,
            children: None,
            judge: None,
            output: OutputOptions::default(),
            engines: Vec::new(),
            tasks: Vec::new(),
        }
    }
}

/// A model and how it is sampled.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EngineSpec {
    /// Its name in this suite.
    pub name: String,
    /// `scripted`, `openai`, `openrouter`, `local`: whatever the factory makes.
    pub kind: String,
    /// What the kind needs.
    #[serde(default)]
    pub options: Map<String, Value>,
    /// How tokens are drawn.
    #[serde(default)]
    pub sampling: SamplingParams,
    /// Whether it plays the tasks. One that only serves others (`judge`, `calls`, `children`) does not.
    #[serde(default = "yes", skip_serializing_if = "is_true")]
    pub plays: bool,
}

fn yes() -> bool {
    true
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it with a reference")]
fn is_true(value: &bool) -> bool {
    *value
}

/// How a task is played.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// The task's own environment, without sub-calls and children.
    Alone,
    /// The `rlm` environment with `llm_query`, without children.
    Repl,
    /// The `rlm` environment with children.
    Recursive,
}

impl Mode {
    /// Its name in files.
    pub fn name(self) -> &'static str {
        match self {
            Self::Alone => "alone",
            Self::Repl => "repl",
            Self::Recursive => "recursive",
        }
    }

    /// The heading of its column.
    pub fn title(self) -> &'static str {
        match self {
            Self::Alone => "model alone",
            Self::Repl => "with REPL",
            Self::Recursive => "with REPL and recursion",
        }
    }
}

/// A task: rows, and the environments that ask them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TaskConfig {
    /// Its name.
    pub name: String,
    /// Where its rows come from.
    pub data: espalier_datasets::Source,
    /// The environment of mode `alone`: `gsm8k`, `long`.
    pub env: String,
    /// That environment's parameters.
    #[serde(default)]
    pub params: Map<String, Value>,
    /// The parameters of the environment of the other modes.
    #[serde(default)]
    pub rlm: Map<String, Value>,
    /// The environment of the other modes: `rlm`, or another one that is played in a REPL.
    #[serde(default = "rlm", skip_serializing_if = "is_rlm")]
    pub rlm_env: String,
    /// How it is played.
    #[serde(default = "alone")]
    pub modes: Vec<Mode>,
    /// The models that play it; every one with `plays = true` where none is named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub engines: Option<Vec<String>>,
    /// Samples per row, instead of the suite's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub samples: Option<u32>,
    /// What one tree may spend, instead of the suite's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<TreeLimits>,
    /// How an episode is played, instead of the suite's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rollout: Option<LoopOptions>,
}

fn rlm() -> String {
    "rlm".to_owned()
}

fn is_rlm(id: &str) -> bool {
    id == "rlm"
}

fn alone() -> Vec<Mode> {
    vec![Mode::Alone]
}

impl SuiteConfig {
    /// Reads a suite from a TOML file.
    pub fn from_file(path: impl AsRef<Path>) -> Result<Self, SuiteError> {
        let path = path.as_ref();
        let text = std::fs::read_to_string(path).map_err(|source| SuiteError::Io {
            path: path.to_owned(),
            action: "read it",
            source,
        })?;
        let value: Map<String, Value> = toml::from_str(&text).map_err(|error| SuiteError::Syntax {
            path: path.to_owned(),
            reason: format!("not valid TOML: {error}"),
        })?;
        Self::from_value(&value)
    }

    /// Reads a suite from a table. Unknown keys are refused with the nearest valid name.
    pub fn from_value(value: &Map<String, Value>) -> Result<Self, SuiteError> {
        // JSON has no infinite numbers: TOML's `inf` and `nan` arrive as nothing.
        if let Some(key) = value.iter().find_map(|(key, value)| null(key, value)) {
            return Err(SuiteError::Key { key, reason: "must be a finite number, got `inf` or `nan`".to_owned() });
        }
        let config: Self = espalier_envs::params::read("suite", value).map_err(|error| match error {
            EnvError::Invalid { key, reason, .. } => SuiteError::Key { key, reason },
            other => SuiteError::Key { key: "suite".to_owned(), reason: other.to_string() },
        })?;
        config.check()?;
        Ok(config)
    }

    /// What decides a rollout, as JSON: everything but how many there are and how they are summed up. Keys that are not
    /// there have their default.
    pub(super) fn identity(&self) -> Value {
        let mut same = self.clone();
        same.samples = 0;
        same.in_flight = 0;
        same.pass_k = Vec::new();
        same.pass_reward = 0.0;
        same.output = OutputOptions::default();
        for task in &mut same.tasks {
            task.samples = None;
        }
        // Through text, as the stored one comes: both are rounded alike.
        let text = serde_json::to_string(&same).unwrap_or_default();
        serde_json::from_str(&text).unwrap_or_default()
    }

    /// Whether the models that a task names are there and play.
    fn check_engines(&self, index: usize, task: &TaskConfig) -> Result<(), SuiteError> {
        let Some(names) = &task.engines else { return Ok(()) };
        let wrong = |reason: String| Err(SuiteError::Key { key: format!("task[{index}].engines"), reason });
        if names.is_empty() {
            return wrong("must name at least one engine; left out, every one that plays is meant".to_owned());
        }
        for (at, name) in names.iter().enumerate() {
            let Some(engine) = self.engines.iter().find(|engine| engine.name == *name) else {
                let playing = self.engines.iter().filter(|engine| engine.plays).map(|engine| engine.name.as_str());
                let hint = espalier_envs::params::hint(name, playing);
                return wrong(format!("names no engine of this suite: `{name}`; {hint}"));
            };
            if !engine.plays {
                return wrong(format!("names `{name}`, which has `plays = false`"));
            }
            if names[..at].contains(name) {
                return wrong(format!("names `{name}` twice"));
            }
        }
        Ok(())
    }

    /// What the types cannot say.
    pub fn check(&self) -> Result<(), SuiteError> {
        let wrong = |key: String, reason: String| Err(SuiteError::Key { key, reason });
        if self.engines.is_empty() {
            return wrong("engine".to_owned(), "is missing: name at least one model with `[[engine]]`".to_owned());
        }
        if !self.engines.iter().any(|engine| engine.plays) {
            return wrong("engine".to_owned(), "must hold one that plays: all have `plays = false`".to_owned());
        }
        if self.tasks.is_empty() {
            return wrong("task".to_owned(), "is missing: name at least one task with `[[task]]`".to_owned());
        }
        plain("name", &self.name)?;
        for (key, least) in [("samples", u64::from(self.samples)), ("in_flight", self.in_flight as u64)] {
            if least == 0 {
                return wrong(key.to_owned(), "must be at least 1, got 0".to_owned());
            }
        }
        if self.pass_k.contains(&0) {
            return wrong("pass_k".to_owned(), "must be numbers from 1, got 0".to_owned());
        }
        let within = |table: String, checked: Result<(), (&'static str, String)>| {
            checked.map_err(|(key, reason)| SuiteError::Key { key: format!("{table}.{key}"), reason })
        };
        within("output".to_owned(), self.output.check())?;
        within("limits".to_owned(), self.limits.check())?;
        within("rollout".to_owned(), self.rollout.check())?;
        for (index, engine) in self.engines.iter().enumerate() {
            within(format!("engine[{index}].sampling"), engine.sampling.check())?;
        }
        names("engine", self.engines.iter().map(|engine| engine.name.as_str()))?;
        names("task", self.tasks.iter().map(|task| task.name.as_str()))?;
        for (key, name) in [("calls", &self.calls), ("children", &self.children), ("judge", &self.judge)] {
            let Some(name) = name else { continue };
            if !self.engines.iter().any(|engine| engine.name == *name) {
                let hint = espalier_envs::params::hint(name, self.engines.iter().map(|engine| engine.name.as_str()));
                return wrong(key.to_owned(), format!("names no engine of this suite: `{name}`; {hint}"));
            }
        }
        for (index, task) in self.tasks.iter().enumerate() {
            if task.modes.is_empty() {
                return wrong(format!("task[{index}].modes"), "must name at least one mode".to_owned());
            }
            self.check_engines(index, task)?;
            if task.samples == Some(0) {
                return wrong(format!("task[{index}].samples"), "must be at least 1, got 0".to_owned());
            }
            within(format!("task[{index}].limits"), task.limits.as_ref().map_or(Ok(()), TreeLimits::check))?;
            within(format!("task[{index}].rollout"), task.rollout.as_ref().map_or(Ok(()), LoopOptions::check))?;
            let mut modes = task.modes.clone();
            modes.sort();
            modes.dedup();
            if modes.len() != task.modes.len() {
                return wrong(format!("task[{index}].modes"), "names a mode twice".to_owned());
            }
            task.data.check().map_err(|error| SuiteError::Key {
                key: format!("task[{index}].data"),
                reason: format!("is wrong: {error}"),
            })?;
        }
        Ok(())
    }
}

impl TaskConfig {
    /// Whether a model plays this task.
    pub fn is_played_by(&self, engine: &EngineSpec) -> bool {
        engine.plays && self.engines.as_ref().is_none_or(|names| names.contains(&engine.name))
    }
}

/// The first key whose value is nothing.
fn null(key: &str, value: &Value) -> Option<String> {
    match value {
        Value::Null => Some(key.to_owned()),
        Value::Object(entries) => entries.iter().find_map(|(name, value)| null(&format!("{key}.{name}"), value)),
        Value::Array(items) => {
            items.iter().enumerate().find_map(|(index, value)| null(&format!("{key}[{index}]"), value))
        }
        _ => None,
    }
}

/// Names become directories: they must be plain.
fn plain(key: &str, name: &str) -> Result<(), SuiteError> {
    let plain = !name.is_empty()
        && !name.starts_with('.')
        && name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'));
    if plain {
        return Ok(());
    }
    let reason = format!("must consist of letters, digits, `-`, `_` and `.`, and begin with no `.`; got `{name}`");
    Err(SuiteError::Key { key: key.to_owned(), reason })
}

/// Names of one kind must be plain and different.
fn names<'a>(key: &str, all: impl Iterator<Item = &'a str>) -> Result<(), SuiteError> {
    let mut seen = std::collections::HashSet::new();
    for (index, name) in all.enumerate() {
        let key = format!("{key}[{index}].name");
        plain(&key, name)?;
        if !seen.insert(name) {
            return Err(SuiteError::Key { key, reason: format!("is there twice: `{name}`") });
        }
    }
    Ok(())
}
