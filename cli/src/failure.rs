//! What can go wrong, and the exit code that says so. The codes stand in `espalier --help` ([`EXIT_CODES`]).
//!
//! What a crate's error says is passed on as it is: these errors name their file themselves. A file is added only where
//! the error does not know it ([`Failure::Input`]).

use std::fmt::Display;
use std::io;
use std::path::Path;
use std::process::ExitCode;

use espalier_datasets::DataError;
use espalier_envs::EnvError;
use espalier_generator::output::OutputError;
use espalier_generator::rollouts::RunError;
use espalier_generator::suite::SuiteError;
use espalier_sandbox::SandboxError;
use thiserror::Error;

/// The table of exit codes, for `--help`.
pub(crate) const EXIT_CODES: &str = "\
Exit codes:
  0    done
  1    a figure was missed, or something unexpected
  2    wrong arguments or configuration: a suite's keys, overrides and parameters included
  3    a file or folder that cannot be used: data, scripts, models, runs, a suite that is no TOML
  4    an engine failed: the model or endpoint does not answer
  5    the sandbox or an environment failed
  6    output that cannot be written, or that is there already
  7    a suite was played to its end, and some of its rollouts failed (all: 4 or 5); `--resume` plays those again
  130  stopped by Ctrl-C (what ended is kept)
  141  the reader of stdout went away";

/// Why the command failed.
#[derive(Debug, Error)]
pub(crate) enum Failure {
    /// An argument that cannot be used (exit code 2, as for a wrong command line).
    #[error("{what}: expected {expected}, got {got}")]
    Usage {
        /// The argument, file and key.
        what: String,
        /// What it must be.
        expected: String,
        /// What it is.
        got: String,
    },
    /// A configuration that cannot be used, in a sentence that names it (exit code 2).
    #[error("{0}")]
    Configuration(String),
    /// A file that cannot be used (exit code 3).
    #[error("`{file}`: {reason}")]
    Input {
        /// The file.
        file: String,
        /// What is wrong, with the line where there is one.
        reason: String,
    },
    /// The same, in a sentence that names the file.
    #[error("{0}")]
    Data(String),
    /// An engine or endpoint that does not answer (exit code 4).
    #[error("{0}")]
    Engine(String),
    /// The sandbox (exit code 5).
    #[error(transparent)]
    Sandbox(#[from] SandboxError),
    /// An environment could not go on (exit code 5).
    #[error("{0}")]
    Environment(String),
    /// A file or folder that cannot be written, or is there already, in a sentence that names it (exit code 6).
    #[error("{0}")]
    Output(String),
    /// Stdout cannot be written (exit code 6), or nobody reads it any more (exit code 141).
    #[error("stdout cannot be written: {0}")]
    Stdout(io::Error),
    /// The work was stopped by Ctrl-C; what ended before is kept (exit code 130).
    #[error("stopped; {0}")]
    Interrupted(String),
    /// The processes that did the work were stopped by Ctrl-C and have said so (exit code 130).
    #[error("stopped")]
    #[cfg_attr(not(feature = "torch"), expect(dead_code, reason = "several processes train, which needs libtorch"))]
    Stopped,
    /// A figure missed what it must reach (exit code 1).
    #[error("{0}")]
    Missed(String),
    /// A suite was played to its end, and some of its rollouts failed (exit code 7).
    #[error("{0}")]
    Partly(String),
    /// Anything else (exit code 1).
    #[error("{0}")]
    Internal(String),
}

impl Failure {
    /// The exit code, documented in `espalier --help`.
    pub(crate) fn exit_code(&self) -> ExitCode {
        ExitCode::from(match self {
            Self::Missed(_) | Self::Internal(_) => 1,
            Self::Usage { .. } | Self::Configuration(_) => 2,
            Self::Input { .. } | Self::Data(_) => 3,
            Self::Engine(_) => 4,
            Self::Sandbox(_) | Self::Environment(_) => 5,
            // 128 and the number of SIGPIPE, as a shell says it of programs that the signal ends.
            Self::Stdout(error) if error.kind() == io::ErrorKind::BrokenPipe => 141,
            Self::Output(_) | Self::Stdout(_) => 6,
            Self::Partly(_) => 7,
            Self::Interrupted(_) | Self::Stopped => 130,
        })
    }

