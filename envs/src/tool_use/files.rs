//! The agent's files: a tree of names and bytes that the host holds in memory.
//!
//! Nothing of it lies in a file system of the host, so there is nothing to escape to: no links, no devices, no owners.
//! Programs see a copy, and what they leave comes back through the same bounds.
//!
//! Invariants: every name is relative and plain; no name is a file and a folder at once; counts and sizes are bounded.

use std::collections::BTreeMap;

/// Longest name, bytes.
const LONGEST_NAME: usize = 240;

/// Deepest name, parts.
const DEEPEST: usize = 16;

/// What the files may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileLimits {
    /// Most files.
    pub files: usize,
    /// Most bytes of one file.
    pub file_bytes: usize,
    /// Most bytes of all.
    pub bytes: usize,
}

impl Default for FileLimits {
    fn default() -> Self {
        Self { files: 1000, file_bytes: 4 << 20, bytes: 16 << 20 }
    }
}

/// The files of a workspace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Files {
    limits: FileLimits,
    entries: BTreeMap<String, Vec<u8>>,
    bytes: usize,
}

/// A name in its one form, or what is wrong with it.
pub fn plain(path: &str) -> Result<String, String> {
    let wrong = |reason: &str| Err(format!("the path `{}` {reason}", path.escape_debug()));
    let outside = |part: &str| part.starts_with('~');
    if path.starts_with('/') || path.split('/').find(|part| !matches!(*part, "" | ".")).is_some_and(outside) {
        return wrong("must be relative to the workspace: `notes/a.txt`");
    }
    if path.contains(['\\', '\0']) || path.chars().any(char::is_control) {
        return wrong("must have no backslash and no control character");
    }
    let parts: Vec<&str> = path.split('/').filter(|part| !matches!(*part, "" | ".")).collect();
    if parts.contains(&"..") {
        return wrong("must not leave the workspace: `..` is not allowed");
    }
    if parts.len() > DEEPEST || path.len() > LONGEST_NAME {
        return wrong(&format!("is too long: at most {LONGEST_NAME} bytes and {DEEPEST} parts"));
    }
    Ok(parts.join("/"))
}

impl Files {
    /// No files yet.
    pub fn new(limits: FileLimits) -> Self {
        Self { limits, ..Self::default() }
    }

    /// Every file, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.entries.iter().map(|(path, content)| (path.as_str(), content.as_slice()))
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// A file's content.
    pub fn get(&self, path: &str) -> Option<&[u8]> {
        self.entries.get(path).map(Vec::as_slice)
    }

    /// Whether files lie below a name.
    pub fn is_folder(&self, path: &str) -> bool {
        path.is_empty() || self.below(path).next().is_some()
    }

    /// The files below a folder; all for the empty name.
    pub fn below<'a>(&'a self, folder: &'a str) -> impl Iterator<Item = (&'a str, &'a [u8])> {
        self.iter().filter(move |(path, _)| {
            folder.is_empty() || path.strip_prefix(folder).is_some_and(|rest| rest.starts_with('/'))
        })
    }

    /// Writes a file, in place of one of that name.
    pub fn put(&mut self, path: &str, content: Vec<u8>) -> Result<(), String> {
        let path = plain(path)?;
        if path.is_empty() {
            return Err("a file needs a name".to_owned());
        }
        if self.below(&path).next().is_some() {
            return Err(format!("`{path}` is a folder"));
        }
        let mut folder = path.as_str();
        while let Some((parent, _)) = folder.rsplit_once('/') {
            if self.entries.contains_key(parent) {
                return Err(format!("`{parent}` is a file, so nothing can lie below it"));
            }
            folder = parent;
        }
        let FileLimits { files, file_bytes, bytes } = self.limits;
        if content.len() > file_bytes {
            return Err(format!("`{path}` would be {} bytes; a file has at most {file_bytes}", content.len()));
        }
        let before = self.entries.get(&path).map(Vec::len);
        if before.is_none() && self.entries.len() >= files {
            return Err(format!("the workspace is full: it has at most {files} files"));
        }
        let total = self.bytes - before.unwrap_or(0) + content.len();
        if total > bytes {
            return Err(format!(
                "the workspace is full: with `{path}` it would have {total} bytes; it has at most {bytes}"
            ));
        }
        self.bytes = total;
        self.entries.insert(path, content);
        Ok(())
    }

    /// Removes a file.
    pub fn remove(&mut self, path: &str) -> bool {
        match self.entries.remove(path) {
            Some(content) => {
                self.bytes -= content.len();
                true
            }
            None => false,
        }
    }
}
