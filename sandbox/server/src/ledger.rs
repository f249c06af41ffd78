//! What is promised: REPLs and memory. A promise is kept by a value, and ends with it.

use std::sync::{Arc, Mutex, PoisonError};

use axum::http::StatusCode;
use espalier_sandbox::Limits;

use crate::error::ApiError;

/// What is promised so far.
#[derive(Debug)]
pub(crate) struct Ledger {
    max_repls: usize,
    max_memory: u64,
    used: Mutex<Used>,
}

#[derive(Debug, Default)]
struct Used {
    repls: usize,
    memory: u64,
}

/// Bytes that a REPL with these limits and contexts may come to hold: the guest's three times a context, and the
/// host's own copy.
pub(crate) fn promise(limits: &Limits, context_bytes: u64) -> u64 {
    limits.memory_bytes.saturating_add(context_bytes.saturating_mul(4))
}

impl Ledger {
    pub(crate) fn new(max_repls: usize, max_memory: u64) -> Arc<Self> {
        Arc::new(Self { max_repls, max_memory, used: Mutex::default() })
    }

    /// A place for one REPL.
    pub(crate) fn place(self: &Arc<Self>, memory: u64) -> Result<Place, ApiError> {
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        if used.repls >= self.max_repls {
            let message = format!("all {} REPLs of this server are in use; close one, or ask again", self.max_repls);
            return Err(ApiError::full(StatusCode::TOO_MANY_REQUESTS, "too_many_repls", message));
        }
        self.check(&used, memory)?;
        used.repls += 1;
        used.memory += memory;
        drop(used);
        Ok(Place { ledger: Arc::clone(self), memory })
    }

    /// REPLs that exist, and bytes that are promised.
    pub(crate) fn used(&self) -> (usize, u64) {
        let used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        (used.repls, used.memory)
    }

    fn check(&self, used: &Used, memory: u64) -> Result<(), ApiError> {
        if memory > self.max_memory {
            let message = format!("{memory} bytes of memory are more than this server's {}", self.max_memory);
            return Err(ApiError::too_large(message));
        }
        if used.memory.saturating_add(memory) > self.max_memory {
            let message = format!(
                "{} of this server's {} bytes of memory are promised to REPLs, {memory} more do not fit; close one, ask \
                 for smaller `limits.memory_bytes`, or ask again",
                used.memory, self.max_memory
            );
            return Err(ApiError::full(StatusCode::SERVICE_UNAVAILABLE, "no_memory", message));
        }
        Ok(())
    }
}

/// A REPL's place.
#[derive(Debug)]
pub(crate) struct Place {
    ledger: Arc<Ledger>,
    memory: u64,
}

impl Place {
    /// A place of the same size.
    pub(crate) fn another(&self) -> Result<Self, ApiError> {
        self.ledger.place(self.memory)
    }

    /// Bytes that are promised.
    pub(crate) fn memory(&self) -> u64 {
        self.memory
    }

    /// More memory for the same REPL.
    pub(crate) fn grow(&mut self, memory: u64) -> Result<(), ApiError> {
        let mut used = self.ledger.used.lock().unwrap_or_else(PoisonError::into_inner);
        self.ledger.check(&used, memory)?;
        used.memory += memory;
        self.memory += memory;
        Ok(())
    }

    /// Gives back what [`Place::grow`] took.
    pub(crate) fn shrink(&mut self, memory: u64) {
        let mut used = self.ledger.used.lock().unwrap_or_else(PoisonError::into_inner);
        let memory = memory.min(self.memory);
        used.memory -= memory;
        self.memory -= memory;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut used = self.ledger.used.lock().unwrap_or_else(PoisonError::into_inner);
        used.repls -= 1;
        used.memory -= self.memory;
    }
}
