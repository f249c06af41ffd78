//! Mathematical equivalence of two answers, in bounded work.
//!
//! | module | what lives there |
//! |---|---|
//! | [`extract`] | the last `\boxed{}` of a response |
//! | [`words`] | answers in words, units |
//! | [`lex`], [`parse`], [`ast`] | a text in LaTeX or plain notation as a formula |
//! | [`poly`], [`expr`], [`shared`], [`functions`] | the normal form: quotients of sums with rational coefficients over radicals, pi, e, i and variables |
//! | [`enclosure`] | intervals that hold a value for certain |
//! | [`roots`] | whether two roots of numbers cancel out |
//! | [`value`], [`compare`] | sets, tuples, equations and their comparison |
//!
//! Two answers are compared as texts, then by their normal forms. Where only radicals of numbers, i, pi, e and
//! variables occur, the normal form is unique and decides both ways. Functions and nested roots may be equal in ways
//! that it does not see: constants are then enclosed in intervals (apart: different; together within 1e-9: equal),
//! expressions with variables are compared in that way at 32 fixed points; two roots of numbers too large to factor
//! are compared by a power. What neither shows is not equal.
//!
//! Invariants: no text panics or runs long, since every step is counted ([`Limits`]) and nesting, length, terms and
//! numbers are bounded; no state, so any number of threads may grade at once; the relation is symmetric, and reflexive
//! for every text that is not empty.

mod ast;
mod budget;
mod compare;
mod enclosure;
mod expr;
mod extract;
mod functions;
pub(crate) mod lex;
mod parse;
mod poly;
mod rational;
mod roots;
mod shared;
mod value;
pub(crate) mod words;

use std::borrow::Cow;

use num_rational::BigRational;
use thiserror::Error;

pub use budget::{Limits, Stop};
pub use extract::{last_boxed, last_line};

use ast::{Children, Node};
use budget::Budget;
use compare::{Comparison, Found};
use functions::BareLog;
use parse::Reading;
use poly::Atom;
use value::{Evaluator, Value};
use words::Phrase;

/// How an answer was judged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// Whether the answer is the truth.
    pub equal: bool,
    /// By what.
    pub reason: Reason,
    /// What it cost, in steps.
    pub steps: u64,
}

/// What a verdict rests on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The texts are the same, or say the same words.
    Text,
    /// The exact normal form.
    Exact,
    /// Enclosures of both values, or their values at fixed points.
    Numeric,
    /// The units are not the same.
    Units,
    /// Neither equality nor difference could be shown: not equal.
    Open,
    /// The answer was not read: over its budget, malformed, or without a value. Not equal.
    Unread(Stop),
}

impl Reason {
    /// One word for it.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Exact => "exact",
            Self::Numeric => "numeric",
            Self::Units => "units",
            Self::Open => "open",
            Self::Unread(Stop::Budget(_)) => "over_budget",
            Self::Unread(Stop::Syntax { .. }) => "malformed",
            Self::Unread(Stop::Undefined(_)) => "undefined",
        }
    }
}

/// Why a truth cannot be graded by.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum TruthError {
    /// It is empty.
    #[error("the truth is empty")]
    Empty,
    /// It cannot be read, and has no words to compare either.
    #[error("the truth `{text}` cannot be read: {stop}")]
    Unread {
        /// Its first characters.
        text: String,
        /// Why.
        stop: Stop,
    },
}

/// A truth, read once and compared with any number of answers.
#[derive(Clone, Debug)]
pub struct Truth {
    text: String,
    words: Option<String>,
    speaks: bool,
    meaning: Option<(Reading, Value)>,
    limits: Limits,
}

impl Truth {
    /// Reads a bare answer such as `\frac{1}{2}`; of a worked solution, take [`last_boxed`] first.
    pub fn read(text: &str) -> Result<Self, TruthError> {
        Self::with_limits(text, Limits::default())
    }

    /// [`Truth::read`] under other limits.
    pub fn with_limits(text: &str, limits: Limits) -> Result<Self, TruthError> {
        let text = &*halfwidth(text);
        let text = words::unwrapped(text);
        if text.is_empty() {
            return Err(TruthError::Empty);
        }
        let unread = |stop| TruthError::Unread { text: text.chars().take(60).collect(), stop };
        if text.len() > limits.length {
            return Err(unread(Stop::Budget("characters")));
        }
        let words = words::plain(text);
        let speaks = words::speaks(text) && words::phrase(text).is_none();
        let mut budget = Budget::new(limits);
        let meaning = if speaks {
            None
        } else {
            match meaning(text, true, BareLog::Ten, &mut budget) {
                Ok(meaning) => Some(meaning),
                Err(_) if words.is_some() => None,
                Err(stop) => return Err(unread(stop)),
            }
        };
        Ok(Self { text: text.to_owned(), words, speaks, meaning, limits })
    }

    /// The truth as text.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Compares an answer. Never fails: an answer that cannot be read, or costs too much, is not the truth.
    pub fn check(&self, answer: &str) -> Verdict {
        self.verdict(answer, false)
    }

    /// [`Truth::check`], but a sign of percent or degrees that the truth has not makes another answer: `123\%` is no 123.
    pub fn check_signs(&self, answer: &str) -> Verdict {
        self.verdict(answer, true)
    }

    fn verdict(&self, answer: &str, signs: bool) -> Verdict {
        let mut budget = Budget::new(self.limits);
        let (equal, reason) = match self.judge(answer, signs, &mut budget) {
            Ok((equal, reason)) => (equal, reason),
            Err(stop) => (false, Reason::Unread(stop)),
        };
        Verdict { equal, reason, steps: budget.spent() }
    }

