//! The kind `rlm` and its parameters.

use std::sync::Arc;
use std::time::Duration;

use espalier_sandbox::{Limits, Policy, Tool};
use serde::Deserialize;

use super::env::Episode;
use super::grading::RewardKind;
use super::observation;
use super::parse::Fences;
use super::prompts::{self, Style};
use super::task::{DefaultTask, RlmTask};
use crate::Compat;
use crate::env::{Env, EnvError};
use crate::registry::{ColumnSpec, EnvKind, EnvSpec, ParamSpec};
use crate::row::EnvRow;

/// Names of the REPL's own, which no tool may take.
pub const RESERVED: [&str; 9] = [
    "FINAL",
    "FINAL_VAR",
    "SHOW_VARS",
    "context",
    "llm_query",
    "llm_query_batched",
    "rlm_query",
    "rlm_query_batched",
    "__builtins__",
];

/// A tool written in Python.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PythonTool {
    /// The name that the source binds.
    pub name: String,
    /// One line for the prompt.
    #[serde(default)]
    pub description: Option<String>,
    /// The source.
    pub source: String,
}

/// The parameters of `rlm`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Params {
    /// How the answer is graded; `reward_spec.method` of the row, else `exact`.
    pub reward: Option<RewardKind>,
    /// The order of a list's items does not count; `reward_spec.unordered` of the row, else false.
    pub unordered: Option<bool>,
    /// Upper and lower case are the same; by default only for `contains`.
    pub ignore_case: Option<bool>,
    /// Which set of prompts.
    pub prompt: Style,
    /// A system prompt instead of the set's own, as a template.
    pub system_prompt: Option<String>,
    /// Fence words whose blocks run; `["repl"]`, and with the compact prompt `python` and `py` too.
    pub fences: Option<Vec<String>>,
    /// A block that ends with the response runs too, unless the response was cut off.
    pub unclosed: bool,
    /// Print a trailing expression's `repr`; on by default with the compact prompt.
    pub echo: Option<bool>,
    /// What the code may name; `default`, and `strict` under compat.
    pub policy: Option<Policy>,
    /// What the REPL may use.
    pub limits: Limits,
    /// Execution time of a block in seconds, instead of `limits.block`; 180 under compat.
    pub repl_timeout: Option<f64>,
    /// A virtual clock in the REPL instead of the machine's.
    pub deterministic: bool,
    /// Characters of output shown per block.
    pub output_chars: usize,
    /// Most turns, where the rollout allows more.
    pub max_turns: Option<u32>,
    /// The episode ends when this many blocks have timed out.
    pub abort_after_timeouts: Option<u32>,
    /// Offer `llm_query` where the rollout can serve it.
    pub sub_calls: bool,
    /// Offer `rlm_query` where the rollout can serve it.
    pub children: bool,
    /// Tools written in Python.
    pub tools: Vec<PythonTool>,
    /// Behave as another framework does, faults included.
    pub compat: Option<Compat>,
}

impl Default for Params {
    fn default() -> Self {
        Self {
            reward: None,
            unordered: None,
            ignore_case: None,
            prompt: Style::Full,
            system_prompt: None,
            fences: None,
            unclosed: true,
            echo: None,
            policy: None,
            limits: Limits::default(),
            repl_timeout: None,
            deterministic: false,
            output_chars: observation::SHOWN,
            max_turns: None,
            abort_after_timeouts: None,
            sub_calls: true,
            children: true,
            tools: Vec::new(),
            compat: None,
        }
    }
}

impl Params {
    /// Whether the original's behaviour is asked for.
    pub fn original(&self) -> bool {
        self.compat == Some(Compat::Skyrl)
    }

    /// What counts as a runnable block.
    pub fn fences(&self) -> Fences {
        let words = match (&self.fences, self.prompt) {
            (Some(words), _) => words.clone(),
            (None, Style::Full) => vec!["repl".to_owned()],
            (None, Style::Compact) => ["repl", "python", "py"].map(str::to_owned).to_vec(),
        };
        Fences { words, unclosed: self.unclosed }
    }

