//! One operation on a REPL, as it runs on the pool.
//!
//! An operation owns the live guest while it runs and gives it back at the end. If nobody awaits it any more it is
//! dropped, and the guest with it; the REPL then goes back to where it was through its [`WayBack`].

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use espalier_sandbox_protocol::{BlockEnd, Decode, Encode, ExecuteReply, ExecuteRequest, Reply, Request, abi};
use tokio::sync::mpsc::UnboundedSender;
use wasmtime::Trap;

use crate::instance::{Core, Halt, Live};
use crate::journal::{self, Entry, WayBack};
use crate::limits::Limits;
use crate::meter::Meter;
use crate::run::{Event, Interrupt, Link, Run};

/// Execution time that going back may take beyond what the requests took, nanoseconds.
const REPLAY_ALLOWANCE: u64 = 2_000_000_000;

/// Bytes of heap that must be left for the next block.
const ROOM: u64 = 256 << 10;

/// How an operation ended.
pub(crate) enum Ended {
    /// The guest answered.
    Replied(Vec<u8>),
    /// A checkpoint stands for the state.
    Checkpointed,
    /// The guest had to be stopped; the state went back.
    Stopped(Stop),
    /// The state cannot be reached any more.
    Lost(String),
}

/// Why a guest had to be stopped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// It did not unwind after a time limit.
    Time,
    /// It used too much memory.
    Memory,
    /// It trapped or broke the protocol.
    Fault(String),
}

/// What an operation leaves.
pub(crate) struct Finished {
    pub(crate) live: Option<Box<Live>>,
    pub(crate) ended: Ended,
    pub(crate) run: Run,
    /// Execution time.
    pub(crate) cpu: Duration,
    /// Memory growth was refused.
    pub(crate) refused: bool,
}

/// What is asked.
pub(crate) enum Task {
    /// Serve this request.
    Serve(Vec<u8>),
    /// Make a checkpoint stand for the state.
    Checkpoint,
}

/// One operation.
pub(crate) struct Job {
    pub(crate) core: Arc<Core>,
    pub(crate) live: Option<Box<Live>>,
    pub(crate) back: Arc<Mutex<WayBack>>,
    /// The way back's generation that this operation belongs to.
    pub(crate) generation: u64,
    pub(crate) task: Task,
    pub(crate) limits: Limits,
    /// Bytes of contexts, for the memory limit.
    pub(crate) context_bytes: u64,
    /// Bytes of the guest's heap at which it raises `MemoryError`.
    pub(crate) soft_memory: u64,
    pub(crate) meter: Arc<Meter>,
    pub(crate) gone: Arc<AtomicBool>,
    pub(crate) spent: Arc<AtomicU64>,
    pub(crate) deterministic: bool,
    /// A guest that had to be stopped.
    pub(crate) stopped: Option<Box<Live>>,
}

/// The way back, locked.
pub(crate) fn lock(back: &Mutex<WayBack>) -> MutexGuard<'_, WayBack> {
    back.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Bytes of linear memory that a REPL with these limits and contexts may use.
pub(crate) fn memory_limit(core: &Core, limits: &Limits, context_bytes: u64) -> usize {
    let extra = limits.memory_bytes.saturating_add(context_bytes.saturating_mul(3));
    (core.image.length() as u64).saturating_add(extra).min(u64::from(u32::MAX)) as usize
}

impl Job {
    /// Runs the operation and sends what it leaves.
    pub(crate) async fn run(mut self, events: UnboundedSender<Event<Box<Finished>>>) {
        let finished = self.perform(&events).await;
        let _ = events.send(Event::Done(Box::new(finished)));
        // Nobody waits while a stopped guest is taken apart, which takes long where it wrote much.
        self.stopped = None;
    }

    async fn perform(&mut self, events: &UnboundedSender<Event<Box<Finished>>>) -> Finished {
        let live = match self.live.take() {
            Some(live) => Ok(live),
            None => self.go_back().await,
        };
        let mut live = match live {
            Ok(live) => live,
            Err(reason) => {
                self.lose(&reason);
                return Finished {
                    live: None,
                    ended: Ended::Lost(reason),
                    run: Run::idle(),
                    cpu: Duration::ZERO,
                    refused: false,
                };
            }
        };
        match std::mem::replace(&mut self.task, Task::Checkpoint) {
            Task::Serve(request) => self.serve(live, request, events).await,
            Task::Checkpoint => {
                let unchanged = lock(&self.back).entries.is_empty();
                let ended = match if unchanged { Ok(()) } else { self.checkpoint(&mut live) } {
                    Ok(()) => Ended::Checkpointed,
                    Err(reason) => Ended::Lost(reason),
                };
                Finished { live: Some(live), ended, run: Run::idle(), cpu: Duration::ZERO, refused: false }
            }
        }
    }

