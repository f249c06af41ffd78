//! Bytes and JSON values between ranks: configurations, metrics, names of files. Not for tensors.

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::Group;
use crate::error::{DistributedError, Operation};
use crate::wire::{Collective, MAX_BYTES};

impl Group {
    /// The bytes of every rank, in the order of ranks. Lengths may differ; each is at most 1 GiB. Memory and traffic are
    /// those of `world_size` times the longest.
    pub fn all_gather_bytes(&self, bytes: &[u8]) -> Result<Vec<Vec<u8>>, DistributedError> {
        self.check_length(Operation::AllGatherBytes, bytes)?;
        self.run(Collective::AllGatherBytes(bytes.to_vec()))
    }

    /// The root's bytes, at most 1 GiB. What other ranks pass is ignored.
    pub fn broadcast_bytes(&self, bytes: &[u8], root: usize) -> Result<Vec<u8>, DistributedError> {
        self.check_root(Operation::BroadcastBytes, root)?;
        let bytes = if root == self.rank() { bytes } else { &[] };
        self.check_length(Operation::BroadcastBytes, bytes)?;
        let received = self.run(Collective::BroadcastBytes { bytes: bytes.to_vec(), root })?;
        Ok(received.into_iter().next().unwrap_or_default())
    }

    /// The values of every rank, in the order of ranks, passed on as JSON.
    pub fn all_gather_json<T: Serialize + DeserializeOwned>(&self, value: &T) -> Result<Vec<T>, DistributedError> {
        let operation = Operation::AllGatherBytes;
        let all = self.all_gather_bytes(&self.to_json(operation, value)?)?;
        all.iter().enumerate().map(|(peer, bytes)| parse(self.rank(), operation, peer, bytes)).collect()
    }

    /// The root's value, passed on as JSON. What other ranks pass is ignored.
    pub fn broadcast_json<T: Serialize + DeserializeOwned>(
        &self,
        value: &T,
        root: usize,
    ) -> Result<T, DistributedError> {
        let operation = Operation::BroadcastBytes;
        let bytes = if root == self.rank() { self.to_json(operation, value)? } else { Vec::new() };
        parse(self.rank(), operation, root, &self.broadcast_bytes(&bytes, root)?)
    }

    fn check_length(&self, operation: Operation, bytes: &[u8]) -> Result<(), DistributedError> {
        if bytes.len() <= MAX_BYTES {
            return Ok(());
        }
        let expected = format!("at most {MAX_BYTES} bytes (send large data as tensors)");
        Err(self.argument(operation, "bytes", expected, bytes.len().to_string()))
    }

    fn to_json<T: Serialize>(&self, operation: Operation, value: &T) -> Result<Vec<u8>, DistributedError> {
        let (rank, peer) = (self.rank(), self.rank());
        serde_json::to_vec(value).map_err(|source| DistributedError::Json { rank, operation, peer, source })
    }
}

/// Reads the value of rank `peer`.
fn parse<T: DeserializeOwned>(
    rank: usize,
    operation: Operation,
    peer: usize,
    bytes: &[u8],
) -> Result<T, DistributedError> {
    serde_json::from_slice(bytes).map_err(|source| DistributedError::Json { rank, operation, peer, source })
}
