//! Streams trees into a run's directory.
//!
//! | file | what it holds |
//! |---|---|
//! | `trajectories.jsonl` | one trajectory a line, appended as each tree ends |
//! | `trajectories-00000.parquet`... | finished parts; one being written ends in `.tmp` and is renamed when it is whole |
//! | `run.lock` | locked while a process writes here |
//!
//! A tree is one append: its descendants, then its root, so a tree whose root is there is whole. A killed run loses
//! at most the tree it was writing. A resumed run has the trees of both formats: what one holds and the other does not
//! is added to it. Trees that are to be played again, and copies of trees that are there twice, are taken out of both
//! formats; a file that loses trees is written anew beside itself and then renamed.

use std::collections::{BTreeSet, HashMap};
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, BufWriter, Read, Seek, SeekFrom, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};

use parquet::arrow::ArrowWriter;
use parquet::basic::Compression;
use parquet::file::metadata::KeyValue;
use parquet::file::properties::WriterProperties;
use serde::{Deserialize, Serialize};

use super::OutputError;
use super::reader::{BYTE_ORDER_MARK, JSONL, TrajectoryReader, parse_line, parts};
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

impl OutputOptions {
    /// Refuses options that write nothing or cannot be followed: the key and why.
    pub fn check(&self) -> Result<(), (&'static str, String)> {
        if !self.jsonl && !self.parquet {
            return Err((
                "jsonl",
                "and `parquet` are both false: nothing would be kept; leave one of them on".to_owned(),
            ));
        }
        if self.part_trajectories == 0 {
            return Err(("part_trajectories", "must be at least 1, got 0".to_owned()));
        }
        Ok(())
    }
}

/// What a resumed run found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resumed {
    /// Trees that are there and need not be played again.
    pub completed: BTreeSet<TrajectoryId>,
    /// Trees that were taken out, because they are to be played again.
    pub replayed: BTreeSet<TrajectoryId>,
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
    _lock: RunLock,
}

struct Part {
    temporary: PathBuf,
    path: PathBuf,
    writer: ArrowWriter<File>,
    trajectories: usize,
}

/// How long a lock that another process holds is tried again.
const LOCK_PATIENCE: std::time::Duration = std::time::Duration::from_secs(2);

