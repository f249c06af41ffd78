//! The way back: a checkpoint, and what happened since.
//!
//! A trivial request pays nothing for its way back but an entry here: the request's bytes and everything that
//! reached the guest from outside while it served it. The guest is deterministic beside that, so starting from the
//! checkpoint and serving the entries again gives the same state; the answers' hashes prove it.

use std::sync::Arc;

use rand::{RngCore, SeedableRng};
use rand_chacha::ChaCha8Rng;
use sha2::{Digest, Sha256};

use crate::memory::Checkpoint;

/// Processor time since the last checkpoint beyond which a new one is taken, nanoseconds.
const MAX_REPLAY_NANOSECONDS: u64 = 30_000_000;
/// Bytes of entries beyond which a checkpoint is taken.
const MAX_BYTES: usize = 256 << 10;
/// Entries beyond which a checkpoint is taken.
const MAX_ENTRIES: usize = 256;

/// What of a REPL's state the host keeps and the guest can observe.
#[derive(Clone)]
pub(crate) struct HostState {
    /// Source of the guest's randomness.
    pub(crate) random: ChaCha8Rng,
    /// Nanoseconds that the virtual clock has advanced.
    pub(crate) clock: u64,
    /// Execution time of earlier requests, nanoseconds.
    pub(crate) processor_time: u64,
}

impl HostState {
    pub(crate) fn new(seed: u64) -> Self {
        Self { random: ChaCha8Rng::seed_from_u64(seed), clock: 0, processor_time: 0 }
    }

    /// Whether the guest got anything that depends on the seed.
    pub(crate) fn has_given(&self) -> bool {
        self.random.get_word_pos() != 0
    }

    /// The next random bytes.
    pub(crate) fn fill(&mut self, bytes: &mut [u8]) {
        self.random.fill_bytes(bytes);
    }
}

/// What reached the guest from outside during one request.
#[derive(Clone, Debug, Default)]
pub(crate) struct Record {
    /// Encoded replies to host calls, in order.
    pub(crate) replies: Vec<Arc<[u8]>>,
    /// Clock readings, in order.
    pub(crate) clocks: Vec<i64>,
    bytes: usize,
}

impl Record {
    pub(crate) fn reply(&mut self, reply: Arc<[u8]>) {
        self.bytes += reply.len() + 16;
        if self.bytes <= MAX_BYTES {
            self.replies.push(reply);
        }
    }

    pub(crate) fn clock(&mut self, reading: i64) {
        self.bytes += 8;
        if self.bytes <= MAX_BYTES {
            self.clocks.push(reading);
        }
    }

    /// Nothing came.
    pub(crate) fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// More came than is worth keeping: only a checkpoint can stand for this request.
    pub(crate) fn overflowed(&self) -> bool {
        self.bytes > MAX_BYTES
    }
}

/// One request that was served since the checkpoint.
pub(crate) struct Entry {
    pub(crate) request: Vec<u8>,
    pub(crate) record: Record,
    /// Hash of the answer.
    pub(crate) reply: [u8; 32],
    /// Bytes of contexts that the REPL may count on while this request is served.
    pub(crate) context_bytes: u64,
}

/// Hash of an answer.
pub(crate) fn hash(bytes: &[u8]) -> [u8; 32] {
    Sha256::digest(bytes).into()
}

/// A checkpoint, the host's state at it, and what was served since.
pub(crate) struct WayBack {
    pub(crate) checkpoint: Arc<Checkpoint>,
    pub(crate) host: HostState,
    pub(crate) entries: Vec<Arc<Entry>>,
    /// Processor time of the entries, nanoseconds.
    pub(crate) nanoseconds: u64,
    bytes: usize,
    /// Set when the state cannot be reached any more, and says why.
    pub(crate) lost: Option<String>,
    /// Counts the operations that were given up: what an older one wants to add is refused.
    pub(crate) generation: u64,
}

impl WayBack {
    pub(crate) fn new(checkpoint: Arc<Checkpoint>, host: HostState) -> Self {
        Self { checkpoint, host, entries: Vec::new(), nanoseconds: 0, bytes: 0, lost: None, generation: 0 }
    }

    /// Adds a request that was served.
    pub(crate) fn push(&mut self, entry: Entry, nanoseconds: u64) {
        self.nanoseconds += nanoseconds;
        self.bytes += entry.request.len() + entry.record.bytes + 64;
        self.entries.push(Arc::new(entry));
    }

    /// Whether adding a request of this cost calls for a checkpoint instead.
    pub(crate) fn is_full(&self, request_bytes: usize, nanoseconds: u64) -> bool {
        self.nanoseconds + nanoseconds > MAX_REPLAY_NANOSECONDS
            || self.bytes + request_bytes > MAX_BYTES
            || self.entries.len() >= MAX_ENTRIES
    }

    /// Whether the checkpoint alone stands for the state.
    pub(crate) fn is_current(&self) -> bool {
        self.entries.is_empty() && self.lost.is_none()
    }

    /// A new checkpoint stands for everything so far.
    pub(crate) fn replace(&mut self, checkpoint: Checkpoint, host: HostState) {
        self.checkpoint = Arc::new(checkpoint);
        self.host = host;
        self.entries.clear();
        self.nanoseconds = 0;
        self.bytes = 0;
    }
}
