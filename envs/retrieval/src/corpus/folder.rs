//! The texts of a folder, and what in it is none.
//!
//! Links to folders are followed, each folder is read once: a link that leads around, or to a folder that another path
//! leads to, is left out. What is left out is counted and named. Folders and files whose names begin with a dot belong
//! to programs (`.git`, `._notes.txt`) and are left out as well.

use std::collections::{BTreeMap, HashSet};
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use super::{unreadable, wrong};
use crate::retriever::RetrievalError;

/// Most files of a folder.
const MAX_FILES: usize = 1_000_000;

/// Names that are kept of what was left out for one reason.
const NAMES: usize = 8;

/// What lies in a corpus's folder and was left out: how many, and the first names, by reason.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeftOut(BTreeMap<&'static str, (u64, Vec<String>)>);

impl LeftOut {
    fn note(&mut self, reason: &'static str, name: &Path) {
        let (count, names) = self.0.entry(reason).or_default();
        *count += 1;
        if names.len() < NAMES {
            names.push(format!("`{}`", name.display()));
        }
    }

    /// A sentence for each reason.
    pub fn sentences(&self) -> Vec<String> {
        let sentence = |(reason, (count, names)): (&&str, &(u64, Vec<String>))| {
            let more = if *count > names.len() as u64 { ", ..." } else { "" };
            format!("{count} left out {reason}: {}{more}", names.join(", "))
        };
        self.0.iter().map(sentence).collect()
    }
}

const BEGINS_WITH_A_DOT: &str = "for the dot in front of the name";
const LEADS_NOWHERE: &str = "as a link that leads nowhere";
const READ_ALREADY: &str = "as a link to a folder that is read under another name";
const NO_TEXT: &str = "as neither `.txt` nor `.md`";

/// The text files below a folder, in the order of their paths.
pub(super) fn texts(root: &Path) -> Result<(Vec<PathBuf>, LeftOut), RetrievalError> {
    let mut walk = Walk { root, files: Vec::new(), left_out: LeftOut::default(), seen: HashSet::new() };
    let mut links = Vec::new();
    walk.folder(root.to_owned(), &mut links)?;
    // Folders that lie there go before those that are linked: the name of a document does not depend on a link.
    while !links.is_empty() {
        links.sort();
        for link in std::mem::take(&mut links) {
            walk.folder(link, &mut links)?;
        }
    }
    walk.files.sort();
    Ok((walk.files, walk.left_out))
}

struct Walk<'a> {
    root: &'a Path,
    files: Vec<PathBuf>,
    left_out: LeftOut,
    /// Device and inode of every folder so far.
    seen: HashSet<(u64, u64)>,
}

impl Walk<'_> {
    /// Reads a folder and those that lie below it; links to folders are put aside.
    fn folder(&mut self, folder: PathBuf, links: &mut Vec<PathBuf>) -> Result<(), RetrievalError> {
        let mut folders = vec![folder];
        while let Some(folder) = folders.pop() {
            let metadata = folder.metadata().map_err(|error| unreadable(&folder, &error))?;
            if !self.seen.insert((metadata.dev(), metadata.ino())) {
                self.note(READ_ALREADY, &folder);
                continue;
            }
            let entries = folder.read_dir().map_err(|error| unreadable(&folder, &error))?;
            let mut entries = entries.collect::<Result<Vec<_>, _>>().map_err(|error| unreadable(&folder, &error))?;
            entries.sort_unstable_by_key(std::fs::DirEntry::file_name);
            for entry in entries {
                let path = entry.path();
                let kind = entry.file_type().map_err(|error| unreadable(&path, &error))?;
                if entry.file_name().as_encoded_bytes().starts_with(b".") {
                    self.note(BEGINS_WITH_A_DOT, &path);
                } else if kind.is_dir() {
                    folders.push(path);
                } else if let Some(metadata) = self.metadata(&path)? {
                    if metadata.is_dir() {
                        links.push(path);
                    } else if metadata.is_file() && is_text(&path) {
                        self.files.push(path);
                    } else {
                        self.note(NO_TEXT, &path);
                    }
                }
                if self.files.len() > MAX_FILES {
                    let reason = format!("a folder may hold {MAX_FILES} files; make it a JSONL corpus");
                    return Err(wrong(&folder, None, reason));
                }
            }
        }
        Ok(())
    }

    /// What a path leads to; nothing where it is a link that leads nowhere, or in a circle.
    fn metadata(&mut self, path: &Path) -> Result<Option<Metadata>, RetrievalError> {
        match path.metadata() {
            Ok(metadata) => Ok(Some(metadata)),
            Err(_) if path.is_symlink() => {
                self.note(LEADS_NOWHERE, path);
                Ok(None)
            }
            Err(error) => Err(unreadable(path, &error)),
        }
    }

    fn note(&mut self, reason: &'static str, path: &Path) {
        self.left_out.note(reason, path.strip_prefix(self.root).unwrap_or(path));
    }
}

/// Whether a file's name says that it is a text, in capitals or not.
fn is_text(path: &Path) -> bool {
    let kind = path.extension().map(|kind| kind.to_string_lossy().to_ascii_lowercase());
    kind.is_some_and(|kind| ["txt", "md", "markdown"].contains(&kind.as_str()))
}
