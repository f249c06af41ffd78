//! Executes requests in the order that the store gives.
//!
//! Two loops: one for samples, one for operations of models, so that neither fills the other's room. What the store hands
//! out is one operation a model at most; what it hands out twice does not exist.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, Semaphore};
use tokio_util::sync::CancellationToken;

use crate::backend::{Backend, OperationError};
use crate::ids::{ModelId, SessionId};
use crate::operation::{Operation, Outcome, Reply};
use crate::shelf::{Hold, Shelf};
use crate::store::Store;
use crate::store::requests::{Claimed, Past};
use crate::waiters::Waiters;

/// How long a loop that has nothing to do sleeps at most. What this process takes in wakes it at once.
const LOOK_AGAIN: Duration = Duration::from_secs(5);
/// How often the end of a request is tried to be stored, with a second in between.
const TRIES: u32 = 30;

/// Executes requests.
pub(crate) struct Worker {
    store: Store,
    backend: Arc<dyn Backend>,
    shelf: Arc<Shelf>,
    waiters: Waiters,
    timeout: Duration,
    samples: Lane,
    models: Lane,
    /// What is being executed, by name.
    running: Mutex<HashMap<String, CancellationToken>>,
    /// Of each model, the last place up to which its requests were trimmed.
    kept: Mutex<HashMap<ModelId, i64>>,
}

/// Room and a bell for one of the loops.
struct Lane {
    room: Arc<Semaphore>,
    most: usize,
    bell: Notify,
}

impl Lane {
    fn new(most: usize) -> Self {
        Self { room: Arc::new(Semaphore::new(most)), most, bell: Notify::new() }
    }
}

impl Worker {
    pub(crate) fn new(
        store: Store,
        backend: Arc<dyn Backend>,
        shelf: Arc<Shelf>,
        waiters: Waiters,
        options: &crate::ServerOptions,
    ) -> Arc<Self> {
        Arc::new(Self {
            store,
            backend,
            shelf,
            waiters,
            timeout: options.operation_timeout,
            samples: Lane::new(options.max_samples),
            models: Lane::new(options.max_models),
            running: Mutex::default(),
            kept: Mutex::default(),
        })
    }

