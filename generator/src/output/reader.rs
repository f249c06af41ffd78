//! Reads trajectories back, from JSONL or Parquet.

use std::collections::HashMap;
use std::collections::VecDeque;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use arrow_array::{Array, StructArray};
use parquet::arrow::arrow_reader::{ArrowReaderOptions, ParquetRecordBatchReader, ParquetRecordBatchReaderBuilder};
use serde::Deserialize;

use super::OutputError;
use super::schema::{SCHEMA_KEY, from_record, records};
use crate::trajectory::{SCHEMA, Trajectory, Tree, TreeError};

/// The JSONL file of a run's directory.
pub(super) const JSONL: &str = "trajectories.jsonl";

/// Some editors begin a file with it.
pub(super) const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// Reads trajectories one after another. Stops at the first error.
///
/// A last line of JSONL that a killed writer left unfinished is not an error: it is skipped and said in
/// [`TrajectoryReader::warnings`].
pub struct TrajectoryReader {
    pending: VecDeque<PathBuf>,
    open: Option<Source>,
    warnings: Vec<String>,
    failed: bool,
}

enum Source {
    Jsonl { path: PathBuf, file: BufReader<File>, line: u64 },
    Parquet { path: PathBuf, batches: ParquetRecordBatchReader, batch: Option<(StructArray, usize)>, row: u64 },
}

impl TrajectoryReader {
    /// Opens a file, or a run's directory: its JSONL file where there is one, else its Parquet parts.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, OutputError> {
        let path = path.as_ref();
        let pending = if path.is_dir() {
            let jsonl = path.join(JSONL);
            let files = if jsonl.is_file() { vec![jsonl] } else { parts(path)? };
            if files.is_empty() {
                let reason = format!("expected `{JSONL}` or `trajectories-*.parquet` here, there is neither");
                return Err(OutputError::File { path: path.to_owned(), reason });
            }
            files
        } else {
            vec![path.to_owned()]
        };
        let mut reader = Self { pending: pending.into(), open: None, warnings: Vec::new(), failed: false };
        reader.next_file()?;
        Ok(reader)
    }

    /// Opens the Parquet parts of a run's directory; none is no error.
    pub fn open_parts(directory: impl AsRef<Path>) -> Result<Self, OutputError> {
        let pending = parts(directory.as_ref())?.into();
        Ok(Self { pending, open: None, warnings: Vec::new(), failed: false })
    }

    /// What was skipped, in words.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    fn next_file(&mut self) -> Result<bool, OutputError> {
        let Some(path) = self.pending.pop_front() else { return Ok(false) };
        let file = File::open(&path).map_err(OutputError::io(&path, "open it"))?;
        self.open = Some(if is_parquet(&path, &file)? { parquet(path, file)? } else { jsonl(path, file) });
        Ok(true)
    }

    fn read(&mut self) -> Result<Option<Trajectory>, OutputError> {
        loop {
            let found = match &mut self.open {
                None => None,
                Some(Source::Jsonl { path, file, line }) => next_line(path, file, line, &mut self.warnings)?,
                Some(Source::Parquet { path, batches, batch, row }) => next_record(path, batches, batch, row)?,
            };
            if found.is_some() {
                return Ok(found);
            }
            self.open = None;
            if !self.next_file()? {
                return Ok(None);
            }
        }
    }
}

impl Iterator for TrajectoryReader {
    type Item = Result<Trajectory, OutputError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.failed {
            return None;
        }
        let read = self.read();
        self.failed = read.is_err();
        read.transpose()
    }
}

/// The finished Parquet parts of a directory, in order.
pub(super) fn parts(directory: &Path) -> Result<Vec<PathBuf>, OutputError> {
    let entries = std::fs::read_dir(directory).map_err(OutputError::io(directory, "list it"))?;
    let mut parts = Vec::new();
    for entry in entries {
        let path = entry.map_err(OutputError::io(directory, "list it"))?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if name.starts_with("trajectories-") && path.extension().is_some_and(|extension| extension == "parquet") {
            parts.push(path);
        }
    }
    parts.sort();
    Ok(parts)
}

fn is_parquet(path: &Path, mut file: &File) -> Result<bool, OutputError> {
    use std::io::Seek;
    let mut magic = [0; 4];
    let mut read = 0;
    while read < magic.len() {
        match file.read(&mut magic[read..]).map_err(OutputError::io(path, "read it"))? {
            0 => break,
            count => read += count,
        }
    }
    file.rewind().map_err(OutputError::io(path, "read it"))?;
    let named = path.extension().is_some_and(|extension| extension == "parquet");
    if named && &magic != b"PAR1" {
        let reason = "expected a Parquet file, its first bytes say otherwise".to_owned();
        return Err(OutputError::File { path: path.to_owned(), reason });
    }
    Ok(&magic == b"PAR1")
}

fn jsonl(path: PathBuf, file: File) -> Source {
    Source::Jsonl { path, file: BufReader::with_capacity(1 << 16, file), line: 0 }
}

