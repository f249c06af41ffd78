//! Threads on which guests run, apart from the threads that serve IO.
//!
//! A task is a future that runs in slices: it gives its thread back after a few milliseconds of guest code (the epoch
//! callback yields) or when it waits. New and short tasks go first; a task that used many slices falls back behind
//! those that used few, by a distance that is bounded, so it is never starved.
//!
//! A thread that has nothing to run looks after guests that rest: what they do not need is given back.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Wake, Waker};
use std::thread;
use std::time::{Duration, Instant};

use crate::instance::SLICE;
use crate::memory::Mapping;
use crate::meter::Meter;
use crate::ticker::Ticker;

/// Slices' worth of processor time that a task may use before it counts as a hog.
const SHORT_SLICES: u64 = 2;
/// Every so many picks, a hog goes before the short ones.
const HOG_TURN: u32 = 8;

/// How long a guest rests before its memory is looked at: longer than most answers of a model take, since the next
/// block pays for it with faults.
const PAUSE: Duration = Duration::from_secs(5);

type BoxedFuture = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The threads.
pub(crate) struct Pool {
    shared: Arc<Shared>,
    threads: Vec<thread::JoinHandle<()>>,
}

struct Shared {
    queues: Mutex<Queues>,
    wake: Condvar,
    ticker: Ticker,
}

#[derive(Default)]
struct Queues {
    short: VecDeque<Arc<Task>>,
    hogs: BinaryHeap<Reverse<Queued>>,
    /// Counts everything that was queued.
    sequence: u64,
    picks: u32,
    stop: bool,
    /// Memories of guests that rest, by when they are to be looked at.
    parked: VecDeque<(Instant, Weak<Mapping>)>,
}

struct Queued {
    key: u64,
    sequence: u64,
    task: Arc<Task>,
}

impl PartialEq for Queued {
    fn eq(&self, other: &Self) -> bool {
        (self.key, self.sequence) == (other.key, other.sequence)
    }
}
impl Eq for Queued {}
impl PartialOrd for Queued {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Queued {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.key, self.sequence).cmp(&(other.key, other.sequence))
    }
}

const IDLE: u8 = 0;
const QUEUED: u8 = 1;
const RUNNING: u8 = 2;
/// Woken while it runs: queue it again afterwards.
const WOKEN: u8 = 3;

struct Task {
    future: Mutex<Option<BoxedFuture>>,
    state: AtomicU8,
    meter: Arc<Meter>,
    shared: Arc<Shared>,
}

impl Wake for Task {
    fn wake(self: Arc<Self>) {
        let woken = self.state.fetch_update(Ordering::AcqRel, Ordering::Acquire, |state| match state {
            IDLE => Some(QUEUED),
            RUNNING => Some(WOKEN),
            _ => None,
        });
        if woken == Ok(IDLE) {
            let shared = Arc::clone(&self.shared);
            shared.push(self);
        }
    }
}

