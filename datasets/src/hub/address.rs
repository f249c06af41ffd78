//! Names of repositories and revisions, and addresses of files in them.

use std::path::PathBuf;

use super::cache::Cache;
use super::{HubError, glob};
use crate::source::DataFile;

/// What an address of a file in the cache begins with.
const SCHEME: &str = "hf://";

/// A data set's repository: `org/name`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Repo(String);

impl Repo {
    /// Reads `org/name` (some old sets are a `name` alone).
    pub fn parse(text: &str) -> Result<Self, HubError> {
        let wrong = |reason: &str| Err(HubError::name(text, reason));
        let parts: Vec<&str> = text.split('/').collect();
        if parts.len() > 2 {
            return wrong("names no repository: expected `org/name`");
        }
        for part in parts {
            let plain = part.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
            let edges = part.starts_with(['-', '.']) || part.ends_with(['-', '.']);
            if part.is_empty() || !plain || edges || part.contains("--") || part.contains("..") || part.len() > 96 {
                return wrong("names no repository: expected `org/name` of letters, digits, `-`, `_` and `.`");
            }
        }
        Ok(Self(text.to_owned()))
    }

    /// The folder in the cache: `datasets--org--name`.
    pub(crate) fn folder(&self) -> String {
        format!("datasets--{}", self.0.replace('/', "--"))
    }

    /// The repository of a folder in the cache.
    pub(crate) fn of_folder(folder: &str) -> Option<Self> {
        Self::parse(&folder.strip_prefix("datasets--")?.replacen("--", "/", 1)).ok()
    }
}

impl std::fmt::Display for Repo {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// A branch, a tag, `refs/pr/1` or a commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Revision(String);

impl Default for Revision {
    fn default() -> Self {
        Self("main".to_owned())
    }
}

impl Revision {
    /// Reads a revision.
    pub fn parse(text: &str) -> Result<Self, HubError> {
        check_path(text).map_err(|reason| HubError::name(text, format!("names no revision: it {reason}")))?;
        if text.contains(['@', '?', '#', '%', ' ']) {
            return Err(HubError::name(text, "names no revision: it holds `@`, `?`, `#`, `%` or a space"));
        }
        Ok(Self(text.to_owned()))
    }

    /// Its name.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether it is a commit by its full hash.
    pub fn is_commit(&self) -> bool {
        is_hex(&self.0, 40)
    }
}

/// A hash of `length` lower-case digits.
pub(crate) fn is_hex(text: &str, length: usize) -> bool {
    text.len() == length && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// Refuses a path that leads elsewhere than below where it stands, and says what is wrong with it.
pub(crate) fn check_path(path: &str) -> Result<(), &'static str> {
    if path.is_empty() {
        return Err("is empty");
    }
    if path.len() > 1024 {
        return Err("is longer than 1024 bytes");
    }
    if path.contains(['\\', '\0']) || path.chars().any(char::is_control) {
        return Err("holds a backslash or a control character");
    }
    if path.split('/').any(|part| matches!(part, "" | "." | "..")) {
        return Err("has an empty part, `.` or `..`");
    }
    Ok(())
}

/// `hf://org/name/file@revision`: files of a repository by name or pattern. The revision may stand behind the name
/// too, and `datasets/` in front of it, as Hugging Face's own addresses have it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    /// The repository.
    pub repo: Repo,
    /// The revision.
    pub revision: Revision,
    /// A file's name, or a pattern with `*` and `?`.
    pub file: String,
}

impl Address {
    /// Whether a path is meant as an address.
    pub fn is_one(path: &str) -> bool {
        path.starts_with(SCHEME)
    }

    /// Reads an address.
    pub fn parse(text: &str) -> Result<Self, HubError> {
        let expected = || HubError::name(text, "must be `hf://org/name/file`, perhaps with `@revision` behind");
        let rest = text.strip_prefix(SCHEME).ok_or_else(expected)?;
        let rest = rest.strip_prefix("datasets/").unwrap_or(rest);
        let (org, rest) = rest.split_once('/').ok_or_else(expected)?;
        let (name, file) = rest.split_once('/').ok_or_else(expected)?;
        let (name, early) = match name.split_once('@') {
            Some((name, revision)) => (name, Some(revision)),
            None => (name, None),
        };
        let (file, revision) = match (early, file.rsplit_once('@')) {
            (None, Some((file, revision))) => (file, Some(revision)),
            (early, _) => (file, early),
        };
        check_path(file).map_err(|reason| HubError::name(text, format!("names a file that {reason}")))?;
        Ok(Self {
            repo: Repo::parse(&format!("{org}/{name}"))?,
            revision: revision.map_or_else(|| Ok(Revision::default()), Revision::parse)?,
            file: file.to_owned(),
        })
    }

    /// The command that brings the files.
    fn command(&self) -> String {
        let revision = if self.revision == Revision::default() { "" } else { &format!("@{}", self.revision.as_str()) };
        let quote = if glob::is_pattern(&self.file) { "'" } else { "" };
        format!("espalier data fetch {}{revision} --file {quote}{}{quote}", self.repo, self.file)
    }

    /// The files as they lie in the cache, in the order of their names. None is an error that says how to get them.
    pub fn cached(&self, cache: &Cache) -> Result<Vec<DataFile>, HubError> {
        let missing = |what: String| {
            let at = self.revision.as_str();
            HubError::Missing(format!(
                "`{}` at `{at}` {what} in `{}`; get it with `{}`",
                self.repo,
                cache.root().display(),
                self.command()
            ))
        };
        let Some(commit) = cache.commit(&self.repo, &self.revision)? else {
            return Err(missing("is not".to_owned()));
        };
        let names: Vec<String> =
            cache.files(&self.repo, &commit)?.into_iter().filter(|name| glob::matches(&self.file, name)).collect();
        if names.is_empty() {
            return Err(missing(format!("has no file `{}`", self.file)));
        }
        let snapshot = cache.snapshot(&self.repo, &commit);
        let named = |name: &String| PathBuf::from(format!("{SCHEME}{}/{name}@{}", self.repo, self.revision.as_str()));
        Ok(names.iter().map(|name| DataFile { name: named(name), path: snapshot.join(name) }).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read() {
        let read = |text: &str| {
            let address = Address::parse(text).unwrap();
            (address.repo.0, address.revision.0, address.file)
        };
        let main = ("openai/gsm8k".to_owned(), "main".to_owned(), "main/test.parquet".to_owned());
        assert_eq!(read("hf://openai/gsm8k/main/test.parquet"), main);
        assert_eq!(read("hf://datasets/openai/gsm8k/main/test.parquet"), main);
        assert_eq!(read("hf://datasets/openai/gsm8k@v1/a.json").1, "v1");
        assert_eq!(
            read("hf://openai/gsm8k/a/*.json@refs/pr/1"),
            ("openai/gsm8k".into(), "refs/pr/1".into(), "a/*.json".into())
        );
    }

    #[test]
    fn names_that_lead_elsewhere_are_refused() {
        for text in [
            "hf://openai",
            "hf://openai/gsm8k",
            "hf://openai/gsm8k/",
            "hf://../gsm8k/a.json",
            "hf://openai/..b/a.json",
            "hf://openai/a--b/a.json",
            "hf://openai/gsm8k/../a.json",
            "hf://openai/gsm8k//a.json",
            "hf://openai/gsm8k/a.json@../../x",
            "hf://openai/gsm8k/a.json@",
        ] {
            assert!(Address::parse(text).is_err(), "{text}");
        }
    }
}
