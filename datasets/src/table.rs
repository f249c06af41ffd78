//! CSV with a header. A header with dots (`reward_spec.ground_truth`) fills an object; a cell that is JSON text of a
//! list or an object is read as such.

use std::collections::VecDeque;
use std::io::{BufRead, Read};
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use crate::error::{DataError, Place};
use crate::input;
use crate::lines::{MAX_LINE, Record};

/// Reads a table row by row. A row that is wrong is an error, and the next call gives the row behind it; behind bytes
/// that cannot be read nothing more comes.
pub struct Table {
    path: PathBuf,
    headers: Vec<String>,
    records: csv::Reader<Watched<Box<dyn BufRead + Send>>>,
    failed: bool,
}

/// Opens a file.
pub fn open(path: &Path) -> Result<Table, DataError> {
    let mut records = csv::ReaderBuilder::new().from_reader(Watched::new(input::open(path)?));
    let headers = records.headers().cloned();
    // The header is a record like any other.
    let line = records.get_mut().begun.pop_front().unwrap_or(1);
    if let Some(reason) = records.get_ref().unclosed() {
        return Err(DataError::Row { path: path.to_owned(), place: Place::Line(line), reason });
    }
    let headers = headers.map_err(|error| DataError::file(path, describe(&error)))?;
    let headers: Vec<String> =
        headers.iter().map(|header| header.trim_start_matches('\u{feff}').trim().to_owned()).collect();
    for (index, header) in headers.iter().enumerate() {
        if headers[..index].contains(header) {
            return Err(DataError::file(path, format!("the header names `{header}` twice")));
        }
    }
    Ok(Table { path: path.to_owned(), headers, records, failed: false })
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
/// What is JSON but holds a key twice is an error.
fn cell(text: &str) -> Result<Value, String> {
    if text.starts_with(['{', '[']) {
        match espalier_json::value(text.as_bytes()) {
            Ok(value) => return Ok(value),
            Err(error) if error.is_data() => return Err(error.to_string()),
            Err(_) => {}
        }
    }
    Ok(Value::String(text.to_owned()))
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
                _ => cell(text).map_err(wrong)?,
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
        let mut record = csv::StringRecord::new();
        let read = self.records.read_record(&mut record);
        if matches!(read, Ok(false)) {
            return None;
        }
        let place = Place::Line(self.records.get_mut().begun.pop_front().unwrap_or_default());
        let wrong = |reason| Err(DataError::Row { path: self.path.clone(), place, reason });
        let unclosed = self.records.get_ref().unclosed();
        self.failed = unclosed.is_some() || read.as_ref().is_err_and(csv::Error::is_io_error);
        Some(match (unclosed, read) {
            (Some(reason), _) => wrong(reason),
            (None, Err(error)) if error.is_io_error() => {
                let line = self.records.get_ref().line;
                Err(DataError::file(&self.path, format!("line {line}: {error}")))
            }
            (None, Ok(_)) => self.record(place, &record).map(|columns| (place, columns)),
            (None, Err(error)) => wrong(describe(&error)),
        })
    }
}

/// The bytes of a table on their way to `csv`, which says neither on which line a record begins (it counts the line
/// feed of `\r\n`, and blank lines, to the record behind them) nor that a quote is never closed (it takes the rest of
/// the file as one field). Follows the same rules: quotes count at the start of a field, a doubled one is a text's own.
struct Watched<R> {
    input: R,
    at: At,
    line: u64,
    /// The line of the quote that was opened last.
    quote: u64,
    /// The byte before was a carriage return.
    returned: bool,
    /// Bytes of the record so far.
    length: u64,
    /// Bytes in all.
    seen: u64,
    /// First lines of the records that were not asked for yet.
    begun: VecDeque<u64>,
    ended: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum At {
    /// Before a record.
    Record,
    /// Before a field.
    Field,
    /// In a field without quotes.
    Plain,
    /// In a field with quotes.
    Quoted,
    /// Behind a quote within such a field: its end, or the first half of a doubled one.
    Quote,
}

impl<R> Watched<R> {
    fn new(input: R) -> Self {
        let begun = VecDeque::new();
        Self { input, at: At::Record, line: 1, quote: 0, returned: false, length: 0, seen: 0, begun, ended: false }
    }

    fn watch(&mut self, byte: u8) {
        let mark = self.seen < 3 && byte == b"\xef\xbb\xbf"[self.seen as usize];
        self.seen += 1;
        // Some editors begin a file with a byte order mark.
        if mark && self.at == At::Record {
            return;
        }
        // `\r\n` ends a line once.
        self.line += u64::from(byte == b'\r' || byte == b'\n' && !self.returned);
        self.returned = byte == b'\r';
        self.length += 1;
        let ends_line = matches!(byte, b'\r' | b'\n');
        if self.at == At::Record {
            self.length = 0;
            if ends_line {
                return;
            }
            self.begun.push_back(self.line);
        }
        self.at = match (self.at, byte) {
            (At::Quoted, b'"') => At::Quote,
            (At::Quoted, _) | (At::Quote, b'"') => At::Quoted,
            (_, b',') => At::Field,
            (_, _) if ends_line => At::Record,
            (At::Record | At::Field, b'"') => {
                self.quote = self.line;
                At::Quoted
            }
            _ => At::Plain,
        };
    }

    /// What is wrong with the end of the file, once it was reached.
    fn unclosed(&self) -> Option<String> {
        let open = self.ended && self.at == At::Quoted;
        open.then(|| format!("the quote that opens on line {} is never closed", self.quote))
    }
}

impl<R: Read> Read for Watched<R> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let count = self.input.read(buffer)?;
        self.ended = count == 0 && !buffer.is_empty();
        for &byte in &buffer[..count] {
            self.watch(byte);
        }
        if self.length > MAX_LINE {
            return Err(std::io::Error::other(format!("is longer than {MAX_LINE} bytes")));
        }
        Ok(count)
    }
}
