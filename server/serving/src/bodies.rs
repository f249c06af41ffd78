//! Request bodies: bounded in size, in time, and in all.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use futures::StreamExt as _;
use thiserror::Error;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Bytes that one permit stands for.
const UNIT: usize = 4096;

/// Why a body was not read.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum BodyError {
    /// It is larger than a body may be.
    #[error("the body is larger than {largest} bytes")]
    TooLarge {
        /// What it may be.
        largest: usize,
    },
    /// The connection broke.
    #[error("the body cannot be read: {0}")]
    Broken(String),
    /// It did not go on.
    #[error("the body stood still for {stall:?} after {bytes} bytes")]
    Stalled {
        /// For how long.
        stall: Duration,
        /// What had come.
        bytes: usize,
    },
    /// There is no room now; asking again may help.
    #[error("other requests' bodies take all the room there is for bodies; ask again")]
    Busy,
}

/// Bounds the bodies that are read or worked on.
#[derive(Clone, Debug)]
pub struct Bodies {
    room: Arc<Semaphore>,
    largest: usize,
    stall: Duration,
}

/// A body, and its share of the room while it is worked on.
#[derive(Debug)]
pub struct Read {
    /// The body.
    pub bytes: Vec<u8>,
    room: OwnedSemaphorePermit,
}

impl Read {
    /// Hands the bytes on; the room stays taken until the second part is dropped.
    pub fn split(self) -> (Vec<u8>, OwnedSemaphorePermit) {
        (self.bytes, self.room)
    }
}

impl Bodies {
    /// Bodies of at most `largest` bytes each and `all` together, none of which stands still for longer than `stall`.
    pub fn new(largest: usize, all: usize, stall: Duration) -> Self {
        let permits = (all.max(largest) / UNIT + 1).min(Semaphore::MAX_PERMITS);
        Self { room: Arc::new(Semaphore::new(permits)), largest, stall }
    }

    /// Reads a body to its end.
    pub async fn read(&self, body: Body) -> Result<Read, BodyError> {
        let mut chunks = body.into_data_stream();
        let mut bytes = Vec::new();
        let mut room = self.take(1)?;
        loop {
            let chunk = match tokio::time::timeout(self.stall, chunks.next()).await {
                Ok(None) => return Ok(Read { bytes, room }),
                Ok(Some(Ok(chunk))) => chunk,
                Ok(Some(Err(error))) => return Err(BodyError::Broken(error.to_string())),
                Err(_) => {
                    return Err(BodyError::Stalled { stall: self.stall, bytes: bytes.len() });
                }
            };
            let length = bytes.len() + chunk.len();
            if length > self.largest {
                return Err(BodyError::TooLarge { largest: self.largest });
            }
            let missing = (length / UNIT + 1).saturating_sub(room.num_permits());
            if missing > 0 {
                room.merge(self.take(missing)?);
            }
            bytes.extend_from_slice(&chunk);
        }
    }

    fn take(&self, permits: usize) -> Result<OwnedSemaphorePermit, BodyError> {
        let permits = u32::try_from(permits).unwrap_or(u32::MAX);
        Arc::clone(&self.room).try_acquire_many_owned(permits).map_err(|_| BodyError::Busy)
    }
}
