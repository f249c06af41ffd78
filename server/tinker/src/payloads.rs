//! Large requests and results: files named by the SHA-256 of what they hold.
//!
//! Writing the same bytes twice makes one file. A file is whole or not there: it is written under another name and renamed.
//! What no row names any more is removed once it is [`YOUNG`] no longer: a file is written before the row that names it.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, RwLock};
use std::time::{Duration, SystemTime};

use sha2::{Digest as _, Sha256};

use crate::ids::hex;

/// A file this young may belong to a row that is not written yet.
const YOUNG: Duration = Duration::from_mins(15);

/// A folder of files.
#[derive(Clone, Debug)]
pub(crate) struct Payloads {
    folder: Arc<PathBuf>,
    next: Arc<AtomicU64>,
    /// Held for reading while a file is put, for writing while one is removed.
    sweeping: Arc<RwLock<()>>,
}

impl Payloads {
    pub(crate) fn open(folder: PathBuf) -> io::Result<Self> {
        fs::create_dir_all(&folder)?;
        Ok(Self { folder: Arc::new(folder), next: Arc::default(), sweeping: Arc::default() })
    }

    fn place(&self, name: &str) -> PathBuf {
        self.folder.join(name.get(..2).unwrap_or("00")).join(name)
    }

    /// Keeps bytes; answers their name.
    pub(crate) async fn put(&self, bytes: Vec<u8>) -> io::Result<String> {
        let this = self.clone();
        apart(move || this.put_now(&bytes)).await
    }

    fn put_now(&self, bytes: &[u8]) -> io::Result<String> {
        let name = hex(&Sha256::digest(bytes));
        let _putting = self.sweeping.read();
        let place = self.place(&name);
        if let Some(folder) = place.parent() {
            fs::create_dir_all(folder)?;
        }
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let draft = self.folder.join(format!("draft-{}-{number}", std::process::id()));
        fs::write(&draft, bytes)?;
        // Also over a file that is there: it is young again then.
        fs::rename(&draft, &place)?;
        Ok(name)
    }

    /// The bytes of that name.
    pub(crate) async fn get(&self, name: String) -> io::Result<Vec<u8>> {
        let place = self.place(&name);
        apart(move || {
            let bytes = fs::read(&place)?;
            if hex(&Sha256::digest(&bytes)) != name {
                return Err(io::Error::new(io::ErrorKind::InvalidData, format!("`{}` is damaged", place.display())));
            }
            Ok(bytes)
        })
        .await
    }

    /// Names of files that are old enough to go, if nothing needs them. At most `most`.
    pub(crate) async fn old(&self, most: usize) -> io::Result<Vec<String>> {
        let folder = Arc::clone(&self.folder);
        apart(move || {
            let mut names = Vec::new();
            for part in fs::read_dir(&*folder)? {
                let part = part?;
                if !part.file_type()?.is_dir() {
                    remove_old(&part.path())?;
                    continue;
                }
                for file in fs::read_dir(part.path())? {
                    let file = file?;
                    if names.len() < most && is_old(&file.path()) {
                        names.extend(file.file_name().into_string());
                    }
                }
            }
            Ok(names)
        })
        .await
    }

    /// Removes a file that no row names, unless it became young meanwhile.
    pub(crate) async fn remove(&self, name: &str) -> io::Result<()> {
        let (place, sweeping) = (self.place(name), Arc::clone(&self.sweeping));
        apart(move || {
            let _sweeping = sweeping.write();
            remove_old(&place)
        })
        .await
    }
}

fn is_old(path: &Path) -> bool {
    let age = fs::metadata(path).and_then(|data| data.modified()).ok();
    age.and_then(|modified| SystemTime::now().duration_since(modified).ok()).is_some_and(|age| age > YOUNG)
}

fn remove_old(path: &Path) -> io::Result<()> {
    if !is_old(path) {
        return Ok(());
    }
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Files are read and written on threads that may wait.
async fn apart<T: Send + 'static>(work: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<T> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|error| Err(io::Error::other(error)))
}