fn parquet(path: PathBuf, file: File) -> Result<Source, OutputError> {
    let broken = |reason: String| OutputError::File { path: path.clone(), reason };
    // Without what a writer stored of its own in-memory types: a text is a text, whether it was a `large_string` or a
    // dictionary there.
    let options = ArrowReaderOptions::new().with_skip_arrow_metadata(true);
    let builder = ParquetRecordBatchReaderBuilder::try_new_with_options(file, options)
        .map_err(|error| broken(format!("not a whole Parquet file: {error}")))?;
    let format =
        builder.metadata().file_metadata().key_value_metadata().and_then(|entries| {
            entries.iter().find(|entry| entry.key == SCHEMA_KEY).and_then(|entry| entry.value.clone())
        });
    match format.as_deref() {
        Some(SCHEMA) => {}
        Some(other) => return Err(broken(format!("expected the format `{SCHEMA}`, got `{other}`"))),
        None => return Err(broken(format!("expected the format `{SCHEMA}` under `{SCHEMA_KEY}` in its metadata"))),
    }
    let batches = builder.with_batch_size(64).build().map_err(|error| broken(format!("it cannot be read: {error}")))?;
    Ok(Source::Parquet { path, batches, batch: None, row: 0 })
}

fn next_line(
    path: &Path,
    file: &mut BufReader<File>,
    line: &mut u64,
    warnings: &mut Vec<String>,
) -> Result<Option<Trajectory>, OutputError> {
    let mut bytes = Vec::new();
    loop {
        bytes.clear();
        if file.read_until(b'\n', &mut bytes).map_err(OutputError::io(path, "read it"))? == 0 {
            return Ok(None);
        }
        *line += 1;
        let whole = bytes.last() == Some(&b'\n');
        let text = if *line == 1 { bytes.strip_prefix(BYTE_ORDER_MARK).unwrap_or(&bytes) } else { bytes.as_slice() };
        let text = text.trim_ascii();
        if text.is_empty() {
            continue;
        }
        return match parse_line(text) {
            Ok(trajectory) => Ok(Some(trajectory)),
            Err(_) if !whole => {
                warnings.push(format!(
                    "`{}`, line {line}: the last line is unfinished ({} bytes) and was skipped",
                    path.display(),
                    bytes.len()
                ));
                Ok(None)
            }
            Err(reason) => Err(OutputError::Row { path: path.to_owned(), unit: "line", row: *line, reason }),
        };
    }
}

/// One line of JSONL.
pub(super) fn parse_line(text: &[u8]) -> Result<Trajectory, String> {
    let expected = format!("{{\"schema\":\"{SCHEMA}\"");
    if !text.starts_with(expected.as_bytes()) {
        #[derive(Deserialize)]
        struct Format {
            schema: Option<String>,
        }
        let format: Format = serde_json::from_slice(text).map_err(|error| format!("not a JSON object: {error}"))?;
        match format.schema.as_deref() {
            Some(SCHEMA) => {}
            Some(other) => return Err(format!("expected `schema` to be `{SCHEMA}`, got `{other}`")),
            None => return Err(format!("expected `schema` to be `{SCHEMA}`, there is none")),
        }
    }
    let trajectory: Trajectory = serde_json::from_slice(text).map_err(|error| format!("not a trajectory: {error}"))?;
    trajectory.check()?;
    Ok(trajectory)
}

fn next_record(
    path: &Path,
    batches: &mut ParquetRecordBatchReader,
    batch: &mut Option<(StructArray, usize)>,
    row: &mut u64,
) -> Result<Option<Trajectory>, OutputError> {
    let broken = |row: u64, reason: String| OutputError::Row { path: path.to_owned(), unit: "row", row, reason };
    loop {
        if let Some((records, at)) = batch
            && *at < records.len()
        {
            let found = from_record(records, *at)
                .and_then(|it| it.check().map(|()| it))
                .map_err(|reason| broken(*row, reason))?;
            *at += 1;
            *row += 1;
            return Ok(Some(found));
        }
        match batches.next() {
            None => return Ok(None),
            Some(Ok(next)) => *batch = Some((records(&next), 0)),
            Some(Err(error)) => return Err(broken(*row, error.to_string())),
        }
    }
}

/// Reads whole trees, by id. Nodes of trees whose root was never written are left out and said in the warnings;
/// where an id was written twice, the later one counts.
pub fn read_trees(path: impl AsRef<Path>) -> Result<(Vec<Tree>, Vec<String>), OutputError> {
    let path = path.as_ref();
    let mut reader = TrajectoryReader::open(path)?;
    let mut nodes: HashMap<String, Vec<Trajectory>> = HashMap::new();
    for trajectory in &mut reader {
        let trajectory = trajectory?;
        let siblings = nodes.entry(trajectory.root_id.clone()).or_default();
        siblings.retain(|node| node.rollout_id != trajectory.rollout_id);
        siblings.push(trajectory);
    }
    let mut warnings = reader.warnings;
    let mut trees = Vec::with_capacity(nodes.len());
    for (root, nodes) in nodes {
        match Tree::assemble(nodes) {
            Ok(tree) => trees.push(tree),
            Err(TreeError::Roots(0)) => warnings.push(format!("the tree `{root}` has no root and was left out")),
            Err(source) => return Err(OutputError::Tree { path: path.to_owned(), source }),
        }
    }
    trees.sort_by(|a, b| by_id(&a.root, &b.root));
    warnings.sort();
    Ok((trees, warnings))
}

/// Instances in the order of their numbers where they are numbers, else of their names; then repetitions.
fn by_id(a: &Trajectory, b: &Trajectory) -> std::cmp::Ordering {
    let number = |t: &Trajectory| t.instance_id.parse::<u64>().map_or((1, 0), |number| (0, number));
    number(a)
        .cmp(&number(b))
        .then_with(|| a.instance_id.cmp(&b.instance_id))
        .then_with(|| a.repetition_id.cmp(&b.repetition_id))
}
