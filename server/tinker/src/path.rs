//! Paths of checkpoints: `tinker://MODEL/KIND/NAME`.
//!
//! Model names hold colons, so these are no URLs. Exactly three segments, none of which can be `.` or `..` or hold a `/`:
//! a path cannot lead out of the folder that its parts are joined to.

use std::fmt;
use std::str::FromStr;

use crate::ids::{IdError, ModelId};

/// What every path begins with.
const SCHEME: &str = "tinker://";

/// What a checkpoint is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum CheckpointKind {
    /// To train on: weights, and moments of the optimiser.
    Training,
    /// To sample from.
    Sampler,
    /// For other programs.
    External,
}

impl CheckpointKind {
    /// What clients call it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Training => "training",
            Self::Sampler => "sampler",
            Self::External => "external",
        }
    }

    /// The segment of paths.
    pub fn segment(self) -> &'static str {
        match self {
            Self::Training => "weights",
            Self::Sampler => "sampler_weights",
            Self::External => "external_weights",
        }
    }
}

impl FromStr for CheckpointKind {
    type Err = IdError;

    fn from_str(text: &str) -> Result<Self, IdError> {
        match text {
            "weights" => Ok(Self::Training),
            "sampler_weights" => Ok(Self::Sampler),
            "external_weights" => Ok(Self::External),
            other => Err(IdError::new("`weights`, `sampler_weights` or `external_weights`", other)),
        }
    }
}

/// A checkpoint's name: 1 to 128 letters, digits, `-`, `_` and `.`, the first of which is no `.`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CheckpointName(String);

impl CheckpointName {
    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for CheckpointName {
    type Err = IdError;

    fn from_str(text: &str) -> Result<Self, IdError> {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
        if text.is_empty() || text.len() > 128 || text.starts_with('.') || !text.bytes().all(plain) {
            let expected = "a name: 1 to 128 letters, digits, `-`, `_` and `.`, the first of which is no `.`";
            return Err(IdError::new(expected, text));
        }
        Ok(Self(text.to_owned()))
    }
}

/// A checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TinkerPath {
    /// Of which model.
    pub model: ModelId,
    /// What it is for.
    pub kind: CheckpointKind,
    /// Its name.
    pub name: CheckpointName,
}

impl FromStr for TinkerPath {
    type Err = IdError;

    fn from_str(text: &str) -> Result<Self, IdError> {
        let wrong = || {
            IdError::new(
                "a path: `tinker://MODEL/KIND/NAME`, KIND `weights`, `sampler_weights` or `external_weights`",
                text,
            )
        };
        let mut parts = text.strip_prefix(SCHEME).ok_or_else(wrong)?.split('/');
        let (Some(model), Some(kind), Some(name), None) = (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(wrong());
        };
        Ok(Self {
            model: model.parse().map_err(|_| wrong())?,
            kind: kind.parse().map_err(|_| wrong())?,
            name: name.parse().map_err(|_| wrong())?,
        })
    }
}

impl fmt::Display for TinkerPath {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{SCHEME}{}/{}/{}", self.model, self.kind.segment(), self.name.0)
    }
}
