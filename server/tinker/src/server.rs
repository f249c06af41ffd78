//! From a listener to the end of the last request.

use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use espalier_serving::{Bodies, Bounded};
use thiserror::Error;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use crate::backend::Backend;
use crate::housekeeping;
use crate::options::ServerOptions;
use crate::routes::{Server, router};
use crate::shelf::Shelf;
use crate::store::Store;
use crate::waiters::Waiters;
use crate::worker::Worker;

/// How long requests may take to be answered after the drain.
const LAST_ANSWERS: Duration = Duration::from_secs(2);

/// Archives that are written at once: each takes a thread.
const ARCHIVES: usize = 8;

/// Why the server did not start, or broke.
#[derive(Debug, Error)]
pub enum ServeError {
    /// Anybody on the network could use it.
    #[error("`{0}` can be reached from other machines, and there are no keys")]
    NoKeys(SocketAddr),
    /// The options contradict each other.
    #[error("{0}")]
    Options(&'static str),
    /// The listener failed.
    #[error("the listener failed: {0}")]
    Listener(#[from] io::Error),
}

/// Serves until `shutdown` is cancelled; then takes no new work and gives what runs [`ServerOptions::drain`] to finish. What
/// is not finished then stays in the queue. Gives the number of operations that were cut off.
///
/// Refuses to start where other machines reach the listener, there are no keys, and [`ServerOptions::open`] is not set.
pub async fn serve(
    store: Store,
    backend: Arc<dyn Backend>,
    listener: TcpListener,
    options: ServerOptions,
    shutdown: CancellationToken,
) -> Result<usize, ServeError> {
    let address = listener.local_addr()?;
    if !address.ip().is_loopback() && options.keys.is_open() && !options.open {
        return Err(ServeError::NoKeys(address));
    }
    options.check().map_err(ServeError::Options)?;
    let (waiters, drain) = (Waiters::default(), options.drain);
    let shelf = Shelf::new(store.clone(), Arc::clone(&backend));
    let worker = Worker::new(store.clone(), Arc::clone(&backend), Arc::clone(&shelf), waiters.clone(), &options);
    let listener = Bounded::new(listener, options.max_connections, options.connection_idle);
    let server = Arc::new(Server {
        bodies: Bodies::new(options.max_body_bytes, options.max_bodies_bytes, options.connection_idle),
        worker: Arc::clone(&worker),
        backend: Arc::clone(&backend),
        shelf: Arc::clone(&shelf),
        archives: Arc::new(Semaphore::new(ARCHIVES)),
        store: store.clone(),
        waiters,
        open: AtomicUsize::new(0),
        stopping: shutdown.clone(),
        options: options.clone(),
    });
    let working = tokio::spawn(Arc::clone(&worker).run(shutdown.clone()));
    let keeping = tokio::spawn(housekeeping::run(store, Arc::clone(&worker), shelf, backend, options));
    let serving = axum::serve(listener, router(Arc::clone(&server)));
    let mut serving = pin!(serving.with_graceful_shutdown(shutdown.clone().cancelled_owned()).into_future());
    let mut drained = pin!(async {
        shutdown.cancelled().await;
        let give_up = tokio::time::Instant::now() + drain;
        // Connections that are kept open and ask for nothing hold nobody up.
        let busy = || worker.busy() > 0 || server.open.load(Ordering::Relaxed) > 0;
        while busy() && tokio::time::Instant::now() < give_up {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    let ended = tokio::select! {
        ended = &mut serving => Some(ended),
        () = &mut drained => None,
    };
    match ended {
        Some(ended) => {
            ended?;
            // The last connection may be gone before the work is.
            drained.await;
        }
        None => {
            if let Ok(ended) = tokio::time::timeout(LAST_ANSWERS, serving).await {
                ended?;
            }
        }
    }
    keeping.abort();
    let _ = working.await;
    Ok(worker.busy())
}
