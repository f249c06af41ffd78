//! Files of a data set into the cache.
//!
//! What arrives is written to `<etag>.incomplete` and hashed on the way; a connection that breaks goes on where it was,
//! in this process or the next. Only contents whose checksum is the listed one get their name, and only then is a link
//! made; the revision's name is noted last.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};

use reqwest::StatusCode;
use reqwest::header::CONTENT_RANGE;
use sha1::Sha1;
use sha2::{Digest as _, Sha256};

use super::address::{Repo, Revision};
use super::api::{Failed, Hash, Hub, Listed, Tries, again};
use super::cache::{Cache, sync_folder};
use super::{HubError, HubOptions, glob};
use crate::input;

/// What is to be fetched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// The repository.
    pub repo: Repo,
    /// The revision.
    pub revision: Revision,
    /// Names or patterns of files; every file where there is none.
    pub files: Vec<String>,
    /// Only data files whose names say that they belong to this split.
    pub split: Option<String>,
}

/// A file that lies in the cache now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fetched {
    /// Its name in the repository.
    pub name: String,
    /// Where it lies.
    pub path: PathBuf,
    /// Bytes.
    pub bytes: u64,
    /// Whether it was there before.
    pub kept: bool,
}

/// How far a fetch is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress<'a> {
    /// Files were chosen.
    Chosen {
        /// How many.
        files: usize,
        /// Bytes, all together.
        bytes: u64,
    },
    /// Bytes of a file lie in the cache.
    Bytes {
        /// Its name.
        file: &'a str,
        /// So many.
        arrived: u64,
        /// Of so many.
        size: u64,
    },
}

impl Wanted {
    /// Whether a file is wanted.
    fn takes(&self, name: &str) -> bool {
        let named = self.files.is_empty() && name != ".gitattributes"
            || self.files.iter().any(|pattern| glob::matches(pattern, name));
        let split = self
            .split
            .as_ref()
            .is_none_or(|split| input::kind(Path::new(name)).is_some() && glob::is_split(name, split));
        named && split
    }

    /// The names that are wanted; an error where there is none, or where a name fits nothing.
    fn choose<'n>(&self, names: impl Iterator<Item = &'n str> + Clone, place: &str) -> Result<Vec<&'n str>, HubError> {
        let listed = || {
            let mut shown: Vec<String> = names.clone().take(12).map(|name| format!("`{name}`")).collect();
            if names.clone().nth(12).is_some() {
                shown.push("...".to_owned());
            }
            if shown.is_empty() { "no file".to_owned() } else { shown.join(", ") }
        };
        for pattern in &self.files {
            if !names.clone().any(|name| glob::matches(pattern, name)) {
                return Err(HubError::Missing(format!("no file `{pattern}` in {place}; it has {}", listed())));
            }
        }
        let chosen: Vec<&str> = names.clone().filter(|name| self.takes(name)).collect();
        match (&self.split, chosen.is_empty()) {
            (Some(split), true) => {
                Err(HubError::Missing(format!("no data file of split `{split}` in {place}; it has {}", listed())))
            }
            (None, true) => Err(HubError::Missing(format!("{place} holds no files"))),
            _ => Ok(chosen),
        }
    }
}

