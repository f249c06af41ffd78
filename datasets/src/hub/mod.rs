//! Data sets of the Hugging Face hub: where its own libraries keep them on this machine, and how they get there.
//!
//! | module | what lives there |
//! |---|---|
//! | [`address`] | names of repositories and revisions; `hf://org/name/file@revision` |
//! | [`cache`] | the cache: `refs`, `blobs`, `snapshots`, locks |
//! | [`api`] | what the hub answers: the commit of a revision, the files of a commit |
//! | [`mod@fetch`] | files into the cache: resumed, checked, placed at once |
//! | [`glob`] | patterns over file names, names of splits |
//!
//! Invariants: reading a source never downloads; a file stands under its name only once its checksum was compared; no
//! name that comes from the hub leads out of the cache; the token is sent to the hub's own address and to none that it
//! redirects to.

pub mod address;
pub mod api;
pub mod cache;
pub mod fetch;
pub mod glob;

use std::path::PathBuf;
use std::time::Duration;

use thiserror::Error;

pub use address::{Address, Repo, Revision};
pub use cache::{Cache, CachedRepo};
pub use fetch::{Fetched, Progress, Wanted, fetch};

/// Where the hub is, who asks, and how patiently.
#[derive(Clone)]
pub struct HubOptions {
    /// `https://huggingface.co`, or what `HF_ENDPOINT` says.
    pub endpoint: String,
    /// Goes with requests to the endpoint.
    pub token: Option<String>,
    /// Only the cache is looked into.
    pub offline: bool,
    /// Times that a request is tried before it counts as failed. A download that got further starts counting anew.
    pub tries: u32,
    /// The wait before the second try; it doubles up to [`LONGEST_WAIT`].
    pub first_wait: Duration,
    /// How long nothing may arrive before a connection counts as broken.
    pub silence: Duration,
}

/// The longest wait between two tries.
pub const LONGEST_WAIT: Duration = Duration::from_secs(30);

impl std::fmt::Debug for HubOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let token = self.token.as_ref().map(|_| "...");
        f.debug_struct("HubOptions")
            .field("endpoint", &self.endpoint)
            .field("token", &token)
            .field("offline", &self.offline)
            .finish_non_exhaustive()
    }
}

impl HubOptions {
    /// What `HF_ENDPOINT`, `HF_TOKEN` (or the file that `HF_TOKEN_PATH` names, or `$HF_HOME/token`) and
    /// `HF_HUB_OFFLINE` say.
    pub fn from_env() -> Self {
        let file = || {
            let path = variable("HF_TOKEN_PATH").map(PathBuf::from).or_else(|| Some(cache::home()?.join("token")))?;
            std::fs::read_to_string(path).ok()
        };
        let token = variable("HF_TOKEN").or_else(|| variable("HUGGING_FACE_HUB_TOKEN")).or_else(file);
        let yes = |name: &str| {
            variable(name)
                .is_some_and(|value| ["1", "ON", "YES", "TRUE"].contains(&value.to_ascii_uppercase().as_str()))
        };
        Self {
            endpoint: variable("HF_ENDPOINT").unwrap_or_else(|| "https://huggingface.co".to_owned()),
            token: token.map(|token| token.trim().to_owned()).filter(|token| !token.is_empty()),
            offline: yes("HF_HUB_OFFLINE"),
            tries: 5,
            first_wait: Duration::from_millis(500),
            silence: Duration::from_mins(1),
        }
    }
}

/// A variable that is set to something.
fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// What can go wrong with the hub.
#[derive(Debug, Error)]
pub enum HubError {
    /// A repository, revision or file is named wrongly.
    #[error("`{given}` {reason}")]
    Name {
        /// What was given.
        given: String,
        /// What was expected.
        reason: String,
    },
    /// The cache does not hold what is asked for.
    #[error("{0}")]
    Missing(String),
    /// The hub refuses, or answers what it should not.
    #[error("`{url}`: {reason}")]
    Answer {
        /// The address.
        url: String,
        /// What came, and what to do.
        reason: String,
    },
    /// The hub does not answer.
    #[error("`{url}`: {reason} (tried {tries} times)")]
    Away {
        /// The address.
        url: String,
        /// What happened last.
        reason: String,
        /// How often it was tried.
        tries: u32,
    },
    /// A file that arrived is not the one that the hub lists.
    #[error("`{file}`: expected the {kind} {expected}, got {got}; what arrived was removed")]
    Checksum {
        /// The file in its repository.
        file: String,
        /// Of which hash.
        kind: &'static str,
        /// As listed.
        expected: String,
        /// As arrived.
        got: String,
    },
    /// The cache cannot be read or written.
    #[error("`{}`: {reason}", .path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What happened.
        reason: String,
        /// Whether it was being written.
        writing: bool,
    },
}

impl HubError {
    pub(crate) fn name(given: impl Into<String>, reason: impl Into<String>) -> Self {
        Self::Name { given: given.into(), reason: reason.into() }
    }

    pub(crate) fn reading(path: impl Into<PathBuf>, error: impl std::fmt::Display) -> Self {
        Self::Io { path: path.into(), reason: error.to_string(), writing: false }
    }

    pub(crate) fn writing(path: impl Into<PathBuf>, error: impl std::fmt::Display) -> Self {
        Self::Io { path: path.into(), reason: error.to_string(), writing: true }
    }
}

impl From<HubError> for crate::DataError {
    fn from(error: HubError) -> Self {
        match error {
            HubError::Io { path, reason, .. } => Self::File { path, reason },
            error @ HubError::Name { .. } => Self::Source { key: "path".to_owned(), reason: error.to_string() },
            error => Self::Unusable(error.to_string()),
        }
    }
}
