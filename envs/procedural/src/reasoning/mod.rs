//! Twelve families of short problems, by level, each with a verifier.
//!
//! | family | what is asked |
//! |---|---|
//! | [`chain_sum`] | a chain of additions and subtractions |
//! | [`basic_arithmetic`] | an expression with precedence and parentheses |
//! | [`letter_counting`] | how often a letter stands in a text |
//! | [`spell_backward`] | a word from its end |
//! | [`number_sorting`] | decimal numbers in order |
//! | [`base_conversion`] | a number in another base, 2 to 36 |
//! | [`propositional_logic`] | what follows from premises, an assignment, a count of models |
//! | [`knights_knaves`] | who tells the truth |
//! | [`countdown`] | an expression over given numbers that hits a target |
//! | [`maze`] | a way, a shortest way, or its length |
//! | [`mini_sudoku`] | a 4 x 4 sudoku |
//! | [`calendar_arithmetic`] | weekdays, dates and counts in the proleptic Gregorian calendar |
//!
//! Invariants: a verifier sees only the [`Problem::facts`], which say what was asked, and works the truth out anew;
//! where several answers are right it accepts each of them; credit is 1 exactly for a right answer.

pub mod base_conversion;
pub mod basic_arithmetic;
pub mod calendar;
pub mod calendar_arithmetic;
pub mod chain_sum;
pub mod countdown;
pub mod formula;
pub mod knights_knaves;
pub mod letter_counting;
pub mod maze;
pub mod mini_sudoku;
pub mod number_sorting;
pub mod propositional_logic;
pub mod spell_backward;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use thiserror::Error;

use crate::answer::Answer;
use crate::draw::Draw;

/// A difficulty, 1 to 5.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Level(u8);

impl Level {
    /// Every level, the easiest first.
    pub const ALL: [Self; 5] = [Self(1), Self(2), Self(3), Self(4), Self(5)];

    /// A level by its number.
    pub fn new(number: u64) -> Option<Self> {
        Self::ALL.into_iter().find(|level| u64::from(level.0) == number)
    }

    /// Its number.
    pub fn number(self) -> u8 {
        self.0
    }

    /// What a table with one entry per level holds for this one.
    pub(crate) fn of<T: Copy>(self, table: [T; 5]) -> T {
        table[usize::from(self.0) - 1]
    }
}

/// What a verifier says.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Score {
    /// Whether the answer is right.
    pub correct: bool,
    /// 1 for a right answer; less, down to 0, for one that is right in part.
    pub credit: f64,
}

impl Score {
    /// Wrong in every part.
    pub const WRONG: Self = Self { correct: false, credit: 0.0 };

    pub(crate) fn of(correct: bool) -> Self {
        Self { correct, credit: f64::from(u8::from(correct)) }
    }

    /// Credit for `hits` of `total` parts; right where it is all of them.
    pub(crate) fn share(hits: usize, total: usize) -> Self {
        let correct = total > 0 && hits >= total;
        Self { correct, credit: if correct { 1.0 } else { hits as f64 / total.max(1) as f64 } }
    }
}

/// A problem with all that is needed to grade an answer to it.
#[derive(Clone, Debug, PartialEq)]
pub struct Problem {
    /// Its family.
    pub family: Family,
    /// Its level.
    pub level: Level,
    /// What is asked.
    pub question: String,
    /// One right answer. A verifier does not look at it.
    pub answer: Value,
    /// What was asked, for the verifier.
    pub facts: Value,
}

impl Problem {
    /// The right answer as a response would write it.
    pub fn answer_text(&self) -> String {
        match &self.answer {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        }
    }

    /// What the family's verifier says of a response.
    pub fn score(&self, response: &str) -> Result<Score, FactsError> {
        self.family.score(&self.facts, response)
    }
}

/// Facts that no problem of the family has.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("the facts are none of `{family}`: {reason}")]
pub struct FactsError {
    /// The family.
    pub family: &'static str,
    /// What was expected and what came.
    pub reason: String,
}

/// A problem before its facts are JSON.
pub(crate) struct Draft<F> {
    pub(crate) question: String,
    pub(crate) answer: Value,
    pub(crate) facts: F,
}

/// What a family is made of.
pub(crate) trait Generator {
    /// What its verifier needs.
    type Facts: Serialize + DeserializeOwned;

    /// Makes a problem.
    fn generate(level: Level, draw: &mut Draw) -> Draft<Self::Facts>;