/// Brings files into the cache; those that are there already stay. Offline, only looks whether they are there.
pub async fn fetch(
    options: &HubOptions,
    cache: &Cache,
    wanted: &Wanted,
    progress: &mut (dyn FnMut(Progress<'_>) + Send),
) -> Result<Vec<Fetched>, HubError> {
    let (repo, revision) = (&wanted.repo, &wanted.revision);
    if options.offline {
        return offline(cache, wanted);
    }
    let hub = Hub::new(options)?;
    let commit = hub.commit(repo, revision).await?;
    let listed = hub.files(repo, &commit).await?;
    let place = format!("`{repo}` at `{}`", revision.as_str());
    let names = wanted.choose(listed.iter().map(|file| file.name.as_str()), &place)?;
    let chosen: Vec<&Listed> = listed.iter().filter(|file| names.contains(&file.name.as_str())).collect();
    progress(Progress::Chosen { files: chosen.len(), bytes: chosen.iter().map(|file| file.size).sum() });
    let mut fetched = Vec::with_capacity(chosen.len());
    for file in chosen {
        let kept = one(&hub, options, cache, repo, &commit, file, progress).await?;
        let path = cache.link(repo, &commit, &file.name, file.hash.digits())?;
        progress(Progress::Bytes { file: &file.name, arrived: file.size, size: file.size });
        fetched.push(Fetched { name: file.name.clone(), path, bytes: file.size, kept });
    }
    cache.point(repo, revision, &commit)?;
    Ok(fetched)
}

fn offline(cache: &Cache, wanted: &Wanted) -> Result<Vec<Fetched>, HubError> {
    let (repo, revision) = (&wanted.repo, wanted.revision.as_str());
    let Some(commit) = cache.commit(repo, &wanted.revision)? else {
        return Err(HubError::Missing(format!(
            "`{repo}` at `{revision}` is not in `{}`, and `HF_HUB_OFFLINE` forbids to ask for it",
            cache.root().display()
        )));
    };
    let names = cache.files(repo, &commit)?;
    let place = format!("`{repo}` at `{revision}` in the cache, and `HF_HUB_OFFLINE` forbids to ask for more");
    let snapshot = cache.snapshot(repo, &commit);
    let fetched = |name: &str| {
        let path = snapshot.join(name);
        let bytes = fs::metadata(&path).map_err(|error| HubError::reading(&path, error))?.len();
        Ok(Fetched { name: name.to_owned(), path, bytes, kept: true })
    };
    wanted.choose(names.iter().map(String::as_str), &place)?.into_iter().map(fetched).collect()
}

/// One file's contents; whether they were there.
async fn one(
    hub: &Hub<'_>,
    options: &HubOptions,
    cache: &Cache,
    repo: &Repo,
    commit: &str,
    file: &Listed,
    progress: &mut (dyn FnMut(Progress<'_>) + Send),
) -> Result<bool, HubError> {
    let blob = cache.blob(repo, file.hash.digits());
    let there = |blob: &Path| fs::metadata(blob).is_ok_and(|found| found.is_file() && found.len() == file.size);
    if there(&blob) {
        return Ok(true);
    }
    let lock = {
        let (cache, repo, etag) = (cache.clone(), repo.clone(), file.hash.digits().to_owned());
        let waited = tokio::task::spawn_blocking(move || cache.lock(&repo, &etag)).await;
        waited.map_err(|error| HubError::writing(&blob, error))??
    };
    // Another process may have brought it meanwhile.
    if there(&blob) {
        return Ok(true);
    }
    let folder = blob.parent().unwrap_or(cache.root()).to_owned();
    fs::create_dir_all(&folder).map_err(|error| HubError::writing(&folder, error))?;
    let incomplete = folder.join(format!("{}.incomplete", file.hash.digits()));
    let mut arriving = Arriving::open(incomplete.clone(), file)?;
    let url = hub.contents(repo, commit, &file.name);
    let mut tries = Tries::new(options);
    loop {
        let before = arriving.have;
        let (reason, wait) = match arriving.go_on(hub, &url, commit, progress).await {
            Ok(()) => match arriving.finish() {
                Ok(()) => break,
                // The bytes are gone; perhaps it was those of an earlier connection.
                Err(error @ HubError::Checksum { .. }) if tries.is_last() => return Err(error),
                Err(HubError::Checksum { expected, got, .. }) => (format!("expected {expected}, got {got}"), None),
                Err(error) => return Err(error),
            },
            Err(Failed::Never(error)) => return Err(error),
            Err(Failed::Again { reason, wait }) => {
                if arriving.have > before {
                    tries.reset();
                }
                (reason, wait)
            }
        };
        tries.next(&url, reason, wait).await?;
    }
    fs::rename(&incomplete, &blob).map_err(|error| HubError::writing(&blob, error))?;
    sync_folder(&folder)?;
    drop(lock);
    Ok(false)
}

/// A file that is arriving.
struct Arriving<'a> {
    listed: &'a Listed,
    path: PathBuf,
    file: File,
    /// Bytes that are there, and hashed.
    have: u64,
    hasher: Hasher,
}

/// The hash of what arrived.
enum Hasher {
    Sha256(Sha256),
    Git(Sha1),
}

impl Hasher {
    fn new(listed: &Listed) -> Self {
        match listed.hash {
            Hash::Sha256(_) => Self::Sha256(Sha256::new()),
            // Git hashes a header in front of the contents.
            Hash::Git(_) => Self::Git(Sha1::new_with_prefix(format!("blob {}\0", listed.size))),
        }
    }

    fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Sha256(hash) => hash.update(bytes),
            Self::Git(hash) => hash.update(bytes),
        }
    }

    fn digits(&self) -> String {
        let hex = |bytes: &[u8]| {
            bytes.iter().fold(String::new(), |mut digits, byte| {
                let _ = write!(digits, "{byte:02x}");
                digits
            })
        };
        match self {
            Self::Sha256(hash) => hex(&hash.clone().finalize()),
            Self::Git(hash) => hex(&hash.clone().finalize()),
        }
    }
}

/// A file of which nothing arrived is nothing to go on with.
impl Drop for Arriving<'_> {
    fn drop(&mut self) {
        // Whoever drops this holds the lock still. Where the contents got their name, nothing lies there any more.
        if self.have == 0 {
            let _ = fs::remove_file(&self.path);
        }
    }
}

