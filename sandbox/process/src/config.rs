//! How a sandbox is set up, and the limits of a job.

use std::path::PathBuf;
use std::time::Duration;

use crate::error::ProcessError;
use crate::walls::Wall;

/// Most jobs at once.
pub(crate) const MOST_AT_ONCE: usize = 1024;

/// How a sandbox is set up.
#[derive(Clone, Debug)]
pub struct ProcessConfig {
    /// The walls without which nothing is run.
    pub require: Vec<Wall>,
    /// Python: a path, or a name that is looked up in `PATH`. It is asked once where its parts lie.
    pub python: PathBuf,
    /// Whether Python sees the packages that are installed beside it (`site-packages`). Starting is faster without.
    pub site_packages: bool,
    /// Further folders that jobs may read, at the same place.
    pub read_only: Vec<PathBuf>,
    /// Whether jobs see `/proc` of their own processes. Without it they learn less of the host, and processes of one
    /// job cannot open each other's memory.
    pub proc: bool,
    /// A cgroup folder to make groups in. Without one, the group that this process is in is tried.
    pub cgroup: Option<PathBuf>,
    /// Jobs at once; further ones wait, and their time does not run. The number of CPUs by default, at least 2.
    pub concurrency: usize,
    /// The first of the user ids that jobs run as when this process is root, one per concurrent job. By default a
    /// range that depends on this process's id, so that two processes do not share one.
    pub first_uid: Option<u32>,
}

impl Default for ProcessConfig {
    fn default() -> Self {
        let cpus = std::thread::available_parallelism().map_or(2, std::num::NonZero::get);
        Self {
            require: Wall::REQUIRED.to_vec(),
            python: PathBuf::from("python3"),
            site_packages: true,
            read_only: Vec::new(),
            proc: false,
            cgroup: None,
            concurrency: cpus.clamp(2, MOST_AT_ONCE),
            first_uid: None,
        }
    }
}

impl ProcessConfig {
    pub(crate) fn check(&self) -> Result<(), ProcessError> {
        if self.concurrency == 0 || self.concurrency > MOST_AT_ONCE {
            let reason = format!("must be from 1 to {MOST_AT_ONCE}, got {}", self.concurrency);
            return Err(ProcessError::Config { key: "concurrency", reason });
        }
        if self.first_uid == Some(0) {
            return Err(ProcessError::Config { key: "first_uid", reason: "must not be root's".to_owned() });
        }
        Ok(())
    }
}

/// The limits of one job. Every one is finite.
#[derive(Clone, Debug, PartialEq)]
pub struct ProcessLimits {
    /// Time from start to end.
    pub wall: Duration,
    /// CPU time of each process, in whole seconds (rounded up).
    pub cpu: Duration,
    /// Memory in bytes: of each process, and of all together where there is a cgroup.
    pub memory_bytes: u64,
    /// Processes and threads at once.
    pub processes: u64,
    /// Bytes of one file that is written.
    pub file_bytes: u64,
    /// Bytes of everything that is written to the folder in memory.
    pub disk_bytes: u64,
    /// Open files of each process.
    pub open_files: u64,
    /// Bytes that are kept of each output: its beginning and its end. More is counted and dropped.
    pub output_bytes: usize,
}

impl Default for ProcessLimits {
    fn default() -> Self {
        Self {
            wall: Duration::from_secs(10),
            cpu: Duration::from_secs(10),
            memory_bytes: 1 << 30,
            processes: 32,
            file_bytes: 64 << 20,
            disk_bytes: 128 << 20,
            open_files: 256,
            output_bytes: 1 << 20,
        }
    }
}

impl ProcessLimits {
    pub(crate) fn check(&self) -> Result<(), ProcessError> {
        let positive = [
            ("memory_bytes", self.memory_bytes),
            ("processes", self.processes),
            ("disk_bytes", self.disk_bytes),
            ("open_files", self.open_files.saturating_sub(3)),
        ];
        for (key, value) in positive {
            if value == 0 {
                return Err(ProcessError::Config { key, reason: "is too small to start a program".to_owned() });
            }
        }
        if self.wall.is_zero() {
            return Err(ProcessError::Config { key: "wall", reason: "must be longer than nothing".to_owned() });
        }
        Ok(())
    }
}
