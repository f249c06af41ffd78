//! How the server behaves.

use std::time::Duration;

use crate::keys::Keys;
use crate::store::requests::Room;

/// How the server behaves. Every default is finite.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// Who may use it.
    pub keys: Keys,
    /// Without keys, programs of other machines may use it too. Whoever sets this says so on purpose.
    pub open: bool,
    /// How long a request for a result waits before it is answered with 408 and the client asks again. Clients give up
    /// after 45 s.
    pub poll: Duration,
    /// How long results are kept, from their end.
    pub keep_results: Duration,
    /// How long an ended session's requests are remembered.
    pub keep_sessions: Duration,
    /// How long a link to a checkpoint's files can be used.
    pub link_life: Duration,
    /// A session whose client gave no sign of life for so long is ended. Clients give one every 10 s.
    pub session_timeout: Duration,
    /// Samples that the engine is given at once.
    pub max_samples: usize,
    /// Models whose operations the engine is given at once.
    pub max_models: usize,
    /// Longest time for one operation or sample.
    pub operation_timeout: Duration,
    /// Requests that are not finished, all together; further ones are asked to come again.
    pub max_unfinished: usize,
    /// How far ahead of its model's turn a request may come.
    pub max_ahead: i64,
    /// Samples in flight that one client is told to allow itself.
    pub client_samples: usize,
    /// Clients are told to fetch the ends of all samples through one request, not one for each.
    pub session_polls: bool,
    /// Largest request body, bytes, decompressed.
    pub max_body_bytes: usize,
    /// Bytes of all bodies that are being read or worked on.
    pub max_bodies_bytes: usize,
    /// Connections at once; more wait to be accepted.
    pub max_connections: usize,
    /// How long a connection may be silent in both directions, and how long a body may stand still.
    pub connection_idle: Duration,
    /// How long requests and operations that run when the shutdown begins may still take.
    pub drain: Duration,
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self {
            keys: Keys::default(),
            open: false,
            poll: Duration::from_secs(30),
            keep_results: Duration::from_hours(1),
            keep_sessions: Duration::from_hours(24),
            link_life: Duration::from_hours(1),
            session_timeout: Duration::from_mins(10),
            max_samples: 256,
            max_models: 8,
            operation_timeout: Duration::from_mins(30),
            max_unfinished: 16384,
            max_ahead: 4096,
            client_samples: 2000,
            session_polls: false,
            max_body_bytes: 64 << 20,
            max_bodies_bytes: 1 << 30,
            max_connections: 4096,
            connection_idle: Duration::from_mins(2),
            drain: Duration::from_secs(5),
        }
    }
}

impl ServerOptions {
    pub(crate) fn room(&self) -> Room {
        Room { unfinished: self.max_unfinished, ahead: self.max_ahead }
    }

    /// What contradicts itself.
    pub(crate) fn check(&self) -> Result<(), &'static str> {
        if self.max_samples == 0 || self.max_models == 0 {
            return Err("`max_samples` and `max_models` must be at least 1");
        }
        if self.max_unfinished == 0 || self.max_ahead < 1 || self.client_samples == 0 {
            return Err("`max_unfinished`, `max_ahead` and `client_samples` must be at least 1");
        }
        if self.poll >= self.connection_idle {
            return Err("`connection_idle` must be longer than `poll`");
        }
        if self.session_timeout.is_zero() || self.operation_timeout.is_zero() {
            return Err("`session_timeout` and `operation_timeout` must be above 0");
        }
        Ok(())
    }
}
