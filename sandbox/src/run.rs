//! What belongs to one request while the guest serves it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use espalier_sandbox_protocol::{HostCall, HostReply};
use tokio::sync::{mpsc, oneshot};

use crate::instance::Halt;
use crate::journal::{Entry, Record};
use crate::limits::Limits;
use crate::meter::Meter;
use crate::output::Capture;

/// Largest message between host and guest that any limits allow, contexts apart, bytes.
const MAX_MESSAGE_BYTES: usize = 1 << 30;

/// What the guest's side asks of the side that awaits the request.
pub(crate) enum Event<Done> {
    /// A host call.
    Call {
        /// The call.
        call: HostCall,
        /// Its number within the request, from 0.
        index: u32,
        /// Where the answer goes.
        answer: oneshot::Sender<Answer>,
    },
    /// Sleep.
    Sleep {
        /// How long.
        duration: Duration,
        /// Where the answer goes; its reply is not looked at.
        answer: oneshot::Sender<Answer>,
    },
    /// The request is over.
    Done(Done),
}

/// Answer to a call or sleep.
pub(crate) struct Answer {
    /// What the guest gets.
    pub(crate) reply: HostReply,
    /// How long it took.
    pub(crate) waited: Duration,
    /// The waiting time is over.
    pub(crate) over: bool,
}

/// Sends events of one kind whatever is sent at the end.
pub(crate) trait Ask: Send + Sync {
    /// Sends a call.
    fn call(&self, call: HostCall, index: u32, answer: oneshot::Sender<Answer>);
    /// Sends a sleep.
    fn sleep(&self, duration: Duration, answer: oneshot::Sender<Answer>);
}

impl<Done: Send> Ask for mpsc::UnboundedSender<Event<Done>> {
    // A closed channel drops `answer`, which the guest's side sees.
    fn call(&self, call: HostCall, index: u32, answer: oneshot::Sender<Answer>) {
        let _ = self.send(Event::Call { call, index, answer });
    }

    fn sleep(&self, duration: Duration, answer: oneshot::Sender<Answer>) {
        let _ = self.send(Event::Sleep { duration, answer });
    }
}

/// Where what the guest asks for comes from.
pub(crate) enum Link {
    /// Nothing may be asked.
    None,
    /// The awaiting side.
    Live(Box<dyn Ask>),
    /// What was recorded.
    Replay {
        /// The recorded request.
        entry: Arc<Entry>,
        /// Replies taken so far.
        replies: usize,
        /// Clock readings taken so far.
        clocks: usize,
    },
}

/// What the host did to stop a block that may still unwind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Interrupt {
    /// Its execution time is over.
    Time,
    /// Its waiting time is over.
    Wait,
}

/// One request's bookkeeping.
pub(crate) struct Run {
    pub(crate) meter: Arc<Meter>,
    /// The meter's reading when the request began.
    started: u64,
    /// Execution time at which the block is interrupted, nanoseconds.
    pub(crate) soft: u64,
    /// Time it then has to unwind, nanoseconds.
    pub(crate) grace: u64,
    /// Execution time at which it is killed, nanoseconds.
    pub(crate) hard: u64,
    pub(crate) link: Link,
    pub(crate) stdout: Capture,
    pub(crate) stderr: Capture,
    pub(crate) record: Record,
    pub(crate) interrupt: Option<Interrupt>,
    pub(crate) abort: Option<(i32, String)>,
    /// The reply that the guest has not taken yet.
    pub(crate) pending: Option<Arc<[u8]>>,
    /// Host calls made.
    pub(crate) calls: u32,
    pub(crate) max_calls: u32,
    /// Host calls made in the REPL's life, and how many may be.
    pub(crate) spent: Arc<AtomicU64>,
    pub(crate) max_spent: u64,
    pub(crate) waited: Duration,
    /// Largest encoded call and reply, bytes.
    pub(crate) max_call_bytes: usize,
    pub(crate) max_reply_bytes: usize,
    /// A virtual clock.
    pub(crate) deterministic: bool,
    /// Nobody awaits the request any more.
    pub(crate) gone: Arc<AtomicBool>,
    /// The guest was seen with its memory interrupt raised.
    pub(crate) memory_seen: bool,
}

/// Nanoseconds of a duration; centuries saturate.
pub(crate) fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

impl Run {
    /// Bookkeeping of a guest that serves nothing.
    pub(crate) fn idle() -> Self {
        Self::new(Arc::default(), &Limits::default(), Link::None, Arc::default(), Arc::default(), false)
    }

    /// Bookkeeping of a request under `limits`.
    pub(crate) fn new(
        meter: Arc<Meter>,
        limits: &Limits,
        link: Link,
        spent: Arc<AtomicU64>,
        gone: Arc<AtomicBool>,
        deterministic: bool,
    ) -> Self {
        let soft = nanoseconds(limits.block);
        let grace = nanoseconds(limits.grace);
        Self {
            started: 0,
            meter,
            soft,
            grace,
            hard: soft.saturating_add(grace),
            link,
            stdout: Capture::new(limits.output_bytes),
            stderr: Capture::new(limits.output_bytes),
            record: Record::default(),
            interrupt: None,
            abort: None,
            pending: None,
            calls: 0,
            max_calls: limits.calls_per_block,
            spent,
            max_spent: limits.calls_total,
            waited: Duration::ZERO,
            max_call_bytes: limits.value_bytes.saturating_mul(2).saturating_add(1 << 16).min(MAX_MESSAGE_BYTES),
            max_reply_bytes: limits.value_bytes.saturating_mul(4).saturating_add(4 << 20).min(MAX_MESSAGE_BYTES),
            deterministic,
            gone,
            memory_seen: false,
        }
    }

    /// The guest begins, on this thread.
    pub(crate) fn begin(&mut self) {
        self.started = self.meter.used();
    }

    /// Execution time so far, nanoseconds. Only the thread that runs the guest may ask.
    pub(crate) fn used(&self) -> u64 {
        self.meter.used().saturating_sub(self.started)
    }

    /// Whether nobody awaits the request any more.
    pub(crate) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Acquire)
    }

    /// The guest must unwind within the grace from now on.
    pub(crate) fn interrupt(&mut self, why: Interrupt) {
        if self.interrupt.is_none() {
            self.interrupt = Some(why);
            self.hard = self.hard.min(self.used().saturating_add(self.grace));
            self.soft = u64::MAX;
        }
    }

    /// While replaying: the next recorded reply. `None` when live.
    pub(crate) fn replayed_reply(&mut self) -> Option<Result<Arc<[u8]>, Halt>> {
        let Link::Replay { entry, replies, .. } = &mut self.link else { return None };
        let reply = entry.record.replies.get(*replies).cloned();
        *replies += 1;
        Some(reply.ok_or(Halt::Diverged("it asks for a reply that it did not ask for before")))
    }

    /// While replaying: the next recorded clock reading. `None` when live.
    pub(crate) fn replayed_clock(&mut self) -> Option<Result<i64, Halt>> {
        let Link::Replay { entry, clocks, .. } = &mut self.link else { return None };
        let reading = entry.record.clocks.get(*clocks).copied();
        *clocks += 1;
        Some(reading.ok_or(Halt::Diverged("it reads a clock that it did not read before")))
    }

    /// Whether this is a replay.
    pub(crate) fn is_replay(&self) -> bool {
        matches!(self.link, Link::Replay { .. })
    }
}
