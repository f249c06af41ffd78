//! From a listener to the end of the last request.

use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use espalier_sandbox::Sandbox;
use espalier_serving::{Bodies, Bounded, LAST_ANSWERS, OpenRequests};
use thiserror::Error;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::ledger::Ledger;
use crate::options::ServerOptions;
use crate::routes::{Server, router};
use crate::sessions::Sessions;

/// Why the server did not start, or broke.
#[derive(Debug, Error)]
pub enum ServeError {
    /// Anybody on the network could use it.
    #[error("`{0}` can be reached from other machines, and there are no keys")]
    NoKeys(SocketAddr),
    /// The options contradict each other.
    #[error("{0}")]
    Options(String),
    /// The listener failed.
    #[error("the listener failed: {0}")]
    Listener(#[from] io::Error),
}

/// What the end of the server cut off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Closed {
    /// REPLs that existed.
    pub repls: usize,
    /// REPLs that ran a block.
    pub running: usize,
}

impl ServerOptions {
    fn check(&self, address: SocketAddr) -> Result<(), ServeError> {
        let wrong = |what: &str| Err(ServeError::Options(what.to_owned()));
        if !address.ip().is_loopback() && self.keys.is_open() {
            return Err(ServeError::NoKeys(address));
        }
        if self.max_repls == 0 {
            return wrong("`max_repls` must be at least 1");
        }
        if self.limits.memory_bytes > self.max_memory_bytes {
            return wrong("the memory of one REPL is more than that of all together");
        }
        if self.idle_timeout.is_zero() {
            return wrong("`idle_timeout` must be above 0");
        }
        if self.max_wait >= self.connection_idle {
            return wrong("`connection_idle` must be longer than `max_wait`");
        }
        Ok(())
    }
}

/// Serves until `shutdown` is cancelled; then takes no new work, gives requests that run [`ServerOptions::drain`] to
/// finish, and closes every REPL.
///
/// Refuses to start where other machines reach the listener and there are no keys.
pub async fn serve(
    sandbox: Sandbox,
    listener: TcpListener,
    options: ServerOptions,
    shutdown: CancellationToken,
) -> Result<Closed, ServeError> {
    options.check(listener.local_addr()?)?;
    let (drain, idle) = (options.drain, options.idle_timeout);
    let listener = Bounded::new(listener, options.max_connections, options.connection_idle);
    let server = Arc::new(Server {
        sandbox,
        sessions: Sessions::new(Ledger::new(options.max_repls, options.max_memory_bytes)),
        bodies: Bodies::new(options.max_body_bytes, options.max_bodies_bytes, options.connection_idle),
        open: OpenRequests::default(),
        stopping: shutdown.clone(),
        options,
    });
    let serving = axum::serve(listener, router(Arc::clone(&server)));
    let mut serving = pin!(serving.with_graceful_shutdown(shutdown.clone().cancelled_owned()).into_future());
    let mut reaper = pin!(reap(&server, idle));
    let drained = async {
        shutdown.cancelled().await;
        let give_up = tokio::time::Instant::now() + drain;
        // Connections that are kept open and ask for nothing hold nobody up.
        while server.open.count() > 0 && tokio::time::Instant::now() < give_up {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let ended = tokio::select! {
        ended = &mut serving => Some(ended),
        () = &mut reaper => None,
        () = drained => None,
    };
    let (repls, running) = server.sessions.close_all();
    match ended {
        Some(ended) => ended?,
        None => {
            if let Ok(ended) = tokio::time::timeout(LAST_ANSWERS, serving).await {
                ended?;
            }
        }
    }
    Ok(Closed { repls, running })
}

/// Closes idle REPLs, for ever.
async fn reap(server: &Server, idle: Duration) {
    let pause = (idle / 8).clamp(Duration::from_millis(10), Duration::from_secs(5));
    loop {
        tokio::time::sleep(pause).await;
        let reaped = server.sessions.reap(idle);
        if reaped > 0 {
            tracing::info!(reaped, "idle REPLs were closed");
        }
    }
}