    /// Whether there is nothing to say: whoever closes a pipe early knows, and other processes may have said it.
    pub(crate) fn is_silent(&self) -> bool {
        matches!(self, Self::Stopped)
            || matches!(self, Self::Stdout(error) if error.kind() == io::ErrorKind::BrokenPipe)
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
    pub(crate) fn unreadable(file: &Path, error: &io::Error) -> Self {
        Self::Input { file: file.display().to_string(), reason: format!("cannot be read: {error}") }
    }

    /// The same failure, with the place that asked for it in front.
    pub(crate) fn within(self, place: impl Display) -> Self {
        let said = format!("{place}: {self}");
        match self {
            Self::Usage { .. } | Self::Configuration(_) => Self::Configuration(said),
            Self::Input { .. } | Self::Data(_) => Self::Data(said),
            Self::Engine(_) => Self::Engine(said),
            Self::Environment(_) => Self::Environment(said),
            Self::Output(_) => Self::Output(said),
            Self::Missed(_) => Self::Missed(said),
            Self::Partly(_) => Self::Partly(said),
            Self::Internal(_) => Self::Internal(said),
            itself @ (Self::Sandbox(_) | Self::Stdout(_) | Self::Interrupted(_) | Self::Stopped) => itself,
        }
    }

    /// The same failure as one of `--model`. What is wrong with an option or parameter says its own name.
    pub(crate) fn of_model(self) -> Self {
        if matches!(self, Self::Configuration(_)) { self } else { self.within("`--model`") }
    }

    /// An error of the operating system on a file; `action` is what was tried, in the words of the error.
    fn system(action: &str, said: String) -> Self {
        if action.starts_with("read") { Self::Data(said) } else { Self::Output(said) }
    }
}

impl From<DataError> for Failure {
    fn from(error: DataError) -> Self {
        match error {
            DataError::Source { .. } => Self::Configuration(error.to_string()),
            _ => Self::Data(error.to_string()),
        }
    }
}

impl From<EnvError> for Failure {
    fn from(error: EnvError) -> Self {
        match error {
            EnvError::Unknown { .. } | EnvError::Duplicate { .. } | EnvError::Invalid { .. } => {
                Self::Configuration(error.to_string())
            }
            EnvError::Unusable { .. } => Self::Data(error.to_string()),
            EnvError::Grader { .. } | EnvError::Failed { .. } => Self::Environment(error.to_string()),
        }
    }
}

/// Of a folder that is being written; [`Failure::Data`] fits one that is read.
impl From<OutputError> for Failure {
    fn from(error: OutputError) -> Self {
        let said = error.to_string();
        match error {
            OutputError::Io { action, .. } => Self::system(action, said),
            OutputError::Exists(_) | OutputError::Busy(_) => Self::Output(said),
            OutputError::Row { .. } | OutputError::File { .. } | OutputError::Tree { .. } => Self::Data(said),
        }
    }
}

impl From<SuiteError> for Failure {
    fn from(error: SuiteError) -> Self {
        let said = error.to_string();
        match error {
            SuiteError::Io { action, .. } => Self::system(action, said),
            SuiteError::Syntax { .. } | SuiteError::Task { .. } | SuiteError::Nothing => Self::Data(said),
            SuiteError::Key { .. } => Self::Configuration(said),
            SuiteError::Engine { .. } => Self::Engine(said),
            SuiteError::Changed { .. } => Self::Output(said),
            SuiteError::Output(error) | SuiteError::Run(RunError::Output(error)) => error.into(),
            SuiteError::Run(_) => Self::Internal(said),
        }
    }
}

#[cfg(feature = "torch")]
impl From<espalier_engine::AdapterError> for Failure {
    fn from(error: espalier_engine::AdapterError) -> Self {
        use espalier_engine::AdapterError;

        let said = error.to_string();
        match error {
            AdapterError::File(error) => error.into(),
            AdapterError::Name { .. } | AdapterError::Exists { .. } | AdapterError::Unknown { .. } => {
                Self::Configuration(said)
            }
            AdapterError::Torch(_) | AdapterError::Ended => Self::Engine(said),
            AdapterError::Shape { .. } | AdapterError::Tensor { .. } | AdapterError::Missing { .. } => Self::Data(said),
        }
    }
}

#[cfg(feature = "torch")]
impl From<espalier_engine::ModelError> for Failure {
    fn from(error: espalier_engine::ModelError) -> Self {
        use espalier_engine::ModelError;

        let said = error.to_string();
        match error {
            ModelError::Io { action, .. } => Self::system(action, said),
            ModelError::Exists { .. } => Self::Output(said),
            ModelError::Option { .. } => Self::Configuration(said),
            ModelError::Torch(_) | ModelError::Thread(_) => Self::Engine(said),
            // What a tokenizer says of its folder names the file in it.
            ModelError::Tokenizer { path, reason } if reason.contains(&*path.to_string_lossy()) => Self::Data(reason),
            _ => Self::Data(said),
        }
    }
}
