//! Trajectories on disk.
//!
//! | module | what lives there |
//! |---|---|
//! | [`schema`] | the columns of `espalier.trajectory.v1`, to and from Arrow |
//! | [`writer`] | [`RunWriter`], which streams trees into a run's directory, and goes on where a killed run stopped |
//! | [`reader`] | [`TrajectoryReader`], both formats |
//! | [`export`] | [`GeneratorOutput`], the columns that a trainer takes |
//!
//! Invariants: what was written of a tree is whole or ignored; what is finished is changed only when a run is resumed,
//! file by file, each whole before it takes the old one's name; a tree is in a format once; a file that is damaged is
//! said to be, with its row.

pub mod export;
pub mod reader;
pub mod schema;
pub mod writer;

use std::path::{Path, PathBuf};

use thiserror::Error;

pub use export::{ExportError, ExportOptions, ExportRows, GeneratorOutput};
pub use reader::{TrajectoryReader, read_trees};
pub use writer::{OutputOptions, Resumed, RunLock, RunWriter};

/// Why trajectories could not be written or read.
#[derive(Debug, Error)]
pub enum OutputError {
    /// The operating system refused.
    #[error("`{}`: cannot {action}: {source}", path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// What was tried.
        action: &'static str,
        /// What the system said.
        source: std::io::Error,
    },
    /// A line or row that is not a trajectory.
    #[error("`{}`, {unit} {row}: {reason}", path.display())]
    Row {
        /// The file.
        path: PathBuf,
        /// `line` (from 1) or `row` (from 0).
        unit: &'static str,
        /// Which.
        row: u64,
        /// What was expected and what came.
        reason: String,
    },
    /// A file that is not what its name says, or of another version.
    #[error("`{}`: {reason}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What was expected and what came.
        reason: String,
    },
    /// A run lies there already.
    #[error("`{}` already holds trajectories; resume it, or name another directory", .0.display())]
    Exists(PathBuf),
    /// Another process writes there.
    #[error("`{}` is being written by another process", .0.display())]
    Busy(PathBuf),
    /// Trees that cannot be put together.
    #[error("`{}`: {source}", path.display())]
    Tree {
        /// The file or directory.
        path: PathBuf,
        /// Why.
        source: crate::trajectory::TreeError,
    },
}

impl OutputError {
    pub(crate) fn io(path: &Path, action: &'static str) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { path, action, source }
    }
}
