//! What every HTTP server of the project shares: its end, and bounds.
//!
//! | module | what lives there |
//! |---|---|
//! | this one | the end: no new connections, some time for the requests that run, then their cancellation, and a last moment for answers that say so |
//! | [`listener`] | [`Bounded`]: so many connections at once, none of which is silent for ever |
//! | [`bodies`] | [`Bodies`]: so many bytes in one body and in all, none of which stands still for ever |
//!
//! Invariants: a request that runs is counted, from its first line to the end of its answer; the end of a server never
//! waits for a client that does not read, or that holds its connection open without a request; no peer holds memory, a
//! connection or a body longer than the bounds allow.

pub mod bodies;
pub mod listener;

pub use bodies::{Bodies, BodyError, Read};
pub use listener::Bounded;

use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

/// How long cancelled requests may take to be answered, once the drain is over.
pub const LAST_ANSWERS: Duration = Duration::from_secs(2);

/// Counts requests while they are there.
#[derive(Clone, Debug, Default)]
pub struct OpenRequests(Arc<AtomicUsize>);

impl OpenRequests {
    /// How many are not answered to their end yet.
    pub fn count(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }

    /// One more, for as long as what is given back lives.
    pub fn enter(&self) -> OpenRequest {
        self.0.fetch_add(1, Ordering::Relaxed);
        OpenRequest(Arc::clone(&self.0))
    }
}

/// A request that is counted.
#[derive(Debug)]
pub struct OpenRequest(Arc<AtomicUsize>);

impl Drop for OpenRequest {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Ends a server, and knows what that would interrupt.
#[derive(Clone, Debug, Default)]
pub struct Shutdown {
    begun: CancellationToken,
    cut: CancellationToken,
    open: OpenRequests,
}

impl Shutdown {
    /// Cancelling this begins the shutdown.
    pub fn begun(&self) -> &CancellationToken {
        &self.begun
    }

    /// Cancelled when the requests that still run have had their time: work for requests ends by it.
    pub fn cut(&self) -> &CancellationToken {
        &self.cut
    }

    /// The requests.
    pub fn requests(&self) -> &OpenRequests {
        &self.open
    }

    /// Requests that are not answered to their end yet.
    pub fn open_requests(&self) -> usize {
        self.open.count()
    }
}

/// Serves until the shutdown begins; then takes no new connections, and ends when the last request is answered, or
/// cancelled after `drain`. Gives the number of requests that were cancelled.
pub async fn serve(listener: TcpListener, router: Router, drain: Duration, shutdown: &Shutdown) -> io::Result<usize> {
    let begun = shutdown.begun.clone();
    let serving = axum::serve(listener, router).with_graceful_shutdown(begun.clone().cancelled_owned());
    let mut serving = pin!(serving.into_future());
    let drained = async {
        begun.cancelled().await;
        tokio::time::sleep(drain).await;
    };
    tokio::select! {
        ended = &mut serving => return ended.map(|()| 0),
        () = drained => {}
    }
    let cut_off = shutdown.open_requests();
    shutdown.cut.cancel();
    match tokio::time::timeout(LAST_ANSWERS, serving).await {
        Ok(ended) => ended.map(|()| cut_off),
        Err(_) => Ok(cut_off),
    }
}
