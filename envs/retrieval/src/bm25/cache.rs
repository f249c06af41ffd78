//! Finished indexes on disk, by what the corpus holds.
//!
//! An index lies in `FORMAT-DIGEST`. It is built in a folder of another name and renamed when it is whole, under a lock
//! that other processes wait for; so whoever finds it finds all of it. A manifest names its files and their sizes. An
//! index that is not what its manifest says (a copy that broke off, a full disk, a bad sector in a small one) is said
//! in the log and built anew.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use tantivy::Index;
use tantivy::directory::MmapDirectory;

use super::index;
use crate::corpus::{Corpus, Progress};
use crate::retriever::RetrievalError;

/// Rises whenever indexes of an earlier version would be read wrongly, or corpora are refused that were indexed before.
const FORMAT: u32 = 2;

/// Indexes of up to this many bytes are read through once when they are opened, to find bad bytes.
const CHECKED_BYTES: u64 = 256 << 20;

const MANIFEST: &str = "espalier.json";

#[derive(Debug, Serialize, Deserialize)]
struct Manifest {
    format: u32,
    corpus: String,
    documents: u64,
    /// Sizes by name.
    files: BTreeMap<String, u64>,
}

/// The index of a corpus and the folder it lies in.
pub(super) fn open_or_build(
    corpus: &Corpus,
    cache: &Path,
    build_bytes: usize,
    progress: &mut dyn FnMut(Progress),
) -> Result<(Index, PathBuf), RetrievalError> {
    let digest = hex(&corpus.digest(progress)?);
    let folder = cache.join(format!("{FORMAT}-{digest}"));
    if let Ok(index) = open(&folder, &digest) {
        return Ok((index, folder));
    }
    fs::create_dir_all(cache).map_err(|error| failed(cache, format!("the folder cannot be made: {error}")))?;
    // Held until this function ends; the system lets go of it where the process dies.
    let lock = cache.join(format!("{FORMAT}-{digest}.lock"));
    let lock = File::create(&lock).map_err(|error| failed(&lock, format!("cannot be made: {error}")))?;
    lock.lock().map_err(|error| failed(&folder, format!("cannot be locked: {error}")))?;
    match open(&folder, &digest) {
        // Another process built it meanwhile.
        Ok(index) => return Ok((index, folder)),
        Err(reason) if folder.exists() => {
            tracing::warn!("the index `{}` is built anew: {reason}", folder.display());
            fs::remove_dir_all(&folder).map_err(|error| failed(&folder, format!("cannot be removed: {error}")))?;
        }
        Err(_) => {}
    }
    // What a process left that died while it built; nobody else builds while this one holds the lock.
    let half = cache.join(format!("{FORMAT}-{digest}.half"));
    if half.exists() {
        fs::remove_dir_all(&half).map_err(|error| failed(&half, format!("cannot be removed: {error}")))?;
    }
    let built = build(corpus, &half, &digest, build_bytes, progress).and_then(|()| {
        fs::rename(&half, &folder).map_err(|error| failed(&folder, format!("cannot be put in place: {error}")))
    });
    if let Err(error) = built {
        let _ = fs::remove_dir_all(&half);
        return Err(error);
    }
    let index = open(&folder, &digest).map_err(|reason| failed(&folder, format!("was built, but {reason}")))?;
    Ok((index, folder))
}

fn build(
    corpus: &Corpus,
    folder: &Path,
    digest: &str,
    build_bytes: usize,
    progress: &mut dyn FnMut(Progress),
) -> Result<(), RetrievalError> {
    fs::create_dir_all(folder).map_err(|error| failed(folder, format!("cannot be made: {error}")))?;
    let index = Index::create_in_dir(folder, index::schema()).map_err(|error| failed(folder, error.to_string()))?;
    index::prepare(&index);
    let read = hex(&index::fill(&index, corpus, build_bytes, progress)?);
    if read != digest {
        return Err(RetrievalError::Corpus {
            path: corpus.path().to_owned(),
            line: None,
            reason: "changed while it was indexed; open it again when nobody writes to it".to_owned(),
        });
    }
    let documents = index::reader(&index).map_err(|error| failed(folder, error.to_string()))?.searcher().num_docs();
    drop(index);
    let io = |error: std::io::Error| failed(folder, format!("cannot be written: {error}"));
    let mut files = BTreeMap::new();
    for entry in fs::read_dir(folder).map_err(io)? {
        let entry = entry.map_err(io)?;
        let name = entry.file_name().to_string_lossy().into_owned();
        // Locks come and go.
        if entry.path().extension().is_none_or(|kind| kind != "lock") {
            files.insert(name, entry.metadata().map_err(io)?.len());
        }
    }
    let manifest = Manifest { format: FORMAT, corpus: digest.to_owned(), documents, files };
    let text = serde_json::to_string(&manifest).map_err(|error| failed(folder, error.to_string()))?;
    let mut file = File::create(folder.join(MANIFEST)).map_err(io)?;
    file.write_all(text.as_bytes()).and_then(|()| file.sync_all()).map_err(io)?;
    File::open(folder).and_then(|folder| folder.sync_all()).map_err(io)
}

/// An index that is whole; otherwise why it is not.
fn open(folder: &Path, digest: &str) -> Result<Index, String> {
    let path = folder.join(MANIFEST);
    let text = fs::read_to_string(&path).map_err(|error| format!("`{MANIFEST}` cannot be read: {error}"))?;
    let manifest: Manifest = serde_json::from_str(&text).map_err(|error| format!("`{MANIFEST}` is broken: {error}"))?;
    if manifest.format != FORMAT || manifest.corpus != digest {
        return Err(format!("`{MANIFEST}` is of another index"));
    }
    let mut bytes = 0;
    for (name, expected) in &manifest.files {
        let size = fs::metadata(folder.join(name)).map_err(|error| format!("`{name}` cannot be read: {error}"))?.len();
        if size != *expected {
            return Err(format!("`{name}` has {size} bytes, not {expected}"));
        }
        bytes += size;
    }
    let directory = MmapDirectory::open(folder).map_err(|error| error.to_string())?;
    let index = Index::open(directory).map_err(|error| error.to_string())?;
    index::prepare(&index);
    if bytes <= CHECKED_BYTES {
        let broken = index.validate_checksum().map_err(|error| error.to_string())?;
        if let Some(name) = broken.iter().min() {
            return Err(format!("the checksum of `{}` is wrong", name.display()));
        }
    }
    let documents = index::reader(&index).map_err(|error| error.to_string())?.searcher().num_docs();
    if documents != manifest.documents {
        return Err(format!("it has {documents} documents, not {}", manifest.documents));
    }
    Ok(index)
}

fn hex(digest: &[u8]) -> String {
    use std::fmt::Write as _;
    digest.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn failed(path: &Path, reason: String) -> RetrievalError {
    RetrievalError::Index { path: path.to_owned(), reason }
}