    /// Grades an answer that is not empty; an error says why there is no such problem.
    fn score(facts: &Self::Facts, answer: Answer<'_>) -> Result<Score, String>;
}

macro_rules! families {
    ($($name:ident $module:ident $summary:literal $levels:literal,)*) => {
        /// A family of problems.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Family {
            $(#[doc = $summary] $name,)*
        }

        impl Family {
            /// Every family.
            pub const ALL: [Self; [$(Self::$name),*].len()] = [$(Self::$name),*];

            /// Its name, such as `chain_sum`.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$name => stringify!($module),)*
                }
            }

            /// One sentence.
            pub const fn summary(self) -> &'static str {
                match self {
                    $(Self::$name => $summary,)*
                }
            }

            /// What grows from level 1 to level 5.
            pub const fn levels(self) -> &'static str {
                match self {
                    $(Self::$name => $levels,)*
                }
            }

            /// A problem of this family.
            pub fn generate(self, level: Level, draw: &mut Draw) -> Problem {
                match self {
                    $(Self::$name => problem::<$module::$name>(self, level, draw),)*
                }
            }

            /// Grades a response to the problem that the facts describe.
            pub fn score(self, facts: &Value, response: &str) -> Result<Score, FactsError> {
                match self {
                    $(Self::$name => score::<$module::$name>(self, facts, response),)*
                }
            }
        }
    };
}

families! {
    ChainSum chain_sum "A chain of additions and subtractions."
        "2-3, 3-4, 4-6, 6-9, 9-12 terms of at most 1, 2, 4, 6, 9 digits",
    BasicArithmetic basic_arithmetic "An expression with precedence and parentheses whose divisions are exact."
        "2, 3, 4, 6, 8 numbers of at most 1, 1, 2, 2, 3 digits",
    LetterCounting letter_counting "How often a letter stands in a text."
        "about 20, 40, 80, 160, 320 characters",
    SpellBackward spell_backward "A word from its end."
        "3-5, 6-8, 9-12, 13-18, 19-28 letters; made-up words where there is no real one",
    NumberSorting number_sorting "Decimal numbers in ascending or descending order."
        "3-4, 5-7, 8-12, 13-20, 21-40 numbers with at most 0, 0, 1, 2, 3 decimals",
    BaseConversion base_conversion "A number in another base."
        "numbers below 100, 1,000, 65,536, 10^7, 10^12; bases 2, 8, 10, 16, then 2-16, then 2-36",
    PropositionalLogic propositional_logic "What follows from premises, an assignment that fits, or how many fit."
        "2, 3, 4, 5, 6 variables in 2, 3, 3, 4, 5 formulas of depth 2, 2, 3, 3, 3",
    KnightsKnaves knights_knaves "Who tells the truth and who lies, by what they say of each other."
        "2, 3, 4, 5, 7 people whose statements nest 1, 2, 2, 3, 3 deep",
    Countdown countdown "An expression that uses every given number once and hits a target."
        "3, 4, 4, 5, 6 numbers up to 9, 25, 50, 100, 100; targets up to 50, 100, 200, 500, 999",
    Maze maze "A way through a maze, a shortest one, or its length."
        "inner sides of 4, 6, 8, 11, 15 cells",
    MiniSudoku mini_sudoku "A 4 x 4 sudoku with one solution."
        "4, 6, 8, 10, 12 empty cells, where that many leave one solution",
    CalendarArithmetic calendar_arithmetic "Weekdays, dates and counts of days."
        "years 2000-2030, 1900-2100, 1600-2400, 1000-3000, 1-9999 and spans up to 30, 400, 4,000, 40,000, 400,000 days",
}

impl Family {
    /// The family of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|family| family.name() == name)
    }
}

fn problem<G: Generator>(family: Family, level: Level, draw: &mut Draw) -> Problem {
    let draft = G::generate(level, draw);
    // Facts are structs of texts, numbers and lists: they are JSON.
    let facts = serde_json::to_value(&draft.facts).unwrap_or_default();
    Problem { family, level, question: draft.question, answer: draft.answer, facts }
}

fn score<G: Generator>(family: Family, facts: &Value, response: &str) -> Result<Score, FactsError> {
    let malformed = |reason: String| FactsError { family: family.name(), reason };
    let facts: G::Facts = serde::Deserialize::deserialize(facts).map_err(|error| malformed(error.to_string()))?;
    G::score(&facts, Answer::find(response)).map_err(malformed)
}
