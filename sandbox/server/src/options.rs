//! How the server behaves.

use std::time::Duration;

use espalier_sandbox::Limits;

use crate::keys::Keys;

/// How the server behaves. Every default is finite.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// REPLs that may exist at once, of all keys together.
    pub max_repls: usize,
    /// Bytes that all REPLs together may be promised: the sum of their `memory_bytes`, and four times their contexts.
    /// A REPL whose blocks take long also keeps a copy of the pages it wrote, so the process may hold up to twice that.
    pub max_memory_bytes: u64,
    /// A REPL that nobody asked anything for so long is closed, also while it runs a block or waits for an answer.
    pub idle_timeout: Duration,
    /// What a REPL has where its creator asks for nothing, and the most that anybody gets.
    pub limits: Limits,
    /// Largest request body, and largest snapshot, bytes.
    pub max_body_bytes: usize,
    /// Bytes of all bodies that are being read or worked on.
    pub max_bodies_bytes: usize,
    /// Connections at once; more wait to be accepted.
    pub max_connections: usize,
    /// How long a connection may be silent in both directions, and how long a body may stand still. Longer than
    /// `max_wait`: while a request waits its connection is silent.
    pub connection_idle: Duration,
    /// Longest time for which a request waits for a block.
    pub max_wait: Duration,
    /// How long requests that run when the shutdown begins may still take.
    pub drain: Duration,
    /// Who may use it. Without keys only this machine may.
    pub keys: Keys,
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self {
            max_repls: 64,
            max_memory_bytes: 16 << 30,
            idle_timeout: Duration::from_mins(15),
            limits: Limits::default(),
            max_body_bytes: 256 << 20,
            max_bodies_bytes: 1 << 30,
            max_connections: 4096,
            connection_idle: Duration::from_mins(2),
            max_wait: Duration::from_mins(1),
            drain: Duration::from_secs(5),
            keys: Keys::default(),
        }
    }
}
