//! The rows of files, one after the other: records read, mapped by their format, named.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::{Map, Value};
use sha2::{Digest as _, Sha256};

use crate::error::{DataError, Place};
use crate::format::schema::Schemas;
use crate::format::{FORMATS, Format, Reading};
use crate::ids::Ids;
use crate::input::{self, Records};
use crate::left_out::{LeftOut, set_of};
use crate::lines::Record;
use crate::row::{Prompt, Row};
use crate::template::{PromptTemplate, listed};
use crate::{columnar, json, lines, table};

/// A row and where it stands.
#[derive(Clone, Debug, PartialEq)]
pub struct Located {
    /// The row.
    pub row: Row,
    /// Its file, or the name of a generated set.
    pub path: PathBuf,
    /// Its place there.
    pub place: Place,
}

/// How records become rows.
#[derive(Clone, Debug)]
pub(crate) struct Mapping {
    pub(crate) format: Format,
    /// Columns to fill from others, both with dots into objects.
    pub(crate) columns: Vec<(String, String)>,
    /// What makes the prompt; records that carry messages keep them where it is `None`.
    pub(crate) template: Option<PromptTemplate>,
    /// What makes it of records without messages.
    pub(crate) otherwise: Option<PromptTemplate>,
    pub(crate) tables: Option<PathBuf>,
    /// Whether prompts show a database's schema.
    pub(crate) shows_schema: bool,
    pub(crate) unique: bool,
}

/// Reads files one after the other. Goes on behind a row that is wrong; whoever wants to stop there stops.
pub(crate) struct Files {
    paths: Arc<[PathBuf]>,
    mapping: Mapping,
    left_out: LeftOut,
    /// The file behind the open one.
    next: usize,
    open: Option<Open>,
    ids: Ids,
    /// Hashes of prompts, where repeated ones are left out.
    prompts: HashSet<[u8; 16]>,
    /// Records so far.
    number: u64,
    failed: bool,
}

/// A file that is being read.
struct Open {
    records: Box<dyn Iterator<Item = Record> + Send>,
    schemas: Schemas,
}

impl Files {
    /// Opens every file once, so that a missing one is known before anything is played.
    pub(crate) fn new(paths: Vec<PathBuf>, mapping: Mapping, left_out: LeftOut) -> Result<Self, DataError> {
        for path in &paths {
            drop(reader(path)?);
        }
        Ok(Self {
            paths: paths.into(),
            mapping,
            left_out,
            next: 0,
            open: None,
            ids: Ids::default(),
            prompts: HashSet::new(),
            number: 0,
            failed: false,
        })
    }

    /// What the files' records are.
    pub(crate) fn format(&self) -> Format {
        self.mapping.format
    }

    fn next_row(&mut self) -> Result<Option<Located>, DataError> {
        loop {
            let Some(open) = &mut self.open else {
                let Some(path) = self.paths.get(self.next) else { return self.end() };
                let schemas = Schemas::of(path, self.mapping.tables.as_deref());
                self.open = Some(Open { records: reader(path)?, schemas });
                self.next += 1;
                continue;
            };
            let Some(record) = open.records.next() else {
                self.open = None;
                continue;
            };
            let number = self.number;
            self.number += 1;
            let (place, record) = record?;
            let file = self.next - 1;
            let path = &self.paths[file];
            let named = record.get("uid").is_some_and(|uid| !uid.is_null());
            let (row, left_out) = self.mapping.row(record, number, path, place, &open.schemas)?;
            if let Some(reason) = left_out {
                self.left_out.note(reason, &row.id, set_of(&row, &path.to_string_lossy()));
                continue;
            }
            if self.mapping.unique && !self.prompts.insert(digest(&row.prompt)) {
                self.left_out.note("the prompt was there before", &row.id, set_of(&row, &path.to_string_lossy()));
                continue;
            }
            let named = named || row.columns.get("uid").is_some_and(|uid| !uid.is_null());
            if !self.ids.insert(&row.id, number, named)
                && let Some((first, at)) = self.first_of(&row.id, number)?
            {
                let first = if first == file { String::new() } else { format!("`{}`, ", self.paths[first].display()) };
                return Err(DataError::Column {
                    path: path.clone(),
                    place,
                    column: "uid".to_owned(),
                    reason: format!("`{}` is the id of {first}{at} already; ids must differ", row.id),
                });
            }
            return Ok(Some(Located { row, path: path.clone(), place }));
        }
    }

