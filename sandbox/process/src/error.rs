//! What can go wrong with the sandbox itself; what a job did wrong is in its [`crate::Outcome`].

use std::io;
use std::path::PathBuf;

use thiserror::Error;

use crate::walls::Wall;

/// Why a job could not be run.
#[derive(Debug, Error)]
pub enum ProcessError {
    /// A wall that the configuration requires is not to be had.
    #[error(
        "the process sandbox lacks the wall `{wall}`: {reason}; to get it, {}; or leave it out of `require`, if the \
         code is trusted that far",
        wall.remedy()
    )]
    Wall {
        /// The first wall that is missing.
        wall: Wall,
        /// Why it is.
        reason: String,
    },
    /// Python could not be found or asked.
    #[error("the interpreter `{program}` {reason}")]
    Interpreter {
        /// The program that was tried.
        program: String,
        /// What happened.
        reason: String,
    },
    /// A key of the configuration, or of a job's limits, is wrong.
    #[error("`{key}` of the process sandbox {reason}")]
    Config {
        /// The key.
        key: &'static str,
        /// What was expected and what came.
        reason: String,
    },
    /// A job cannot be run as it was given.
    #[error("the job's {part} {reason}")]
    Job {
        /// Which part of it: `files`, `argv`, `stdin`.
        part: &'static str,
        /// What was expected and what came.
        reason: String,
    },
    /// A folder for jobs cannot be used.
    #[error("the workspace `{}`: {reason}", path.display())]
    Workspace {
        /// The folder or file.
        path: PathBuf,
        /// What happened.
        reason: String,
    },
    /// The job's first process could not be created.
    #[error("could not start a job: {what}: {source}")]
    Spawn {
        /// What failed.
        what: &'static str,
        /// How.
        source: io::Error,
    },
    /// A step between the first process and the program failed.
    #[error("could not set up a job: {step}: {source}")]
    Setup {
        /// The step.
        step: String,
        /// The wall that it belongs to, if it belongs to one.
        wall: Option<Wall>,
        /// How it failed.
        source: io::Error,
    },
    /// The program could not be executed.
    #[error("could not execute `{program}` in the sandbox: {source}")]
    Exec {
        /// Its path, as the job sees it.
        program: String,
        /// How it failed.
        source: io::Error,
    },
    /// A job's processes were killed and did not end, or its report did not come.
    #[error("lost a job: {reason}")]
    Lost {
        /// What happened.
        reason: String,
    },
}

impl ProcessError {
    pub(crate) fn spawn(what: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Spawn { what, source }
    }
}
