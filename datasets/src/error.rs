//! What can be wrong with data.

use std::path::{Path, PathBuf};

use thiserror::Error;

/// What is wrong, and where.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum DataError {
    /// A file cannot be opened or read.
    #[error("`{}`: {reason}", .path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What happened.
        reason: String,
    },
    /// A row is wrong.
    #[error("`{}`, {place}: {reason}", .path.display())]
    Row {
        /// The file.
        path: PathBuf,
        /// Where in it.
        place: Place,
        /// What was expected and what came.
        reason: String,
    },
    /// A column of a row is wrong.
    #[error("`{}`, {place}, column `{column}`: {reason}", .path.display())]
    Column {
        /// The file.
        path: PathBuf,
        /// Where in it.
        place: Place,
        /// The column, with dots into objects.
        column: String,
        /// What was expected and what came.
        reason: String,
    },
    /// What the source needs beside its files cannot be used: the Hugging Face cache, a tokenizer.
    #[error("{0}")]
    Unusable(String),
    /// The source is described wrongly.
    #[error("data source: `{key}` {reason}")]
    Source {
        /// The key.
        key: String,
        /// What was expected and what came.
        reason: String,
    },
}

impl DataError {
    /// A file that cannot be read.
    pub fn file(path: &Path, reason: impl std::fmt::Display) -> Self {
        Self::File { path: path.to_owned(), reason: reason.to_string() }
    }
}

/// A row's place in its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// A line, from 1.
    Line(u64),
    /// A row, from 1.
    Row(u64),
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Line(line) => write!(f, "line {line}"),
            Self::Row(row) => write!(f, "row {row}"),
        }
    }
}

/// What a JSON value is, for messages.
pub fn kind(value: &serde_json::Value) -> &'static str {
    use serde_json::Value;
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}
