//! Request bodies: bounded in size, in time, and in all.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::StatusCode;
use futures::StreamExt as _;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::error::ApiError;

/// Bytes that one permit stands for.
const UNIT: usize = 4096;

/// Bounds the bodies that are read or worked on.
#[derive(Clone, Debug)]
pub(crate) struct Bodies {
    room: Arc<Semaphore>,
    largest: usize,
    stall: Duration,
}

/// A body, and its share of the room while it is worked on.
#[derive(Debug)]
pub(crate) struct Read {
    pub(crate) bytes: Vec<u8>,
    room: OwnedSemaphorePermit,
}

impl Read {
    /// Hands the bytes on; the room stays taken until the second part is dropped.
    pub(crate) fn split(self) -> (Vec<u8>, OwnedSemaphorePermit) {
        (self.bytes, self.room)
    }
}

impl Bodies {
    /// Bodies of at most `largest` bytes each and `all` together, none of which stands still for longer than `stall`.
    pub(crate) fn new(largest: usize, all: usize, stall: Duration) -> Self {
        let permits = (all.max(largest) / UNIT + 1).min(Semaphore::MAX_PERMITS);
        Self { room: Arc::new(Semaphore::new(permits)), largest, stall }
    }

    /// Reads a body to its end.
    pub(crate) async fn read(&self, body: Body) -> Result<Read, ApiError> {
        let too_large = || ApiError::too_large(format!("the body is larger than {} bytes", self.largest));
        let mut chunks = body.into_data_stream();
        let mut bytes = Vec::new();
        let mut room = self.take(1)?;
        loop {
            let chunk = match tokio::time::timeout(self.stall, chunks.next()).await {
                Ok(None) => return Ok(Read { bytes, room }),
                Ok(Some(Ok(chunk))) => chunk,
                Ok(Some(Err(error))) => return Err(ApiError::request(format!("the body cannot be read: {error}"))),
                Err(_) => {
                    let message = format!("the body stood still for {:?} after {} bytes", self.stall, bytes.len());
                    return Err(ApiError::new(StatusCode::REQUEST_TIMEOUT, "timeout", message));
                }
            };
            let length = bytes.len() + chunk.len();
            if length > self.largest {
                return Err(too_large());
            }
            let missing = (length / UNIT + 1).saturating_sub(room.num_permits());
            if missing > 0 {
                room.merge(self.take(missing)?);
            }
            bytes.extend_from_slice(&chunk);
        }
    }

    fn take(&self, permits: usize) -> Result<OwnedSemaphorePermit, ApiError> {
        let permits = u32::try_from(permits).unwrap_or(u32::MAX);
        Arc::clone(&self.room).try_acquire_many_owned(permits).map_err(|_| {
            let message = "other requests' bodies take all the room there is for bodies; ask again";
            ApiError::full(StatusCode::SERVICE_UNAVAILABLE, "busy", message)
        })
    }
}
