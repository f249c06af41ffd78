//! Execution time: processor time of the slices in which a guest ran, whatever else the machine did meanwhile.

use std::sync::atomic::{AtomicU64, Ordering};

use nix::time::{ClockId, clock_gettime};

/// Processor time of one task, over all threads that ran it.
#[derive(Debug, Default)]
pub(crate) struct Meter {
    used: AtomicU64,
    slice_started: AtomicU64,
}

impl Meter {
    /// A slice begins on this thread.
    pub(crate) fn begin(&self) {
        self.slice_started.store(thread_nanoseconds(), Ordering::Relaxed);
    }

    /// The slice that [`Self::begin`] began ends on this thread.
    pub(crate) fn end(&self) {
        self.used.fetch_add(self.slice(), Ordering::Relaxed);
        self.slice_started.store(thread_nanoseconds(), Ordering::Relaxed);
    }

    /// Nanoseconds of the slices that ended.
    pub(crate) fn total(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// Nanoseconds of the running slice. Only the thread that runs it may ask.
    pub(crate) fn slice(&self) -> u64 {
        thread_nanoseconds().saturating_sub(self.slice_started.load(Ordering::Relaxed))
    }

    /// Nanoseconds in all, the running slice included. Only the thread that runs it may ask.
    pub(crate) fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed) + self.slice()
    }
}

fn thread_nanoseconds() -> u64 {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID)
        .map_or(0, |time| time.tv_sec() as u64 * 1_000_000_000 + time.tv_nsec() as u64)
}
