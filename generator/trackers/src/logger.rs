//! The backends by name.

use std::fmt;
use std::str::FromStr;

use serde::de::{self, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use crate::TrackerError;

/// A backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Logger {
    /// Lines or blocks on stdout.
    Console,
    /// `metrics.jsonl`.
    Jsonl,
    /// Event files under `tensorboard/`.
    TensorBoard,
    /// An offline run under `wandb/`.
    Wandb,
}

impl Logger {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Wandb, Self::TensorBoard, Self::Jsonl, Self::Console];

    /// Its name in a configuration.
    pub fn name(self) -> &'static str {
        match self {
            Self::Console => "console",
            Self::Jsonl => "jsonl",
            Self::TensorBoard => "tensorboard",
            Self::Wandb => "wandb",
        }
    }
}

impl fmt::Display for Logger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Logger {
    type Err = TrackerError;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let found = Self::ALL.into_iter().find(|logger| logger.name() == name);
        found.ok_or_else(|| TrackerError::UnknownLogger(name.to_owned()))
    }
}

/// The backends of a run, each once: `"wandb"` or `["wandb", "console"]` in a configuration. An empty list is none.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Loggers(Vec<Logger>);

impl Loggers {
    /// Reads names.
    ///
    /// # Errors
    ///
    /// When there is no backend of a name, or one is named twice.
    pub fn new<Name: AsRef<str>>(names: impl IntoIterator<Item = Name>) -> Result<Self, TrackerError> {
        let mut loggers = Vec::new();
        for name in names {
            let logger: Logger = name.as_ref().parse()?;
            if loggers.contains(&logger) {
                return Err(TrackerError::TwiceNamed(logger.to_string()));
            }
            loggers.push(logger);
        }
        Ok(Self(loggers))
    }

    /// In the order in which they were named.
    pub fn iter(&self) -> impl Iterator<Item = Logger> {
        self.0.iter().copied()
    }

    /// Whether a backend is among them.
    pub fn contains(&self, logger: Logger) -> bool {
        self.0.contains(&logger)
    }
}

impl Default for Loggers {
    fn default() -> Self {
        Self(vec![Logger::Console])
    }
}

impl<'de> Deserialize<'de> for Loggers {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Names)
    }
}

/// Takes a string or a list of strings.
struct Names;

impl<'de> Visitor<'de> for Names {
    type Value = Loggers;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the name of a backend or a list of names, such as \"wandb\" or [\"wandb\", \"console\"]")
    }

    fn visit_str<E: de::Error>(self, name: &str) -> Result<Loggers, E> {
        Loggers::new([name]).map_err(E::custom)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Loggers, A::Error> {
        let mut names: Vec<String> = Vec::new();
        while let Some(name) = list.next_element()? {
            names.push(name);
        }
        Loggers::new(names).map_err(de::Error::custom)
    }
}
