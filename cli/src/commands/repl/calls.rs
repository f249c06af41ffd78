//! Host calls put to the driver.

use async_trait::async_trait;
use espalier_sandbox::{CallContext, CallError, HostCalls, Value};
use espalier_sandbox_protocol::HostCall;
use tokio::sync::{mpsc, oneshot};

/// A call that waits for the driver's answer.
#[derive(Debug)]
pub(super) struct PendingCall {
    /// What is called.
    pub(super) call: HostCall,
    /// Block and index.
    pub(super) context: CallContext,
    /// Where the answer goes.
    pub(super) answer: oneshot::Sender<Result<Value, CallError>>,
}

/// Hands every call to whoever holds the other end.
#[derive(Debug)]
pub(super) struct DriverCalls {
    pending: mpsc::UnboundedSender<PendingCall>,
}

/// The two ends. Bounded by construction: a REPL runs one block at a time, and a block waits for its call.
pub(super) fn channel() -> (DriverCalls, mpsc::UnboundedReceiver<PendingCall>) {
    let (pending, calls) = mpsc::unbounded_channel();
    (DriverCalls { pending }, calls)
}

#[async_trait]
impl HostCalls for DriverCalls {
    async fn call(&self, call: HostCall, context: CallContext) -> Result<Value, CallError> {
        let (answer, answered) = oneshot::channel();
        let gone = || CallError::runtime("the driver of this REPL is gone");
        self.pending.send(PendingCall { call, context, answer }).map_err(|_| gone())?;
        answered.await.map_err(|_| gone())?
    }
}
