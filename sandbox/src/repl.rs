//! [`Sandbox`] and [`Repl`].

use std::sync::Arc;

use espalier_sandbox_protocol::{FinalAnswer, Value, VariableInfo};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::{Execution, HostCalls, Limits, NoHostCalls};

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

/// A context, encoded once and shared by every REPL that binds it.
#[derive(Clone, Debug)]
pub struct Context {
    value: Arc<Value>,
    encoded_bytes: usize,
}

impl Context {
    /// A context of any size up to 1 GB: text, a dict, a list of documents.
    pub fn new(value: Value) -> Self {
        let encoded_bytes = espalier_sandbox_protocol::Encode::to_bytes(&value).len();
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
        }
    }
}

/// Why the sandbox could not do what was asked. What a *block* did wrong is in [`crate::Outcome`].
#[derive(Debug, Error)]
pub enum SandboxError {
    /// The interpreter could not be loaded.
    #[error("the interpreter could not be loaded: {0}")]
    Load(String),
    /// A tool, variable or context name that cannot be used.
    #[error("`{name}` cannot be bound: {reason}")]
    Name {
        /// The name.
        name: String,
        /// Why.
        reason: String,
    },
    /// A variable that does not exist.
    #[error("no variable `{0}`")]
    NoVariable(String),
    /// A snapshot that cannot be restored here.
    #[error("the snapshot cannot be restored: {0}")]
    Snapshot(String),
    /// A limit was reached while binding or reading.
    #[error("{what} needs {needed} bytes, the limit is {limit}")]
    TooLarge {
        /// What.
        what: String,
        /// How much it needs.
        needed: u64,
        /// What is allowed.
        limit: u64,
    },
    /// The guest broke the protocol or trapped outside a block.
    #[error("the interpreter failed: {0}")]
    Guest(String),
}

/// The interpreter, loaded once per process; cheap to clone.
#[derive(Clone)]
pub struct Sandbox {}

impl Sandbox {
    /// Loads the interpreter (compiled code comes from the per-user cache), once per process.
    pub fn shared() -> Result<Self, SandboxError> {
        unimplemented!()
    }

    /// A fresh REPL.
    pub async fn repl(&self, _options: ReplOptions) -> Result<Repl, SandboxError> {
        unimplemented!()
    }

    /// A REPL from [`Repl::snapshot`]'s bytes. `options` gives what a snapshot cannot carry (the host, and limits,
    /// of which the stricter of both hold).
    pub async fn restore(&self, _snapshot: &[u8], _options: ReplOptions) -> Result<Repl, SandboxError> {
        unimplemented!()
    }
}

/// One persistent REPL. Dropping it at any moment, also in the middle of a block or host call, frees everything.
pub struct Repl {}

impl Repl {
    /// Runs a block.
    pub async fn execute(&mut self, _code: &str) -> Result<Execution, SandboxError> {
        unimplemented!()
    }

    /// Runs a block under other time limits than the REPL's own (`Limits` of the REPL bound them from above).
    pub async fn execute_with(&mut self, _code: &str, _limits: &Limits) -> Result<Execution, SandboxError> {
        unimplemented!()
    }

    /// Adds the next context; answers its index.
    pub async fn bind_context(&mut self, _context: Context) -> Result<u32, SandboxError> {
        unimplemented!()
    }

    /// Binds a variable.
    pub async fn bind(&mut self, _name: &str, _value: Value) -> Result<(), SandboxError> {
        unimplemented!()
    }

    /// Reads a variable.
    pub async fn get(&mut self, _name: &str) -> Result<Value, SandboxError> {
        unimplemented!()
    }

    /// What `FINAL_VAR(name)` written as text means.
    pub async fn final_var(&mut self, _name: &str) -> Result<FinalAnswer, SandboxError> {
        unimplemented!()
    }

    /// The model's variables.
    pub async fn variables(&mut self) -> Result<Vec<VariableInfo>, SandboxError> {
        unimplemented!()
    }

    /// A REPL that continues from the same state; budgets already spent stay spent in both. `reseed` gives it other
    /// randomness.
    pub async fn fork(&mut self, _reseed: Option<u64>) -> Result<Repl, SandboxError> {
        unimplemented!()
    }

    /// The whole state as bytes, for [`Sandbox::restore`].
    pub async fn snapshot(&mut self) -> Result<Vec<u8>, SandboxError> {
        unimplemented!()
    }

    /// Back to how it was set up: contexts bound anew from the host's copies, variables gone, budgets kept.
    pub async fn reset(&mut self) -> Result<(), SandboxError> {
        unimplemented!()
    }
}
