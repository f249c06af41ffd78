//! Read-only connections, pooled per file.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::hooks::AuthContext;
use rusqlite::{Connection, OpenFlags};

use crate::error::SqlError;
use crate::guard::Guard;

/// Connections that wait for the next query of one database.
const IDLE: usize = 8;

/// Databases whose connections are kept.
const KEPT: usize = 64;

/// How a database is opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpenOptions {
    /// Promise that nobody changes the file while it is open: no locks are taken, and a database in WAL mode can be
    /// read from a folder that cannot be written to. Wrong results where the promise does not hold.
    pub immutable: bool,
}

/// A connection with its guard.
pub(crate) struct Guarded {
    pub(crate) connection: Connection,
    pub(crate) guard: Guard,
}

/// One database. Any number of threads may query it at once.
pub struct Database {
    path: PathBuf,
    options: OpenOptions,
    /// The file that was opened: another one may come to lie at the path.
    identity: (u64, u64),
    idle: Mutex<Vec<Guarded>>,
}

impl std::fmt::Debug for Database {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Database").field("path", &self.path).finish_non_exhaustive()
    }
}

/// Device and file number of a database file.
fn identity(path: &Path) -> Result<(u64, u64), SqlError> {
    use std::os::unix::fs::MetadataExt;
    match std::fs::metadata(path) {
        Ok(metadata) if metadata.is_file() => Ok((metadata.dev(), metadata.ino())),
        Ok(_) => Err(SqlError::Storage { path: path.to_owned(), reason: "it is not a file".to_owned() }),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            Err(SqlError::NoDatabase { path: path.to_owned() })
        }
        Err(error) => Err(SqlError::Storage { path: path.to_owned(), reason: error.to_string() }),
    }
}

impl Database {
    /// Opens a database. A file that is no database is refused here.
    pub fn open(path: &Path, options: OpenOptions) -> Result<Self, SqlError> {
        let identity = identity(path)?;
        let database = Self { path: path.to_owned(), options, identity, idle: Mutex::default() };
        let first = database.connect()?;
        database.give_back(first);
        Ok(database)
    }

    /// Its file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A connection, an idle one where there is one.
    pub(crate) fn take(&self) -> Result<Guarded, SqlError> {
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        match idle {
            Some(connection) => Ok(connection),
            None => self.connect(),
        }
    }

    pub(crate) fn give_back(&self, connection: Guarded) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < IDLE {
            idle.push(connection);
        }
    }

    fn connect(&self) -> Result<Guarded, SqlError> {
        let failed = |error: rusqlite::Error| SqlError::Storage { path: self.path.clone(), reason: reason_of(error) };
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_URI | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(self.uri(), flags).map_err(failed)?;
        connection.busy_timeout(Duration::from_secs(1)).map_err(failed)?;
        connection.set_db_config(DbConfig::SQLITE_DBCONFIG_DEFENSIVE, true).map_err(failed)?;
        connection.set_db_config(DbConfig::SQLITE_DBCONFIG_TRUSTED_SCHEMA, false).map_err(failed)?;
        connection
            .execute_batch("PRAGMA query_only = ON; PRAGMA cell_size_check = ON; PRAGMA cache_size = -4000;")
            .map_err(failed)?;
        // SQLite opens lazily: only this reads the file.
        connection.query_row("SELECT count(*) FROM sqlite_master", [], |_| Ok(())).map_err(failed)?;
        let guard = Guard::default();
        let authorizer = guard.clone();
        connection.authorizer(Some(move |context: AuthContext<'_>| authorizer.authorize(context))).map_err(failed)?;
        Ok(Guarded { connection, guard })
    }

    fn uri(&self) -> String {
        use std::fmt::Write;
        use std::os::unix::ffi::OsStrExt;
        let mut uri = "file:".to_owned();
        for &byte in self.path.as_os_str().as_bytes() {
            if byte.is_ascii_alphanumeric() || b"/._-".contains(&byte) {
                uri.push(char::from(byte));
            } else {
                // Writing to a String cannot fail.
                let _ = write!(uri, "%{byte:02X}");
            }
        }
        uri.push_str(if self.options.immutable { "?mode=ro&immutable=1" } else { "?mode=ro" });
        uri
    }
}

/// What SQLite said.
pub(crate) fn reason_of(error: rusqlite::Error) -> String {
    match error {
        rusqlite::Error::SqliteFailure(_, Some(message)) => message,
        rusqlite::Error::SqlInputError { msg, .. } => msg,
        other => other.to_string(),
    }
}

/// Databases by path. The connections of those last used are kept.
#[derive(Debug, Default)]
pub struct Databases {
    options: OpenOptions,
    /// The one that was used last is the last.
    open: Mutex<VecDeque<Arc<Database>>>,
}

impl Databases {
    /// Databases that are opened with these options.
    pub fn new(options: OpenOptions) -> Self {
        Self { options, open: Mutex::default() }
    }

    /// The database at a path. A file that was replaced since is opened anew.
    pub fn open(&self, path: &Path) -> Result<Arc<Database>, SqlError> {
        let identity = identity(path)?;
        {
            let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(index) = open.iter().position(|database| database.path == path)
                && let Some(database) = open.remove(index)
                && database.identity == identity
            {
                open.push_back(Arc::clone(&database));
                return Ok(database);
            }
        }
        let database = Arc::new(Database::open(path, self.options)?);
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if open.len() >= KEPT {
            open.pop_front();
        }
        open.push_back(Arc::clone(&database));
        Ok(database)
    }
}