    fn judge(&self, answer: &str, signs: bool, budget: &mut Budget) -> Result<(bool, Reason), Stop> {
        if answer.len() > self.limits.length {
            return Err(Stop::Budget("characters"));
        }
        let answer = &*halfwidth(answer);
        let answer = words::unwrapped(answer);
        budget.spend(answer.len() as u64 / 8)?;
        if answer == self.text {
            return Ok((true, Reason::Text));
        }
        if let (Some((letter, said)), Some((other, other_said))) = (words::choice(&self.text), words::choice(answer))
            && (said || other_said)
            && letter == other
        {
            return Ok((true, Reason::Text));
        }
        let speaks = words::speaks(answer) && words::phrase(answer).is_none();
        let same_words = self.words.is_some() && self.words == words::plain(answer);
        if same_words && (self.speaks || speaks || self.meaning.is_none()) {
            return Ok((true, Reason::Text));
        }
        let Some((reading, value)) = &self.meaning else { return Ok((false, Reason::Text)) };
        if speaks {
            return Ok((false, Reason::Text));
        }
        let (other_reading, other) = match meaning(answer, true, BareLog::Ten, budget) {
            // `5 \text{ or more}` is no formula, and the same words.
            Err(_) if same_words => return Ok((true, Reason::Text)),
            meaning => meaning?,
        };
        let (units, other_units) = (&reading.units, &other_reading.units);
        if !units.is_empty() && !other_units.is_empty() && units != other_units {
            return Ok((false, Reason::Units));
        }
        let has = |value: &Value, unit: Atom| value.any(&|atom| *atom == unit);
        let percent = (has(value, Atom::Percent), has(&other, Atom::Percent));
        let degree = (has(value, Atom::Degree), has(&other, Atom::Degree));
        // A percentage is no angle.
        let unlike = percent.0 != percent.1 && degree.0 != degree.1 && percent.0 == degree.1;
        let added = signs && (!percent.0 && percent.1 || !degree.0 && degree.1);
        if unlike || added {
            return Ok((false, Reason::Units));
        }
        let mut comparison = Comparison { budget, numeric: false };
        let mut found = comparison.values(value, &other)?;
        let mut numeric = comparison.numeric;
        if found != Found::Same && (reading.bare_log || other_reading.bare_log) {
            let mut natural = |reading: &Reading| Evaluator::new(BareLog::Natural, budget).answer(&reading.node);
            let (left, right) = (natural(reading)?, natural(&other_reading)?);
            let mut comparison = Comparison { budget, numeric: false };
            found = comparison.values(&left, &right)?;
            numeric = comparison.numeric;
        }
        if found != Found::Same && (grouped(&self.text) || grouped(answer)) {
            // `1,234` may be a number on one side and two of them on the other.
            let left = meaning(&self.text, false, BareLog::Ten, budget);
            let right = meaning(answer, false, BareLog::Ten, budget);
            for (left, right) in
                [(Some(value), right.as_ref().ok()), (left.as_ref().ok().map(|(_, value)| value), None)]
                    .into_iter()
                    .map(|(left, right)| (left, right.map_or(&other, |(_, value)| value)))
            {
                let Some(left) = left else { continue };
                let mut comparison = Comparison { budget, numeric: false };
                if comparison.values(left, right)? == Found::Same {
                    return Ok((true, Reason::Exact));
                }
            }
        }
        let decided = if numeric { Reason::Numeric } else { Reason::Exact };
        Ok(match found {
            Found::Same => (true, decided),
            Found::Different => (false, decided),
            Found::Open => (false, Reason::Open),
        })
    }
}

fn meaning(text: &str, grouping: bool, bare: BareLog, budget: &mut Budget) -> Result<(Reading, Value), Stop> {
    let reading = match words::phrase(text) {
        Some(phrase) => Reading {
            node: match phrase {
                Phrase::Nothing => Node::Set(Children::default()),
                Phrase::Reals => Node::Reals,
                Phrase::Number(value) => Node::Number(BigRational::from_integer(value.into())),
            },
            units: Vec::new(),
            bare_log: false,
        },
        None => parse::read(text, grouping, budget)?,
    };
    let value = Evaluator::new(bare, budget).answer(&reading.node)?;
    Ok((reading, value))
}

/// A text with the wide characters of East Asian fonts as those of ASCII.
fn halfwidth(text: &str) -> Cow<'_, str> {
    let narrow = |c: char| match c {
        '\u{ff01}'..='\u{ff5e}' => char::from_u32(u32::from(c) - 0xfee0).unwrap_or(c),
        c => c,
    };
    if text.chars().any(|c| narrow(c) != c) {
        Cow::Owned(text.chars().map(narrow).collect())
    } else {
        Cow::Borrowed(text)
    }
}

/// Whether a text holds a comma or space that may separate thousands or numbers.
fn grouped(text: &str) -> bool {
    let bytes = text.as_bytes();
    let digit = |at: usize| bytes.get(at).is_some_and(u8::is_ascii_digit);
    (1..bytes.len()).any(|at| {
        matches!(bytes[at], b',' | b' ')
            && digit(at - 1)
            && digit(at + 1)
            && digit(at + 2)
            && digit(at + 3)
            && !digit(at + 4)
    })
}

/// Whether an answer is the truth.
///
/// ```
/// use espalier_graders::math::equivalent;
///
/// assert!(equivalent(r"\frac{1}{2}", "0.5")?.equal);
/// assert!(equivalent(r"(-\infty, 3]", r"x \le 3")?.equal);
/// assert!(!equivalent("(1, 2)", "(2, 1)")?.equal);
/// # Ok::<(), espalier_graders::math::TruthError>(())
/// ```
pub fn equivalent(truth: &str, answer: &str) -> Result<Verdict, TruthError> {
    Ok(Truth::read(truth)?.check(answer))
}
