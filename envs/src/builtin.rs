//! The data sets that the project generates, by name: [`Builtin`] serves them to [`espalier_datasets::Source`].

use espalier_datasets::{Builtins, DataError, Rows};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::env::EnvError;
use crate::long::{LongParams, LongTask, tasks};
use crate::registry::ParamSpec;
use crate::{params, stories};

/// The data sets of this crate.
#[derive(Clone, Copy, Debug)]
pub struct Builtin;

/// What there is to know of a generated data set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BuiltinSpec {
    /// Its name.
    pub name: &'static str,
    /// One sentence.
    pub summary: &'static str,
    /// Its parameters.
    pub params: &'static [ParamSpec],
}

const ROWS: ParamSpec = ParamSpec { name: "rows", kind: "number", default: "16", doc: "how many rows" };
const SEED: ParamSpec = ParamSpec { name: "seed", kind: "number", default: "0", doc: "the seed" };
const SIZE: ParamSpec =
    ParamSpec { name: "size", kind: "number", default: "8192", doc: "characters of a text, from 1024 to 16777216" };
const SIZES: ParamSpec =
    ParamSpec { name: "sizes", kind: "list of numbers", default: "none", doc: "sizes that rows take in turn" };
const DISTRACTORS: ParamSpec = ParamSpec {
    name: "distractors",
    kind: "number",
    default: "3",
    doc: "sentences like the needle that answer other questions (only long_needle)",
};
const LONG: &[ParamSpec] = &[ROWS, SIZE, SIZES, SEED, DISTRACTORS];

/// Every generated data set.
pub const ALL: [BuiltinSpec; 4] = [
    BuiltinSpec {
        name: "long_needle",
        summary: "A code in one sentence of a long text, among sentences with other codes.",
        params: LONG,
    },
    BuiltinSpec { name: "long_count", summary: "How many of a long text's lines carry a label.", params: LONG },
    BuiltinSpec { name: "long_pairs", summary: "Which pairs of a long text's lines share a ticket.", params: LONG },
    BuiltinSpec {
        name: stories::NAME,
        summary: "Word problems of a few arithmetic steps, as GSM8K asks them.",
        params: &[ROWS, SEED],
    },
];

impl Builtins for Builtin {
    fn names(&self) -> Vec<String> {
        ALL.iter().map(|spec| spec.name.to_owned()).collect()
    }

    fn open(&self, name: &str, given: &Map<String, Value>) -> Result<Rows, DataError> {
        if name == stories::NAME {
            let params: stories::StoryParams = read(name, given)?;
            return Ok(Box::new((0..params.rows).map(move |index| Ok(stories::row(params, index)))));
        }
        let Some(task) = LongTask::ALL.into_iter().find(|task| task.name() == name) else {
            let hint = params::hint(name, ALL.iter().map(|spec| spec.name));
            return Err(DataError::Source {
                key: "builtin".to_owned(),
                reason: format!("no data set `{name}`; {hint}"),
            });
        };
        let params: LongParams = read(name, given)?;
        params.check().map_err(|(key, reason)| DataError::Source { key: format!("params.{key}"), reason })?;
        Ok(Box::new((0..params.rows).map(move |index| Ok(tasks::row(task, &params, index)))))
    }
}

fn read<T: DeserializeOwned>(name: &str, given: &Map<String, Value>) -> Result<T, DataError> {
    params::read(name, given).map_err(|error| match error {
        EnvError::Invalid { key, reason, .. } => {
            DataError::Source { key: format!("params.{key}"), reason: format!("of `{name}` {reason}") }
        }
        other => DataError::Source { key: "params".to_owned(), reason: other.to_string() },
    })
}