/// A folder that one process writes to: its `run.lock` is locked for as long as this lives.
#[derive(Debug)]
pub struct RunLock(#[expect(dead_code, reason = "held, not read")] File);

impl RunLock {
    /// Locks an existing folder. A process that this program starts holds copies of its locks until it has become another
    /// program, so a lock that was just given up may look taken for a moment.
    pub fn take(directory: &Path) -> Result<Self, OutputError> {
        let path = directory.join("run.lock");
        let lock = OpenOptions::new().create(true).truncate(false).write(true).open(&path);
        let lock = lock.map_err(OutputError::io(&path, "open it"))?;
        let until = std::time::Instant::now() + LOCK_PATIENCE;
        loop {
            match lock.try_lock() {
                Ok(()) => return Ok(Self(lock)),
                Err(std::fs::TryLockError::Error(error)) => return Err(OutputError::io(&path, "lock it")(error)),
                Err(std::fs::TryLockError::WouldBlock) if std::time::Instant::now() < until => {
                    std::thread::sleep(std::time::Duration::from_millis(10));
                }
                Err(std::fs::TryLockError::WouldBlock) => return Err(OutputError::Busy(directory.to_owned())),
            }
        }
    }
}

impl RunWriter {
    /// Starts a run in a directory, which is made if need be. Refuses one that holds trajectories.
    pub fn create(directory: impl AsRef<Path>, options: OutputOptions) -> Result<Self, OutputError> {
        let directory = directory.as_ref();
        std::fs::create_dir_all(directory).map_err(OutputError::io(directory, "make it"))?;
        if directory.join(JSONL).exists() || !parts(directory)?.is_empty() {
            return Err(OutputError::Exists(directory.to_owned()));
        }
        let mut writer = Self::open(directory, options)?;
        writer.open_jsonl()?;
        Ok(writer)
    }

    /// Goes on with a run (or starts it): repairs what a killed process left, and says what is done. Trees of whose
    /// root `replay` says so are taken out. A format that the run was written in cannot be left out now: its files
    /// would no longer be the run.
    pub fn resume(
        directory: impl AsRef<Path>,
        options: OutputOptions,
        replay: impl Fn(&Trajectory) -> bool,
    ) -> Result<(Self, Resumed), OutputError> {
        let directory = directory.as_ref();
        std::fs::create_dir_all(directory).map_err(OutputError::io(directory, "make it"))?;
        let mut writer = Self::open(directory, options)?;
        let mut resumed = Resumed::default();
        writer.repair(&replay, &mut resumed)?;
        Ok((writer, resumed))
    }

    fn open(directory: &Path, options: OutputOptions) -> Result<Self, OutputError> {
        let lock = RunLock::take(directory)?;
        let next_part = parts(directory)?.iter().filter_map(|path| part_number(path)).max().map_or(0, |last| last + 1);
        Ok(Self {
            directory: directory.to_owned(),
            options,
            jsonl: None,
            part: None,
            next_part,
            waiting: Vec::new(),
            _lock: lock,
        })
    }

    fn open_jsonl(&mut self) -> Result<(), OutputError> {
        if self.options.jsonl {
            let path = self.directory.join(JSONL);
            let file = OpenOptions::new().create(true).append(true).open(&path);
            self.jsonl = Some(file.map_err(OutputError::io(&path, "open it"))?);
        }
        Ok(())
    }

    /// Writes one tree that ended. When this returns its JSONL lines are with the operating system.
    pub fn write(&mut self, tree: &Tree) -> Result<(), OutputError> {
        let nodes = || tree.descendants.iter().chain(std::iter::once(&tree.root));
        self.append(nodes())?;
        if self.options.parquet {
            self.wait(nodes().cloned())?;
        }
        Ok(())
    }

    /// Appends a tree to the JSONL file, where there is one.
    fn append<'a>(&mut self, nodes: impl Iterator<Item = &'a Trajectory>) -> Result<(), OutputError> {
        let Some(file) = &mut self.jsonl else { return Ok(()) };
        let path = self.directory.join(JSONL);
        let mut lines = Vec::new();
        for node in nodes {
            line(node, &mut lines).map_err(|error| OutputError::File {
                path: path.clone(),
                reason: format!("`{}` cannot be written as JSON: {error}", node.rollout_id),
            })?;
        }
        file.write_all(&lines).map_err(OutputError::io(&path, "write to it"))
    }

    /// Puts a tree into the next part.
    fn wait(&mut self, nodes: impl Iterator<Item = Trajectory>) -> Result<(), OutputError> {
        self.waiting.extend(nodes);
        // Between trees only: a part that is whole holds whole trees.
        if self.waiting.len() >= ROW_GROUP { self.flush() } else { Ok(()) }
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
        part.write(&std::mem::take(&mut self.waiting))?;
        let full = part.trajectories >= self.options.part_trajectories as usize;
        self.part = Some(part);
        if full { self.close_part() } else { Ok(()) }
    }

    fn new_part(&mut self) -> Result<Part, OutputError> {
        let part = Part::create(self.directory.join(format!("trajectories-{:05}.parquet", self.next_part)))?;
        self.next_part += 1;
        Ok(part)
    }

    fn close_part(&mut self) -> Result<(), OutputError> {
        self.part.take().map_or(Ok(()), Part::close)
    }

    /// Makes whole what a killed process left: no unfinished line, tree or part; every tree once in each format that is
    /// written; those that are to be played again in none.
    fn repair(&mut self, replay: &impl Fn(&Trajectory) -> bool, resumed: &mut Resumed) -> Result<(), OutputError> {
        let entries = std::fs::read_dir(&self.directory).map_err(OutputError::io(&self.directory, "list it"))?;
        for entry in entries {
            let path = entry.map_err(OutputError::io(&self.directory, "list it"))?.path();
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default().to_owned();
            if name.starts_with("trajectories") && path.extension().is_some_and(|extension| extension == "tmp") {
                std::fs::remove_file(&path).map_err(OutputError::io(&path, "remove it"))?;
                resumed.repaired.push(format!("`{name}` was unfinished and was removed"));
            }
        }
        let jsonl = self.directory.join(JSONL);
        let parts = parts(&self.directory)?;
        for (key, written, now) in
            [("jsonl", jsonl.is_file(), self.options.jsonl), ("parquet", !parts.is_empty(), self.options.parquet)]
        {
            if written && !now {
                let reason = format!(
                    "the run was begun with `output.{key}` on and cannot go on without; leave it on, or name another \
                     directory"
                );
                return Err(OutputError::File { path: self.directory.clone(), reason });
            }
        }

        let mut found = Found::default();
        let lines = if jsonl.is_file() { index_jsonl(&jsonl, replay, &mut found)? } else { Lines::default() };
        let mut in_part = Vec::with_capacity(parts.len());
        for (part, path) in parts.iter().enumerate() {
            in_part.push(each_tree(path, |number, nodes| {
                if let Some(root) = nodes.last() {
                    found.take(root, replay, |copies| copies.part = Some((part, number)));
                }
                Ok(())
            })?);
        }
        let twice = cut_jsonl(&jsonl, &lines, &found, resumed)? + cut_parts(&parts, &in_part, &found)?;
        self.open_jsonl()?;
        self.fill(&jsonl, &lines, &parts, &found, resumed)?;

        resumed.completed = found.stay.values().map(|copies| copies.id.clone()).collect();
        found.replay.retain(|id| !resumed.completed.contains(id));
        resumed.replayed = found.replay;
        match resumed.replayed.len() {
            0 if twice > 0 => resumed.repaired.push("copies of trees that were there twice were taken out".to_owned()),
            0 => {}
            1 => resumed.repaired.push("1 tree that had failed was taken out and is played again".to_owned()),
            count => {
                resumed.repaired.push(format!("{count} trees that had failed were taken out and are played again"));
            }
        }
        Ok(())
    }

    /// Adds to each format what only the other one holds.
    fn fill(
        &mut self,
        jsonl: &Path,
        lines: &Lines,
        parts: &[PathBuf],
        found: &Found,
        resumed: &mut Resumed,
    ) -> Result<(), OutputError> {
        if self.options.parquet && found.stay.values().any(|copies| copies.part.is_none()) {
            let mut added = 0;
            // Trees lie behind each other as they did before some were cut out.
            let stay = lines.trees.iter().enumerate().filter_map(|(number, (root, bytes))| {
                let copies = found.stay.get(root).filter(|copies| copies.line == Some(number))?;
                Some((copies, bytes.end - bytes.start))
            });
            let mut file = BufReader::new(File::open(jsonl).map_err(OutputError::io(jsonl, "open it"))?);
            for (copies, length) in stay {
                let mut bytes = Vec::new();
                (&mut file).take(length).read_to_end(&mut bytes).map_err(OutputError::io(jsonl, "read it"))?;
                if copies.part.is_some() {
                    continue;
                }
                let text = bytes.strip_prefix(BYTE_ORDER_MARK).unwrap_or(&bytes);
                let texts = text.split(|&byte| byte == b'\n').map(<[u8]>::trim_ascii).filter(|text| !text.is_empty());
                let nodes: Result<Vec<Trajectory>, String> = texts.map(parse_line).collect();
                let nodes = nodes.map_err(|reason| OutputError::File { path: jsonl.to_owned(), reason })?;
                self.wait(nodes.into_iter())?;
                added += 1;
            }
            resumed.repaired.push(format!("{added} trees were missing in the Parquet parts and are added"));
        }
        if self.jsonl.is_some() && found.stay.values().any(|copies| copies.line.is_none()) {
            let mut added = 0;
            for (index, path) in parts.iter().enumerate() {
                // A part that nothing stayed of is gone.
                if !path.is_file() {
                    continue;
                }
                each_tree(path, |_, nodes| {
                    let copies = nodes.last().and_then(|root| found.stay.get(&root.root_id));
                    if copies.is_some_and(|it| it.line.is_none() && it.part.is_some_and(|(part, _)| part == index)) {
                        added += 1;
                        self.append(nodes.iter())?;
                    }
                    Ok(())
                })?;
            }
            resumed.repaired.push(format!("{added} trees were missing in `{JSONL}` and are added"));
        }
        Ok(())
    }
}

