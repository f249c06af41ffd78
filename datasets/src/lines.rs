//! JSONL: one object per line.

use std::io::{BufRead, Read};
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use crate::error::{DataError, Place};
use crate::input;

/// Largest line, bytes: a context of 200 MB fits with all of its escapes.
pub const MAX_LINE: u64 = 1 << 30;

/// One record and its place.
pub type Record = Result<(Place, Map<String, Value>), DataError>;

/// Reads a file line by line. Blank lines are skipped; a line that is no object is an error, and the next call gives the
/// line behind it.
pub struct Lines<R> {
    path: PathBuf,
    input: R,
    line: u64,
    failed: bool,
}

/// Opens a file.
pub fn open(path: &Path) -> Result<Lines<Box<dyn BufRead + Send>>, DataError> {
    Ok(Lines { path: path.to_owned(), input: input::open(path)?, line: 0, failed: false })
}

impl<R: BufRead> Lines<R> {
    fn next_record(&mut self) -> Option<Record> {
        let mut buffer = Vec::new();
        loop {
            buffer.clear();
            let read = (&mut self.input).take(MAX_LINE + 1).read_until(b'\n', &mut buffer);
            match read {
                Err(error) => {
                    self.failed = true;
                    return Some(Err(DataError::file(&self.path, format!("line {}: {error}", self.line + 1))));
                }
                Ok(0) => return None,
                Ok(_) => {}
            }
            self.line += 1;
            if buffer.len() as u64 > MAX_LINE {
                self.failed = true;
                return Some(Err(self.wrong(format!("is longer than {MAX_LINE} bytes"))));
            }
            let mut text = buffer.as_slice();
            // Some editors begin a file with a byte order mark.
            if self.line == 1 {
                text = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text);
            }
            if text.iter().all(u8::is_ascii_whitespace) {
                continue;
            }
            return Some(match espalier_json::line(text) {
                Ok(record) => Ok((Place::Line(self.line), record)),
                Err(got) => Err(self.wrong(format!("expected one JSON object, got: {got}"))),
            });
        }
    }

    fn wrong(&self, reason: String) -> DataError {
        DataError::Row { path: self.path.clone(), place: Place::Line(self.line), reason }
    }
}

impl<R: BufRead> Iterator for Lines<R> {
    type Item = Record;

    fn next(&mut self) -> Option<Self::Item> {
        if self.failed {
            return None;
        }
        self.next_record()
    }
}
