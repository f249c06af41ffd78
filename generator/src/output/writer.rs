//! Streams trees into a run's directory.
//!
//! | file | what it holds |
//! |---|---|
//! | `trajectories.jsonl` | one trajectory a line, appended as each tree ends |
//! | `trajectories-00000.parquet`... | finished parts; one being written ends in `.tmp` and is renamed when it is whole |
//! | `run.lock` | locked while a process writes here |
//!
//! A tree is one append: its descendants, then its root, so a tree whose root is there is whole. A killed run loses
//! at most the tree it was writing; what its JSONL file holds and its finished parts do not is written into the next
//! part when the run is resumed.

use std::collections::{BTreeSet, HashSet};
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};

use parquet::arrow::ArrowWriter;
use parquet::basic::Compression;
use parquet::file::metadata::KeyValue;
use parquet::file::properties::WriterProperties;
use serde::{Deserialize, Serialize};

use super::OutputError;
use super::reader::{JSONL, TrajectoryReader, parse_line, parts};
use super::schema::{SCHEMA_KEY, schema, to_batch};
use crate::trajectory::{SCHEMA, Trajectory, TrajectoryId, Tree};

/// Trajectories in one row group.
const ROW_GROUP: usize = 64;

/// What a run's directory holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct OutputOptions {
    /// Write JSONL. Without it a killed run loses the Parquet part it was writing.
    pub jsonl: bool,
    /// Write Parquet.
    pub parquet: bool,
    /// Trajectories in one Parquet part.
    pub part_trajectories: u32,
}

impl Default for OutputOptions {
    fn default() -> Self {
        Self { jsonl: true, parquet: true, part_trajectories: 512 }
    }
}

/// What a resumed run found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resumed {
    /// Trees that are there and need not be played again.
    pub completed: BTreeSet<TrajectoryId>,
    /// What was repaired, in words.
    pub repaired: Vec<String>,
}

/// Writes one run's trajectories.
pub struct RunWriter {
    directory: PathBuf,
    options: OutputOptions,
    jsonl: Option<File>,
    part: Option<Part>,
    next_part: u32,
    /// Trajectories that wait for their row group.
    waiting: Vec<Trajectory>,
    _lock: File,
}

struct Part {
    temporary: PathBuf,
    path: PathBuf,
    writer: ArrowWriter<File>,
    trajectories: usize,
}

impl RunWriter {
    /// Starts a run in a directory, which is made if need be. Refuses one that holds trajectories.
    pub fn create(directory: impl AsRef<Path>, options: OutputOptions) -> Result<Self, OutputError> {
        let directory = directory.as_ref();
        std::fs::create_dir_all(directory).map_err(OutputError::io(directory, "make it"))?;
        if directory.join(JSONL).exists() || !parts(directory)?.is_empty() {
            return Err(OutputError::Exists(directory.to_owned()));
        }
        Self::open(directory, options)
    }

    /// Goes on with a run (or starts it): repairs what a killed process left, and says what is done.
    pub fn resume(directory: impl AsRef<Path>, options: OutputOptions) -> Result<(Self, Resumed), OutputError> {
        let directory = directory.as_ref();
        std::fs::create_dir_all(directory).map_err(OutputError::io(directory, "make it"))?;
        let mut writer = Self::open(directory, options)?;
        let mut resumed = Resumed::default();
        writer.repair(&mut resumed)?;
        Ok((writer, resumed))
    }

