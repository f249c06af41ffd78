//! What a block may ask of the host.

use async_trait::async_trait;
use espalier_sandbox_protocol::{HostCall, Value};
use thiserror::Error;
use tokio_util::sync::CancellationToken;

/// Where a call comes from.
#[derive(Clone, Debug)]
pub struct CallContext {
    /// The block's number, from 1.
    pub block: u64,
    /// The call's number within its block, from 0.
    pub index: u32,
    /// Cancelled when the block dies or its REPL is dropped: whoever serves the call stops working on it.
    pub cancel: CancellationToken,
}

/// Why a call raises in the guest.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{type_name}: {message}")]
pub struct CallError {
    /// A built-in exception's name, such as `ValueError`; `RuntimeError` where it is not one.
    pub type_name: String,
    /// The message.
    pub message: String,
}

impl CallError {
    /// A `RuntimeError`.
    pub fn runtime(message: impl Into<String>) -> Self {
        Self { type_name: "RuntimeError".to_owned(), message: message.into() }
    }
}

/// Serves the scaffold's and the author's functions: `llm_query`, `llm_query_batched`, `rlm_query`,
/// `rlm_query_batched` and every [`crate::Tool::Host`].
///
/// A call is awaited without holding a thread; thousands may be pending. The future is dropped when its block dies.
#[async_trait]
pub trait HostCalls: Send + Sync {
    /// Serves one call.
    async fn call(&self, call: HostCall, context: CallContext) -> Result<Value, CallError>;
}

/// Serves nothing: for REPLs without functions.
#[derive(Clone, Copy, Debug)]
pub struct NoHostCalls;

#[async_trait]
impl HostCalls for NoHostCalls {
    async fn call(&self, call: HostCall, _context: CallContext) -> Result<Value, CallError> {
        Err(CallError::runtime(format!("nothing serves `{}` here", call.function)))
    }
}
