//! Ends sessions that fell silent, removes checkpoints whose time is over, and forgets old results, for ever.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::backend::Backend;
use crate::options::ServerOptions;
use crate::shelf::Shelf;
use crate::store::sessions::Ended;
use crate::store::{Store, StoreError, now};
use crate::worker::Worker;

/// How often is looked, at most.
const PAUSE: Duration = Duration::from_secs(30);

/// How often the files are looked through.
const SWEEP: Duration = Duration::from_mins(10);

/// What ends with a session.
pub(crate) fn session_ended(worker: &Worker, backend: &dyn Backend, ended: &Ended) {
    worker.cancel(ended.requests.iter().map(|(request, lane)| (request.as_str(), lane.as_str())));
    worker.forget(&ended.session);
    backend.end_session(&ended.session);
}

pub(crate) async fn run(
    store: Store,
    worker: Arc<Worker>,
    shelf: Arc<Shelf>,
    backend: Arc<dyn Backend>,
    options: ServerOptions,
) {
    let pause = (options.session_timeout.min(options.keep_results) / 8).clamp(Duration::from_millis(20), PAUSE);
    let silent = options.session_timeout.as_millis() as i64;
    let mut last_sweep = Instant::now();
    loop {
        tokio::time::sleep(pause).await;
        match store.reap_sessions(silent, now()).await {
            Ok(ended) => {
                for ended in &ended {
                    tracing::info!(session = %ended.session, "a session whose client fell silent was ended");
                    session_ended(&worker, &*backend, ended);
                }
            }
            Err(error) => tracing::error!(%error, "silent sessions were not ended"),
        }
        if let Err(error) = shelf.sweep().await {
            tracing::error!(%error, "checkpoints whose time is over were not removed");
        }
        let (results, sessions) =
            (now() - options.keep_results.as_millis() as i64, now() - options.keep_sessions.as_millis() as i64);
        let swept = async {
            while store.prune(results, sessions).await?.is_partial() {}
            if last_sweep.elapsed() >= SWEEP {
                last_sweep = Instant::now();
                store.sweep_files().await?;
            }
            Ok::<_, StoreError>(())
        };
        if let Err(error) = swept.await {
            tracing::error!(%error, "old results were not forgotten");
        }
    }
}