    /// The REPL's limits, the row's own `repl_timeout` included.
    pub fn limits(&self, row: &EnvRow) -> Limits {
        let mut limits = self.limits.clone();
        let seconds = self
            .repl_timeout
            .or_else(|| row.columns.get("repl_timeout").and_then(serde_json::Value::as_f64))
            .or_else(|| self.original().then_some(180.0));
        if let Some(block) = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()) {
            limits.block = block;
        }
        limits
    }

    /// Most turns of an episode of this row, where the rollout allows `allowed`.
    pub fn max_turns(&self, row: &EnvRow, allowed: u32) -> u32 {
        self.max_turns.or(row.max_turns).map_or(allowed, |own| own.min(allowed)).max(1)
    }
}

/// The kind of environment that plays RLM tasks: `rlm`, or a task of one's own under another id.
#[derive(Clone)]
pub struct Rlm {
    id: String,
    summary: String,
    task: Arc<dyn RlmTask>,
}

impl Default for Rlm {
    fn default() -> Self {
        Self::new("rlm", "A question about a context of any size, worked on in a persistent Python REPL.", DefaultTask)
    }
}

impl Rlm {
    /// A kind that plays a task of one's own.
    pub fn new(id: impl Into<String>, summary: impl Into<String>, task: impl RlmTask + 'static) -> Self {
        Self { id: id.into(), summary: summary.into(), task: Arc::new(task) }
    }
}

impl EnvKind for Rlm {
    type Params = Params;

    fn spec(&self) -> EnvSpec {
        EnvSpec {
            id: self.id.clone(),
            summary: self.summary.clone(),
            params: PARAMS.to_vec(),
            columns: COLUMNS.to_vec(),
        }
    }

    fn check(&self, params: &Params) -> Result<(), EnvError> {
        let invalid =
            |key: &str, reason: String| Err(EnvError::Invalid { env: self.id.clone(), key: key.to_owned(), reason });
        if params.max_turns == Some(0) {
            return invalid("max_turns", "must be at least 1, got 0".to_owned());
        }
        if params.abort_after_timeouts == Some(0) {
            return invalid("abort_after_timeouts", "must be at least 1, got 0".to_owned());
        }
        if params.output_chars == 0 {
            return invalid("output_chars", "must be at least 1, got 0".to_owned());
        }
        if let Some(seconds) = params.repl_timeout
            && !(seconds > 0.0 && seconds <= 86_400.0)
        {
            return invalid("repl_timeout", format!("must be between 0 and 86400 seconds, got {seconds}"));
        }
        if params.fences.as_ref().is_some_and(Vec::is_empty) {
            return invalid("fences", "must name at least one fence word, such as `repl`".to_owned());
        }
        for (index, tool) in params.tools.iter().enumerate() {
            check_name(&tool.name).or_else(|reason| invalid(&format!("tools[{index}].name"), reason))?;
            if params.tools[..index].iter().any(|earlier| earlier.name == tool.name) {
                return invalid(&format!("tools[{index}].name"), format!("`{}` is there twice", tool.name));
            }
        }
        Ok(())
    }

    fn make(&self, params: &Arc<Params>, row: &EnvRow) -> Result<Box<dyn Env>, EnvError> {
        self.task.check(row, params, &self.id)?;
        Ok(Box::new(Episode::new(self.id.clone(), Arc::clone(params), Arc::clone(&self.task), row.clone())))
    }
}

/// Whether a tool may have this name.
pub(super) fn check_name(name: &str) -> Result<(), String> {
    let identifier = name.chars().next().is_some_and(|first| first.is_alphabetic() || first == '_')
        && name.chars().all(|c| c.is_alphanumeric() || c == '_');
    if !identifier {
        return Err(format!("`{name}` is no Python name"));
    }
    if RESERVED.contains(&name) || name.starts_with("context_") {
        return Err(format!("`{name}` is reserved: it is the REPL's own"));
    }
    Ok(())
}