    async fn serve(
        &mut self,
        mut live: Box<Live>,
        request: Vec<u8>,
        events: &UnboundedSender<Event<Box<Finished>>>,
    ) -> Finished {
        live.state().limiter.limit = memory_limit(&self.core, &self.limits, self.context_bytes);
        let run = Run::new(
            Arc::clone(&self.meter),
            &self.limits,
            Link::Live(Box::new(events.clone())),
            Arc::clone(&self.spent),
            Arc::clone(&self.gone),
            self.deterministic,
        );
        let served = live.serve(&request, run).await;
        let nanoseconds = live.state().run.used();
        let mut run = live.finish();
        let refused = live.state().limiter.refused;
        run.memory_seen |= refused;
        let cpu = Duration::from_nanos(nanoseconds);
        let probed = match &served {
            Ok(reply) => self.probe(&mut live, reply).await,
            Err(error) => Err(why(error, &run, refused)),
        };
        let ended = match (served, probed) {
            (Ok(reply), Ok(probe)) => match self.commit(&mut live, request, &reply, probe, &mut run, nanoseconds) {
                Ok(()) => {
                    return Finished { live: Some(live), ended: Ended::Replied(reply), run, cpu, refused };
                }
                Err(reason) => {
                    self.lose(&reason);
                    Ended::Lost(reason)
                }
            },
            (Err(error), Ok(_)) => Ended::Stopped(Stop::Fault(format!("{error:#}"))),
            (_, Err(stop)) => Ended::Stopped(stop),
        };
        self.stopped = Some(live);
        Finished { live: None, ended, run, cpu, refused }
    }

    /// Whether an empty block can follow one that answered `reply`, shown by running one where the heap is or was
    /// full: what is free may be in pieces that are too small. Answers what the way back must repeat.
    async fn probe(&self, live: &mut Live, reply: &[u8]) -> Result<Option<Entry>, Stop> {
        // Linear memory never shrinks, so this says cheaply that the heap never was full.
        if (live.size() as u64) < self.soft_memory {
            return Ok(None);
        }
        let Ok(Reply::Executed(reply)) = Reply::from_bytes(reply) else { return Ok(None) };
        if reply.heap_bytes.saturating_add(ROOM) > self.soft_memory {
            return Err(Stop::Memory);
        }
        let empty = ExecuteRequest { code: String::new(), block: 0, echo: false, max_host_calls: 0 };
        let request = Request::Execute(empty).to_bytes();
        let served = live.serve(&request, self.apart(&self.limits, Link::None)).await;
        let run = live.finish();
        match served.map(|reply| (Reply::from_bytes(&reply), journal::hash(&reply))) {
            Ok((Ok(Reply::Executed(ExecuteReply { end: BlockEnd::Completed, .. })), reply)) => {
                Ok(Some(Entry { request, record: run.record, reply, context_bytes: self.context_bytes }))
            }
            _ => Err(Stop::Memory),
        }
    }

    /// Bookkeeping of a request that nobody outside asked for.
    fn apart(&self, limits: &Limits, link: Link) -> Run {
        let (meter, spent, gone) = (Arc::clone(&self.meter), Arc::clone(&self.spent), Arc::clone(&self.gone));
        Run::new(meter, limits, link, spent, gone, self.deterministic)
    }

    /// The state cannot be reached any more, unless this operation was given up: then it may only have been stopped.
    fn lose(&self, reason: &str) {
        let mut back = lock(&self.back);
        if back.generation == self.generation && !self.gone.load(Ordering::Acquire) {
            back.lost = Some(reason.to_owned());
        }
    }

