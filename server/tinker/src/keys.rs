//! Who may use the server.
//!
//! The server holds hashes, not keys: its file of keys gives nobody a key. A key has many random bits, so that a plain
//! SHA-256 of it cannot be guessed back.

use sha2::{Digest as _, Sha256};
use thiserror::Error;

use crate::ids::{hex, unhex};

/// Whose requests these are where there are no keys.
const EVERYBODY: &str = "everybody";

/// The keys that are accepted, and whose they are. What was made with one owner's key does not exist for another's.
#[derive(Clone, Default)]
pub struct Keys(Vec<Key>);

#[derive(Clone)]
struct Key {
    owner: String,
    hash: [u8; 32],
}

/// Why a list of keys cannot be used. Says nothing of the keys.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum KeyError {
    /// There is none.
    #[error("expected at least one key, got none")]
    None,
    /// A line that is none.
    #[error(
        "line {line}: expected `OWNER SHA256`, 64 hexadecimal digits of the key's SHA-256 (`printf %s KEY | sha256sum`), got \
         {found}"
    )]
    Line {
        /// Which, from 1.
        line: usize,
        /// What stands there, without the line itself.
        found: String,
    },
    /// Two lines have one key.
    #[error("line {line}: this key is there twice")]
    Twice {
        /// Which, from 1.
        line: usize,
    },
}

impl Keys {
    /// Reads keys: one a line, an owner's name and the SHA-256 of the key. What follows a `#` is a remark. An owner may have
    /// several.
    pub fn parse(text: &str) -> Result<Self, KeyError> {
        let mut keys: Vec<Key> = Vec::new();
        for (index, line) in text.lines().enumerate() {
            let number = index + 1;
            let line = line.split('#').next().unwrap_or_default().trim();
            if line.is_empty() {
                continue;
            }
            let words: Vec<&str> = line.split_whitespace().collect();
            let [owner, hash] = *words.as_slice() else {
                return Err(KeyError::Line { line: number, found: format!("{} words", words.len()) });
            };
            let hash = unhex(hash)
                .ok_or_else(|| KeyError::Line { line: number, found: format!("{} characters", hash.len()) })?;
            if keys.iter().any(|key| key.hash == hash) {
                return Err(KeyError::Twice { line: number });
            }
            keys.push(Key { owner: owner.to_owned(), hash });
        }
        if keys.is_empty() { Err(KeyError::None) } else { Ok(Self(keys)) }
    }

    /// Whether there are none.
    pub fn is_open(&self) -> bool {
        self.0.is_empty()
    }

    /// Whose key this is. How long it takes says nothing of the key: what is compared are hashes.
    pub(crate) fn owner(&self, given: &str) -> Option<&str> {
        if self.is_open() {
            return Some(EVERYBODY);
        }
        let hash: [u8; 32] = Sha256::digest(given.as_bytes()).into();
        self.0.iter().find(|key| key.hash == hash).map(|key| key.owner.as_str())
    }

    /// The line of a key in a file of keys.
    pub fn line(owner: &str, key: &str) -> String {
        format!("{owner} {}", hex(&Sha256::digest(key.as_bytes())))
    }
}

impl std::fmt::Debug for Keys {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "Keys({})", self.0.len())
    }
}
