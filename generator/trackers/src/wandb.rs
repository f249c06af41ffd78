//! Offline runs of Weights & Biases, as its official client writes, reads and syncs them.
//!
//! | module | what lives there |
//! |---|---|
//! | [`log`] | how records are framed, and read back |
//! | [`record`] | the records |
//! | [`resume`] | earlier offline runs of a run that goes on |
//!
//! ```text
//! wandb/latest-run -> offline-run-YYYYMMDD_HHMMSS-<id>
//! wandb/offline-run-YYYYMMDD_HHMMSS-<id>/run-<id>.wandb            all records
//! wandb/offline-run-YYYYMMDD_HHMMSS-<id>/files/config.yaml
//! wandb/offline-run-YYYYMMDD_HHMMSS-<id>/files/wandb-summary.json  the last value of each number; when the run ends
//! ```
//!
//! A resumed run is a new folder of the same id, as the official client has it: `wandb sync` uploads the folders of an
//! id in the order of their starts.

pub mod log;
pub mod record;
pub mod resume;

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use self::log::LogWriter;
use self::record::{Records, Run};
use crate::{Numbers, RunSpec, Tracker, TrackerError, clock};

/// The folder of the runs in a run's directory.
pub const FOLDER: &str = "wandb";

/// What the name of an offline run's folder begins with.
const PREFIX: &str = "offline-run-";

/// The most names whose last value `wandb-summary.json` keeps; the records keep all.
pub const MOST_SUMMARIZED: usize = 10_000;

/// How many seconds a folder's name may be ahead of the clock, for runs that start within one.
const MOST_AHEAD: u64 = 60;

/// Writes an offline run.
pub struct Wandb {
    run_id: String,
    folder: PathBuf,
    path: PathBuf,
    log: LogWriter<File>,
    records: Records,
    started: Instant,
    summary: BTreeMap<String, String>,
}

impl Wandb {
    /// Starts an offline run.
    pub fn open(spec: &RunSpec) -> Result<Self, TrackerError> {
        let root = spec.directory.join(FOLDER);
        std::fs::create_dir_all(&root).map_err(TrackerError::io(&root, "make it"))?;
        let (run_id, resumed) = match (spec.resume, &spec.run_id) {
            (Some(step), id) => {
                let found = match id {
                    Some(id) => Some(id.clone()),
                    None => resume::newest(&root, &spec.project_name, &spec.run_name)?,
                };
                if let Some(id) = &found {
                    resume::take_back(&root, id, step)?;
                }
                let resumed = found.is_some();
                (found.unwrap_or_else(fresh_id), resumed)
            }
            (None, id) => (id.clone().unwrap_or_else(fresh_id), false),
        };
        let now = clock::now();
        let folder =
            create_folder(&root, now, &run_id).map_err(TrackerError::io(&root, "make a run's folder in it"))?;
        let files = folder.join("files");
        std::fs::create_dir(&files).map_err(TrackerError::io(&files, "make it"))?;
        let config = files.join("config.yaml");
        std::fs::write(&config, config_yaml(&spec.config)).map_err(TrackerError::io(&config, "write it"))?;
        let path = folder.join(format!("run-{run_id}.wandb"));
        let file = OpenOptions::new().write(true).create_new(true).open(&path);
        let log = file.and_then(LogWriter::create).map_err(TrackerError::io(&path, "make it"))?;
        link_latest(&root, &folder);
        let summary = BTreeMap::new();
        let mut tracker =
            Self { run_id, folder, path, log, records: Records::default(), started: Instant::now(), summary };
        let header = tracker.records.header();
        tracker.write(&header)?;
        let run = tracker.records.run(&Run {
            id: &tracker.run_id,
            project: &spec.project_name,
            name: &spec.run_name,
            tags: &spec.tags,
            host: &clock::host(),
            config: &spec.config,
            started: now,
            resumed,
        });
        tracker.write(&run)?;
        Ok(tracker)
    }

    /// The id of the run, which its address at Weights & Biases ends with.
    pub fn run_id(&self) -> &str {
        &self.run_id
    }

