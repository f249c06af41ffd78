//! CSV with a header. A header with dots (`reward_spec.ground_truth`) fills an object; a cell that is JSON text of a
//! list or an object is read as such.

use std::fs::File;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use crate::error::{DataError, Place};
use crate::lines::Record;

/// Reads a table row by row.
pub struct Table {
    path: PathBuf,
    headers: Vec<String>,
    records: csv::StringRecordsIntoIter<File>,
    failed: bool,
}

/// Opens a file.
pub fn open(path: &Path) -> Result<Table, DataError> {
    let file = File::open(path).map_err(|error| DataError::file(path, error))?;
    let mut reader = csv::ReaderBuilder::new().from_reader(file);
    let headers = reader.headers().map_err(|error| DataError::file(path, describe(&error)))?;
    let headers: Vec<String> =
        headers.iter().map(|header| header.trim_start_matches('\u{feff}').trim().to_owned()).collect();
    for (index, header) in headers.iter().enumerate() {
        if headers[..index].contains(header) {
            return Err(DataError::file(path, format!("the header names `{header}` twice")));
        }
    }
    Ok(Table { path: path.to_owned(), headers, records: reader.into_records(), failed: false })
}

/// csv's message without its own position, which the error names already.
fn describe(error: &csv::Error) -> String {
    match error.kind() {
        csv::ErrorKind::UnequalLengths { expected_len, len, .. } => {
            format!("expected {expected_len} fields as in the header, got {len}")
        }
        csv::ErrorKind::Utf8 { err, .. } => format!("expected UTF-8 text, {err}"),
        _ => error.to_string(),
    }
}

/// A cell as a value: the columns that hold objects are JSON, and so is anything that reads as a list or an object.
fn cell(text: &str) -> Value {
    let looks_nested = text.starts_with(['{', '[']);
    if looks_nested && let Ok(value) = serde_json::from_str(text) {
        return value;
    }
    Value::String(text.to_owned())
}

impl Table {
    fn record(&self, place: Place, record: &csv::StringRecord) -> Result<Map<String, Value>, DataError> {
        let mut columns = Map::new();
        for (header, text) in self.headers.iter().zip(record) {
            // An empty cell is no value, except where a text is meant to be empty.
            if text.is_empty() && header != "prompt" {
                continue;
            }
            let wrong =
                |reason: String| DataError::Column { path: self.path.clone(), place, column: header.clone(), reason };
            let value = match header.as_str() {
                "max_turns" => Value::from(
                    text.trim().parse::<u64>().map_err(|_| wrong(format!("must be a number, got `{text}`")))?,
                ),
                _ => cell(text),
            };
            match header.split_once('.') {
                None => {
                    columns.insert(header.clone(), value);
                }
                Some((object, key)) => {
                    let entry = columns.entry(object).or_insert_with(|| Value::Object(Map::new()));
                    let Value::Object(entries) = entry else {
                        return Err(wrong(format!("`{object}` is a column of its own, and no object")));
                    };
                    entries.insert(key.to_owned(), value);
                }
            }
        }
        Ok(columns)
    }
}

impl Iterator for Table {
    type Item = Record;

    fn next(&mut self) -> Option<Self::Item> {
        if self.failed {
            return None;
        }
        let line = self.records.reader().position().line();
        let record = match self.records.next()? {
            Ok(record) => {
                let place = Place::Line(record.position().map_or(line, csv::Position::line));
                self.record(place, &record).map(|columns| (place, columns))
            }
            Err(error) => {
                let line = error.position().map_or(line, csv::Position::line);
                Err(DataError::Row { path: self.path.clone(), place: Place::Line(line), reason: describe(&error) })
            }
        };
        self.failed = record.is_err();
        Some(record)
    }
}
