//! How a REPL is set up.

use std::sync::Arc;

use espalier_sandbox_protocol::{Encode, ReplConfig, Value};
use serde::{Deserialize, Serialize};

use crate::{HostCalls, Limits, NoHostCalls};

/// What the model's own code may name. Not a security boundary: that is WebAssembly.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Policy {
    /// Allow-listed standard library; `eval`, `exec`, `open`... blocked by name.
    #[default]
    Default,
    /// The original RLM REPL: no imports, its builtin list.
    Strict,
}

/// A function the environment's author adds to the REPL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Tool {
    /// Served by [`HostCalls`].
    Host {
        /// Its name.
        name: String,
        /// One line for the prompt and for `help()`.
        description: String,
    },
    /// Python source that binds `name` (a function or any value).
    Python {
        /// Its name.
        name: String,
        /// One line for the prompt.
        description: String,
        /// The source.
        source: String,
    },
}

impl Tool {
    /// Its name.
    pub fn name(&self) -> &str {
        match self {
            Self::Host { name, .. } | Self::Python { name, .. } => name,
        }
    }
}

/// A context, encoded once and shared by every REPL that binds it.
#[derive(Clone, Debug)]
pub struct Context {
    value: Arc<Value>,
    encoded_bytes: usize,
}

impl Context {
    /// A context of any size up to 1 GB: text, a dict, a list of documents.
    pub fn new(value: Value) -> Self {
        let encoded_bytes = value.to_bytes().len();
        Self { value: Arc::new(value), encoded_bytes }
    }

    /// The host's own copy, which no block can change.
    pub fn value(&self) -> &Value {
        &self.value
    }

    /// Its size, bytes.
    pub fn size(&self) -> usize {
        self.encoded_bytes
    }
}

/// How a REPL is set up.
#[derive(Clone)]
pub struct ReplOptions {
    /// What the model's code may name.
    pub policy: Policy,
    /// What it may use.
    pub limits: Limits,
    /// Seeds `random`, `os.urandom`, `uuid4`.
    pub seed: u64,
    /// A virtual clock that starts at a fixed moment and advances by what the guest asks, instead of the machine's.
    pub deterministic: bool,
    /// Print a trailing expression's `repr`, as an interactive prompt does.
    pub echo: bool,
    /// Contexts, bound as `context_0` (and `context`), `context_1`...
    pub contexts: Vec<Context>,
    /// Which of `llm_query`, `llm_query_batched`, `rlm_query`, `rlm_query_batched` exist.
    pub functions: Vec<String>,
    /// What the author adds.
    pub tools: Vec<Tool>,
    /// Serves the functions and host tools.
    pub host: Arc<dyn HostCalls>,
    /// Host calls already spent from `limits.calls_total`. A restored REPL goes on from the larger of this and the
    /// snapshot's own count.
    pub calls_spent: u64,
}

impl Default for ReplOptions {
    fn default() -> Self {
        Self {
            policy: Policy::Default,
            limits: Limits::default(),
            seed: 0,
            deterministic: false,
            echo: false,
            contexts: Vec::new(),
            functions: Vec::new(),
            tools: Vec::new(),
            host: Arc::new(NoHostCalls),
            calls_spent: 0,
        }
    }
}

impl ReplOptions {
    /// What the guest is told: its heap may grow beyond the `heap` bytes it has after boot. The soft limit keeps a
    /// distance from the hard one, so that a block usually sees `MemoryError` before its memory cannot grow any more;
    /// the guest raises it by three times the size of each context that is bound.
    pub(crate) fn config(&self, heap: u64) -> ReplConfig {
        let beyond = self.limits.memory_bytes - self.limits.memory_bytes / 8;
        let mut config = ReplConfig {
            strict: self.policy == Policy::Strict,
            functions: self.functions.clone(),
            tools: Vec::new(),
            python_tools: Vec::new(),
            recursion_limit: self.limits.recursion,
            soft_memory_bytes: heap.saturating_add(beyond),
            max_allocation_bytes: self.limits.allocation_bytes,
            max_value_bytes: self.limits.value_bytes as u64,
            seed: self.seed,
        };
        for tool in &self.tools {
            match tool {
                Tool::Host { name, description } => config.tools.push((name.clone(), description.clone())),
                Tool::Python { name, source, .. } => config.python_tools.push((name.clone(), source.clone())),
            }
        }
        config
    }
}
