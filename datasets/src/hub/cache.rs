//! The cache as `huggingface_hub` lays it out, so that both find what either brought.
//!
//! ```text
//! $HF_HUB_CACHE/                      or $HF_HOME/hub, ~/.cache/huggingface/hub
//!   datasets--org--name/
//!     refs/main                       the commit of a revision
//!     blobs/<etag>                    contents, by SHA-256 (large files) or git hash
//!     blobs/<etag>.incomplete         what arrived of one so far
//!     snapshots/<commit>/dir/file     links to blobs
//!   .locks/datasets--org--name/<etag>.lock
//! ```

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{ErrorKind, Write as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use super::address::{Repo, Revision, check_path, is_hex};
use super::{HubError, variable};

/// `$HF_HOME`, or where it is by default.
pub(crate) fn home() -> Option<PathBuf> {
    variable("HF_HOME")
        .map(PathBuf::from)
        .or_else(|| variable("XDG_CACHE_HOME").map(|cache| PathBuf::from(cache).join("huggingface")))
        .or_else(|| variable("HOME").map(|home| PathBuf::from(home).join(".cache/huggingface")))
}

/// The cache on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cache {
    root: PathBuf,
}

/// A repository in the cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CachedRepo {
    /// Its name.
    pub repo: Repo,
    /// Revisions by name, with their commits.
    pub revisions: BTreeMap<String, String>,
    /// Files of each commit, with their sizes in bytes.
    pub commits: BTreeMap<String, Vec<(String, u64)>>,
}

