//! Raw records of published sets as rows with the columns that skyrl-gym's environments read.
//!
//! | module | what lives there |
//! |---|---|
//! | `record` | reading a record's columns, and what is wrong with one |
//! | `prompts` | the prompt templates of every format |
//! | `detect` | which format a record looks like |
//! | `maths` | GSM8K, MATH, AIME, DAPO |
//! | `code` | HumanEval, MBPP, LiveCodeBench |
//! | `sql`, `schema` | Spider, BIRD, SkyRL-SQL; their `tables.json` |
//! | `questions` | questions to search for, questions about papers |
//!
//! A format says what the truth is and where it comes from, and never alters it. What it cannot read is an error with
//! the column's name.

pub(crate) mod code;
pub(crate) mod detect;
pub(crate) mod maths;
pub(crate) mod prompts;
pub(crate) mod questions;
pub(crate) mod record;
pub(crate) mod schema;
pub(crate) mod sql;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

pub use maths::last_boxed;
pub(crate) use record::{Mapped, Reading, Wrong};

/// What a file's records are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// Rows with a `prompt` column.
    #[default]
    Rows,
    /// Whatever the first record is unmistakably.
    Auto,
    /// GSM8K: `question`, and `answer` whose last line is `#### number`.
    Gsm8k,
    /// MATH: `problem`, and `solution` whose last box holds the answer.
    Math,
    /// AIME: `problem` and `answer`.
    Aime,
    /// DAPO-Math: `prompt` messages and `reward_model.ground_truth`.
    Dapo,
    /// HumanEval: `prompt`, `entry_point`, `test`.
    HumanEval,
    /// MBPP: `text` (or `prompt`) and `test_list`.
    Mbpp,
    /// LiveCodeBench: `question_content` and its test cases, or `problem` and `tests`.
    LiveCodeBench,
    /// Spider: `question`, `query`, `db_id`, with `tables.json` beside the file.
    Spider,
    /// BIRD: `question`, `SQL`, `db_id`, `evidence`, with a `tables.json` beside the file.
    Bird,
    /// SkyRL-SQL: rows with `db_id` and `data`; or SynSQL's `question`, `sql`, `schema`.
    Text2Sql,
    /// Questions to search for, as Search-R1 publishes NQ and HotpotQA.
    #[serde(rename = "nq_hotpot")]
    NqHotpot,
    /// Questions about several papers: `question`, `papers`, `evidence`.
    #[serde(rename = "multi_paper")]
    MultiPaper,
}

/// What there is to know of a format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FormatSpec {
    /// The format.
    pub format: Format,
    /// Its name, as `format` takes it.
    pub name: &'static str,
    /// One sentence.
    pub summary: &'static str,
    /// The environment that its rows ask for.
    pub env: Option<&'static str>,
}

const fn spec(format: Format, name: &'static str, env: Option<&'static str>, summary: &'static str) -> FormatSpec {
    FormatSpec { format, name, summary, env }
}

/// Every format.
pub const FORMATS: [FormatSpec; 14] = [
    spec(Format::Rows, "rows", None, "Rows with a `prompt` column, as skyrl-gym's data sets are."),
    spec(Format::Auto, "auto", None, "Whichever of the others the first record is unmistakably."),
    spec(Format::Gsm8k, "gsm8k", Some("gsm8k"), "GSM8K: `question`, `answer` with `#### number`."),
    spec(Format::Math, "math", Some("math"), "MATH: `problem`, `solution` whose last box holds the answer."),
    spec(Format::Aime, "aime", Some("aime"), "AIME: `problem`, `answer`."),
    spec(Format::Dapo, "dapo", Some("aime"), "DAPO-Math: `prompt`, `reward_model`; repeated prompts are left out."),
    spec(Format::HumanEval, "humaneval", Some("code"), "HumanEval: `prompt`, `entry_point`, `test`."),
    spec(Format::Mbpp, "mbpp", Some("code"), "MBPP: `text` (or `prompt`), `test_list`."),
    spec(
        Format::LiveCodeBench,
        "livecodebench",
        Some("lcb"),
        "LiveCodeBench: `question_content`, test cases, `metadata`.",
    ),
    spec(
        Format::Spider,
        "spider",
        Some("text2sql"),
        "Spider: `question`, `query`, `db_id`; `tables.json` beside the file.",
    ),
    spec(
        Format::Bird,
        "bird",
        Some("text2sql"),
        "BIRD: `question`, `SQL`, `db_id`, `evidence`; `*_tables.json` beside it.",
    ),
    spec(
        Format::Text2Sql,
        "text2sql",
        Some("text2sql"),
        "SkyRL-SQL: `prompt`, `db_id`, `data`; SynSQL: `question`, `sql`, `schema`.",
    ),
    spec(
        Format::NqHotpot,
        "nq_hotpot",
        Some("search"),
        "Search-R1: `question`, `golden_answers`; NQ and HotpotQA with `answer`.",
    ),
    spec(
        Format::MultiPaper,
        "multi_paper",
        Some("multipaper_evidence_rlm"),
        "Questions about papers: `question`, `papers`, `evidence`; rows without evidence are left out.",
    ),
];

impl Format {
    /// What there is to know of it.
    pub fn spec(self) -> &'static FormatSpec {
        &FORMATS[self as usize]
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        self.spec().name
    }

    /// The format of that name.
    pub fn named(name: &str) -> Option<Self> {
        FORMATS.iter().find(|spec| spec.name == name).map(|spec| spec.format)
    }

    /// The format that a record looks like: `None` where that is not unmistakable. Never [`Format::Auto`].
    pub fn of(record: &Map<String, Value>) -> Option<Self> {
        detect::format(record)
    }

    /// Whether its published files say the same prompt again and again.
    pub(crate) fn repeats(self) -> bool {
        self == Self::Dapo
    }

    /// Reads a record: the columns of its row, the prompt it carries, and what a template may name.
    pub(crate) fn map(self, reading: &Reading<'_>) -> Result<Mapped, Wrong> {
        match self {
            Self::Rows | Self::Auto => Ok(Mapped::as_it_is(reading.record.clone())),
            Self::Gsm8k => maths::gsm8k(reading),
            Self::Math => maths::math(reading),
            Self::Aime => maths::aime(reading),
            Self::Dapo => maths::dapo(reading),
            Self::HumanEval => code::humaneval(reading),
            Self::Mbpp => code::mbpp(reading),
            Self::LiveCodeBench => code::livecodebench(reading),
            Self::Spider => sql::spider(reading),
            Self::Bird => sql::bird(reading),
            Self::Text2Sql => sql::text2sql(reading),
            Self::NqHotpot => questions::nq_hotpot(reading),
            Self::MultiPaper => questions::multi_paper(reading),
        }
    }
}

impl std::fmt::Display for Format {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_in_the_order_of_the_formats_and_names_them_as_serde_does() {
        for (index, spec) in FORMATS.iter().enumerate() {
            assert_eq!(spec.format as usize, index);
            assert_eq!(serde_json::to_value(spec.format).unwrap(), spec.name);
            assert_eq!(Format::named(spec.name), Some(spec.format));
        }
        assert_eq!(Format::named("gsm"), None);
    }
}