impl Shared {
    fn queues(&self) -> MutexGuard<'_, Queues> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, task: Arc<Task>) {
        let slices = task.meter.total() / SLICE;
        let mut queues = self.queues();
        queues.sequence += 1;
        let sequence = queues.sequence;
        if slices < SHORT_SLICES {
            queues.short.push_back(task);
        } else {
            // Eight places per doubling of the slices used.
            let key = sequence + 8 * u64::from(slices.ilog2());
            queues.hogs.push(Reverse(Queued { key, sequence, task }));
        }
        drop(queues);
        self.wake.notify_one();
    }

    fn next(&self) -> Option<Arc<Task>> {
        let mut queues = self.queues();
        loop {
            if queues.stop {
                return None;
            }
            queues.picks = queues.picks.wrapping_add(1);
            let hog_first = queues.picks.is_multiple_of(HOG_TURN);
            if hog_first && let Some(Reverse(hog)) = queues.hogs.pop() {
                return Some(hog.task);
            }
            if let Some(task) = queues.short.pop_front() {
                return Some(task);
            }
            if let Some(Reverse(hog)) = queues.hogs.pop() {
                return Some(hog.task);
            }
            let now = Instant::now();
            let left = queues.parked.front().map(|(due, _)| due.saturating_duration_since(now));
            queues = match left {
                None => self.wake.wait(queues).unwrap_or_else(PoisonError::into_inner),
                Some(Duration::ZERO) => {
                    let resting = queues.parked.pop_front();
                    drop(queues);
                    let resting = resting.and_then(|(_, mapping)| mapping.upgrade());
                    let again = resting.and_then(|mapping| Some((mapping.rest(PAUSE)?, Arc::downgrade(&mapping))));
                    let mut queues = self.queues();
                    // A little out of order matters to nobody.
                    queues.parked.extend(again);
                    queues
                }
                Some(left) => self.wake.wait_timeout(queues, left).unwrap_or_else(PoisonError::into_inner).0,
            };
        }
    }

    fn run(self: &Arc<Self>) {
        while let Some(task) = self.next() {
            self.slice(task);
        }
    }

    fn slice(&self, task: Arc<Task>) {
        task.state.store(RUNNING, Ordering::Release);
        let waker = Waker::from(Arc::clone(&task));
        let mut slot = task.future.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(mut future) = slot.take() else { return };
        self.ticker.enter();
        task.meter.begin();
        let polled = catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(&mut Context::from_waker(&waker))));
        task.meter.end();
        self.ticker.leave();
        match polled {
            Ok(std::task::Poll::Pending) => {
                *slot = Some(future);
                drop(slot);
                let idle = task.state.compare_exchange(RUNNING, IDLE, Ordering::AcqRel, Ordering::Acquire).is_ok();
                if !idle {
                    task.state.store(QUEUED, Ordering::Release);
                    self.push(task);
                }
            }
            // Whoever waits for the task sees its channel close.
            Ok(std::task::Poll::Ready(())) => drop(catch_unwind(AssertUnwindSafe(|| drop(future)))),
            Err(_) => {
                tracing::error!("a sandbox task panicked");
                drop(catch_unwind(AssertUnwindSafe(|| drop(future))));
            }
        }
    }
}

impl Pool {
    /// `count` threads.
    pub(crate) fn new(count: usize, ticker: Ticker) -> std::io::Result<Self> {
        let shared = Arc::new(Shared { queues: Mutex::default(), wake: Condvar::new(), ticker });
        let mut pool = Self { shared, threads: Vec::new() };
        for index in 0..count.max(1) {
            let shared = Arc::clone(&pool.shared);
            let thread = thread::Builder::new().name(format!("espalier-{index}")).spawn(move || shared.run())?;
            pool.threads.push(thread);
        }
        Ok(pool)
    }

    /// Looks at `resting` when it has rested for a while and a thread has nothing to run.
    pub(crate) fn park(&self, resting: Weak<Mapping>) {
        let mut queues = self.shared.queues();
        // Threads that are always busy look at nothing: what was dropped meanwhile goes here, faster than it comes.
        for _ in 0..2 {
            queues.parked.pop_front_if(|(_, first)| first.strong_count() == 0);
        }
        queues.parked.push_back((Instant::now() + PAUSE, resting));
        if queues.parked.len() == 1 {
            // The threads may wait without an end.
            self.shared.wake.notify_one();
        }
    }

    /// Runs `future`, whose processor time `meter` counts. The answer wakes it from outside.
    pub(crate) fn spawn(&self, meter: Arc<Meter>, future: impl Future<Output = ()> + Send + 'static) -> Waker {
        let task = Arc::new(Task {
            future: Mutex::new(Some(Box::pin(future))),
            state: AtomicU8::new(QUEUED),
            meter,
            shared: Arc::clone(&self.shared),
        });
        let waker = Waker::from(Arc::clone(&task));
        self.shared.push(task);
        waker
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        let mut queues = self.shared.queues();
        queues.stop = true;
        let left = (std::mem::take(&mut queues.short), std::mem::take(&mut queues.hogs));
        drop(queues);
        drop(left);
        self.shared.wake.notify_all();
        let own = thread::current().id();
        for thread in self.threads.drain(..).filter(|thread| thread.thread().id() != own) {
            let _ = thread.join();
        }
    }
}