impl Cache {
    /// The cache in a folder.
    pub fn at(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// Where `HF_HUB_CACHE`, `HF_HOME` or the home folder say.
    pub fn from_env() -> Result<Self, HubError> {
        let named = variable("HF_HUB_CACHE").or_else(|| variable("HUGGINGFACE_HUB_CACHE")).map(PathBuf::from);
        match named.or_else(|| Some(home()?.join("hub"))) {
            Some(root) => Ok(Self { root }),
            None => Err(HubError::Missing("nothing says where the cache is; set `HF_HOME` to a folder".to_owned())),
        }
    }

    /// The folder.
    pub fn root(&self) -> &Path {
        &self.root
    }

    fn repo(&self, repo: &Repo) -> PathBuf {
        self.root.join(repo.folder())
    }

    /// The folder with the files of a commit.
    pub fn snapshot(&self, repo: &Repo, commit: &str) -> PathBuf {
        self.repo(repo).join("snapshots").join(commit)
    }

    /// Where contents lie.
    pub(crate) fn blob(&self, repo: &Repo, etag: &str) -> PathBuf {
        self.repo(repo).join("blobs").join(etag)
    }

    /// The commit of a revision as the cache knows it.
    pub fn commit(&self, repo: &Repo, revision: &Revision) -> Result<Option<String>, HubError> {
        if revision.is_commit() {
            let commit = revision.as_str().to_owned();
            return Ok(self.snapshot(repo, &commit).is_dir().then_some(commit));
        }
        let path = self.repo(repo).join("refs").join(revision.as_str());
        match fs::read_to_string(&path) {
            Ok(text) => {
                let commit = text.trim();
                if is_hex(commit, 40) {
                    Ok(Some(commit.to_owned()))
                } else {
                    Err(HubError::reading(path, format!("expected a commit of 40 hexadecimal digits, got `{commit}`")))
                }
            }
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(None),
            Err(error) => Err(HubError::reading(path, error)),
        }
    }

    /// The names of a commit's files that are there whole, in order.
    pub fn files(&self, repo: &Repo, commit: &str) -> Result<Vec<String>, HubError> {
        let mut names = Vec::new();
        walk(&self.snapshot(repo, commit), "", &mut names)?;
        names.sort_unstable();
        Ok(names)
    }

    /// The data sets in the cache, by name.
    pub fn repos(&self) -> Result<Vec<CachedRepo>, HubError> {
        let mut repos = Vec::new();
        for name in entries(&self.root)? {
            let Some(repo) = Repo::of_folder(&name) else { continue };
            let folder = self.repo(&repo);
            let mut names = Vec::new();
            walk(&folder.join("refs"), "", &mut names)?;
            let mut revisions = BTreeMap::new();
            for name in names {
                if let Ok(revision) = Revision::parse(&name)
                    && let Some(commit) = self.commit(&repo, &revision)?
                {
                    revisions.insert(name, commit);
                }
            }
            let mut commits = BTreeMap::new();
            for commit in entries(&folder.join("snapshots"))? {
                let snapshot = self.snapshot(&repo, &commit);
                let size = |name: String| {
                    let size = fs::metadata(snapshot.join(&name)).map(|file| file.len()).unwrap_or_default();
                    (name, size)
                };
                let files: Vec<(String, u64)> = self.files(&repo, &commit)?.into_iter().map(size).collect();
                commits.insert(commit, files);
            }
            if !commits.is_empty() {
                repos.push(CachedRepo { repo, revisions, commits });
            }
        }
        repos.sort_by(|one, other| one.repo.cmp(&other.repo));
        Ok(repos)
    }

    /// Waits for the lock of some contents; it is let go when the file is closed.
    pub(crate) fn lock(&self, repo: &Repo, etag: &str) -> Result<File, HubError> {
        let path = self.root.join(".locks").join(repo.folder()).join(format!("{etag}.lock"));
        let parent = path.parent().unwrap_or(&self.root);
        fs::create_dir_all(parent).map_err(|error| HubError::writing(parent, error))?;
        let lock = File::options().create(true).truncate(false).write(true).open(&path);
        let lock = lock.map_err(|error| HubError::writing(&path, error))?;
        lock.lock().map_err(|error| HubError::writing(&path, error))?;
        Ok(lock)
    }

    /// Makes a file of a commit a link to its contents. Whoever looks sees the old one or the new one.
    pub(crate) fn link(&self, repo: &Repo, commit: &str, name: &str, etag: &str) -> Result<PathBuf, HubError> {
        let path = self.snapshot(repo, commit).join(name);
        let parent = path.parent().unwrap_or(&self.root);
        fs::create_dir_all(parent).map_err(|error| HubError::writing(parent, error))?;
        // From `snapshots/<commit>/a/b` it is three folders up to `blobs`.
        let up = "../".repeat(name.split('/').count() + 1);
        let target = PathBuf::from(format!("{up}blobs/{etag}"));
        if fs::read_link(&path).is_ok_and(|there| there == target) {
            return Ok(path);
        }
        let fresh = parent.join(format!(".{}.link", passing()));
        let _ = fs::remove_file(&fresh);
        std::os::unix::fs::symlink(&target, &fresh).map_err(|error| HubError::writing(&fresh, error))?;
        fs::rename(&fresh, &path).map_err(|error| {
            let _ = fs::remove_file(&fresh);
            HubError::writing(&path, error)
        })?;
        sync_folder(parent)?;
        Ok(path)
    }

    /// Notes the commit of a revision.
    pub(crate) fn point(&self, repo: &Repo, revision: &Revision, commit: &str) -> Result<(), HubError> {
        if revision.is_commit() {
            return Ok(());
        }
        let path = self.repo(repo).join("refs").join(revision.as_str());
        let parent = path.parent().unwrap_or(&self.root);
        fs::create_dir_all(parent).map_err(|error| HubError::writing(parent, error))?;
        let fresh = parent.join(format!(".{}.ref", passing()));
        let write = || {
            let mut file = File::create(&fresh)?;
            file.write_all(commit.as_bytes())?;
            file.sync_all()?;
            fs::rename(&fresh, &path)
        };
        write().map_err(|error| HubError::writing(&path, error))?;
        sync_folder(parent)
    }
}

/// A name that nobody else takes at the same time.
fn passing() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    format!("{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// Makes sure that a folder's entries are on disk.
pub(crate) fn sync_folder(folder: &Path) -> Result<(), HubError> {
    File::open(folder).and_then(|folder| folder.sync_all()).map_err(|error| HubError::writing(folder, error))
}

/// The names in a folder, in order; none where there is no folder.
fn entries(folder: &Path) -> Result<Vec<String>, HubError> {
    let read = match fs::read_dir(folder) {
        Ok(read) => read,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(HubError::reading(folder, error)),
    };
    let mut names = Vec::new();
    for entry in read {
        let entry = entry.map_err(|error| HubError::reading(folder, error))?;
        names.extend(entry.file_name().into_string());
    }
    names.sort_unstable();
    Ok(names)
}

/// The files below a folder whose contents are there. Links to folders are not followed.
fn walk(folder: &Path, within: &str, names: &mut Vec<String>) -> Result<(), HubError> {
    for entry in entries(folder)? {
        let path = folder.join(&entry);
        // On their way to their name.
        let passing = entry.starts_with('.') && [".link", ".ref"].iter().any(|end| entry.ends_with(end));
        let name = if within.is_empty() { entry } else { format!("{within}/{entry}") };
        let kind = fs::symlink_metadata(&path).map_err(|error| HubError::reading(&path, error))?;
        if kind.is_dir() {
            walk(&path, &name, names)?;
        } else if check_path(&name).is_ok() && !passing && path.is_file() {
            names.push(name);
        }
    }
    Ok(())
}
