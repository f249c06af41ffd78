//! All REPLs, and the reaper.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use espalier_sandbox::{Limits, Repl};
use rand::TryRngCore as _;
use rand::rngs::OsRng;

use crate::error::ApiError;
use crate::ledger::{Ledger, Place};
use crate::session::{Attached, Session};

/// All REPLs of a server.
pub(crate) struct Sessions {
    pub(crate) ledger: Arc<Ledger>,
    open: Mutex<HashMap<String, Arc<Session>>>,
    next: AtomicU64,
}

impl Sessions {
    pub(crate) fn new(ledger: Arc<Ledger>) -> Self {
        Self { ledger, open: Mutex::default(), next: AtomicU64::new(0) }
    }

    fn open(&self) -> MutexGuard<'_, HashMap<String, Arc<Session>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a REPL in; answers its id, which nobody can guess.
    pub(crate) fn add(&self, owner: usize, repl: Repl, limits: Limits, place: Place) -> Result<Attached, ApiError> {
        let id = unguessable()?;
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let session = Arc::new(Session::new(id.clone(), owner, number, repl, limits, place));
        let attached = session.attach();
        self.open().insert(id, session);
        Ok(attached)
    }

    /// A REPL of this owner's.
    pub(crate) fn find(&self, id: &str, owner: usize) -> Result<Attached, ApiError> {
        match self.open().get(id) {
            Some(session) if session.owner == owner => Ok(session.attach()),
            _ => Err(ApiError::no_repl(id)),
        }
    }

    /// This owner's REPLs, oldest first.
    pub(crate) fn of(&self, owner: usize) -> Vec<Arc<Session>> {
        let mut sessions: Vec<_> = self.open().values().filter(|session| session.owner == owner).cloned().collect();
        sessions.sort_by_key(|session| session.number);
        sessions
    }

    /// Closes one.
    pub(crate) fn close(&self, session: &Session) {
        let session_ = self.open().remove(&session.id);
        session.close();
        drop(session_);
    }

    /// Closes those that nobody looked at for so long; answers how many.
    pub(crate) fn reap(&self, idle: Duration) -> usize {
        let mut reaped = Vec::new();
        self.open().retain(|_, session| {
            let stays = session.idle().is_none_or(|since| since < idle);
            if !stays {
                reaped.push(Arc::clone(session));
            }
            stays
        });
        for session in &reaped {
            session.close();
        }
        reaped.len()
    }

    /// Closes all; answers how many there were, and how many of them ran a block.
    pub(crate) fn close_all(&self) -> (usize, usize) {
        let sessions: Vec<_> = self.open().drain().map(|(_, session)| session).collect();
        let running = sessions.iter().filter(|session| session.activity() == "running").count();
        for session in &sessions {
            session.close();
        }
        (sessions.len(), running)
    }
}

/// 128 random bits as text.
fn unguessable() -> Result<String, ApiError> {
    let mut bytes = [0; 16];
    OsRng
        .try_fill_bytes(&mut bytes)
        .map_err(|error| ApiError::internal(format!("the system gives no randomness: {error}")))?;
    let mut id = String::with_capacity(32);
    for byte in bytes {
        let _ = write!(id, "{byte:02x}");
    }
    Ok(id)
}
