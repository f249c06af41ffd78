//! Where a data set's databases lie under one folder.

use std::path::{Path, PathBuf};

use crate::error::SqlError;

/// How the databases are laid out under the folder.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Layout {
    /// `{id}/{id}.sqlite`, or `{id}.sqlite`.
    #[default]
    Plain,
    /// SynSQL: `SynSQL-2.5M/databases/{id}/{id}.sqlite`
    SynSql,
    /// Spider: `spider/database/{id}/{id}.sqlite`
    Spider,
    /// BIRD: `bird/train/train_databases/{id}/{id}.sqlite`
    Bird,
}

impl Layout {
    /// The layout that a data set's `data` column names.
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "plain" => Some(Self::Plain),
            "synsql" => Some(Self::SynSql),
            "spider" => Some(Self::Spider),
            "bird" => Some(Self::Bird),
            _ => None,
        }
    }

    /// The names that [`Layout::named`] takes.
    pub const NAMES: [&'static str; 4] = ["synsql", "spider", "bird", "plain"];

    fn folder(self) -> &'static str {
        match self {
            Self::Plain => "",
            Self::SynSql => "SynSQL-2.5M/databases",
            Self::Spider => "spider/database",
            Self::Bird => "bird/train/train_databases",
        }
    }
}

/// The file of a database.
///
/// # Errors
///
/// A name that is no plain file name, so that it could leave the folder; a file that is not there (the error names the
/// first place that was looked at).
pub fn find(root: &Path, layout: Layout, id: &str) -> Result<PathBuf, SqlError> {
    let wrong = |reason| Err(SqlError::BadName { id: id.to_owned(), reason });
    if id.is_empty() {
        return wrong("it is empty");
    }
    if id.contains(['/', '\\', '\0']) {
        return wrong("it must be a name without `/`, `\\` or a null character");
    }
    if id == "." || id == ".." {
        return wrong("it must not be a folder above");
    }
    let folder = root.join(layout.folder());
    let file = format!("{id}.sqlite");
    let nested = folder.join(id).join(&file);
    if nested.is_file() {
        return Ok(nested);
    }
    let flat = folder.join(&file);
    if layout == Layout::Plain && flat.is_file() {
        return Ok(flat);
    }
    Err(SqlError::NoDatabase { path: nested })
}
