//! Who writes, reads and removes which checkpoint.
//!
//! A checkpoint is written or removed by one at a time: what removes one that is just being written over would take the new
//! files with it. Whether an operation may touch a checkpoint is looked at here, before the engine is asked.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use crate::backend::{Backend, OperationError};
use crate::operation::Operation;
use crate::path::{CheckpointKind, TinkerPath};
use crate::store::checkpoints::{Change, Checkpoint};
use crate::store::{Store, StoreError, now};

/// Held by the one who writes or removes a checkpoint.
pub(crate) type Hold = tokio::sync::OwnedMutexGuard<()>;

/// All checkpoints.
pub(crate) struct Shelf {
    store: Store,
    backend: Arc<dyn Backend>,
    held: Mutex<HashMap<TinkerPath, Weak<tokio::sync::Mutex<()>>>>,
}

/// What became of a removal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Removal {
    /// It is there for nobody any more.
    Done,
    /// It is being written, or removed.
    Busy,
    /// There is none, for this owner.
    Unknown,
}

impl Shelf {
    pub(crate) fn new(store: Store, backend: Arc<dyn Backend>) -> Arc<Self> {
        Arc::new(Self { store, backend, held: Mutex::default() })
    }

    fn lock(&self, path: &TinkerPath) -> Arc<tokio::sync::Mutex<()>> {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(lock) = held.get(path).and_then(Weak::upgrade) {
            return lock;
        }
        held.retain(|_, lock| lock.strong_count() > 0);
        let lock = Arc::default();
        held.insert(path.clone(), Arc::downgrade(&lock));
        lock
    }

    /// Looks whether an operation may do to checkpoints what it is about to do. The one that it writes is held.
    pub(crate) async fn admit(&self, owner: &str, operation: &Operation) -> Result<Option<Hold>, OperationError> {
        match operation {
            Operation::LoadWeights(request) => {
                let path = &request.path;
                if path.kind != CheckpointKind::Training {
                    return Err(OperationError::user(format!(
                        "`path`: expected `weights`, which `save_weights` writes, got `{}` in `{path}`",
                        path.kind.segment()
                    )));
                }
                let found = self.read(owner, "path", path).await?;
                let named = request.base_model.as_ref();
                if let Some(named) = named.filter(|named| **named != found.base_model) {
                    return Err(OperationError::user(format!(
                        "`base_model`: expected `{}`, which the checkpoint belongs to, got `{named}`",
                        found.base_model
                    )));
                }
                if !self.backend.models().iter().any(|model| model.name == found.base_model) {
                    return Err(OperationError::user(format!(
                        "`path`: expected a checkpoint of a model that is served, got one of `{}`",
                        found.base_model
                    )));
                }
                Ok(None)
            }
            Operation::Sample(sample) => {
                if let Some(path) = &sample.weights {
                    self.read(owner, "sampling_session_id", path).await?;
                }
                Ok(None)
            }
            operation => {
                let saves = operation.saves().map_err(|error| OperationError::user(format!("`path`: {error}")))?;
                let Some((path, overwrite)) = saves else { return Ok(None) };
                let hold = self.lock(&path).lock_owned().await;
                match self.store.checkpoint(&path).await.map_err(broken)? {
                    None => {}
                    Some(found) if !found.is_there(now()) => self.take_away(&path).await?,
                    Some(_) if overwrite => {}
                    Some(_) => {
                        return Err(OperationError::user(format!(
                            "`path`: expected a name that is not taken, got `{}`: there is `{path}`{}",
                            path.name.as_str(),
                            if path.kind == CheckpointKind::Training { ", and `overwrite` is false" } else { "" }
                        )));
                    }
                }
                Ok(Some(hold))
            }
        }
    }

    /// Looks whether what an operation loaded at a time is still the same: to bring its model back it is loaded again, and
    /// other weights would make another model without a word.
    pub(crate) async fn unchanged(&self, operation: &Operation, at: i64) -> Result<(), OperationError> {
        let Operation::LoadWeights(request) = operation else { return Ok(()) };
        let path = &request.path;
        match self.store.checkpoint(path).await.map_err(broken)? {
            Some(found) if !found.removed && found.created_at <= at => Ok(()),
            Some(found) if !found.removed => {
                Err(OperationError::server(format!("the checkpoint `{path}` that it loaded was written over since")))
            }
            _ => Err(OperationError::server(format!("the checkpoint `{path}` that it loaded is not there any more"))),
        }
    }

    async fn read(&self, owner: &str, field: &str, path: &TinkerPath) -> Result<Checkpoint, OperationError> {
        let found = self.store.readable(owner, path).await.map_err(broken)?;
        found.ok_or_else(|| OperationError::user(format!("`{field}`: there is no checkpoint `{path}`")))
    }

    /// Files of a save that nobody wrote down: its session had ended. The caller holds the checkpoint.
    pub(crate) async fn discard(&self, path: &TinkerPath) {
        if matches!(self.store.checkpoint(path).await, Ok(None))
            && let Err(error) = self.backend.delete_checkpoint(path).await
        {
            tracing::error!(%error, %path, "files of a checkpoint were not removed");
        }
    }

    /// Removes one of an owner's checkpoints.
    pub(crate) async fn remove(&self, owner: &str, path: &TinkerPath) -> Result<Removal, StoreError> {
        let Ok(_hold) = self.lock(path).try_lock_owned() else { return Ok(Removal::Busy) };
        if !self.store.change_checkpoint(owner, path, Change::Remove).await? {
            return Ok(Removal::Unknown);
        }
        // It is gone for everybody; files that stay are removed later.
        if let Err(error) = self.take_away(path).await {
            tracing::error!(%error, %path, "files of a checkpoint were not removed yet");
        }
        Ok(Removal::Done)
    }

    /// Removes all checkpoints whose time is over, and what is left of others.
    pub(crate) async fn sweep(&self) -> Result<(), StoreError> {
        for path in self.store.expire_checkpoints(now()).await? {
            let Ok(_hold) = self.lock(&path).try_lock_owned() else { continue };
            // Another one may have been saved there before it was held.
            if self.store.checkpoint(&path).await?.is_some_and(|found| !found.is_there(now()))
                && let Err(error) = self.take_away(&path).await
            {
                tracing::error!(%error, %path, "files of a checkpoint were not removed yet");
            }
        }
        Ok(())
    }

    async fn take_away(&self, path: &TinkerPath) -> Result<(), OperationError> {
        self.backend.delete_checkpoint(path).await?;
        self.store.forget_checkpoint(path).await.map_err(broken)
    }
}

fn broken(error: StoreError) -> OperationError {
    OperationError::server(error.to_string())
}
