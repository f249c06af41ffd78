//! What an engine must do.

use std::path::PathBuf;

use async_trait::async_trait;
use thiserror::Error;
use tokio_util::sync::CancellationToken;

use crate::operation::{Operation, Outcome};
use crate::path::TinkerPath;

/// Whose fault a failure is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Category {
    /// The request's: sending it again changes nothing.
    User,
    /// The server's.
    Server,
    /// Nobody can say.
    Unknown,
}

impl Category {
    /// As clients know it.
    pub fn name(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::Server => "server",
            Self::Unknown => "unknown",
        }
    }

    pub(crate) fn of(name: &str) -> Self {
        match name {
            "user" => Self::User,
            "server" => Self::Server,
            _ => Self::Unknown,
        }
    }
}

/// Why an operation failed. It becomes the request's result: the client raises it with the message.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{message}")]
pub struct OperationError {
    /// Whose fault it is.
    pub category: Category,
    /// What was expected and what came.
    pub message: String,
}

impl OperationError {
    /// A request that cannot be done.
    pub fn user(message: impl Into<String>) -> Self {
        Self { category: Category::User, message: message.into() }
    }

    /// A server that failed.
    pub fn server(message: impl Into<String>) -> Self {
        Self { category: Category::Server, message: message.into() }
    }
}

/// A model that can be asked for by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BaseModel {
    /// Its name, as clients give it; they also load the tokenizer of that name.
    pub name: String,
    /// Tokens of prompt and output together.
    pub context: u32,
    /// Whether adapters of it can be trained.
    pub trainable: bool,
}

/// An engine.
///
/// The server calls [`Backend::execute`] for one operation of a model at a time, in the model's order, and for many samples
/// side by side. What one operation changed is there when the next begins.
#[async_trait]
pub trait Backend: Send + Sync + 'static {
    /// Which models it has. They do not change.
    fn models(&self) -> &[BaseModel];

    /// Does one thing. `cancel` is cancelled when nobody wants the result any more; what comes back then is dropped.
    ///
    /// The outcome must be of the operation's kind; anything else is reported as the server's failure.
    async fn execute(&self, operation: Operation, cancel: CancellationToken) -> Result<Outcome, OperationError>;

    /// The folder that holds a checkpoint's files; `None` where there is none.
    fn checkpoint_folder(&self, _path: &TinkerPath) -> Option<PathBuf> {
        None
    }

    /// Removes a checkpoint's files. That there are none is no failure.
    async fn delete_checkpoint(&self, _path: &TinkerPath) -> Result<(), OperationError> {
        Ok(())
    }

    /// A session ended: what it holds may go.
    fn end_session(&self, _session: &crate::ids::SessionId) {}
}
