//! What can go wrong, and the exit code that says so.

use std::process::ExitCode;

use espalier_sandbox::SandboxError;
use thiserror::Error;

/// Why the command failed.
#[derive(Debug, Error)]
pub(crate) enum Failure {
    /// A configuration or argument that cannot be used (exit code 2, as for a wrong command line).
    #[error("{what}: expected {expected}, got {got}")]
    Usage {
        /// The argument, file and key.
        what: String,
        /// What it must be.
        expected: String,
        /// What it is.
        got: String,
    },
    /// An input file that cannot be used (exit code 3).
    #[error("`{file}`: {reason}")]
    Input {
        /// The file.
        file: String,
        /// What is wrong, with the line where there is one.
        reason: String,
    },
    /// An engine or endpoint that does not answer (exit code 4).
    #[error("{0}")]
    Engine(String),
    /// The sandbox (exit code 5).
    #[error(transparent)]
    Sandbox(#[from] SandboxError),
    /// The work was stopped by Ctrl-C; what ended before is kept (exit code 130).
    #[error("stopped; {0}")]
    Interrupted(String),
    /// A figure missed what it must reach, or a comparison failed (exit code 1).
    #[error("{0}")]
    Missed(String),
    /// Anything else (exit code 1).
    #[error("{0}")]
    Internal(String),
}

impl Failure {
    /// The exit code, documented in `espalier --help`.
    pub(crate) fn exit_code(&self) -> ExitCode {
        ExitCode::from(match self {
            Self::Missed(_) | Self::Internal(_) => 1,
            Self::Usage { .. } => 2,
            Self::Input { .. } => 3,
            Self::Engine(_) => 4,
            Self::Sandbox(_) => 5,
            Self::Interrupted(_) => 130,
        })
    }

    /// What to do about it, where that is not already said.
    pub(crate) fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Sandbox(SandboxError::Load(_)) => {
                Some("the compiled interpreter lies in `$ESPALIER_CACHE/guest`; removing that folder makes it anew")
            }
            _ => None,
        }
    }

    /// An input file that could not be read.
    pub(crate) fn unreadable(file: &std::path::Path, error: &std::io::Error) -> Self {
        Self::Input { file: file.display().to_string(), reason: format!("cannot be read: {error}") }
    }
}
