//! Environments written in Python: one file each, `python:PATH` as the id. `docs/python-environments.md` is for authors.
//!
//! | module | what lives there |
//! |---|---|
//! | [`kind`] | [`PythonEnv`], the kind that a file is, and its parameters |
//! | `program` | a file, loaded and configured in a sandbox: what episodes are forked from |
//! | `driver.py` | what runs the author's functions in there, and reads what they return |
//! | `episode` | one episode |
//! | `asks` | `llm_query` and `judge` for the author's code |
//!
//! Invariants: the author's code runs in a sandbox of its own, which the policy's code never enters; the policy's text
//! is bound as a value and never becomes source; every episode starts from the same state, but for its seed; an
//! exception in `reward` or a reward that is no finite number is a failed grader and no reward; whatever can be wrong
//! with a file is found when it is prepared.

mod asks;
mod episode;
pub mod kind;
mod program;

pub use kind::PythonEnv;

use std::path::Path;

/// What an id of such an environment begins with.
pub const PREFIX: &str = "python:";

/// The file behind an environment's id, where it is one of these.
pub fn file_of(id: &str) -> Option<&Path> {
    id.strip_prefix(PREFIX).map(Path::new)
}
