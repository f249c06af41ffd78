//! JSON: one list of objects, read one object at a time.

use std::io::BufRead;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use crate::error::{DataError, Place};
use crate::input;
use crate::lines::{self, MAX_LINE, Record};

/// Reads the objects of a list. What stands between two braces and is no object is an error, and the next call gives
/// the object behind it; behind a list that is broken otherwise nothing more comes.
pub struct Items<R> {
    path: PathBuf,
    input: R,
    row: u64,
    state: State,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// The next byte is the first of an item, or ends the list.
    First,
    /// A comma or the end of the list is next.
    Between,
    /// An item is next.
    Item,
    Done,
}

/// Opens a file: a list of objects, or (when it does not begin with a bracket) one object per line.
pub fn open(path: &Path) -> Result<Box<dyn Iterator<Item = Record> + Send>, DataError> {
    let mut items = Items { path: path.to_owned(), input: input::open(path)?, row: 0, state: State::First };
    match items.peek()? {
        Some(b'[') => {
            items.input.consume(1);
            Ok(Box::new(items))
        }
        Some(b'{') => match items.item().ok().and_then(|bytes| over_lines(&bytes)) {
            Some(reason) => Err(DataError::file(path, reason)),
            None => Ok(Box::new(lines::open(path)?)),
        },
        Some(_) => Err(DataError::file(path, "expected a list of JSON objects")),
        None => Err(DataError::file(path, "is empty; expected a list of JSON objects")),
    }
}

/// What is wrong with a file whose first object goes over several lines, if this is one.
fn over_lines(first: &[u8]) -> Option<String> {
    if !first.contains(&b'\n') {
        return None;
    }
    let object = espalier_json::object(first).ok()?;
    let list =
        object.iter().find(|(_, value)| value.as_array().is_some_and(|items| items.iter().all(Value::is_object)));
    let hint = match list {
        Some((key, _)) => format!("the rows seem to be its `{key}`: make that list the file"),
        None => "put brackets around it, or the whole object on one line".to_owned(),
    };
    Some(format!("holds an object over several lines; expected a list of objects, or one object per line; {hint}"))
}

/// Bytes that cannot be read, once so many rows were begun.
fn unread(path: &Path, rows: u64, error: &std::io::Error) -> DataError {
    let begun = if rows == 0 { String::new() } else { format!("in or behind row {rows}: ") };
    DataError::file(path, format!("{begun}{error}"))
}

impl<R: BufRead> Items<R> {
    /// The next byte that is not white space.
    fn peek(&mut self) -> Result<Option<u8>, DataError> {
        loop {
            let buffer = self.input.fill_buf().map_err(|error| unread(&self.path, self.row, &error))?;
            if buffer.is_empty() {
                return Ok(None);
            }
            let blank = buffer
                .iter()
                .take_while(|byte| byte.is_ascii_whitespace() || matches!(byte, 0xef | 0xbb | 0xbf))
                .count();
            let next = buffer.get(blank).copied();
            self.input.consume(blank);
            if next.is_some() {
                return Ok(next);
            }
        }
    }

    #[expect(clippy::type_complexity, reason = "a record that may be absent, with its place")]
    fn next_record(&mut self) -> Result<Option<(Place, Map<String, Value>)>, DataError> {
        loop {
            let next = self.peek()?;
            match (self.state, next) {
                (State::Done, _) => return Ok(None),
                (State::First | State::Between, Some(b']')) => {
                    self.input.consume(1);
                    self.state = State::Done;
                    return match self.peek()? {
                        None => Ok(None),
                        Some(_) => Err(DataError::file(&self.path, "goes on after the end of the list")),
                    };
                }
                (State::Between, Some(b',')) => {
                    self.input.consume(1);
                    self.state = State::Item;
                }
                (_, None) => {
                    self.state = State::Done;
                    return Err(DataError::file(&self.path, "ends within the list"));
                }
                (State::Between, Some(_)) => {
                    self.state = State::Done;
                    return Err(self.wrong("expected a comma or the end of the list"));
                }
                (State::First | State::Item, Some(_)) => {
                    self.row += 1;
                    self.state = State::Done;
                    let bytes = self.item()?;
                    self.state = State::Between;
                    let record = espalier_json::object(&bytes)
                        .map_err(|error| self.wrong(format!("expected a JSON object, got: {error}")))?;
                    return Ok(Some((Place::Row(self.row), record)));
                }
            }
        }
    }

    /// The bytes of one object: up to the brace that closes it, braces in texts left aside.
    fn item(&mut self) -> Result<Vec<u8>, DataError> {
        let mut bytes = Vec::new();
        let (mut depth, mut quoted, mut escaped) = (0_usize, false, false);
        loop {
            let buffer = self.input.fill_buf().map_err(|error| unread(&self.path, self.row, &error))?;
            if buffer.is_empty() {
                return Err(self.wrong("ends within the object"));
            }
            let mut used = 0;
            let mut complete = false;
            let mut foreign = None;
            for byte in buffer {
                if depth == 0 && *byte != b'{' {
                    foreign = Some(char::from(*byte));
                    break;
                }
                used += 1;
                match byte {
                    _ if escaped => escaped = false,
                    b'\\' if quoted => escaped = true,
                    b'"' => quoted = !quoted,
                    _ if quoted => {}
                    b'{' | b'[' => depth += 1,
                    b'}' | b']' => depth -= 1,
                    _ => {}
                }
                if depth == 0 {
                    complete = true;
                    break;
                }
            }
            if let Some(foreign) = foreign {
                return Err(self.wrong(format!("expected a JSON object, got `{foreign}`")));
            }
            bytes.extend_from_slice(&buffer[..used]);
            self.input.consume(used);
            if complete {
                return Ok(bytes);
            }
            if bytes.len() as u64 > MAX_LINE {
                return Err(self.wrong(format!("is longer than {MAX_LINE} bytes")));
            }
        }
    }

    fn wrong(&self, reason: impl Into<String>) -> DataError {
        DataError::Row { path: self.path.clone(), place: Place::Row(self.row), reason: reason.into() }
    }
}

impl<R: BufRead> Iterator for Items<R> {
    type Item = Record;

    fn next(&mut self) -> Option<Self::Item> {
        if self.state == State::Done {
            return None;
        }
        let record = self.next_record();
        if matches!(record, Err(DataError::File { .. })) {
            self.state = State::Done;
        }
        record.transpose()
    }
}