    /// The folder of the offline run, for `wandb sync`.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    fn row(&mut self, step: u64, values: impl Iterator<Item = (String, String)>) -> Result<(), TrackerError> {
        let mut row: Vec<(String, String)> = values.filter(|(name, _)| !record::is_reserved(name)).collect();
        row.extend(record::reserved(step, clock::now(), self.started.elapsed()));
        let history = self.records.history(step, &row);
        self.write(&history)?;
        let summary = self.records.summary(&row, self.started.elapsed());
        self.write(&summary)?;
        for (name, value) in row {
            if self.summary.len() < MOST_SUMMARIZED || self.summary.contains_key(&name) {
                self.summary.insert(name, value);
            }
        }
        Ok(())
    }

    fn write(&mut self, record: &[u8]) -> Result<(), TrackerError> {
        self.log.append(record).map_err(TrackerError::io(&self.path, "write to it"))
    }
}

impl Tracker for Wandb {
    fn log(&mut self, step: u64, numbers: &Numbers) -> Result<(), TrackerError> {
        self.row(step, numbers.iter().map(|(name, value)| (name.clone(), record::number(*value))))
    }

    fn text(&mut self, step: u64, name: &str, text: &str) -> Result<(), TrackerError> {
        self.row(step, std::iter::once((name.to_owned(), record::string(text))))
    }

    fn finish(&mut self, exit_code: i32) -> Result<(), TrackerError> {
        let exit = self.records.exit(exit_code, self.started.elapsed());
        self.write(&exit)?;
        self.log.get_ref().sync_all().map_err(TrackerError::io(&self.path, "sync it"))?;
        let path = self.folder.join("files/wandb-summary.json");
        let members: Vec<String> =
            self.summary.iter().map(|(name, value)| format!("{}: {value}", record::string(name))).collect();
        let runtime = self.started.elapsed().as_secs();
        let text = format!("{{{}, \"_wandb\": {{\"runtime\": {runtime}}}}}\n", members.join(", "));
        std::fs::write(&path, text).map_err(TrackerError::io(&path, "write it"))
    }
}

/// Eight letters and digits, as the official client makes them.
fn fresh_id() -> String {
    const ALPHABET: &[u8; 36] = b"0123456789abcdefghijklmnopqrstuvwxyz";
    // Keyed at random for each process and each state: what the standard library has for randomness.
    let mut left = RandomState::new().build_hasher().finish();
    let mut id = String::new();
    for _ in 0..8 {
        id.push(char::from(ALPHABET[(left % 36) as usize]));
        left /= 36;
    }
    id
}

/// Makes the folder of a run that starts now; its name is the next free second's.
fn create_folder(root: &Path, now: Duration, id: &str) -> io::Result<PathBuf> {
    for ahead in 0..MOST_AHEAD {
        let folder = root.join(format!("{PREFIX}{}-{id}", clock::stamp(now + Duration::from_secs(ahead))));
        match std::fs::create_dir(&folder) {
            Ok(()) => return Ok(folder),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}

/// Points `latest-run` to a folder: what `wandb leet` shows when it is not told which run. A convenience, and not
/// every file system has links.
fn link_latest(root: &Path, folder: &Path) {
    let (Some(name), link) = (folder.file_name(), root.join("latest-run")) else { return };
    let fresh = root.join(format!(".latest-run-{}", std::process::id()));
    let linked = std::os::unix::fs::symlink(name, &fresh).and_then(|()| std::fs::rename(&fresh, &link));
    if let Err(error) = linked {
        let _ = std::fs::remove_file(&fresh);
        tracing::debug!("`{}`: cannot link it to the run: {error}", link.display());
    }
}

/// The configuration as the client's YAML; values are JSON, which YAML includes.
fn config_yaml(config: &serde_json::Value) -> String {
    let mut yaml = String::new();
    for (key, value) in record::config_items(config) {
        yaml.push_str(&format!("{}:\n    value: {value}\n", record::string(key)));
    }
    yaml
}