impl Part {
    fn create(path: PathBuf) -> Result<Self, OutputError> {
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
        Ok(Self { temporary, path, writer, trajectories: 0 })
    }

    /// Writes trajectories as a row group.
    fn write(&mut self, all: &[Trajectory]) -> Result<(), OutputError> {
        let temporary = &self.temporary;
        let broken = |error: parquet::errors::ParquetError| OutputError::File {
            path: temporary.clone(),
            reason: format!("cannot write to it: {error}"),
        };
        self.writer.write(&to_batch(all)).map_err(broken)?;
        self.writer.flush().map_err(broken)?;
        self.trajectories += all.len();
        Ok(())
    }

    fn close(self) -> Result<(), OutputError> {
        let Self { temporary, path, writer, .. } = self;
        let file = writer.into_inner().map_err(|error| OutputError::File {
            path: temporary.clone(),
            reason: format!("cannot finish it: {error}"),
        })?;
        file.sync_all().map_err(OutputError::io(&temporary, "sync it"))?;
        std::fs::rename(&temporary, &path).map_err(OutputError::io(&temporary, "rename it"))
    }
}

/// Where a tree that stays is kept. Of several copies in one format the last one counts, as for a reader.
struct Copies {
    id: TrajectoryId,
    /// The tree's number in the JSONL file.
    line: Option<usize>,
    /// Which part, and the tree's number in it.
    part: Option<(usize, usize)>,
}

