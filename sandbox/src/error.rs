//! Why the sandbox could not do what was asked.

use thiserror::Error;

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
    /// A variable whose value cannot cross, such as one that is too large.
    #[error("`{name}` cannot be read: {reason}")]
    Unreadable {
        /// The name.
        name: String,
        /// Why.
        reason: String,
    },
    /// A snapshot that cannot be restored here.
    #[error("the snapshot cannot be restored: {0}")]
    Snapshot(#[from] SnapshotError),
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
    /// A limit was reached outside a block, such as in a variable's `__repr__`. The REPL is as it was before.
    #[error("{what} was stopped: {reason}")]
    Stopped {
        /// What was asked.
        what: String,
        /// Which limit.
        reason: String,
    },
    /// The REPL's state cannot be reached any more; `reset` makes it usable again.
    #[error("the REPL's state is lost: {0}; reset it")]
    Lost(String),
    /// The guest broke the protocol or trapped outside a block.
    #[error("the interpreter failed: {0}")]
    Guest(String),
}

/// Why bytes are not a snapshot that can be restored here.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum SnapshotError {
    /// They do not start like a snapshot.
    #[error("it does not start with the snapshot mark")]
    NoSnapshot,
    /// They are of another format.
    #[error("it has format {found}, this version reads {expected}")]
    Format {
        /// The snapshot's format.
        found: u32,
        /// The format this version reads.
        expected: u32,
    },
    /// They are of another interpreter.
    #[error("it was taken from interpreter {found}, this one is {expected}")]
    Interpreter {
        /// The snapshot's interpreter, hash.
        found: String,
        /// This interpreter, hash.
        expected: String,
    },
    /// They end too early, or do not match their checksum.
    #[error("it is damaged: {0}")]
    Damaged(&'static str),
    /// The state needs more memory than the options allow. Options must name the contexts that the REPL had.
    #[error("it needs {needed} bytes of memory, the options allow {allowed}")]
    Memory {
        /// What the state needs.
        needed: u64,
        /// What the options allow.
        allowed: u64,
    },
    /// The interpreter does not go on from it.
    #[error("the interpreter does not go on from it: {0}")]
    Refused(String),
}
