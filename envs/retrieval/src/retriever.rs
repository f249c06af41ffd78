//! What a search environment asks of whatever searches.

use std::path::PathBuf;

use async_trait::async_trait;
use serde_json::{Map, Value};
use thiserror::Error;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// One document that was found.
#[derive(Clone, Debug, PartialEq)]
pub struct Hit {
    /// Its text.
    pub contents: String,
    /// Its id in the corpus, where it has one.
    pub id: Option<String>,
    /// Its title, where it has one.
    pub title: Option<String>,
    /// How well it fits; larger is better. 0 where the server gives none.
    pub score: f64,
    /// The document as the corpus or the server has it, `contents` included.
    pub document: Map<String, Value>,
}

/// When a search must end.
#[derive(Clone, Debug)]
pub struct SearchLimits {
    /// The search answers or fails by this moment.
    pub deadline: Instant,
    /// Ends it at once.
    pub cancel: CancellationToken,
}

impl SearchLimits {
    /// Refuses to begin what has no time left.
    pub(crate) fn check(&self) -> Result<(), RetrievalError> {
        if self.cancel.is_cancelled() {
            return Err(RetrievalError::Cancelled);
        }
        if self.deadline <= Instant::now() {
            return Err(RetrievalError::Deadline);
        }
        Ok(())
    }
}

/// Why a search came to nothing.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum RetrievalError {
    /// Something about how the retriever is set up cannot be.
    #[error("`{key}` {reason}")]
    Option {
        /// The option.
        key: String,
        /// What was expected and what came.
        reason: String,
    },
    /// The server refused the request; asking again changes nothing.
    #[error("the search server `{url}` refused the request with {status}: {body}")]
    Refused {
        /// The server.
        url: String,
        /// The HTTP status.
        status: u16,
        /// The beginning of what it said.
        body: String,
    },
    /// Every try failed.
    #[error("the search server `{url}` gave no answer after {tries} {}: {reason}", if *tries == 1 { "try" } else { "tries" })]
    Exhausted {
        /// The server.
        url: String,
        /// How often it was asked.
        tries: usize,
        /// The HTTP status of the last try, where there was an answer.
        status: Option<u16>,
        /// Why the last try failed.
        reason: String,
    },
    /// The answer is not what the protocol says.
    #[error("the search server `{url}` answered with something else than results: {reason}")]
    Answer {
        /// The server.
        url: String,
        /// What was expected and what came.
        reason: String,
    },
    /// The answer is larger than the bound.
    #[error("the answer of the search server `{url}` is larger than {limit} bytes; ask for fewer or shorter documents")]
    TooLarge {
        /// The server.
        url: String,
        /// The bound.
        limit: usize,
    },
    /// The deadline passed.
    #[error("the search had no answer by its deadline")]
    Deadline,
    /// The search was cancelled.
    #[error("the search was cancelled")]
    Cancelled,
    /// A corpus cannot be read or is not what it should be.
    #[error("`{}`{}: {reason}", path.display(), line.map(|line| format!(", line {line}")).unwrap_or_default())]
    Corpus {
        /// The file or folder.
        path: PathBuf,
        /// The line, counted from 1, where there is one.
        line: Option<u64>,
        /// What was expected and what came.
        reason: String,
    },
    /// An index cannot be built, kept or read.
    #[error("the index `{}`: {reason}", path.display())]
    Index {
        /// Its folder, or the corpus where it lies in memory.
        path: PathBuf,
        /// What failed.
        reason: String,
    },
}

/// Something that finds documents. Shared by every rollout of a process.
#[async_trait]
pub trait Retriever: Send + Sync {
    /// The `topk` documents that fit a query best, best first; fewer where there are fewer. The query is plain text.
    async fn search(&self, query: &str, topk: usize, limits: &SearchLimits) -> Result<Vec<Hit>, RetrievalError>;

    /// The same for many queries, answered in order; any failure fails them all.
    async fn search_all(
        &self,
        queries: &[String],
        topk: usize,
        limits: &SearchLimits,
    ) -> Result<Vec<Vec<Hit>>, RetrievalError> {
        let mut answers = Vec::with_capacity(queries.len());
        for query in queries {
            answers.push(self.search(query, topk, limits).await?);
        }
        Ok(answers)
    }
}
