//! How many jobs run at once, and which user and cgroup each has.

use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Numbered places for jobs.
#[derive(Clone, Debug)]
pub(crate) struct Slots {
    semaphore: Arc<Semaphore>,
    free: Arc<Mutex<Vec<usize>>>,
}

/// A place that a job has until all of it is dead.
#[derive(Debug)]
pub(crate) struct Slot {
    index: usize,
    free: Arc<Mutex<Vec<usize>>>,
    _permit: OwnedSemaphorePermit,
}

impl Slots {
    pub(crate) fn new(count: usize) -> Self {
        let free = (0..count).rev().collect();
        Self { semaphore: Arc::new(Semaphore::new(count)), free: Arc::new(Mutex::new(free)) }
    }

    /// Waits for a place, first come, first served.
    pub(crate) async fn take(&self) -> Option<Slot> {
        let permit = Arc::clone(&self.semaphore).acquire_owned().await.ok()?;
        self.place(permit)
    }

    /// A place that is free now.
    pub(crate) fn take_now(&self) -> Option<Slot> {
        let permit = Arc::clone(&self.semaphore).try_acquire_owned().ok()?;
        self.place(permit)
    }

    fn place(&self, permit: OwnedSemaphorePermit) -> Option<Slot> {
        let index = self.free.lock().unwrap_or_else(PoisonError::into_inner).pop()?;
        Some(Slot { index, free: Arc::clone(&self.free), _permit: permit })
    }
}

impl Slot {
    pub(crate) fn index(&self) -> usize {
        self.index
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        // Before the permit goes, so that whoever gets it finds a place.
        self.free.lock().unwrap_or_else(PoisonError::into_inner).push(self.index);
    }
}
