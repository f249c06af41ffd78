//! What a REPL may use.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// What a REPL may use. Every limit is finite; the defaults suit a rollout.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Execution time of a block. Waiting for host calls does not count.
    #[serde(with = "seconds")]
    pub block: Duration,
    /// Execution time of setting a REPL up, the source of its Python tools included; a context adds to it by its size.
    #[serde(with = "seconds")]
    pub set_up: Duration,
    /// After `block` is over, how long the block may take to unwind before it is killed.
    #[serde(with = "seconds")]
    pub grace: Duration,
    /// Time a block may spend waiting for host calls.
    #[serde(with = "seconds")]
    pub waiting: Duration,
    /// Bytes of linear memory beyond the interpreter's own, without contexts (three times a context is added).
    pub memory_bytes: u64,
    /// Largest single allocation outside contexts, bytes.
    pub allocation_bytes: u64,
    /// Output kept per stream and block, bytes (half from the start, half from the end).
    pub output_bytes: usize,
    /// Largest value that crosses to the host, bytes.
    pub value_bytes: usize,
    /// Python's recursion limit, frames.
    pub recursion: u32,
    /// Host calls in one block.
    pub calls_per_block: u32,
    /// Host calls in the REPL's life.
    pub calls_total: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            block: Duration::from_secs(30),
            set_up: Duration::from_secs(10),
            grace: Duration::from_millis(20),
            waiting: Duration::from_mins(10),
            memory_bytes: 256 << 20,
            allocation_bytes: 32 << 20,
            output_bytes: 1 << 20,
            value_bytes: 1 << 20,
            recursion: 1000,
            calls_per_block: 64,
            calls_total: 1000,
        }
    }
}

impl Limits {
    /// The stricter of both, limit by limit.
    #[must_use]
    pub fn stricter(&self, other: &Self) -> Self {
        Self {
            block: self.block.min(other.block),
            set_up: self.set_up.min(other.set_up),
            grace: self.grace.min(other.grace),
            waiting: self.waiting.min(other.waiting),
            memory_bytes: self.memory_bytes.min(other.memory_bytes),
            allocation_bytes: self.allocation_bytes.min(other.allocation_bytes),
            output_bytes: self.output_bytes.min(other.output_bytes),
            value_bytes: self.value_bytes.min(other.value_bytes),
            recursion: self.recursion.min(other.recursion),
            calls_per_block: self.calls_per_block.min(other.calls_per_block),
            calls_total: self.calls_total.min(other.calls_total),
        }
    }
}

mod seconds {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer, de::Error as _};

    pub(super) fn serialize<S: Serializer>(duration: &Duration, out: S) -> Result<S::Ok, S::Error> {
        out.serialize_f64(duration.as_secs_f64())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(input: D) -> Result<Duration, D::Error> {
        let seconds = f64::deserialize(input)?;
        Duration::try_from_secs_f64(seconds).map_err(|_| {
            // What no clock can count to is written short.
            D::Error::custom(if seconds > 1e15 {
                format!("expected a number of seconds below 1e19, got {seconds:e}")
            } else {
                format!("expected a positive number of seconds, got {seconds}")
            })
        })
    }
}