    /// Makes what was served part of the way back.
    fn commit(
        &self,
        live: &mut Live,
        request: Vec<u8>,
        reply: &[u8],
        probe: Option<Entry>,
        run: &mut Run,
        nanoseconds: u64,
    ) -> Result<(), String> {
        let mut back = lock(&self.back);
        if back.generation != self.generation {
            return Ok(());
        }
        let uncertain = run.interrupt.is_some() || run.memory_seen || run.record.overflowed();
        if uncertain || back.is_full(request.len(), nanoseconds) {
            drop(back);
            return self.checkpoint(live);
        }
        let record = std::mem::take(&mut run.record);
        let entry = Entry { request, record, reply: journal::hash(reply), context_bytes: self.context_bytes };
        back.push(entry, nanoseconds);
        if let Some(probe) = probe {
            back.push(probe, 0);
        }
        Ok(())
    }

    fn checkpoint(&self, live: &mut Live) -> Result<(), String> {
        let mut back = lock(&self.back);
        if back.generation != self.generation {
            return Ok(());
        }
        let sole = Arc::strong_count(&back.checkpoint) == 1;
        let checkpoint =
            live.checkpoint(&back.checkpoint, sole).map_err(|error| format!("taking a checkpoint failed: {error}"));
        let checkpoint = match checkpoint {
            Ok(checkpoint) => checkpoint,
            Err(reason) => {
                back.lost = Some(reason.clone());
                return Err(reason);
            }
        };
        let host = live.state().host.clone();
        back.replace(checkpoint, host);
        Ok(())
    }

    /// A guest in the state that the way back leads to.
    async fn go_back(&self) -> Result<Box<Live>, String> {
        let (checkpoint, host, entries, allowed) = {
            let back = lock(&self.back);
            if let Some(reason) = &back.lost {
                return Err(reason.clone());
            }
            let allowed = back.nanoseconds.saturating_mul(20).saturating_add(REPLAY_ALLOWANCE);
            (Arc::clone(&back.checkpoint), back.host.clone(), back.entries.clone(), allowed)
        };
        let limit = memory_limit(&self.core, &self.limits, self.context_bytes);
        let failed = |error: &dyn std::fmt::Display| format!("going back failed: {error}");
        let mut live =
            Box::new(Live::open(&self.core, &checkpoint, host, limit).map_err(|error| failed(&format!("{error:#}")))?);
        // The allowance is for all of them together; the meter is this operation's own.
        let budget = Limits { block: Duration::from_nanos(allowed), grace: Duration::ZERO, ..self.limits.clone() };
        for entry in entries {
            live.state().limiter.limit = memory_limit(&self.core, &self.limits, entry.context_bytes);
            let link = Link::Replay { entry: Arc::clone(&entry), replies: 0, clocks: 0 };
            let reply = live
                .serve(&entry.request, self.apart(&budget, link))
                .await
                .map_err(|error| failed(&format!("{error:#}")))?;
            live.finish();
            if journal::hash(&reply) != entry.reply {
                return Err(failed(&"a request had another answer the second time"));
            }
        }
        Ok(live)
    }
}

/// Why a guest stopped, from what it said, what the host did and the trap.
fn why(error: &wasmtime::Error, run: &Run, refused: bool) -> Stop {
    if let Some(halt) = error.downcast_ref::<Halt>() {
        return match halt {
            Halt::Time => Stop::Time,
            halt => Stop::Fault(halt.to_string()),
        };
    }
    match &run.abort {
        Some((abi::ABORT_MEMORY, _)) => Stop::Memory,
        Some((_, text)) if !text.is_empty() => Stop::Fault(format!("the interpreter gave up: {text}")),
        _ if refused || run.memory_seen => Stop::Memory,
        _ => match error.downcast_ref::<Trap>() {
            Some(Trap::StackOverflow) => Stop::Fault("the interpreter's stack overflowed".to_owned()),
            Some(trap) => Stop::Fault(format!("the interpreter trapped: {trap}")),
            None => Stop::Fault(format!("{error:#}")),
        },
    }
}

impl Stop {
    /// In words for people.
    pub(crate) fn reason(&self, limits: &Limits, interrupt: Option<Interrupt>) -> String {
        match self {
            Self::Time => {
                let (what, limit) = match interrupt {
                    Some(Interrupt::Wait) => ("waiting time", limits.waiting),
                    _ => ("execution time", limits.block),
                };
                format!("it did not stop within {:?} after its {what} of {limit:?} was over", limits.grace)
            }
            Self::Memory => format!("it used more than its {} bytes of memory", limits.memory_bytes),
            Self::Fault(reason) => reason.clone(),
        }
    }
}
