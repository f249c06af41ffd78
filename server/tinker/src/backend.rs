//! What an engine must do.

use std::path::PathBuf;

use async_trait::async_trait;
use thiserror::Error;
use tokio_util::sync::CancellationToken;

use crate::ids::ModelId;
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

/// How far a backend is with a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// The last place whose operation it did, and has the effect of.
    pub reached: i64,
    /// The last place whose effect survives the process; -1 where none does.
    pub kept: i64,
}

/// An engine.
///
/// What it forgets, because its process ended or failed, is done again: before an operation of a model the server asks for
/// [`Backend::progress`], and gives it the model's operations that it lacks once more, in their order. What comes out of
/// these is dropped.
///
/// The server calls [`Backend::execute`] for one operation of a model at a time, in the model's order, and for many samples
/// side by side. What one operation changed is there when the next begins.
#[async_trait]
pub trait Backend: Send + Sync + 'static {
    /// Which models it has. They do not change.
    fn models(&self) -> &[BaseModel];

    /// Does one thing. `cancel` is cancelled when nobody wants the result any more; what comes back then is dropped.
    ///
    /// A save writes the checkpoint that [`Operation::saves`] names, also over one that is there: whether it may was looked at
    /// before. What it writes is there whole or not at all, and where it fails, what was there stays.
    ///
    /// The outcome must be of the operation's kind; anything else is reported as the server's failure.
    async fn execute(&self, operation: Operation, cancel: CancellationToken) -> Result<Outcome, OperationError>;

    /// How far it is with a model; `None` where it knows nothing of it.
    fn progress(&self, _model: &ModelId) -> Option<Progress> {
        None
    }

    /// The folder that holds a checkpoint's files; `None` where there is none.
    fn checkpoint_folder(&self, _path: &TinkerPath) -> Option<PathBuf> {
        None
    }

    /// Removes a checkpoint's files. That there are none is no failure. Where it fails it is called again later, and nobody
    /// writes the checkpoint meanwhile.
    async fn delete_checkpoint(&self, _path: &TinkerPath) -> Result<(), OperationError> {
        Ok(())
    }

    /// A session ended: what it holds may go.
    fn end_session(&self, _session: &crate::ids::SessionId) {}
}
