//! Links to files of checkpoints, for programs that have no key: whoever has the link may read the file until it ends.
//!
//! A link names a path, when what lies there was saved, a file of it (or all of them), and when it ends; an HMAC-SHA256 over
//! the four with a secret of this server's, which lies beside the database and is readable by its owner only.

use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use hmac::{Hmac, Mac as _};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use rand::TryRngCore as _;
use rand::rngs::OsRng;
use sha2::Sha256;

use crate::ids::{hex, unhex};
use crate::path::TinkerPath;

/// What stands in a link as it is.
const PLAIN: &AsciiSet =
    &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~').remove(b':').remove(b'/');
/// Most files of a checkpoint.
const MOST_FILES: usize = 10_000;
/// Most folders in one another.
const MOST_DEPTH: usize = 16;

/// What a link is to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target<'a> {
    /// One file, by its path in the checkpoint's folder.
    File(&'a str),
    /// All files, as a tar.
    Archive,
}

/// When a link ends, and when the checkpoint was saved that it leads to: what is saved later under the same path is another.
/// Milliseconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Times {
    pub(crate) ends: i64,
    pub(crate) saved: i64,
}

impl Times {
    /// Reads what stands in a link.
    pub(crate) fn read(text: &str) -> Option<Self> {
        let (ends, saved) = text.split_once('-')?;
        Some(Self { ends: ends.parse().ok()?, saved: saved.parse().ok()? })
    }
}

/// Makes links, and knows its own.
#[derive(Clone)]
pub(crate) struct Links {
    key: Arc<[u8; 32]>,
}

impl Links {
    /// Reads the secret, or makes it.
    pub(crate) fn open(file: &Path) -> io::Result<Self> {
        let bytes = match fs::read(file) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let mut bytes = vec![0; 32];
                OsRng.try_fill_bytes(&mut bytes).map_err(io::Error::other)?;
                // Whole or not there: the folder is locked, so this name is nobody else's.
                let draft = file.with_extension("draft");
                let mut options = fs::File::options();
                options.write(true).create(true).truncate(true);
                #[cfg(unix)]
                {
                    use std::os::unix::fs::OpenOptionsExt as _;
                    options.mode(0o600);
                }
                let mut written = options.open(&draft)?;
                written.write_all(&bytes)?;
                written.sync_all()?;
                fs::rename(&draft, file)?;
                bytes
            }
            Err(error) => return Err(error),
        };
        let found = bytes.len();
        let wrong = |_| io::Error::new(io::ErrorKind::InvalidData, format!("expected 32 bytes, got {found}"));
        Ok(Self { key: Arc::new(bytes.try_into().map_err(wrong)?) })
    }

    fn mac(&self, path: &TinkerPath, target: Target<'_>, times: Times) -> Hmac<Sha256> {
        let mut mac = Hmac::<Sha256>::new_from_slice(&*self.key).unwrap_or_else(|_| unreachable!("any length will do"));
        let (kind, file) = match target {
            Target::File(file) => ("file", file),
            Target::Archive => ("archive", ""),
        };
        // No path holds a zero byte, and the file comes last.
        let Times { ends, saved } = times;
        mac.update(format!("{kind}\0{ends}\0{saved}\0{path}\0{file}").as_bytes());
        mac
    }

    /// The path of a link under `/api/v1/`.
    pub(crate) fn link(&self, path: &TinkerPath, target: Target<'_>, times: Times) -> String {
        let signature = hex(&self.mac(path, target, times).finalize().into_bytes());
        let (word, file) = match target {
            Target::File(file) => ("files", format!("/{}", utf8_percent_encode(file, PLAIN))),
            Target::Archive => ("archives", String::new()),
        };
        let TinkerPath { model, kind, name } = path;
        let Times { ends, saved } = times;
        format!("{word}/{ends}-{saved}/{signature}/{model}/{}/{}{file}", kind.segment(), name.as_str())
    }

    /// Whether a link is one of this server's, and has not ended. How long it takes says nothing of the signature.
    pub(crate) fn knows(&self, path: &TinkerPath, target: Target<'_>, times: Times, signature: &str, at: i64) -> bool {
        unhex(signature).is_some_and(|bytes| self.mac(path, target, times).verify_slice(&bytes).is_ok())
            && times.ends > at
    }
}

/// A file of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Held {
    /// Its path in the checkpoint's folder, with `/`.
    pub(crate) name: String,
    /// Its path on this machine.
    pub(crate) place: PathBuf,
}

/// The files in a checkpoint's folder, in order of their names. What is neither a file nor a folder is passed over, so that
/// nothing leads out of it.
pub(crate) fn files(folder: &Path) -> io::Result<Vec<Held>> {
    fn walk(folder: &Path, under: &str, depth: usize, found: &mut Vec<Held>) -> io::Result<()> {
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            let Ok(name) = entry.file_name().into_string() else { continue };
            let (name, kind) = (format!("{under}{name}"), entry.file_type()?);
            if kind.is_file() && found.len() < MOST_FILES {
                found.push(Held { name, place: entry.path() });
            } else if kind.is_dir() && depth < MOST_DEPTH {
                walk(&entry.path(), &format!("{name}/"), depth + 1, found)?;
            }
        }
        Ok(())
    }
    let mut found = Vec::new();
    walk(folder, "", 0, &mut found)?;
    found.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(found)
}
