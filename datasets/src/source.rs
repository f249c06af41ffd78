//! Where rows come from.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::error::{DataError, Place};
use crate::format::Format;
use crate::lines::Record;
use crate::order::{Shuffle, Shuffled, Split};
use crate::row::Row;
use crate::{columnar, json, lines, table};

/// Rows, one at a time. After an error no more rows come.
pub type Rows = Box<dyn Iterator<Item = Result<Row, DataError>> + Send>;

/// Data sets that are generated rather than read.
pub trait Builtins: Send + Sync {
    /// Their names.
    fn names(&self) -> Vec<String>;

    /// The rows of one.
    fn open(&self, name: &str, params: &Map<String, Value>) -> Result<Rows, DataError>;
}

/// No generated data sets.
#[derive(Clone, Copy, Debug)]
pub struct NoBuiltins;

impl Builtins for NoBuiltins {
    fn names(&self) -> Vec<String> {
        Vec::new()
    }

    fn open(&self, name: &str, _params: &Map<String, Value>) -> Result<Rows, DataError> {
        Err(DataError::Source {
            key: "builtin".to_owned(),
            reason: format!("no data set `{name}`; there is none here"),
        })
    }
}

/// One path or several.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Paths {
    /// One file.
    One(PathBuf),
    /// Several, read one after the other.
    Many(Vec<PathBuf>),
}

/// Where rows come from: files, or a generated data set.
///
/// The order of operations is fixed: rows are read, split, shuffled, and then limited.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Source {
    /// Files: `.jsonl`, `.json`, `.csv`, `.parquet`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<Paths>,
    /// A generated data set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub builtin: Option<String>,
    /// The generated data set's parameters.
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub params: Map<String, Value>,
    /// What the files' records are.
    pub format: Format,
    /// A part of the data.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub split: Option<Split>,
    /// A random order.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shuffle: Option<Shuffle>,
    /// At most this many rows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<u64>,
}

impl Source {
    /// A source of one file.
    pub fn file(path: impl Into<PathBuf>) -> Self {
        Self { path: Some(Paths::One(path.into())), ..Self::default() }
    }

    /// A source of a generated data set.
    pub fn builtin(name: impl Into<String>, params: Map<String, Value>) -> Self {
        Self { builtin: Some(name.into()), params, ..Self::default() }
    }

    /// Refuses a description that contradicts itself.
    pub fn check(&self) -> Result<(), DataError> {
        let wrong = |key: &str, reason: &str| Err(DataError::Source { key: key.to_owned(), reason: reason.to_owned() });
        match (&self.path, &self.builtin) {
            (None, None) => {
                return wrong("path", "is missing: name files with `path` or a generated set with `builtin`");
            }
            (Some(_), Some(_)) => return wrong("builtin", "contradicts `path`: name one of them"),
            (Some(Paths::Many(paths)), None) if paths.is_empty() => return wrong("path", "names no file"),
            (Some(_), None) if !self.params.is_empty() => {
                return wrong("params", "belongs to `builtin`; files take none");
            }
            (None, Some(_)) if self.format != Format::Rows => {
                return wrong("format", "belongs to `path`; a generated set has rows");
            }
            _ => {}
        }
        if self.limit == Some(0) {
            return wrong("limit", "must be at least 1, got 0");
        }
        if self.shuffle.is_some_and(|shuffle| shuffle.buffer == 0) {
            return wrong("shuffle.buffer", "must be at least 1, got 0");
        }
        if let Some(split) = &self.split {
            split.check().map_err(|(key, reason)| DataError::Source { key: key.to_owned(), reason })?;
        }
        Ok(())
    }

