//! Event files of TensorBoard.
//!
//! | module | what lives there |
//! |---|---|
//! | [`tfrecord`] | how messages are framed |
//! | [`event`] | the messages |
//!
//! A run is a folder, `tensorboard/<run name>`; each start of the run adds a file to it, named so that the files sort
//! by the order of their starts, in which TensorBoard reads them. At the head of each file stands from which step on
//! the earlier files do not count any more: the first that a resumed run logs, 0 for a fresh run. TensorBoard takes the
//! first such event of a run for its beginning, so the first file has one too.

pub mod event;
pub mod tfrecord;

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use crate::{Numbers, RunSpec, Tracker, TrackerError, clock};

/// The folder of the runs in a run's directory.
pub const FOLDER: &str = "tensorboard";

const PREFIX: &str = "events.out.tfevents.";

/// The most files that one process starts within a second in one folder.
const MOST_FILES: u32 = 1000;

/// Writes an event file. Numbers are kept as 32-bit floats, those that are not finite as well.
pub struct TensorBoard {
    path: PathBuf,
    file: File,
}

impl TensorBoard {
    /// Starts an event file of a run, with its configuration and tags as texts.
    pub fn open(spec: &RunSpec) -> Result<Self, TrackerError> {
        let folder = spec.directory.join(FOLDER).join(component(&spec.run_name));
        std::fs::create_dir_all(&folder).map_err(TrackerError::io(&folder, "make it"))?;
        let (path, file) = create(&folder).map_err(TrackerError::io(&folder, "make an event file in it"))?;
        let mut tracker = Self { path, file };
        let now = clock::now().as_secs_f64();
        tracker.write(&event::version(now))?;
        tracker.write(&event::start(now, spec.resume.map_or(0, |step| step.saturating_add(1))))?;
        let step = spec.resume.unwrap_or_default();
        if !spec.config.is_null() {
            let config = format!("```json\n{:#}\n```", spec.config);
            tracker.write(&event::text(now, step, "config", &config))?;
        }
        if !spec.tags.is_empty() {
            tracker.write(&event::text(now, step, "tags", &spec.tags.join(", ")))?;
        }
        Ok(tracker)
    }

    /// The event file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn write(&mut self, event: &[u8]) -> Result<(), TrackerError> {
        self.file.write_all(&tfrecord::frame(event)).map_err(TrackerError::io(&self.path, "write to it"))
    }
}

impl Tracker for TensorBoard {
    fn log(&mut self, step: u64, numbers: &Numbers) -> Result<(), TrackerError> {
        self.write(&event::scalars(clock::now().as_secs_f64(), step, numbers))
    }

    fn text(&mut self, step: u64, name: &str, text: &str) -> Result<(), TrackerError> {
        self.write(&event::text(clock::now().as_secs_f64(), step, name, text))
    }

    fn finish(&mut self, _exit_code: i32) -> Result<(), TrackerError> {
        self.file.sync_all().map_err(TrackerError::io(&self.path, "sync it"))
    }
}

/// Makes `events.out.tfevents.<seconds>.<host>.<process>.<count>`, later by name than every such file in the folder.
fn create(folder: &Path) -> io::Result<(PathBuf, File)> {
    let mut seconds = clock::now().as_secs();
    for entry in std::fs::read_dir(folder)? {
        let name = entry?.file_name();
        let at = name.to_str().and_then(|name| name.strip_prefix(PREFIX)?.split('.').next()?.parse().ok());
        seconds = seconds.max(at.map_or(0, |at: u64| at.saturating_add(1)));
    }
    let (host, process) = (clock::host(), std::process::id());
    for count in 0..MOST_FILES {
        let path = folder.join(format!("{PREFIX}{seconds:010}.{host}.{process}.{count}"));
        match OpenOptions::new().write(true).create_new(true).open(&path) {
            Ok(file) => return Ok((path, file)),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}

/// A run's name as one component of a path.
fn component(name: &str) -> String {
    let name: String = name.chars().map(|c| if c == '/' || c == '\\' || c.is_control() { '_' } else { c }).collect();
    match name.as_str() {
        "" | "." | ".." => "run".to_owned(),
        _ => name,
    }
}
