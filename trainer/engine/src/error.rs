//! Why a model folder cannot be used.

use std::io;
use std::path::PathBuf;

use thiserror::Error;

use crate::gguf::GgufError;
use crate::shim::ShimError;

/// Why a model cannot be loaded or converted.
#[derive(Debug, Error)]
pub enum ModelError {
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
    /// A JSON file does not parse.
    #[error("`{}` is not valid JSON: {source}", path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// What the parser said.
        source: serde_json::Error,
    },
    /// A key of a configuration file is missing, wrong, or asks for what this engine does not do.
    #[error("`{}`: key `{key}`: expected {expected}, found {found}", path.display())]
    Config {
        /// The file.
        path: PathBuf,
        /// The key.
        key: String,
        /// What was expected.
        expected: String,
        /// What was found.
        found: String,
    },
    /// A weight file is truncated or its header is wrong.
    #[error("`{}` is not a sound safetensors file: {reason}", path.display())]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// A tensor is not where it should be.
    #[error("`{}` has no tensor `{tensor}`", path.display())]
    MissingTensor {
        /// The file or folder that was searched.
        path: PathBuf,
        /// The tensor.
        tensor: String,
    },
    /// A tensor that the model does not have.
    #[error(
        "the model has no tensor `{tensor}`; names are those of its checkpoint, as `model.layers.0.mlp.up_proj.weight`"
    )]
    UnknownTensor {
        /// The tensor.
        tensor: String,
    },
    /// A tensor's shape does not fit the configuration.
    #[error("tensor `{tensor}`: expected shape {expected:?}, found {found:?}")]
    Shape {
        /// The tensor.
        tensor: String,
        /// What the configuration asks for.
        expected: Vec<i64>,
        /// What the file holds.
        found: Vec<i64>,
    },
    /// A tensor's element type is not one that this engine reads.
    #[error("tensor `{tensor}`: expected F32, F16 or BF16, found {found}")]
    Dtype {
        /// The tensor.
        tensor: String,
        /// What the file holds.
        found: String,
    },
    /// A weight is not a number, or too large for the precision.
    #[error(
        "`{}`, tensor `{tensor}`: expected values up to {largest}, found {found}; with precision f32 finite values load",
        path.display()
    )]
    Value {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// The largest magnitude that the precision holds.
        largest: f64,
        /// The largest magnitude of the tensor, or NaN.
        found: f64,
    },
    /// The GGUF file cannot be read.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// The GGUF file holds a model that cannot be converted.
    #[error("cannot convert `{}`: {reason}", path.display())]
    Unconvertible {
        /// The GGUF file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// The output is already there.
    #[error("`{}` exists already; remove it or choose another place", path.display())]
    Exists {
        /// The output.
        path: PathBuf,
    },
    /// The tokenizer or chat template cannot be loaded.
    #[error("`{}`: {reason}", path.display())]
    Tokenizer {
        /// The folder.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// An engine option is out of range.
    #[error("engine option `{option}`: expected {expected}, found {found}")]
    Option {
        /// The option.
        option: &'static str,
        /// What was expected.
        expected: String,
        /// What was found.
        found: String,
    },
    /// libtorch failed.
    #[error("libtorch: {0}")]
    Torch(#[from] ShimError),
    /// The engine's own thread could not start or ended early.
    #[error("the engine's thread failed: {0}")]
    Thread(String),
}

impl From<tch::TchError> for ModelError {
    fn from(error: tch::TchError) -> Self {
        Self::Torch(error.into())
    }
}
