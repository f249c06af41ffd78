//! The data sets that the project generates, by name: [`Builtin`] serves them to [`espalier_datasets::Source`].

use std::path::Path;
use std::sync::Arc;

use espalier_datasets::{Builtins, DataError, Rows, TokenCounter};
use espalier_procedural::reasoning::Family;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::env::EnvError;
use crate::long::{LongParams, LongTask, tasks};
use crate::prompt_tokens::PromptTokens;
use crate::registry::ParamSpec;
use crate::{params, reasoning, stories};

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
    doc: "sentences like the needle that answer other questions (long_needle, long_multi_needle)",
};
const NEEDLES: ParamSpec = ParamSpec {
    name: "needles",
    kind: "number",
    default: "4",
    doc: "codes that are asked for, from 2 to 32 (only long_multi_needle)",
};
const LONG: &[ParamSpec] = &[ROWS, SIZE, SIZES, SEED, DISTRACTORS, NEEDLES];
const LEVEL: ParamSpec = ParamSpec { name: "level", kind: "number", default: "1", doc: "difficulty, from 1 to 5" };
const LEVELS: ParamSpec =
    ParamSpec { name: "levels", kind: "list of numbers", default: "none", doc: "levels that rows take in turn" };
const FAMILIES: ParamSpec = ParamSpec {
    name: "families",
    kind: "list of names",
    default: "all",
    doc: "families that rows take in turn, such as `maze` (only reasoning/mixed)",
};
const REASONING: &[ParamSpec] = &[ROWS, SEED, LEVEL, LEVELS];

const fn family(family: Family) -> BuiltinSpec {
    BuiltinSpec { name: reasoning::id(family), summary: family.summary(), params: REASONING }
}

/// Every generated data set.
///
/// A name may also be written with `_` for `/` and the other way round, once: `long/needle`, `reasoning_maze`.
pub const ALL: [BuiltinSpec; 21] = [
    BuiltinSpec {
        name: "long_needle",
        summary: "A code in one sentence of a long text, among sentences with other codes.",
        params: LONG,
    },
    BuiltinSpec { name: "long_count", summary: "How many of a long text's lines carry a label.", params: LONG },
    BuiltinSpec { name: "long_pairs", summary: "Which pairs of a long text's lines share a ticket.", params: LONG },
    BuiltinSpec {
        name: "long_multi_needle",
        summary: "Several codes in sentences of a long text, as a list or as their sum.",
        params: LONG,
    },
    BuiltinSpec {
        name: "long_user_pairs",
        summary: "Which pairs of users, or how many, have lines whose labels go together.",
        params: LONG,
    },
    BuiltinSpec {
        name: "long_code",
        summary: "Callers, importers, constants and results in a generated repository of Python modules.",
        params: LONG,
    },
    BuiltinSpec {
        name: "long_topics",
        summary: "How many of a long text's lines are about a topic that no line names.",
        params: LONG,
    },
    BuiltinSpec {
        name: stories::NAME,
        summary: "Word problems of a few arithmetic steps, as GSM8K asks them.",
        params: &[ROWS, SEED],
    },
    family(Family::ChainSum),
    family(Family::BasicArithmetic),
    family(Family::LetterCounting),
    family(Family::SpellBackward),
    family(Family::NumberSorting),
    family(Family::BaseConversion),
    family(Family::PropositionalLogic),
    family(Family::KnightsKnaves),
    family(Family::Countdown),
    family(Family::Maze),
    family(Family::MiniSudoku),
    family(Family::CalendarArithmetic),
    BuiltinSpec {
        name: reasoning::MIXED,
        summary: "Problems of every family of `reasoning` in turn.",
        params: &[ROWS, SEED, LEVEL, LEVELS, FAMILIES],
    },
];

impl Builtins for Builtin {
    fn names(&self) -> Vec<String> {
        ALL.iter().map(|spec| spec.name.to_owned()).collect()
    }

    fn open(&self, name: &str, given: &Map<String, Value>) -> Result<Rows, DataError> {
        let (slashed, underscored) = (name.replacen('_', "/", 1), name.replacen('/', "_", 1));
        let known = ALL.iter().find(|spec| [name, &slashed, &underscored].contains(&spec.name)).map(|spec| spec.name);
        let Some(name) = known else {
            let hint = params::hint(name, ALL.iter().map(|spec| spec.name));
            return Err(DataError::Source {
                key: "builtin".to_owned(),
                reason: format!("no data set `{name}`; {hint}"),
            });
        };
        let refused = |(key, reason): (&str, String)| DataError::Source { key: format!("params.{key}"), reason };
        if let Some(task) = LongTask::ALL.into_iter().find(|task| task.name() == name) {
            let params: LongParams = read(name, given)?;
            params.check().map_err(refused)?;
            return Ok(Box::new((0..params.rows).map(move |index| Ok(tasks::row(task, &params, index)))));
        }
        if name == stories::NAME {
            let params: stories::StoryParams = read(name, given)?;
            return Ok(Box::new((0..params.rows).map(move |index| Ok(stories::row(params, index)))));
        }
        let set = reasoning::DataSet::new(name, read(name, given)?).map_err(refused)?;
        Ok(Box::new((0..set.rows()).map(move |index| Ok(set.row(index)))))
    }

    fn counter(&self, tokenizer: &Path) -> Result<Arc<dyn TokenCounter>, DataError> {
        match PromptTokens::from_dir(tokenizer) {
            Ok(counter) => Ok(Arc::new(counter)),
            Err(reason) => Err(DataError::Unusable(format!("tokenizer: {reason}"))),
        }
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
