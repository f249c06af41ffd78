//! Whose output the launcher shows.

use std::collections::VecDeque;
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::process::Child;
use tokio::task::JoinSet;

use crate::{DistributedError, VariableError};

/// How much of a hidden rank's standard error is kept.
const TAIL: usize = 4096;
/// Longest line that is kept together.
const LINE: usize = 8192;
/// How long a rank's output is waited for after its end: a process that it started may hold the pipe.
const DRAIN: Duration = Duration::from_secs(1);

/// Whose output is shown: `ESPALIER_RANK_OUTPUT`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RankOutput {
    /// `rank0`, the default: that of rank 0, as it is. Of other ranks the end of the standard error is kept for the error.
    #[default]
    Rank0,
    /// `all`: that of all ranks, each line behind the rank's number.
    All,
}

impl RankOutput {
    const VARIABLE: &str = "ESPALIER_RANK_OUTPUT";

    pub(super) fn from_env() -> Result<Self, DistributedError> {
        let found = std::env::var_os(Self::VARIABLE).unwrap_or_default().to_string_lossy().into_owned();
        match found.as_str() {
            "" | "rank0" => Ok(Self::Rank0),
            "all" => Ok(Self::All),
            _ => {
                let expected = "`rank0` or `all`".to_owned();
                let error = VariableError { name: Self::VARIABLE, expected, found: Some(found) };
                Err(DistributedError::Environment(vec![error]))
            }
        }
    }

    /// Standard output and standard error of a rank.
    pub(super) fn streams(self, rank: usize) -> (Stdio, Stdio) {
        match self {
            Self::Rank0 if rank == 0 => (Stdio::inherit(), Stdio::inherit()),
            Self::Rank0 => (Stdio::null(), Stdio::piped()),
            Self::All => (Stdio::piped(), Stdio::piped()),
        }
    }
}

/// The pipes of one rank, being read.
pub(super) struct Streams {
    readers: JoinSet<()>,
    tail: Arc<Mutex<VecDeque<u8>>>,
}

impl Streams {
    pub(super) fn of(rank: usize, child: &mut Child, output: RankOutput) -> Self {
        let tail = Arc::new(Mutex::new(VecDeque::new()));
        let mut readers = JoinSet::new();
        match output {
            RankOutput::Rank0 => {
                if let Some(stderr) = child.stderr.take() {
                    readers.spawn(keep_tail(stderr, Arc::clone(&tail)));
                }
            }
            RankOutput::All => {
                let prefix = format!("[rank {rank}] ");
                if let Some(stdout) = child.stdout.take() {
                    readers.spawn(show(stdout, tokio::io::stdout(), prefix.clone()));
                }
                if let Some(stderr) = child.stderr.take() {
                    readers.spawn(show(stderr, tokio::io::stderr(), prefix));
                }
            }
        }
        Self { readers, tail }
    }

    /// The end of what was written to standard error and not shown.
    pub(super) async fn finish(mut self) -> String {
        let all = async { while self.readers.join_next().await.is_some() {} };
        let _ = tokio::time::timeout(DRAIN, all).await;
        let tail = std::mem::take(&mut *self.tail.lock().unwrap_or_else(PoisonError::into_inner));
        String::from_utf8_lossy(&Vec::from(tail)).into_owned()
    }
}

async fn keep_tail(mut from: impl AsyncRead + Unpin, tail: Arc<Mutex<VecDeque<u8>>>) {
    let mut chunk = [0u8; 1024];
    while let Ok(n @ 1..) = from.read(&mut chunk).await {
        let mut tail = tail.lock().unwrap_or_else(PoisonError::into_inner);
        tail.extend(&chunk[..n]);
        let excess = tail.len().saturating_sub(TAIL);
        tail.drain(..excess);
    }
}

async fn show(mut from: impl AsyncRead + Unpin, mut to: impl AsyncWrite + Unpin, prefix: String) {
    let mut chunk = [0u8; 1024];
    let mut line = prefix.clone().into_bytes();
    loop {
        let n = from.read(&mut chunk).await.unwrap_or(0);
        for &byte in &chunk[..n] {
            line.push(byte);
            if byte == b'\n' || line.len() >= LINE {
                if byte != b'\n' {
                    line.push(b'\n');
                }
                // Who reads the launcher's output may have gone; the ranks go on.
                let _ = to.write_all(&line).await;
                line.truncate(prefix.len());
            }
        }
        if n == 0 {
            if line.len() > prefix.len() {
                line.push(b'\n');
                let _ = to.write_all(&line).await;
            }
            let _ = to.flush().await;
            return;
        }
        let _ = to.flush().await;
    }
}
