//! A folder that jobs may write, read and written by the host without following links.
//!
//! Everything in it may have been put there by untrusted code: links to the host's files, pipes that block whoever
//! opens them, folders in place of files. Paths are resolved by the kernel below the folder, with no link on the way
//! (`openat2`, Linux 5.6), and only regular files are read.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, fchown};
use std::path::{Path, PathBuf};

use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat2};
use nix::sys::stat::Mode;

use crate::error::ProcessError;

/// A folder that jobs may write, as [`crate::Job::workspace`].
#[derive(Debug)]
pub struct Workspace {
    path: PathBuf,
    folder: OwnedFd,
}

impl Workspace {
    /// Makes a folder that does not exist yet, for this user only.
    pub fn create(path: impl Into<PathBuf>) -> Result<Self, ProcessError> {
        let path = path.into();
        std::fs::DirBuilder::new().mode(0o700).create(&path).map_err(|error| failed(&path, error))?;
        Self::open(path)
    }

    /// Opens a folder that exists.
    pub fn open(path: impl Into<PathBuf>) -> Result<Self, ProcessError> {
        let path = path.into();
        let folder = open_folder(&path)?;
        Ok(Self { path, folder })
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads a regular file of at most `limit` bytes.
    pub fn read(&self, path: &str, limit: u64) -> Result<Vec<u8>, ProcessError> {
        let at = self.path.join(path);
        let file = self.open_below(path, OFlag::O_RDONLY | OFlag::O_NONBLOCK, Mode::empty())?;
        let metadata = file.metadata().map_err(|error| failed(&at, error))?;
        if !metadata.is_file() {
            return Err(failed(&at, "is no regular file"));
        }
        let mut content = Vec::new();
        // One more byte than allowed tells whether there is more.
        file.take(limit.saturating_add(1)).read_to_end(&mut content).map_err(|error| failed(&at, error))?;
        if content.len() as u64 > limit {
            return Err(failed(&at, format!("is larger than {limit} bytes")));
        }
        Ok(content)
    }

    /// Writes a file, in place of one that exists. What is there and is no regular file is an error.
    pub fn write(&self, path: &str, content: &[u8]) -> Result<(), ProcessError> {
        let at = self.path.join(path);
        let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_NONBLOCK;
        let mut file = self.open_below(path, flags, Mode::from_bits_truncate(0o644))?;
        let metadata = file.metadata().map_err(|error| failed(&at, error))?;
        // A second name of a file elsewhere would be written through.
        if !metadata.is_file() || metadata.nlink() > 1 {
            return Err(failed(&at, "is no regular file of its own"));
        }
        file.set_len(0).and_then(|()| file.write_all(content)).map_err(|error| failed(&at, error))?;
        let owner = owner(&self.folder).map_err(|error| failed(&at, error))?;
        if metadata.uid() != owner.0 && crate::spawn::user().0 == 0 {
            fchown(&file, Some(owner.0), Some(owner.1)).map_err(|error| failed(&at, error))?;
        }
        Ok(())
    }

    fn open_below(&self, path: &str, flags: OFlag, mode: Mode) -> Result<File, ProcessError> {
        let how = OpenHow::new().flags(flags | OFlag::O_CLOEXEC).mode(mode).resolve(
            ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_SYMLINKS | ResolveFlag::RESOLVE_NO_MAGICLINKS,
        );
        let fd = openat2(&self.folder, path, how)
            .map_err(|error| failed(&self.path.join(path), std::io::Error::from(error)))?;
        Ok(File::from(fd))
    }
}

fn failed(path: &Path, reason: impl ToString) -> ProcessError {
    ProcessError::Workspace { path: path.to_owned(), reason: reason.to_string() }
}

fn owner(folder: &OwnedFd) -> std::io::Result<(u32, u32)> {
    let metadata = File::from(folder.try_clone()?).metadata()?;
    Ok((metadata.uid(), metadata.gid()))
}

fn open_folder(path: &Path) -> Result<OwnedFd, ProcessError> {
    let flags = libc::O_DIRECTORY | libc::O_NOFOLLOW;
    let file = std::fs::OpenOptions::new().read(true).custom_flags(flags).open(path);
    file.map(OwnedFd::from).map_err(|error| failed(path, error))
}

/// The real path of a workspace, and the user that its jobs run as where this process is root: its owner, which it is
/// given if it is root's.
pub(crate) fn prepare(path: &Path, root: bool, uid: u32) -> Result<(PathBuf, u32), ProcessError> {
    let folder = open_folder(path)?;
    let real = std::fs::canonicalize(path).map_err(|error| failed(path, error))?;
    if real.parent().is_none() {
        return Err(failed(path, "is the root of the host"));
    }
    let (owner, _) = owner(&folder).map_err(|error| failed(path, error))?;
    if !root || owner != 0 {
        return Ok((real, owner));
    }
    fchown(folder.as_fd(), Some(uid), Some(uid)).map_err(|error| failed(path, error))?;
    Ok((real, uid))
}