impl<'a> Arriving<'a> {
    /// Opens what arrived of a file before.
    fn open(path: PathBuf, listed: &'a Listed) -> Result<Self, HubError> {
        let failed = |error: std::io::Error| HubError::writing(&path, error);
        let mut file =
            File::options().create(true).truncate(false).read(true).write(true).open(&path).map_err(failed)?;
        let mut hasher = Hasher::new(listed);
        let mut have = 0;
        let mut buffer = vec![0; 1 << 18];
        loop {
            let count = file.read(&mut buffer).map_err(failed)?;
            if count == 0 {
                break;
            }
            hasher.update(&buffer[..count]);
            have += count as u64;
        }
        let mut arriving = Self { listed, path, file, have, hasher };
        if have > listed.size {
            arriving.restart()?;
        }
        Ok(arriving)
    }

    fn restart(&mut self) -> Result<(), HubError> {
        let emptied = self.file.set_len(0).and_then(|()| self.file.seek(SeekFrom::Start(0)));
        emptied.map_err(|error| HubError::writing(&self.path, error))?;
        self.have = 0;
        self.hasher = Hasher::new(self.listed);
        Ok(())
    }

    /// Asks for what is missing and takes what comes.
    async fn go_on(
        &mut self,
        hub: &Hub<'_>,
        url: &reqwest::Url,
        commit: &str,
        progress: &mut (dyn FnMut(Progress<'_>) + Send),
    ) -> Result<(), Failed> {
        if self.have == self.listed.size {
            return Ok(());
        }
        let mut response = hub.ask(url, self.have, Some((commit, self.listed))).await?;
        let begins = match response.status() {
            StatusCode::PARTIAL_CONTENT => {
                let range = response.headers().get(CONTENT_RANGE).and_then(|range| range.to_str().ok());
                range.and_then(|range| range.strip_prefix("bytes ")?.split_once('-')?.0.trim().parse().ok())
            }
            StatusCode::RANGE_NOT_SATISFIABLE => None,
            _ => Some(0),
        };
        if begins != Some(self.have) {
            self.restart().map_err(Failed::Never)?;
            if begins != Some(0) {
                let reason = "the rest of the file was refused; beginning anew".to_owned();
                return Err(Failed::Again { reason, wait: None });
            }
        }
        while let Some(chunk) = response.chunk().await.map_err(|error| again(&error))? {
            if self.have + chunk.len() as u64 > self.listed.size {
                self.restart().map_err(Failed::Never)?;
                let reason = format!("more than the listed {} bytes came", self.listed.size);
                return Err(Failed::Again { reason, wait: None });
            }
            self.file.write_all(&chunk).map_err(|error| Failed::Never(HubError::writing(&self.path, error)))?;
            self.hasher.update(&chunk);
            self.have += chunk.len() as u64;
            progress(Progress::Bytes { file: &self.listed.name, arrived: self.have, size: self.listed.size });
        }
        if self.have < self.listed.size {
            let reason = format!("the answer broke off after {} of {} bytes", self.have, self.listed.size);
            return Err(Failed::Again { reason, wait: None });
        }
        Ok(())
    }

    /// Compares the checksum; contents that are others are removed.
    fn finish(&mut self) -> Result<(), HubError> {
        let got = self.hasher.digits();
        if got != self.listed.hash.digits() {
            self.restart()?;
            let kind = match self.listed.hash {
                Hash::Sha256(_) => "SHA-256",
                Hash::Git(_) => "git hash",
            };
            let expected = self.listed.hash.digits().to_owned();
            return Err(HubError::Checksum { file: self.listed.name.clone(), kind, expected, got });
        }
        self.file.sync_all().map_err(|error| HubError::writing(&self.path, error))
    }
}