    /// Opens the source. Files are opened here, so that a missing one is known before anything is played.
    pub fn rows(&self, builtins: &dyn Builtins) -> Result<Rows, DataError> {
        self.check()?;
        let mut rows: Rows = match (&self.path, &self.builtin) {
            (Some(Paths::One(path)), _) => files(std::slice::from_ref(path), self.format)?,
            (Some(Paths::Many(paths)), _) => files(paths, self.format)?,
            (None, Some(name)) => builtins.open(name, &self.params)?,
            (None, None) => Box::new(std::iter::empty()),
        };
        if let Some(split) = self.split {
            let mut number = 0;
            rows = Box::new(rows.filter(move |row| {
                number += u64::from(row.is_ok());
                row.is_err() || split.holds(number - 1)
            }));
        }
        if let Some(shuffle) = self.shuffle {
            rows = Box::new(Shuffled::new(rows, shuffle));
        }
        if let Some(limit) = self.limit {
            rows = Box::new(rows.take(usize::try_from(limit).unwrap_or(usize::MAX)));
        }
        Ok(rows)
    }
}

/// The rows of several files, one after the other. Ids must differ; files without a single row are a mistake.
fn files(paths: &[PathBuf], format: Format) -> Result<Rows, DataError> {
    for path in paths {
        drop(reader(path)?);
    }
    let mut files = Files { paths: paths.to_vec(), next: 0, records: None, ids: HashMap::new(), number: 0, format };
    let mut failed = false;
    Ok(Box::new(std::iter::from_fn(move || {
        if failed {
            return None;
        }
        let row = files.next_row().transpose()?;
        failed = row.is_err();
        Some(row)
    })))
}

/// Reads files one after the other.
struct Files {
    paths: Vec<PathBuf>,
    /// The file behind the open one.
    next: usize,
    records: Option<Box<dyn Iterator<Item = Record> + Send>>,
    /// Every id so far, with its file and its place there.
    ids: HashMap<String, (usize, Place)>,
    /// Rows so far.
    number: u64,
    format: Format,
}

impl Files {
    fn next_row(&mut self) -> Result<Option<Row>, DataError> {
        loop {
            let Some(records) = &mut self.records else {
                let Some(path) = self.paths.get(self.next) else { return self.end() };
                self.records = Some(reader(path)?);
                self.next += 1;
                continue;
            };
            let Some(record) = records.next() else {
                self.records = None;
                continue;
            };
            let (place, record) = record?;
            let file = self.next - 1;
            let row = row(record, self.number, &self.paths[file], place, self.format)?;
            self.number += 1;
            if let Some((first, at)) = self.ids.insert(row.id.clone(), (file, place)) {
                let first = if first == file { String::new() } else { format!("`{}`, ", self.paths[first].display()) };
                return Err(DataError::Column {
                    path: self.paths[file].clone(),
                    place,
                    column: "uid".to_owned(),
                    reason: format!("`{}` is the id of {first}{at} already; ids must differ", row.id),
                });
            }
            return Ok(Some(row));
        }
    }

    /// The end of the last file.
    fn end(&self) -> Result<Option<Row>, DataError> {
        match self.paths.first() {
            Some(path) if self.number == 0 => {
                let others = if self.paths.len() > 1 { ", nor do the files behind it" } else { "" };
                Err(DataError::file(path, format!("holds no rows{others}; expected at least one")))
            }
            _ => Ok(None),
        }
    }
}

fn row(record: Map<String, Value>, number: u64, path: &Path, place: Place, format: Format) -> Result<Row, DataError> {
    let record = format.apply(record, number).map_err(|(column, reason)| DataError::Column {
        path: path.to_owned(),
        place,
        column,
        reason,
    })?;
    Row::from_record(record, number, path, place)
}

/// A file's records, read as its name says.
fn reader(path: &Path) -> Result<Box<dyn Iterator<Item = Record> + Send>, DataError> {
    let extension = path.extension().and_then(|extension| extension.to_str()).unwrap_or_default().to_ascii_lowercase();
    let records: Box<dyn Iterator<Item = Record> + Send> = match extension.as_str() {
        "jsonl" | "ndjson" => Box::new(lines::open(path)?),
        "json" => json::open(path)?,
        "csv" => Box::new(table::open(path)?),
        "parquet" => Box::new(columnar::open(path)?),
        _ => {
            return Err(DataError::file(
                path,
                format!("cannot tell what `.{extension}` is; expected `.jsonl`, `.json`, `.csv` or `.parquet`"),
            ));
        }
    };
    Ok(records)
}
