//! What a folder holds, by size and hash, so that damage is found before it is used.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Read;
use std::path::Path;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::error::TrainError;
use crate::files::{read_json, write_json};

/// Its name. It is written last.
pub(crate) const FILE: &str = "manifest.json";

const FORMAT: u32 = 1;

/// Of every other file below a folder: its size and hash.
#[derive(Serialize, Deserialize)]
pub(crate) struct Manifest {
    format: u32,
    /// Identity of the model that adapters belong to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) base: Option<String>,
    files: BTreeMap<String, FileEntry>,
}

#[derive(Serialize, Deserialize, PartialEq, Debug)]
struct FileEntry {
    bytes: u64,
    sha256: String,
}

impl Manifest {
    /// Writes it for a folder that is complete, and gives the bytes of all files.
    pub(crate) fn seal(folder: &Path, base: Option<String>) -> Result<u64, TrainError> {
        let files = entries(folder)?;
        let bytes = files.values().map(|file| file.bytes).sum();
        write_json(&folder.join(FILE), &Self { format: FORMAT, base, files })?;
        Ok(bytes)
    }

    /// Reads it and checks every file against it. The inner error says what is damaged.
    pub(crate) fn verify(folder: &Path) -> Result<Result<Self, String>, TrainError> {
        let manifest: Self = read_json(&folder.join(FILE))?;
        if manifest.format != FORMAT {
            return Ok(Err(format!("expected format {FORMAT}, found {}", manifest.format)));
        }
        for (name, expected) in &manifest.files {
            let file = folder.join(name);
            if !file.exists() {
                return Ok(Err(format!("`{name}` is missing")));
            }
            let found = entry_of(&file)?;
            if found != *expected {
                return Ok(Err(format!(
                    "`{name}`: expected {} bytes with SHA-256 {}, found {} with {}",
                    expected.bytes, expected.sha256, found.bytes, found.sha256
                )));
            }
        }
        Ok(Ok(manifest))
    }
}

/// Size and hash of every file below a folder.
fn entries(folder: &Path) -> Result<BTreeMap<String, FileEntry>, TrainError> {
    let mut found = BTreeMap::new();
    let mut open = vec![folder.to_owned()];
    while let Some(next) = open.pop() {
        for entry in fs::read_dir(&next).map_err(TrainError::io("read", &next))?.flatten() {
            let path = entry.path();
            if path.is_dir() {
                open.push(path);
                continue;
            }
            let name = path.strip_prefix(folder).unwrap_or(&path).to_string_lossy().into_owned();
            if name != FILE {
                found.insert(name, entry_of(&path)?);
            }
        }
    }
    Ok(found)
}

fn entry_of(path: &Path) -> Result<FileEntry, TrainError> {
    let mut file = File::open(path).map_err(TrainError::io("read", path))?;
    let (mut hash, mut bytes, mut buffer) = (Sha256::new(), 0, vec![0; 1 << 20]);
    loop {
        let n = file.read(&mut buffer).map_err(TrainError::io("read", path))?;
        if n == 0 {
            break;
        }
        hash.update(&buffer[..n]);
        bytes += n as u64;
    }
    let sha256 = hash.finalize().iter().map(|b| format!("{b:02x}")).collect();
    Ok(FileEntry { bytes, sha256 })
}
