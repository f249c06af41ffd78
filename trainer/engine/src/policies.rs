//! Which adapters requests can name, and the way to the engine's thread.
//!
//! Names are resolved here and sent in the same breath, under one lock: so a request never reaches the thread behind the
//! removal of its adapter, and one that is sent after an update is answered by the new weights.
//!
//! Versions count the changes of a policy's weights: the base model as it was loaded is version 0; an adapter begins at 1,
//! or above every version of the adapters that were removed before, so that a name never has the same version twice.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError, mpsc};

use crate::adapters::{AdapterError, PackedAdapter};
use crate::error::ModelError;
use crate::models::update::BaseChange;
use crate::worker::{BASE, Message, Submission};

/// An adapter that requests can name.
struct Named {
    /// Its number in the worker; never used again.
    policy: u64,
    version: u64,
}

struct Inner {
    /// Nothing when the engine is being dropped.
    queue: Option<mpsc::Sender<Message>>,
    base: u64,
    named: BTreeMap<String, Named>,
    next_policy: u64,
    /// The highest version of an adapter that was removed.
    removed: u64,
}

/// The adapters of an engine, and its queue.
pub(crate) struct Policies(Mutex<Inner>);

impl Policies {
    pub(crate) fn new(queue: mpsc::Sender<Message>) -> Self {
        let named = BTreeMap::new();
        Self(Mutex::new(Inner { queue: Some(queue), base: 0, named, next_policy: BASE + 1, removed: 0 }))
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a request to the base model or to an adapter.
    pub(crate) fn submit(
        &self,
        adapter: Option<&str>,
        request: impl FnOnce(u64) -> Submission,
    ) -> Result<(), AdapterError> {
        let inner = self.lock();
        let policy = match adapter {
            None => BASE,
            Some(name) => inner.find(name)?.policy,
        };
        inner.send(Message::Request(request(policy)))
    }

    pub(crate) fn load(&self, name: &str, weights: PackedAdapter) -> Result<u64, AdapterError> {
        let (version, wait) = {
            let mut inner = self.lock();
            if inner.named.contains_key(name) {
                return Err(AdapterError::Exists { name: name.to_owned() });
            }
            let (policy, version) = (inner.next_policy, inner.removed + 1);
            let (applied, wait) = mpsc::channel();
            inner.send(Message::Adapter { policy, version, weights, applied })?;
            inner.next_policy += 1;
            inner.named.insert(name.to_owned(), Named { policy, version });
            (version, wait)
        };
        wait.recv().map_err(|_| AdapterError::Ended)?;
        Ok(version)
    }

    pub(crate) fn update(&self, name: &str, weights: PackedAdapter) -> Result<u64, AdapterError> {
        let (version, wait) = {
            let mut inner = self.lock();
            let named = inner.find(name)?;
            let (policy, version) = (named.policy, named.version + 1);
            let (applied, wait) = mpsc::channel();
            inner.send(Message::Adapter { policy, version, weights, applied })?;
            inner.named.insert(name.to_owned(), Named { policy, version });
            (version, wait)
        };
        wait.recv().map_err(|_| AdapterError::Ended)?;
        Ok(version)
    }

    pub(crate) fn remove(&self, name: &str) -> Result<(), AdapterError> {
        let mut inner = self.lock();
        let (policy, version) = inner.find(name).map(|named| (named.policy, named.version))?;
        inner.send(Message::Remove { policy })?;
        inner.named.remove(name);
        inner.removed = inner.removed.max(version);
        Ok(())
    }

    pub(crate) fn change_base(&self, change: BaseChange) -> Result<u64, ModelError> {
        let ended = || ModelError::Thread("it has ended".to_owned());
        let (version, wait) = {
            let mut inner = self.lock();
            let (applied, wait) = mpsc::channel();
            inner.send(Message::Base { change, applied }).map_err(|_| ended())?;
            // As the worker counts.
            inner.base += 1;
            inner.removed += 1;
            inner.named.values_mut().for_each(|named| named.version += 1);
            (inner.base, wait)
        };
        wait.recv().map_err(|_| ended())??;
        Ok(version)
    }

    pub(crate) fn adapters(&self) -> Vec<(String, u64)> {
        self.lock().named.iter().map(|(name, named)| (name.clone(), named.version)).collect()
    }

    /// Sends nothing any more.
    pub(crate) fn close(&self) {
        self.lock().queue = None;
    }
}

impl Inner {
    fn find(&self, name: &str) -> Result<&Named, AdapterError> {
        let known = || self.named.keys().cloned().collect();
        self.named.get(name).ok_or_else(|| AdapterError::Unknown { name: name.to_owned(), known: known() })
    }

    fn send(&self, message: Message) -> Result<(), AdapterError> {
        self.queue.as_ref().and_then(|queue| queue.send(message).ok()).ok_or(AdapterError::Ended)
    }
}