/// The trees of a run's directory.
#[derive(Default)]
struct Found {
    /// Those that stay, by the root's id.
    stay: HashMap<String, Copies>,
    /// Those of which a copy is to be played again.
    replay: BTreeSet<TrajectoryId>,
}

impl Found {
    /// Notes a tree by its root, and where it lies.
    fn take(&mut self, root: &Trajectory, replay: &impl Fn(&Trajectory) -> bool, place: impl FnOnce(&mut Copies)) {
        if replay(root) {
            self.replay.insert(root.id());
            return;
        }
        let entry = self.stay.entry(root.root_id.clone());
        place(entry.or_insert_with(|| Copies { id: root.id(), line: None, part: None }));
    }

    fn stays_in_part(&self, root: &Trajectory, part: usize, number: usize) -> bool {
        self.stay.get(&root.root_id).is_some_and(|copies| copies.part == Some((part, number)))
    }
}

/// The whole trees of a JSONL file.
#[derive(Default)]
struct Lines {
    /// The root's id, and the bytes from the end of the tree before.
    trees: Vec<(String, Range<u64>)>,
    /// The file's, what follows the last whole tree included.
    length: u64,
}

fn index_jsonl(path: &Path, replay: &impl Fn(&Trajectory) -> bool, found: &mut Found) -> Result<Lines, OutputError> {
    let file = File::open(path).map_err(OutputError::io(path, "open it"))?;
    let length = file.metadata().map_err(OutputError::io(path, "read it"))?.len();
    let mut input = BufReader::with_capacity(1 << 16, file);
    let mut lines = Lines { trees: Vec::new(), length };
    let (mut bytes, mut at, mut whole, mut number) = (Vec::new(), 0_u64, 0_u64, 0_u64);
    loop {
        bytes.clear();
        let count = input.read_until(b'\n', &mut bytes).map_err(OutputError::io(path, "read it"))?;
        number += 1;
        at += count as u64;
        if bytes.last() != Some(&b'\n') {
            return Ok(lines);
        }
        let text = if number == 1 { bytes.strip_prefix(BYTE_ORDER_MARK).unwrap_or(&bytes) } else { bytes.as_slice() };
        let text = text.trim_ascii();
        if text.is_empty() {
            continue;
        }
        let node = parse_line(text).map_err(|reason| OutputError::Row {
            path: path.to_owned(),
            unit: "line",
            row: number,
            reason,
        })?;
        if node.parent_id.is_none() {
            let tree = lines.trees.len();
            found.take(&node, replay, |copies| copies.line = Some(tree));
            lines.trees.push((node.root_id, whole..at));
            whole = at;
        }
    }
}