    /// The first row before `number` that has this id: its file and place. Reads the files again.
    fn first_of(&self, id: &str, number: u64) -> Result<Option<(usize, Place)>, DataError> {
        let mut at = 0;
        for (file, path) in self.paths.iter().enumerate() {
            let schemas = Schemas::of(path, self.mapping.tables.as_deref());
            for record in reader(path)? {
                if at == number {
                    return Ok(None);
                }
                // What is wrong with a row was said when it was read.
                if let Ok((place, record)) = record
                    && let Ok((row, None)) = self.mapping.row(record, at, path, place, &schemas)
                    && row.id == id
                {
                    return Ok(Some((file, place)));
                }
                at += 1;
            }
        }
        Ok(None)
    }

    /// The end of the last file.
    fn end(&self) -> Result<Option<Located>, DataError> {
        match self.paths.first() {
            Some(path) if self.number == 0 => {
                let others = if self.paths.len() > 1 { ", nor do the files behind it" } else { "" };
                Err(DataError::file(path, format!("holds no rows{others}; expected at least one")))
            }
            _ => Ok(None),
        }
    }
}

impl Iterator for Files {
    type Item = Result<Located, DataError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.failed {
            return None;
        }
        let row = self.next_row().transpose();
        self.failed = row.as_ref().is_none_or(|row| matches!(row, Err(DataError::File { .. })));
        row
    }
}

impl Mapping {
    /// A record as a row, and why it is left out.
    fn row(
        &self,
        record: Map<String, Value>,
        number: u64,
        path: &Path,
        place: Place,
        schemas: &Schemas,
    ) -> Result<(Row, Option<&'static str>), DataError> {
        let wrong = |column: &str, reason: String| DataError::Column {
            path: path.to_owned(),
            place,
            column: column.to_owned(),
            reason,
        };
        if self.format == Format::Rows {
            return self.plain(record, number, path, place).map(|row| (row, None));
        }
        let reading = Reading { record: &record, number, schemas, shows_schema: self.shows_schema };
        let mapped = self.format.map(&reading).map_err(|error| wrong(&error.column, error.reason))?;
        let (mut columns, names) = (mapped.columns, mapped.names);
        let prompt = match (&self.template, mapped.prompt, &self.otherwise) {
            (None, Some(messages), _) => messages,
            (Some(template), ..) | (None, None, Some(template)) => {
                let mut visible = record;
                visible.extend(names);
                Value::from(template.render(&visible).map_err(|reason| wrong("prompt_template", reason))?)
            }
            (None, None, None) => names.get("question").cloned().unwrap_or_default(),
        };
        columns.insert("prompt".to_owned(), prompt);
        Ok((Row::from_record(columns, number, path, place)?, mapped.left_out))
    }

    /// A record that is a row, perhaps under other names.
    fn plain(&self, mut record: Map<String, Value>, number: u64, path: &Path, place: Place) -> Result<Row, DataError> {
        let wrong = |column: &str, reason: String| DataError::Column {
            path: path.to_owned(),
            place,
            column: column.to_owned(),
            reason,
        };
        for (target, source) in &self.columns {
            let value = reached(&record, source).cloned().ok_or_else(|| {
                let has = listed(record.keys().map(String::as_str));
                wrong(source, format!("is missing (`columns` fills `{target}` from it); the record has {has}"))
            })?;
            fill(&mut record, target, value).map_err(|reason| wrong(target, reason))?;
        }
        if let Some(template) = &self.template {
            let prompt = template.render(&record).map_err(|reason| wrong("prompt_template", reason))?;
            record.insert("prompt".to_owned(), Value::from(prompt));
        }
        let looks = if record.contains_key("prompt") { None } else { Format::of(&record) };
        Row::from_record(record, number, path, place).map_err(|error| match (error, looks) {
            (DataError::Column { path, place, column, reason }, Some(format)) => DataError::Column {
                path,
                place,
                column,
                reason: format!("{reason}; it looks like {format}: say `format = \"{format}\"`"),
            },
            (error, _) => error,
        })
    }
}

