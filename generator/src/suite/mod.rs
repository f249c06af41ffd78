//! Evaluation suites: environments x models x ways to play.
//!
//! | module | what lives there |
//! |---|---|
//! | [`config`] | [`SuiteConfig`], a suite as TOML |
//! | [`engines`] | [`EngineFactory`], which makes engines by kind; the command adds those that this crate cannot know |
//! | [`runner`] | [`run_suite`], with progress, resume and cancellation |
//! | [`results`] | [`SuiteResult`]: scores, intervals, pass@k, costs |
//! | [`mod@report`] | Markdown tables |
//! | [`mod@compare`] | two results side by side, with paired intervals |
//!
//! Invariants: the same suite with the same seed asks the same questions in the same order with the same seeds, in every
//! mode and of every model; a rollout that failed is counted as failed, never as a wrong answer, and is played again when
//! the run is resumed; what does not fit a model's context is said not to fit.

pub mod compare;
pub mod config;
mod contents;
pub mod engines;
pub mod report;
pub mod results;
pub mod runner;

use std::path::PathBuf;

use thiserror::Error;

use crate::output::OutputError;
use crate::rollouts::RunError;

pub use compare::{Comparison, compare};
pub use config::{EngineSpec, Mode, SuiteConfig, TaskConfig};
pub use engines::{BuiltEngine, EngineFactory, StandardEngines};
pub use report::report;
pub use results::{CellResult, SuiteResult};
pub use runner::{MAX_ROLLOUTS, MAX_ROWS, SuiteEvent, SuiteOptions, SuiteRun, run_suite};

/// Why a suite could not be run or read.
#[derive(Debug, Error)]
pub enum SuiteError {
    /// A file cannot be read or written.
    #[error("`{}`: cannot {action}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What was tried.
        action: &'static str,
        /// What the system said.
        source: std::io::Error,
    },
    /// A file that is not valid TOML or JSON.
    #[error("`{}`: {reason}", path.display())]
    Syntax {
        /// The file.
        path: PathBuf,
        /// Where and what.
        reason: String,
    },
    /// A key that is wrong.
    #[error("suite key `{key}` {reason}")]
    Key {
        /// The key, with dots.
        key: String,
        /// What was expected and what came.
        reason: String,
    },
    /// An engine cannot be made.
    #[error("engine `{engine}`: {reason}")]
    Engine {
        /// Its name in the suite.
        engine: String,
        /// What was expected and what came.
        reason: String,
    },
    /// A task's data cannot be read.
    #[error("task `{task}`: {reason}")]
    Task {
        /// The task.
        task: String,
        /// What was expected and what came.
        reason: String,
    },
    /// What lies in the directory was asked for otherwise.
    #[error(
        "`{}` holds a run of another suite: {difference}; resume it with the suite and the files that it began with, or name another directory",
        directory.display()
    )]
    Changed {
        /// The directory.
        directory: PathBuf,
        /// The first key that differs, or the file that no longer holds what it did.
        difference: String,
    },
    /// Trajectories cannot be written or read.
    #[error(transparent)]
    Output(#[from] OutputError),
    /// A run stopped.
    #[error(transparent)]
    Run(#[from] RunError),
    /// Nothing that both results hold.
    #[error("the results have no task and mode in common")]
    Nothing,
}
