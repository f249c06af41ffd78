//! One operation on a REPL, as seen by who awaits it.
//!
//! The guest runs on the pool; its host calls are served right here, on the caller's runtime. So dropping the
//! caller's future drops a pending call with it, and whatever the guest does meanwhile is given up.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Poll, Waker};
use std::time::Duration;

use espalier_sandbox_protocol::{HostCall, HostReply};
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use crate::instance::Live;
use crate::job::{Ended, Finished, Job, Task, lock};
use crate::journal::WayBack;
use crate::meter::Meter;
use crate::run::{Answer, Event};
use crate::{CallContext, HostCalls, Limits, Sandbox, SandboxError, names};

/// One operation.
pub(crate) struct Operation<'a> {
    pub(crate) sandbox: &'a Sandbox,
    pub(crate) host: &'a dyn HostCalls,
    pub(crate) back: &'a Arc<Mutex<WayBack>>,
    pub(crate) spent: &'a Arc<AtomicU64>,
    pub(crate) block: u64,
    pub(crate) context_bytes: u64,
    pub(crate) soft_memory: u64,
    pub(crate) deterministic: bool,
    pub(crate) limits: Limits,
}

/// Gives an operation up when it is dropped before its end.
struct Guard<'a> {
    gone: Arc<AtomicBool>,
    cancel: CancellationToken,
    back: &'a Mutex<WayBack>,
    waker: Option<Waker>,
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        if let Some(waker) = self.waker.take() {
            self.gone.store(true, Ordering::Release);
            let mut back = lock(self.back);
            back.generation = back.generation.wrapping_add(1);
            drop(back);
            self.cancel.cancel();
            // It may be waiting for an answer that nobody will give.
            waker.wake();
        }
    }
}

impl Operation<'_> {
    /// Performs `task` on `live`, or on the guest that the way back leads to.
    pub(crate) async fn perform(self, live: Option<Box<Live>>, task: Task) -> Result<Box<Finished>, SandboxError> {
        let (events, mut inbox) = mpsc::unbounded_channel();
        let gone = Arc::new(AtomicBool::new(false));
        let cancel = CancellationToken::new();
        let meter = Arc::new(Meter::default());
        let job = Job {
            core: Arc::clone(&self.sandbox.inner.core),
            live,
            back: Arc::clone(self.back),
            generation: lock(self.back).generation,
            task,
            limits: self.limits.clone(),
            context_bytes: self.context_bytes,
            soft_memory: self.soft_memory,
            meter: Arc::clone(&meter),
            gone: Arc::clone(&gone),
            spent: Arc::clone(self.spent),
            deterministic: self.deterministic,
            stopped: None,
        };
        let mut job = Box::pin(job.run(events));
        let given_up = Arc::clone(&gone);
        let job = std::future::poll_fn(move |context| {
            if given_up.load(Ordering::Acquire) { Poll::Ready(()) } else { job.as_mut().poll(context) }
        });
        let waker = self.sandbox.inner.pool.spawn(meter, job);
        let mut guard = Guard { gone, cancel, back: self.back, waker: Some(waker) };
        let mut waited = Duration::ZERO;
        loop {
            match inbox.recv().await {
                Some(Event::Call { call, index, answer }) => {
                    let left = self.limits.waiting.saturating_sub(waited);
                    let served = self.serve(call, index, left, &guard.cancel).await;
                    waited = waited.saturating_add(served.waited);
                    let _ = answer.send(served);
                }
                Some(Event::Sleep { duration, answer }) => {
                    let left = self.limits.waiting.saturating_sub(waited);
                    let slept = sleep(duration, left).await;
                    waited = waited.saturating_add(slept.waited);
                    let _ = answer.send(slept);
                }
                Some(Event::Done(finished)) => {
                    guard.waker = None;
                    if matches!(finished.ended, Ended::Stopped(_) | Ended::Lost(_)) {
                        guard.cancel.cancel();
                    }
                    return Ok(finished);
                }
                // The guard gives up what is left; the next operation starts from the state before.
                None => return Err(SandboxError::Guest("a thread of the sandbox failed".to_owned())),
            }
        }
    }

    async fn serve(&self, call: HostCall, index: u32, left: Duration, cancel: &CancellationToken) -> Answer {
        let started = Instant::now();
        let token = cancel.child_token();
        let context = CallContext { block: self.block, index, cancel: token.clone() };
        let name = call.function.clone();
        let served = timeout(left, self.host.call(call, context)).await;
        let waited = started.elapsed();
        match served {
            Ok(Ok(value)) => Answer { reply: HostReply::Return(value), waited, over: false },
            Ok(Err(error)) => {
                let (type_name, message) = names::raised(error);
                let reply = HostReply::Raise { type_name, message };
                Answer { reply, waited, over: false }
            }
            Err(_) => {
                token.cancel();
                let message = format!("`{name}` had no answer within the waiting time of {:?}", self.limits.waiting);
                let reply = HostReply::Raise { type_name: "TimeoutError".to_owned(), message };
                Answer { reply, waited, over: true }
            }
        }
    }
}

async fn sleep(duration: Duration, left: Duration) -> Answer {
    let started = Instant::now();
    tokio::time::sleep(duration.min(left)).await;
    let reply = HostReply::Return(espalier_sandbox_protocol::Value::None);
    Answer { reply, waited: started.elapsed(), over: duration > left }
}
