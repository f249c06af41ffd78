use std::path::{Path, PathBuf};

use thiserror::Error;

/// Why numbers could not be written, or a specification not be meant.
#[derive(Debug, Error)]
pub enum TrackerError {
    /// The operating system refused.
    #[error("`{}`: cannot {action}: {source}", path.display())]
    Io {
        /// The file or directory, or `the console`.
        path: PathBuf,
        /// What was tried.
        action: &'static str,
        /// What the system said.
        source: std::io::Error,
    },
    /// A file that is not what its name says.
    #[error("`{}`: {reason}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What was expected and what came.
        reason: String,
    },
    /// A backend that there is not.
    #[error(
        "`logger`: there is no `{0}`; choose among `wandb`, `tensorboard`, `jsonl`, `console`, or several of them in a list"
    )]
    UnknownLogger(String),
    /// A backend that is named more than once.
    #[error("`logger`: `{0}` is named twice; name each once")]
    TwiceNamed(String),
    /// A name that a backend would refuse.
    #[error("`{key}` is `{value}`, but {reason}")]
    Name {
        /// The key of the specification.
        key: &'static str,
        /// Its value.
        value: String,
        /// What was expected.
        reason: String,
    },
}

impl TrackerError {
    pub(crate) fn io(path: &Path, action: &'static str) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { path, action, source }
    }
}