    fn running(&self) -> MutexGuard<'_, HashMap<String, CancellationToken>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lane(&self, ordered: bool) -> &Lane {
        if ordered { &self.models } else { &self.samples }
    }

    /// Something was taken in.
    pub(crate) fn ring(&self, ordered: bool) {
        self.lane(ordered).bell.notify_one();
    }

    /// Nobody wants these requests any more; whoever waits for them is told.
    pub(crate) fn cancel<'a>(&self, requests: impl IntoIterator<Item = (&'a str, &'a str)>) {
        for (request_id, lane) in requests {
            if let Some(token) = self.running().get(request_id) {
                token.cancel();
            }
            self.waiters.wake(request_id);
            self.waiters.wake(lane);
        }
    }

    /// Executes until `stop`; what runs then goes on.
    pub(crate) async fn run(self: Arc<Self>, stop: CancellationToken) {
        let samples = Arc::clone(&self).take(false, stop.clone());
        let models = self.take(true, stop);
        futures::future::join(samples, models).await;
    }

    /// How many requests were taken and are not finished.
    pub(crate) fn busy(&self) -> usize {
        let taken = |lane: &Lane| lane.most - lane.room.available_permits();
        taken(&self.samples) + taken(&self.models)
    }

    async fn take(self: Arc<Self>, ordered: bool, stop: CancellationToken) {
        let lane = self.lane(ordered);
        while !stop.is_cancelled() {
            // Room for one, and for as many more as there is room for.
            let first = tokio::select! {
                first = Arc::clone(&lane.room).acquire_owned() => first,
                () = stop.cancelled() => return,
            };
            let Ok(mut permits) = first else { return };
            while permits.num_permits() < lane.most
                && let Ok(more) = Arc::clone(&lane.room).try_acquire_owned()
            {
                permits.merge(more);
            }
            let claimed = match self.store.claim(ordered, permits.num_permits()).await {
                Ok(claimed) => claimed,
                Err(error) => {
                    tracing::error!(%error, "no requests could be taken from the queue");
                    Vec::new()
                }
            };
            if claimed.is_empty() {
                drop(permits);
                tokio::select! {
                    () = lane.bell.notified() => {}
                    () = tokio::time::sleep(LOOK_AGAIN) => {}
                    () = stop.cancelled() => return,
                }
                continue;
            }
            for request in claimed {
                let permit = permits.split(1);
                let this = Arc::clone(&self);
                tokio::spawn(async move {
                    this.execute(request).await;
                    drop(permit);
                });
            }
        }
    }

    async fn execute(&self, mut request: Claimed) {
        let cancel = CancellationToken::new();
        self.running().insert(request.request_id.clone(), cancel.clone());
        // A checkpoint that it writes is held until it is written down.
        let mut hold = None;
        let ended = self.outcome(&mut request, cancel, &mut hold).await;
        let saved = ended.as_ref().ok().and_then(|reply| Some(reply.saved.as_ref()?.path.clone()));
        let stored = self.store_end(&request, ended).await;
        if let (Some(path), false) = (saved, stored) {
            self.shelf.discard(&path).await;
        }
        drop(hold);
        self.running().remove(&request.request_id);
        if stored {
            self.waiters.wake(&request.request_id);
            self.waiters.wake(&request.lane);
        }
        // The next of its model may be ready now.
        if request.kind.is_ordered() {
            self.ring(true);
        }
    }

    async fn outcome(
        &self,
        request: &mut Claimed,
        cancel: CancellationToken,
        hold: &mut Option<Hold>,
    ) -> Result<Reply, OperationError> {
        if let Some(broken) = request.broken.take() {
            return Err(broken);
        }
        let failed = |error: String| OperationError::server(format!("the request cannot be read back: {error}"));
        let bytes = self.store.payload(request).await.map_err(|error| failed(error.to_string()))?;
        let kind = request.kind;
        let operation = tokio::task::spawn_blocking(move || Operation::read(kind, &bytes)).await;
        let operation = operation.map_err(|error| failed(error.to_string()))?.map_err(|error| failed(error.detail))?;
        *hold = self.shelf.admit(&request.owner, &operation).await?;
        request.keeps &= operation.changes_model();
        if let Some(model) = operation.model() {
            self.bring_back(&model, request.seq).await?;
        }
        let (backend, asked, token) = (Arc::clone(&self.backend), operation.clone(), cancel.clone());
        // A task of its own: an engine that panics fails this request only.
        let mut task = tokio::spawn(async move { backend.execute(asked, token).await });
        let Ok(ended) = tokio::time::timeout(self.timeout, &mut task).await else {
            cancel.cancel();
            task.abort();
            let limit = self.timeout.as_secs();
            return Err(OperationError::server(format!("it was not done within the server's limit of {limit} s")));
        };
        let outcome = ended.map_err(|error| {
            tracing::error!(%error, request = %request.request_id, "the engine panicked");
            OperationError::server("the engine failed: it panicked")
        })??;
        let expected = operation.saves().ok().flatten().map(|(path, _)| path);
        if let (Some(expected), Outcome::Saved { path, .. }) = (expected, &outcome)
            && *path != expected
        {
            let detail = format!("the engine failed: expected a checkpoint `{expected}`, got `{path}`");
            return Err(OperationError::server(detail));
        }
        Reply::of(&operation, outcome)
            .ok_or_else(|| OperationError::server("the engine failed: its answer is not of the request's kind"))
    }

    /// Gives the backend what it lacks of a model before a place: operations that were done, and whose effect it lost.
    async fn bring_back(&self, model: &ModelId, before: i64) -> Result<(), OperationError> {
        let failed = |error: String| {
            OperationError::server(format!("the model `{model}` cannot be brought back to where it was: {error}"))
        };
        let progress = self.backend.progress(model);
        let mut reached = progress.map_or(-1, |progress| progress.reached);
        while reached < before - 1 {
            let next =
                self.store.done_after(model, reached, before).await.map_err(|error| failed(error.to_string()))?;
            let Some(Past { seq, kind, payload, finished_at }) = next else { break };
            let operation = Operation::read(kind, &payload).map_err(|error| failed(error.detail))?;
            self.shelf.unchanged(&operation, finished_at).await.map_err(|error| failed(error.message))?;
            tracing::info!(%model, seq, kind = kind.name(), "done again, to bring a model back");
            let backend = Arc::clone(&self.backend);
            let again = tokio::spawn(async move { backend.execute(operation, CancellationToken::new()).await });
            let again = tokio::time::timeout(self.timeout, again).await;
            let again = again.map_err(|_| failed(format!("operation {seq} took too long")))?;
            let again = again.map_err(|_| failed(format!("operation {seq} panicked")))?;
            again.map_err(|error| failed(format!("operation {seq} (`{}`): {error}", kind.name())))?;
            reached = seq;
        }
        // What is kept elsewhere need not be done again.
        if let Some(kept) = progress.map(|progress| progress.kept).filter(|kept| *kept >= 0)
            && self.kept().insert(model.clone(), kept) != Some(kept)
        {
            self.store.trim(model, kept).await.map_err(|error| failed(error.to_string()))?;
        }
        Ok(())
    }

    fn kept(&self) -> MutexGuard<'_, HashMap<ModelId, i64>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A session ended: what is known of its models is not needed any more.
    pub(crate) fn forget(&self, session: &SessionId) {
        self.kept().retain(|model, _| model.session != *session);
    }

    /// Stores an end, also where the database is out of order for a while. `false` where it had ended before.
    async fn store_end(&self, request: &Claimed, ended: Result<Reply, OperationError>) -> bool {
        for _ in 0..TRIES {
            match self.store.finish(request, ended.clone()).await {
                Ok(stored) => return stored,
                Err(error) => tracing::error!(%error, request = %request.request_id, "a result was not stored"),
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        false
    }
}
