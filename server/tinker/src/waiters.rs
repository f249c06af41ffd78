//! Who waits for which request, inside this process.
//!
//! Whoever waits registers first and looks at the database then, so that no end falls between the two.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

/// Everybody who waits, by what for: a request's name, or a sampler's.
#[derive(Clone, Debug, Default)]
pub(crate) struct Waiters(Arc<Mutex<HashMap<String, watch::Sender<()>>>>);

/// One who waits.
#[derive(Debug)]
pub(crate) struct Waiter {
    all: Waiters,
    key: String,
    ended: Option<watch::Receiver<()>>,
}

impl Waiters {
    fn all(&self) -> MutexGuard<'_, HashMap<String, watch::Sender<()>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on nothing that ends under this name is missed.
    pub(crate) fn register(&self, key: &str) -> Waiter {
        let ended = self.all().entry(key.to_owned()).or_insert_with(|| watch::Sender::new(())).subscribe();
        Waiter { all: self.clone(), key: key.to_owned(), ended: Some(ended) }
    }

    /// Wakes all who wait under this name.
    pub(crate) fn wake(&self, key: &str) {
        if let Some(waiting) = self.all().get(key) {
            waiting.send_replace(());
        }
    }
}

impl Waiter {
    /// Something ended since this was called last, or since this one registered.
    pub(crate) async fn woken(&mut self) {
        if let Some(ended) = &mut self.ended
            && ended.changed().await.is_ok()
        {
            return;
        }
        // Nothing can wake this one any more; whoever waits has a deadline.
        std::future::pending::<()>().await;
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        let mut all = self.all.all();
        self.ended = None;
        if all.get(&self.key).is_some_and(|waiting| waiting.receiver_count() == 0) {
            all.remove(&self.key);
        }
    }
}