impl From<&PythonTool> for Tool {
    fn from(tool: &PythonTool) -> Self {
        Self::Python {
            name: tool.name.clone(),
            description: tool.description.clone().unwrap_or_else(|| "A custom function".to_owned()),
            source: tool.source.clone(),
        }
    }
}

/// The template of the system prompt that these parameters ask for.
pub(super) fn template<'a>(params: &'a Params, own: Option<&'a str>) -> &'a str {
    match (&params.system_prompt, own, params.prompt) {
        (Some(template), ..) => template,
        (None, Some(template), _) => template,
        (None, None, Style::Full) => prompts::FULL,
        (None, None, Style::Compact) => prompts::COMPACT,
    }
}

macro_rules! param {
    ($name:literal, $kind:literal, $default:literal, $doc:literal) => {
        ParamSpec { name: $name, kind: $kind, default: $default, doc: $doc }
    };
}

const PARAMS: [ParamSpec; 19] = [
    param!(
        "reward",
        "\"exact\", \"contains\", \"numeric\" or \"non_empty\"",
        "reward_spec.method, else exact",
        "how the answer is graded against reward_spec.ground_truth"
    ),
    param!(
        "unordered",
        "true or false",
        "reward_spec.unordered, else false",
        "the order of a list's items does not count"
    ),
    param!("ignore_case", "true or false", "true for contains", "upper and lower case are the same"),
    param!("prompt", "\"full\" or \"compact\"", "full", "which prompts; compact is made for very small models"),
    param!("system_prompt", "text", "none", "a system prompt of your own; {custom_tools_section} is replaced"),
    param!(
        "fences",
        "list of texts",
        "[\"repl\"]; compact adds python and py",
        "fence words whose blocks run; \"\" is a bare fence"
    ),
    param!("unclosed", "true or false", "true", "a block that ends with a complete response runs too"),
    param!("echo", "true or false", "true with compact", "print the value of a block's last expression"),
    param!("policy", "\"default\" or \"strict\"", "default; strict under compat", "what the code may name"),
    param!(
        "limits",
        "table",
        "finite",
        "time, memory, output and calls of the REPL (block, grace, waiting, memory_bytes...)"
    ),
    param!("repl_timeout", "seconds", "limits.block; 180 under compat", "execution time of a block"),
    param!("deterministic", "true or false", "false", "a virtual clock in the REPL"),
    param!("output_chars", "number", "20000", "characters of output shown per block"),
    param!("max_turns", "number", "the row's, else the rollout's", "most turns"),
    param!("abort_after_timeouts", "number", "never", "end the episode when this many blocks have timed out"),
    param!("sub_calls", "true or false", "true", "offer llm_query where a model serves it"),
    param!("children", "true or false", "true", "offer rlm_query where an engine serves it"),
    param!("tools", "list of {name, description, source}", "none", "tools written in Python"),
    param!("compat", "\"skyrl\"", "none", "skyrl-gym's behaviour, faults included"),
];

const COLUMNS: [ColumnSpec; 6] = [
    ColumnSpec { name: "prompt", required: true, doc: "the question, as text or messages" },
    ColumnSpec {
        name: "extra_info.context_text",
        required: false,
        doc: "the context: text, an object (or JSON text of one), a list; the question where it is missing",
    },
    ColumnSpec {
        name: "reward_spec.ground_truth",
        required: false,
        doc: "the truth: text, number, list or object; needed unless the reward is non_empty",
    },
    ColumnSpec { name: "reward_spec.method", required: false, doc: "how the answer is graded" },
    ColumnSpec { name: "max_turns", required: false, doc: "most turns" },
    ColumnSpec { name: "repl_timeout", required: false, doc: "execution time of a block, seconds" },
];
