//! `tool_use`: an agent that works on a task over many turns, with JSON tool calls and a workspace of files.
//!
//! | module | what lives there |
//! |---|---|
//! | this one | [`ToolUse`], the kind, and its parameters |
//! | [`calls`] | tool calls in a response |
//! | [`tools`] | the tools: schemas, arguments, what they do with files |
//! | [`files`] | the workspace, in the host's memory |
//! | [`python`] | running code and hidden checks |
//! | [`mod@grade`] | how a row says that its task is done |
//! | `env`, `prompts` | the episode, and what the agent is told |
//!
//! Invariants: files live in the host's memory within bounds, so no path leads anywhere else; the agent's code runs behind
//! the sandbox's walls and touches nothing but a copy; a check runs in a sandbox of its own over a copy and answers with
//! data; a check that fails is [`EnvError::Grader`] and never 0.

pub mod calls;
mod env;
pub mod files;
pub mod grade;
mod prompts;
pub mod python;
pub mod tools;

use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;

pub use files::{FileLimits, Files};
pub use grade::Check;
pub use python::Runtime;

use crate::env::{Env, EnvError};
use crate::registry::{ColumnSpec, EnvKind, EnvSpec, ParamSpec};
use crate::row::EnvRow;

const ID: &str = "tool_use";

/// The parameters of `tool_use`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Params {
    /// Where code runs.
    pub runtime: Runtime,
    /// Most turns, where the rollout allows more.
    pub max_turns: Option<u32>,
    /// Time of one `run_python`, seconds.
    pub python_timeout_s: f64,
    /// Memory of one `run_python`, MiB.
    pub memory_mb: u64,
    /// Characters of one result that are shown.
    pub output_chars: usize,
    /// Most files.
    pub max_files: usize,
    /// Most bytes of all files, KiB.
    pub workspace_kb: usize,
}

impl Default for Params {
    fn default() -> Self {
        Self {
            runtime: Runtime::Process,
            max_turns: None,
            python_timeout_s: 10.0,
            memory_mb: 512,
            output_chars: 10_000,
            max_files: 1000,
            workspace_kb: 16 << 10,
        }
    }
}

impl Params {
    fn file_limits(&self) -> FileLimits {
        let bytes = self.workspace_kb << 10;
        FileLimits { files: self.max_files, file_bytes: bytes.min(FileLimits::default().file_bytes), bytes }
    }

    fn run_limits(&self) -> python::RunLimits {
        python::RunLimits {
            time: Duration::try_from_secs_f64(self.python_timeout_s).unwrap_or(Duration::from_secs(10)),
            memory: self.memory_mb << 20,
            output: 4 * self.output_chars,
            files: self.file_limits(),
        }
    }
}

/// The kind of environment in which an agent calls tools.
#[derive(Clone, Copy, Debug)]
pub struct ToolUse;

macro_rules! param {
    ($name:literal, $kind:literal, $default:literal, $doc:literal) => {
        ParamSpec { name: $name, kind: $kind, default: $default, doc: $doc }
    };
}

const PARAMS: [ParamSpec; 7] = [
    param!("runtime", "\"process\", \"wasm\" or \"none\"", "process", "where run_python runs; none leaves it out"),
    param!("max_turns", "number", "the row's, else the rollout's", "most turns"),
    param!("python_timeout_s", "seconds", "10", "time of one run_python"),
    param!("memory_mb", "number", "512", "memory of one run_python, MiB"),
    param!("output_chars", "number", "10000", "characters of one result that are shown"),
    param!("max_files", "number", "1000", "most files of the workspace"),
    param!("workspace_kb", "number", "16384", "most KiB of all files together"),
];

const COLUMNS: [ColumnSpec; 7] = [
    ColumnSpec { name: "prompt", required: true, doc: "the task" },
    ColumnSpec {
        name: "extra_info.files",
        required: false,
        doc: "the files at the start: an object from name to text",
    },
    ColumnSpec {
        name: "reward_spec.method",
        required: false,
        doc: "exact (default), numeric, contains: the answer; files: the workspace; python: a hidden check",
    },
    ColumnSpec {
        name: "reward_spec.ground_truth",
        required: false,
        doc: "the answer, for exact, numeric and contains",
    },
    ColumnSpec { name: "reward_spec.files", required: false, doc: "expected files, for files: name to text" },
    ColumnSpec { name: "reward_spec.check", required: false, doc: "a script that defines check(), for python" },
    ColumnSpec { name: "max_turns", required: false, doc: "most turns" },
];

impl EnvKind for ToolUse {
    type Params = Params;

    fn spec(&self) -> EnvSpec {
        EnvSpec {
            id: ID.to_owned(),
            summary: "A long task over a workspace of files, worked on with JSON tool calls.".to_owned(),
            params: PARAMS.to_vec(),
            columns: COLUMNS.to_vec(),
        }
    }

    fn check(&self, params: &Params) -> Result<(), EnvError> {
        let invalid =
            |key: &str, reason: String| Err(EnvError::Invalid { env: ID.to_owned(), key: key.to_owned(), reason });
        let bounds = [
            ("max_turns", params.max_turns.map_or(1, u64::from), 1, u64::from(u32::MAX)),
            ("memory_mb", params.memory_mb, 16, 64 << 10),
            ("output_chars", params.output_chars as u64, 100, 1_000_000),
            ("max_files", params.max_files as u64, 1, 10_000),
            ("workspace_kb", params.workspace_kb as u64, 1, 32 << 10),
        ];
        for (key, value, least, most) in bounds {
            if !(least..=most).contains(&value) {
                return invalid(key, format!("must be from {least} to {most}, got {value}"));
            }
        }
        if !(params.python_timeout_s > 0.0 && params.python_timeout_s <= 3600.0) {
            return invalid(
                "python_timeout_s",
                format!("must be between 0 and 3600 seconds, got {}", params.python_timeout_s),
            );
        }
        Ok(())
    }

    fn make(&self, params: &Arc<Params>, row: &EnvRow) -> Result<Box<dyn Env>, EnvError> {
        let start = grade::start(row, ID, params.file_limits())?;
        let check = if row.graded { Some(grade::check(row, ID)?) } else { None };
        Ok(Box::new(env::Episode {
            params: Arc::clone(params),
            row: row.clone(),
            files: start.clone(),
            start,
            check,
            context: None,
            max_turns: 1,
            record: env::Record::default(),
        }))
    }
}
