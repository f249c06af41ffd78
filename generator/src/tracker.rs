//! Where metrics go as a run proceeds.
//!
//! | item | what it is |
//! |---|---|
//! | [`Tracker`] | takes a step's numbers |
//! | [`LineTracker`] | one line a step, for people |
//! | [`JsonlTracker`] | one JSON object a step, appended to a file |

use std::fmt::Write as _;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use crate::metrics::Numbers;
use crate::output::OutputError;

/// Takes the numbers of a step.
pub trait Tracker: Send {
    /// Logs the numbers of a step.
    fn log(&mut self, step: u64, numbers: &Numbers) -> Result<(), OutputError>;

    /// Writes out what is held back.
    fn finish(&mut self) -> Result<(), OutputError> {
        Ok(())
    }
}

/// One line a step: the numbers whose names start with one of the given prefixes.
pub struct LineTracker<W> {
    out: W,
    prefixes: Vec<String>,
}

impl<W: Write + Send> LineTracker<W> {
    /// Writes lines to `out`; without prefixes all numbers are shown.
    pub fn new(out: W, prefixes: Vec<String>) -> Self {
        Self { out, prefixes }
    }
}

impl<W: Write + Send> Tracker for LineTracker<W> {
    fn log(&mut self, step: u64, numbers: &Numbers) -> Result<(), OutputError> {
        let mut line = format!("step {step}");
        for (name, value) in numbers {
            if self.prefixes.is_empty() || self.prefixes.iter().any(|prefix| name.starts_with(prefix.as_str())) {
                let _ = write!(line, "  {name}={}", short(*value));
            }
        }
        line.push('\n');
        self.out.write_all(line.as_bytes()).map_err(OutputError::io(Path::new("the console"), "write to it"))
    }

    fn finish(&mut self) -> Result<(), OutputError> {
        self.out.flush().map_err(OutputError::io(Path::new("the console"), "write to it"))
    }
}

/// Four significant digits, whole numbers whole.
fn short(value: f64) -> String {
    if value.fract() == 0.0 && value.abs() < 1e9 {
        return format!("{value}");
    }
    if (1e-3..1e6).contains(&value.abs()) { format!("{value:.4}") } else { format!("{value:.3e}") }
}

/// One JSON object a step: `{"step": 3, "generate/avg_num_tokens": 41.5, ...}`. Numbers that are not finite are null.
pub struct JsonlTracker {
    path: PathBuf,
    file: File,
}

impl JsonlTracker {
    /// Appends to a file, which is made if need be.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, OutputError> {
        let path = path.as_ref().to_owned();
        let file = OpenOptions::new().create(true).append(true).open(&path);
        let file = file.map_err(OutputError::io(&path, "open it"))?;
        Ok(Self { path, file })
    }
}

impl Tracker for JsonlTracker {
    fn log(&mut self, step: u64, numbers: &Numbers) -> Result<(), OutputError> {
        let mut record = serde_json::Map::new();
        record.insert("step".to_owned(), step.into());
        for (name, value) in numbers {
            record.insert(name.clone(), serde_json::Number::from_f64(*value).into());
        }
        let line = format!("{}\n", serde_json::Value::Object(record));
        self.file.write_all(line.as_bytes()).map_err(OutputError::io(&self.path, "write to it"))
    }

    fn finish(&mut self) -> Result<(), OutputError> {
        self.file.sync_all().map_err(OutputError::io(&self.path, "sync it"))
    }
}
