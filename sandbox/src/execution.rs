//! What a block did and why it ended.

use std::time::Duration;

use espalier_sandbox_protocol::{FinalAnswer, VariableInfo};
use serde::{Deserialize, Serialize};

/// Why a block ended. Decided by the host, never parsed from text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// Its last statement ran.
    Completed,
    /// An exception left it.
    Raised {
        /// The exception's type.
        type_name: String,
        /// Its message.
        message: String,
    },
    /// It reached its execution or waiting time and unwound: assignments made before are kept.
    TimedOut,
    /// It reached its memory limit. Whether state went back says [`Execution::rolled_back`].
    MemoryExceeded,
    /// It did not unwind within the grace, or trapped: the REPL is as it was before the block.
    Killed {
        /// What made it necessary, in words for people.
        reason: String,
    },
    /// The host could not go on; the REPL is as it was before the block.
    HostError {
        /// What failed.
        reason: String,
    },
}

impl Outcome {
    /// The outcome's name, as programs read it.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::Raised { .. } => "raised",
            Self::TimedOut => "timed_out",
            Self::MemoryExceeded => "memory_exceeded",
            Self::Killed { .. } => "killed",
            Self::HostError { .. } => "host_error",
        }
    }
}

/// Captured output of one stream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Output {
    /// What was kept: all of it, or the start, a marker that says how much is missing, and the end.
    pub text: String,
    /// Bytes that were written, kept or not.
    pub bytes: u64,
}

/// What one block did.
#[derive(Clone, Debug, PartialEq)]
pub struct Execution {
    /// Standard output, also of a block that was killed.
    pub stdout: Output,
    /// Standard error: tracebacks and what the block wrote there.
    pub stderr: Output,
    /// Why it ended.
    pub outcome: Outcome,
    /// The state went back to before the block.
    pub rolled_back: bool,
    /// The last answer given with `FINAL_VAR` or `FINAL`, unless the state went back.
    pub final_answer: Option<FinalAnswer>,
    /// The model's variables after the block.
    pub variables: Vec<VariableInfo>,
    /// Time spent executing.
    pub cpu: Duration,
    /// Time spent waiting for host calls.
    pub waiting: Duration,
    /// Host calls made by this block.
    pub calls: u32,
}
