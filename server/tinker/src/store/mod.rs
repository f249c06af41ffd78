//! The database: sessions, models, samplers, and the queue of requests. All SQL is in this room.
//!
//! | module | what lives there |
//! |---|---|
//! | this one | [`Store`], opening it, what a restart finds |
//! | `schema` | tables and migrations |
//! | `writer` | one writer, many writes a commit |
//! | [`sessions`] | sessions, their ends |
//! | [`models`] | models and samplers |
//! | [`checkpoints`] | checkpoints |
//! | [`requests`] | requests: taken in, claimed, finished, looked at |
//! | `order` | whose turn it is in a model's order |
//! | `prune` | what is forgotten, and when |
//!
//! SQLite runs in WAL mode with `synchronous=NORMAL`: what was acknowledged survives the death of the process; a power
//! failure may take the last moments. One process at a time: a file lock refuses a second.

pub mod checkpoints;
pub mod models;
mod order;
mod prune;
pub mod requests;
mod schema;
pub mod sessions;
mod writer;

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures::future::BoxFuture;
use sqlx::ConnectOptions as _;
use sqlx::sqlite::{
    SqliteConnectOptions, SqliteConnection, SqliteJournalMode, SqlitePool, SqlitePoolOptions, SqliteSynchronous,
};
use thiserror::Error;

use self::writer::Writer;
use crate::links::Links;
use crate::payloads::Payloads;

/// Bytes above which a request or result lies in a file of its own, as a rule.
pub const INLINE: usize = 64 << 10;

/// Connections that read.
const READERS: u32 = 4;

/// Why the database did not do something.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum StoreError {
    /// The database failed.
    #[error("the database failed: {0}")]
    Database(String),
    /// A file or folder cannot be used.
    #[error("`{path}`: {reason}")]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// Another process has it.
    #[error("`{0}` is used by another process: expected a folder of this server's own")]
    Taken(PathBuf),
}

impl From<sqlx::Error> for StoreError {
    fn from(error: sqlx::Error) -> Self {
        Self::Database(error.to_string())
    }
}

/// Milliseconds since 1970.
pub fn now() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as i64)
}

/// What a restart found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// Requests that were being executed and are in the queue again.
    pub again: u64,
}

/// The database.
#[derive(Clone)]
pub struct Store {
    writer: Writer,
    readers: SqlitePool,
    payloads: Payloads,
    links: Links,
    /// Bytes above which a request or result lies in a file.
    inline: usize,
    /// Requests that are not finished.
    unfinished: Arc<AtomicUsize>,
    opened_at: i64,
    recovered: Recovered,
    _lock: Arc<File>,
}

impl Store {
    /// Opens the database in a folder, which is made where it is missing. What a dead process left is put in order.
    pub async fn open(folder: &Path, inline: usize) -> Result<Self, StoreError> {
        let failed =
            |path: &Path, error: io::Error| StoreError::File { path: path.to_owned(), reason: error.to_string() };
        // Prompts, results and weights are nobody else's business on this machine.
        let mut made = std::fs::DirBuilder::new();
        made.recursive(true);
        #[cfg(unix)]
        std::os::unix::fs::DirBuilderExt::mode(&mut made, 0o700);
        made.create(folder).map_err(|error| failed(folder, error))?;
        let lock_path = folder.join("lock");
        let lock = File::options().create(true).truncate(false).write(true).open(&lock_path);
        let lock = lock.map_err(|error| failed(&lock_path, error))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(std::fs::TryLockError::WouldBlock) => return Err(StoreError::Taken(folder.to_owned())),
            Err(std::fs::TryLockError::Error(error)) => return Err(failed(&lock_path, error)),
        }
        let payloads = folder.join("payloads");
        let payloads = Payloads::open(payloads.clone()).map_err(|error| failed(&payloads, error))?;
        let key = folder.join("links.key");
        let links = Links::open(&key).map_err(|error| failed(&key, error))?;
        let options = SqliteConnectOptions::new()
            .filename(folder.join("tinker.db"))
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(SqliteSynchronous::Normal)
            .foreign_keys(true)
            .busy_timeout(Duration::from_secs(30));
        let mut connection = options.connect().await?;
        schema::migrate(&mut connection).await?;
        let opened_at = now();
        let recovered = order::recover(&mut connection).await?;
        let unfinished: i64 = sqlx::query_scalar("SELECT COUNT(*) FROM requests WHERE state IN (0, 1, 2)")
            .fetch_one(&mut connection)
            .await?;
        let readers = SqlitePoolOptions::new().max_connections(READERS).connect_with(options.read_only(true)).await?;
        Ok(Self {
            writer: Writer::start(connection),
            readers,
            payloads,
            links,
            inline,
            unfinished: Arc::new(AtomicUsize::new(unfinished as usize)),
            opened_at,
            recovered,
            _lock: Arc::new(lock),
        })
    }

    /// What this process found when it opened the database.
    pub fn recovered(&self) -> Recovered {
        self.recovered
    }

    /// Requests that are not finished.
    pub fn unfinished(&self) -> usize {
        self.unfinished.load(Ordering::Relaxed)
    }

    /// Links to files of checkpoints.
    pub(crate) fn links(&self) -> &Links {
        &self.links
    }

    async fn write<T, W>(&self, work: W) -> Result<T, StoreError>
    where
        T: Send + 'static,
        W: for<'c> FnOnce(&'c mut SqliteConnection) -> BoxFuture<'c, Result<T, StoreError>> + Send + 'static,
    {
        self.writer.write(work).await
    }

    /// Bytes for a row: themselves, or the name of a file that holds them.
    async fn lay_down(&self, bytes: Vec<u8>) -> Result<Laid, StoreError> {
        if bytes.len() <= self.inline {
            return Ok(Laid { inline: Some(bytes), file: None });
        }
        let file =
            self.payloads.put(bytes).await.map_err(|error| StoreError::Database(format!("a payload: {error}")))?;
        Ok(Laid { inline: None, file: Some(file) })
    }

    /// The bytes of a row.
    async fn pick_up(&self, laid: Laid) -> Result<Vec<u8>, StoreError> {
        match laid {
            Laid { inline: Some(bytes), .. } => Ok(bytes),
            Laid { file: Some(file), .. } => {
                self.payloads.get(file).await.map_err(|error| StoreError::Database(format!("a payload: {error}")))
            }
            Laid { .. } => Err(StoreError::Database("a payload is gone".to_owned())),
        }
    }
}

/// Bytes in a row or in a file.
#[derive(Clone, Debug, Default)]
struct Laid {
    inline: Option<Vec<u8>>,
    file: Option<String>,
}