    fn open(directory: &Path, options: OutputOptions) -> Result<Self, OutputError> {
        let lock_path = directory.join("run.lock");
        let lock = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&lock_path)
            .map_err(OutputError::io(&lock_path, "open it"))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(std::fs::TryLockError::WouldBlock) => return Err(OutputError::Busy(directory.to_owned())),
            Err(std::fs::TryLockError::Error(error)) => return Err(OutputError::io(&lock_path, "lock it")(error)),
        }
        let jsonl = if options.jsonl {
            let path = directory.join(JSONL);
            let file = OpenOptions::new().create(true).append(true).open(&path);
            Some(file.map_err(OutputError::io(&path, "open it"))?)
        } else {
            None
        };
        let next_part = parts(directory)?.iter().filter_map(|path| part_number(path)).max().map_or(0, |last| last + 1);
        Ok(Self {
            directory: directory.to_owned(),
            options,
            jsonl,
            part: None,
            next_part,
            waiting: Vec::new(),
            _lock: lock,
        })
    }

    /// Writes one tree that ended. When this returns its JSONL lines are with the operating system.
    pub fn write(&mut self, tree: &Tree) -> Result<(), OutputError> {
        let nodes = || tree.descendants.iter().chain(std::iter::once(&tree.root));
        if let Some(file) = &mut self.jsonl {
            let path = self.directory.join(JSONL);
            let mut lines = Vec::new();
            for node in nodes() {
                line(node, &mut lines).map_err(|error| OutputError::File {
                    path: path.clone(),
                    reason: format!("`{}` cannot be written as JSON: {error}", node.rollout_id),
                })?;
            }
            file.write_all(&lines).map_err(OutputError::io(&path, "write to it"))?;
        }
        if self.options.parquet {
            self.waiting.extend(nodes().cloned());
            // Between trees only: a part that is whole holds whole trees.
            if self.waiting.len() >= ROW_GROUP {
                self.flush()?;
            }
        }
        Ok(())
    }

    /// Finishes what is open.
    pub fn finish(mut self) -> Result<(), OutputError> {
        self.flush()?;
        self.close_part()?;
        if let Some(file) = &self.jsonl {
            let path = self.directory.join(JSONL);
            file.sync_all().map_err(OutputError::io(&path, "sync it"))?;
        }
        Ok(())
    }

    /// Writes what waits as a row group.
    fn flush(&mut self) -> Result<(), OutputError> {
        if self.waiting.is_empty() {
            return Ok(());
        }
        let mut part = match self.part.take() {
            Some(part) => part,
            None => self.new_part()?,
        };
        let waiting = std::mem::take(&mut self.waiting);
        let broken = |error: parquet::errors::ParquetError| OutputError::File {
            path: part.temporary.clone(),
            reason: format!("cannot write to it: {error}"),
        };
        part.writer.write(&to_batch(&waiting)).map_err(broken)?;
        part.writer.flush().map_err(broken)?;
        part.trajectories += waiting.len();
        let full = part.trajectories >= self.options.part_trajectories as usize;
        self.part = Some(part);
        if full { self.close_part() } else { Ok(()) }
    }

    fn new_part(&mut self) -> Result<Part, OutputError> {
        let path = self.directory.join(format!("trajectories-{:05}.parquet", self.next_part));
        let temporary = path.with_extension("parquet.tmp");
        let file = File::create(&temporary).map_err(OutputError::io(&temporary, "make it"))?;
        let properties = WriterProperties::builder()
            .set_compression(Compression::SNAPPY)
            .set_key_value_metadata(Some(vec![KeyValue::new(SCHEMA_KEY.to_owned(), SCHEMA.to_owned())]))
            .build();
        let writer = ArrowWriter::try_new(file, schema(), Some(properties)).map_err(|error| OutputError::File {
            path: temporary.clone(),
            reason: format!("cannot write to it: {error}"),
        })?;
        self.next_part += 1;
        Ok(Part { temporary, path, writer, trajectories: 0 })
    }

    fn close_part(&mut self) -> Result<(), OutputError> {
        let Some(part) = self.part.take() else { return Ok(()) };
        let Part { temporary, path, writer, .. } = part;
        let file = writer.into_inner().map_err(|error| OutputError::File {
            path: temporary.clone(),
            reason: format!("cannot finish it: {error}"),
        })?;
        file.sync_all().map_err(OutputError::io(&temporary, "sync it"))?;
        std::fs::rename(&temporary, &path).map_err(OutputError::io(&temporary, "rename it"))
    }

    /// Makes whole what a killed process left: no unfinished line or tree in JSONL, no unfinished part, every tree of
    /// the JSONL file in a part.
    fn repair(&mut self, resumed: &mut Resumed) -> Result<(), OutputError> {
        let entries = std::fs::read_dir(&self.directory).map_err(OutputError::io(&self.directory, "list it"))?;
        for entry in entries {
            let path = entry.map_err(OutputError::io(&self.directory, "list it"))?.path();
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default().to_owned();
            if name.starts_with("trajectories-") && name.ends_with(".parquet.tmp") {
                std::fs::remove_file(&path).map_err(OutputError::io(&path, "remove it"))?;
                resumed.repaired.push(format!("`{name}` was unfinished and was removed"));
            }
        }
        let mut in_parts = HashSet::new();
        for trajectory in TrajectoryReader::open_parts(&self.directory)? {
            let trajectory = trajectory?;
            if trajectory.parent_id.is_none() {
                resumed.completed.insert(trajectory.id());
                in_parts.insert(trajectory.root_id);
            }
        }
        let path = self.directory.join(JSONL);
        if path.is_file() {
            let restored = self.repair_jsonl(&path, &in_parts, resumed)?;
            if restored > 0 {
                resumed.repaired.push(format!("{restored} trees were missing in the Parquet parts and are added"));
            }
        }
        Ok(())
    }

    /// Cuts the JSONL file behind its last whole tree; trees that no part holds wait for the next one.
    fn repair_jsonl(
        &mut self,
        path: &Path,
        in_parts: &HashSet<String>,
        resumed: &mut Resumed,
    ) -> Result<usize, OutputError> {
        let file = OpenOptions::new().read(true).write(true).open(path).map_err(OutputError::io(path, "open it"))?;
        let length = file.metadata().map_err(OutputError::io(path, "read it"))?.len();
        let mut lines = BufReader::new(&file);
        let (mut bytes, mut at, mut whole_until, mut number) = (Vec::new(), 0_u64, 0_u64, 0_u64);
        let mut restored = 0;
        let mut tree = Vec::new();
        loop {
            bytes.clear();
            let count = lines.read_until(b'\n', &mut bytes).map_err(OutputError::io(path, "read it"))?;
            if count == 0 {
                break;
            }
            number += 1;
            at += count as u64;
            if bytes.last() != Some(&b'\n') {
                break;
            }
            let text = bytes.trim_ascii();
            if text.is_empty() {
                continue;
            }
            let trajectory = parse_line(text).map_err(|reason| OutputError::Row {
                path: path.to_owned(),
                unit: "line",
                row: number,
                reason,
            })?;
            let root = trajectory.parent_id.is_none().then(|| (trajectory.root_id.clone(), trajectory.id()));
            tree.push(trajectory);
            if let Some((root_id, id)) = root {
                whole_until = at;
                resumed.completed.insert(id);
                let nodes = std::mem::take(&mut tree);
                if self.options.parquet && !in_parts.contains(&root_id) {
                    restored += 1;
                    self.waiting.extend(nodes);
                    if self.waiting.len() >= ROW_GROUP {
                        self.flush()?;
                    }
                }
            }
        }
        if whole_until < length {
            file.set_len(whole_until).map_err(OutputError::io(path, "cut it"))?;
            let lost = length - whole_until;
            resumed.repaired.push(format!("`{JSONL}` ended in an unfinished tree ({lost} bytes), which was cut off"));
        }
        Ok(restored)
    }
}

fn part_number(path: &Path) -> Option<u32> {
    path.file_stem()?.to_str()?.strip_prefix("trajectories-")?.parse().ok()
}

/// Appends one line: the format's name, then the trajectory's fields.
fn line(trajectory: &Trajectory, out: &mut Vec<u8>) -> Result<(), serde_json::Error> {
    #[derive(Serialize)]
    struct Line<'a> {
        schema: &'static str,
        #[serde(flatten)]
        trajectory: &'a Trajectory,
    }
    serde_json::to_writer(&mut *out, &Line { schema: SCHEMA, trajectory })?;
    out.push(b'\n');
    Ok(())
}
