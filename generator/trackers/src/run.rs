//! What a run is called and where its numbers go.

use std::path::PathBuf;

use crate::{ConsoleOptions, Logger, Loggers, TrackerError};

/// The trackers of a run.
#[derive(Debug, Clone)]
pub struct RunSpec {
    /// The backends.
    pub logger: Loggers,
    /// The project that the run belongs to.
    pub project_name: String,
    /// The run's name within the project; may be empty.
    pub run_name: String,
    /// Tags of the run.
    pub tags: Vec<String>,
    /// The folder that files are written to; made if need be.
    pub directory: PathBuf,
    /// The run's configuration, an object. Backends that keep it write it down as it is: no secrets.
    pub config: serde_json::Value,
    /// How the console shows a step.
    pub console: ConsoleOptions,
    /// The step after which a resumed run goes on: numbers of later steps, which the run will log again, are taken
    /// back where a backend can. `None` for a fresh run.
    pub resume: Option<u64>,
    /// The id of the run at Weights & Biases. `None` makes one, or when resuming takes that of the newest offline run
    /// of this project and name in the directory.
    pub run_id: Option<String>,
}

impl Default for RunSpec {
    fn default() -> Self {
        Self {
            logger: Loggers::default(),
            project_name: "espalier".to_owned(),
            run_name: String::new(),
            tags: Vec::new(),
            directory: PathBuf::from("."),
            config: serde_json::Value::Null,
            console: ConsoleOptions::default(),
            resume: None,
            run_id: None,
        }
    }
}

/// What Weights & Biases does not take in the names of projects and runs.
const FORBIDDEN: &str = "/\\#?%:";
const LONGEST_NAME: usize = 128;
const LONGEST_TAG: usize = 64;

impl RunSpec {
    /// Whether every backend can take the names: a wrong one would be found only when an offline run is synced.
    pub(crate) fn check(&self) -> Result<(), TrackerError> {
        if !self.logger.contains(Logger::Wandb) {
            return Ok(());
        }
        let bad = |key, value: &str, reason: String| Err(TrackerError::Name { key, value: value.to_owned(), reason });
        let project = &self.project_name;
        if project.is_empty() || project.chars().count() > LONGEST_NAME || project.contains(is_forbidden) {
            let reason = format!("`wandb` takes 1 to {LONGEST_NAME} characters, none of `{FORBIDDEN}`");
            return bad("project_name", project, reason);
        }
        if self.run_name.chars().count() > LONGEST_NAME {
            return bad("run_name", &self.run_name, format!("`wandb` takes at most {LONGEST_NAME} characters"));
        }
        if let Some(id) = &self.run_id
            && (id.is_empty() || id.len() > LONGEST_TAG || !id.chars().all(|c| c.is_ascii_alphanumeric() || c == '_'))
        {
            let reason = format!("the id of a run is 1 to {LONGEST_TAG} letters, digits and `_`");
            return bad("run_id", id, reason);
        }
        match self.tags.iter().find(|tag| tag.is_empty() || tag.chars().count() > LONGEST_TAG) {
            Some(tag) => bad("tags", tag, format!("`wandb` takes tags of 1 to {LONGEST_TAG} characters")),
            None => Ok(()),
        }
    }
}

fn is_forbidden(c: char) -> bool {
    FORBIDDEN.contains(c) || c.is_control()
}
