//! A JSON object a step.

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use crate::{Numbers, RunSpec, Tracker, TrackerError};

/// The name of a run's file in its directory.
pub const FILE_NAME: &str = "metrics.jsonl";

/// The key of the step. A number of this name is left out: it would hide the step.
const STEP: &str = "step";

/// The longest line that is looked into when a run is resumed, in bytes; a longer one is kept as it is.
const LONGEST_LINE: u64 = 64 << 20;

/// One JSON object a step: `{"step": 3, "generate/avg_num_tokens": 41.5, ...}`. Numbers that are not finite are null.
pub struct Jsonl {
    path: PathBuf,
    file: File,
}

impl Jsonl {
    /// Appends to a file, which is made if need be.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, TrackerError> {
        let mut jsonl = Self::at(path.as_ref())?;
        let end = jsonl.file.seek(SeekFrom::End(0)).map_err(TrackerError::io(&jsonl.path, "read it"))?;
        if end > 0 {
            let mut last = [0];
            let read = jsonl.file.seek(SeekFrom::End(-1)).and_then(|_| jsonl.file.read_exact(&mut last));
            read.map_err(TrackerError::io(&jsonl.path, "read it"))?;
            if last != *b"\n" {
                jsonl.write(b"\n")?;
            }
        }
        Ok(jsonl)
    }

    /// Goes on after `step`: the rows of later steps at the end of the file are cut off, and a line that was torn.
    pub fn resume(path: impl AsRef<Path>, step: u64) -> Result<Self, TrackerError> {
        let jsonl = Self::at(path.as_ref())?;
        let cut = end_of_step(&jsonl.file, step).and_then(|end| jsonl.file.set_len(end));
        cut.map_err(TrackerError::io(&jsonl.path, "cut off its later steps"))?;
        Ok(jsonl)
    }

    pub(crate) fn open_run(spec: &RunSpec) -> Result<Self, TrackerError> {
        let directory = &spec.directory;
        std::fs::create_dir_all(directory).map_err(TrackerError::io(directory, "make it"))?;
        let path = directory.join(FILE_NAME);
        match spec.resume {
            Some(step) => Self::resume(path, step),
            None => Self::open(path),
        }
    }

    fn at(path: &Path) -> Result<Self, TrackerError> {
        let file = OpenOptions::new().create(true).read(true).append(true).open(path);
        Ok(Self { path: path.to_owned(), file: file.map_err(TrackerError::io(path, "open it"))? })
    }

    fn row(&mut self, step: u64, values: impl Iterator<Item = (String, Value)>) -> Result<(), TrackerError> {
        let mut row = Map::new();
        row.insert(STEP.to_owned(), step.into());
        row.extend(values.filter(|(name, _)| name != STEP));
        self.write(format!("{}\n", Value::Object(row)).as_bytes())
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), TrackerError> {
        self.file.write_all(bytes).map_err(TrackerError::io(&self.path, "write to it"))
    }
}

/// Where the first row after `step` begins, counted from the last row that is not after it; else where the last whole
/// line ends.
fn end_of_step(file: &File, step: u64) -> io::Result<u64> {
    let mut lines = BufReader::new(file);
    let (mut start, mut position, mut first_after) = (0, 0, None);
    let mut line = Vec::new();
    loop {
        line.clear();
        let read = lines.by_ref().take(LONGEST_LINE).read_until(b'\n', &mut line)? as u64;
        if read == 0 {
            return Ok(first_after.unwrap_or(start));
        }
        position += read;
        if !line.ends_with(b"\n") {
            continue;
        }
        let whole = position - read == start;
        let of_line = whole.then(|| serde_json::from_slice::<Value>(&line).ok()?.get(STEP)?.as_u64());
        match of_line.flatten() {
            Some(of_line) if of_line <= step => first_after = None,
            Some(_) => first_after = first_after.or(Some(start)),
            None => {}
        }
        start = position;
    }
}

impl Tracker for Jsonl {
    fn log(&mut self, step: u64, numbers: &Numbers) -> Result<(), TrackerError> {
        let number = |value: f64| serde_json::Number::from_f64(value).into();
        self.row(step, numbers.iter().map(|(name, value)| (name.clone(), number(*value))))
    }

    fn text(&mut self, step: u64, name: &str, text: &str) -> Result<(), TrackerError> {
        self.row(step, std::iter::once((name.to_owned(), text.into())))
    }

    fn finish(&mut self, _exit_code: i32) -> Result<(), TrackerError> {
        self.file.sync_all().map_err(TrackerError::io(&self.path, "sync it"))
    }
}
