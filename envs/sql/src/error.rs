//! Why a query gave no result.

use std::path::PathBuf;

use thiserror::Error;

/// Why a query gave no result. The text is meant for the model that wrote the query.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum SqlError {
    /// There is no such file.
    #[error("there is no database file at {}", path.display())]
    NoDatabase {
        /// Where it was looked for.
        path: PathBuf,
    },
    /// A database's name would leave the folder of databases.
    #[error("`{id}` cannot name a database: {reason}")]
    BadName {
        /// The name.
        id: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// SQLite could not open or read the file.
    #[error("the database {} cannot be read: {reason}", path.display())]
    Storage {
        /// The file.
        path: PathBuf,
        /// What SQLite said.
        reason: String,
    },
    /// There is no statement in the text.
    #[error("the query is empty")]
    Empty,
    /// There is more than one statement.
    #[error("there is more than one statement; send one at a time")]
    SeveralStatements,
    /// The statement would change something.
    #[error("{what} is not allowed: the database is read-only")]
    NotReadOnly {
        /// What it would have done.
        what: String,
    },
    /// The statement reads, but with something that is not allowed.
    #[error("{what} is not allowed")]
    Denied {
        /// What it would have used.
        what: String,
    },
    /// The statement has placeholders.
    #[error("the query has {count} placeholders and there is nothing to bind to them; write the values into the query")]
    Parameters {
        /// How many.
        count: usize,
    },
    /// The text is over a limit before SQLite sees it.
    #[error("the query is too large: {got} {what}, at most {limit} are allowed")]
    TooLarge {
        /// What was counted.
        what: &'static str,
        /// How many came.
        got: usize,
        /// How many may come.
        limit: usize,
    },
    /// The grammar refuses the text.
    #[error("syntax error: {message}")]
    Syntax {
        /// What SQLite said.
        message: String,
    },
    /// The statement parses and cannot be run: no such table, no such column, a wrong argument.
    #[error("{message}")]
    Invalid {
        /// What SQLite said.
        message: String,
    },
    /// A value or a row is larger than a value may be.
    #[error("a value is too large: at most {limit} bytes are allowed")]
    ValueTooLarge {
        /// The limit, bytes.
        limit: usize,
    },
    /// The result has more rows than were asked for.
    #[error("the result has more than {limit} rows")]
    TooManyRows {
        /// The limit.
        limit: usize,
    },
    /// The result is larger than may be held.
    #[error("the result is larger than {limit} bytes")]
    TooManyBytes {
        /// The limit.
        limit: usize,
    },
    /// The query ran out of time.
    #[error("the query did not end within {milliseconds} ms")]
    Timeout {
        /// The time it had.
        milliseconds: u64,
    },
    /// The query ran out of instructions.
    #[error("the query did not end within {limit} instructions")]
    TooManyInstructions {
        /// The limit, in instructions of SQLite's virtual machine.
        limit: u64,
    },
    /// Memory ran out.
    #[error("the query needs too much memory")]
    OutOfMemory,
    /// The caller cancelled it.
    #[error("the query was cancelled")]
    Cancelled,
}

impl SqlError {
    /// Whether the query ran out of time or instructions.
    pub fn is_timeout(&self) -> bool {
        matches!(self, Self::Timeout { .. } | Self::TooManyInstructions { .. })
    }

    /// Whether it is not the query's fault: the database is not there or cannot be read, or the caller cancelled.
    pub fn is_fault(&self) -> bool {
        matches!(self, Self::NoDatabase { .. } | Self::BadName { .. } | Self::Storage { .. } | Self::Cancelled)
    }
}