/// Leaves in the JSONL file what stays; answers how many trees were taken out.
fn cut_jsonl(path: &Path, lines: &Lines, found: &Found, resumed: &mut Resumed) -> Result<usize, OutputError> {
    let whole = lines.trees.last().map_or(0, |(_, bytes)| bytes.end);
    if whole < lines.length {
        let file = OpenOptions::new().write(true).open(path).map_err(OutputError::io(path, "open it"))?;
        file.set_len(whole).map_err(OutputError::io(path, "cut it"))?;
        let lost = lines.length - whole;
        resumed.repaired.push(format!("`{JSONL}` ended in an unfinished tree ({lost} bytes), which was cut off"));
    }
    let stays = |number: usize, root: &String| found.stay.get(root).is_some_and(|it| it.line == Some(number));
    let kept = lines.trees.iter().enumerate().filter(|(number, (root, _))| stays(*number, root)).count();
    if kept == lines.trees.len() {
        return Ok(0);
    }
    let temporary = path.with_extension("jsonl.tmp");
    let out = File::create(&temporary).map_err(OutputError::io(&temporary, "make it"))?;
    let mut out = BufWriter::new(out);
    let mut file = File::open(path).map_err(OutputError::io(path, "open it"))?;
    for (number, (root, bytes)) in lines.trees.iter().enumerate() {
        if stays(number, root) {
            file.seek(SeekFrom::Start(bytes.start)).map_err(OutputError::io(path, "read it"))?;
            std::io::copy(&mut (&mut file).take(bytes.end - bytes.start), &mut out)
                .map_err(OutputError::io(&temporary, "write to it"))?;
        }
    }
    let out = out.into_inner().map_err(|error| OutputError::io(&temporary, "write to it")(error.into_error()))?;
    out.sync_all().map_err(OutputError::io(&temporary, "sync it"))?;
    std::fs::rename(&temporary, path).map_err(OutputError::io(&temporary, "rename it"))?;
    Ok(lines.trees.len() - kept)
}

/// Leaves in the parts what stays; answers how many trees were taken out.
fn cut_parts(paths: &[PathBuf], in_part: &[usize], found: &Found) -> Result<usize, OutputError> {
    let mut cut = 0;
    for (index, (path, &trees)) in paths.iter().zip(in_part).enumerate() {
        let kept = found.stay.values().filter(|copies| copies.part.is_some_and(|(part, _)| part == index)).count();
        cut += trees - kept;
        if kept == 0 && trees > 0 {
            std::fs::remove_file(path).map_err(OutputError::io(path, "remove it"))?;
        } else if kept < trees {
            let mut part = Part::create(path.clone())?;
            let mut waiting = Vec::new();
            each_tree(path, |number, nodes| {
                if nodes.last().is_some_and(|root| found.stays_in_part(root, index, number)) {
                    waiting.extend(nodes);
                    if waiting.len() >= ROW_GROUP {
                        part.write(&std::mem::take(&mut waiting))?;
                    }
                }
                Ok(())
            })?;
            if !waiting.is_empty() {
                part.write(&waiting)?;
            }
            part.close()?;
        }
    }
    Ok(cut)
}

/// Hands over the trees of a part, each with its number there, its root last; answers how many there are.
fn each_tree(
    path: &Path,
    mut with: impl FnMut(usize, Vec<Trajectory>) -> Result<(), OutputError>,
) -> Result<usize, OutputError> {
    let mut nodes = Vec::new();
    let mut count = 0;
    for node in TrajectoryReader::open(path)? {
        let node = node?;
        let root = node.parent_id.is_none();
        nodes.push(node);
        if root {
            with(count, std::mem::take(&mut nodes))?;
            count += 1;
        }
    }
    Ok(count)
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
