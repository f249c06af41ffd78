//! Why training cannot go on.

use std::io;
use std::path::PathBuf;

use espalier_distributed::DistributedError;
use espalier_engine::ModelError;
use espalier_engine::shim::ShimError;
use thiserror::Error;

/// Why a policy cannot be built, trained, saved or loaded.
#[derive(Debug, Error)]
pub enum TrainError {
    /// A key of the configuration is wrong.
    #[error("`{key}`: expected {expected}, found {found}")]
    Config {
        /// The key, dotted.
        key: String,
        /// What was expected, or what to change.
        expected: String,
        /// What was found.
        found: String,
    },
    /// A model folder cannot be used.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// A file cannot be read or written.
    #[error("cannot {action} `{}`: {source}", path.display())]
    Io {
        /// `read`, `write`, ...
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A file is there, but not what it should be.
    #[error("`{}`: {reason}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong, and what was expected.
        reason: String,
    },
    /// What a run would write is there already.
    #[error("`{}`: {reason}", path.display())]
    Exists {
        /// The file or folder.
        path: PathBuf,
        /// What is there, and what to do.
        reason: String,
    },
    /// Settings that cannot be used, in sentences that name their keys.
    #[error("{0}")]
    Settings(String),
    /// A tensor of a file does not fit the model.
    #[error("`{}`, tensor `{tensor}`: expected {expected}, found {found}", path.display())]
    Tensor {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// Shape, type or presence that was expected.
        expected: String,
        /// What was found.
        found: String,
    },
    /// A row cannot be trained on.
    #[error("row {row}: {reason}")]
    Row {
        /// Which row of the batch, counted from 0.
        row: usize,
        /// What is wrong with it.
        reason: String,
    },
    /// A loss that is not a number.
    #[error(
        "the loss is {value}: first non-finite token in row {row}, response token {token} (log-probability {logprob})"
    )]
    NonFinite {
        /// The loss.
        value: f64,
        /// The row, counted from 0.
        row: usize,
        /// The token, counted from the first that is predicted.
        token: usize,
        /// Its log-probability.
        logprob: f64,
    },
    /// Nothing could be sampled, or weights did not reach the engine.
    #[error("sampling: {reason}")]
    Sampling {
        /// Why.
        reason: String,
    },
    /// A process of the job is gone or stuck.
    #[error(transparent)]
    Group(#[from] DistributedError),
    /// libtorch failed.
    #[error("libtorch: {0}")]
    Torch(#[from] ShimError),
}

impl From<tch::TchError> for TrainError {
    fn from(error: tch::TchError) -> Self {
        Self::Torch(error.into())
    }
}

impl TrainError {
    /// For `map_err` on file operations.
    pub fn io(action: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { action, path, source }
    }
}