/// A value behind dots into objects; a column may have dots in its name.
fn reached<'a>(record: &'a Map<String, Value>, path: &str) -> Option<&'a Value> {
    if let Some(value) = record.get(path) {
        return Some(value).filter(|value| !value.is_null());
    }
    let mut steps = path.split('.');
    let mut value = record.get(steps.next()?)?;
    for step in steps {
        value = value.get(step)?;
    }
    Some(value).filter(|value| !value.is_null())
}

/// Puts a value behind dots into objects.
fn fill(record: &mut Map<String, Value>, path: &str, value: Value) -> Result<(), String> {
    let Some((object, rest)) = path.split_once('.') else {
        record.insert(path.to_owned(), value);
        return Ok(());
    };
    match record.entry(object).or_insert_with(|| Value::Object(Map::new())) {
        Value::Object(entries) => fill(entries, rest, value),
        other => Err(format!("`{object}` is {} and takes no `{rest}`", crate::error::kind(other))),
    }
}

/// Enough of a hash that no two prompts share it.
fn digest(prompt: &Prompt) -> [u8; 16] {
    let mut hash = Sha256::new();
    match prompt {
        Prompt::Text(text) => hash.update(text),
        Prompt::Messages(messages) => {
            for message in messages {
                hash.update(serde_json::to_vec(message).unwrap_or_default());
            }
        }
    }
    let mut short = [0; 16];
    short.copy_from_slice(&hash.finalize()[..16]);
    short
}

/// A template of this crate.
pub(crate) fn compiled(source: &str) -> Result<PromptTemplate, DataError> {
    PromptTemplate::new(source).map_err(|reason| DataError::Source { key: "prompt_template".to_owned(), reason })
}

/// What the first record of several files is.
pub(crate) fn detected(paths: &[PathBuf]) -> Result<Format, DataError> {
    for path in paths {
        let Some(record) = reader(path)?.next() else { continue };
        let (place, record) = record?;
        return Format::of(&record).ok_or_else(|| {
            let formats = listed(FORMATS.iter().filter(|spec| spec.format != Format::Auto).map(|spec| spec.name));
            let has = listed(record.keys().map(String::as_str));
            DataError::Row {
                path: path.clone(),
                place,
                reason: format!("has {has}, which is no known set unmistakably; say `format`, one of {formats}"),
            }
        });
    }
    // Files without rows are refused when they are read.
    Ok(Format::Rows)
}

/// A file's records as they stand there, read as its name says: `.jsonl`, `.json`, `.csv`, `.parquet`.
pub fn records(path: &Path) -> Result<Box<dyn Iterator<Item = Record> + Send>, DataError> {
    reader(path)
}

/// A file's records, read as its name says.
pub(crate) fn reader(path: &Path) -> Result<Box<dyn Iterator<Item = Record> + Send>, DataError> {
    if path.is_dir() {
        return Err(DataError::file(path, folder(path)));
    }
    Ok(match input::kind(path).map(|kind| kind.records) {
        Some(Records::Lines) => Box::new(lines::open(path)?),
        Some(Records::Json) => json::open(path)?,
        Some(Records::Csv) => Box::new(table::open(path)?),
        Some(Records::Parquet) => Box::new(columnar::open(path)?),
        None => {
            let extension = path.extension().unwrap_or_default().to_string_lossy().to_ascii_lowercase();
            // A name without an extension says nothing; whether the file is there does.
            if extension.is_empty() {
                std::fs::metadata(path).map_err(|error| DataError::file(path, error))?;
            }
            return Err(DataError::file(
                path,
                format!(
                    "cannot tell what `.{extension}` is; expected `.jsonl`, `.json`, `.csv` or `.parquet`, the first \
                     three also with `.gz` or `.zst` behind"
                ),
            ));
        }
    })
}

/// What to name instead of a folder.
fn folder(path: &Path) -> String {
    let mut names: Vec<String> = std::fs::read_dir(path)
        .into_iter()
        .flatten()
        .flatten()
        .filter(|entry| input::kind(&entry.path()).is_some())
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .filter(|name| !name.ends_with("tables.json"))
        .collect();
    names.sort_unstable();
    names.truncate(8);
    if names.is_empty() {
        "is a folder; name a file".to_owned()
    } else {
        format!("is a folder; name a file in it: {}", listed(names.iter().map(String::as_str)))
    }
}
