//! What one grading may cost, and what ends it early.
//!
//! Work is counted, not timed: the same text costs the same number of steps on every machine.

use thiserror::Error;

/// Bounds of one grading. The defaults are far above what an answer needs and end the worst text in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Steps of reading and calculating, both sides together; a product of large numbers counts as many.
    pub steps: u64,
    /// Longest text that is read, in bytes.
    pub length: usize,
    /// Deepest nesting of brackets, fractions, roots and powers.
    pub depth: u32,
    /// Most bits of a number.
    pub bits: u64,
    /// Most terms of a sum.
    pub terms: usize,
}

impl Limits {
    /// Most nodes of a formula within each other. One level of brackets may hold a sum of products of powers, so this is
    /// four times the nesting that may be written; chains that need no bracket (`1/1/1`, `5!!!`) end here.
    pub(super) fn height(&self) -> u32 {
        self.depth.saturating_mul(4)
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self { steps: 400_000, length: 8192, depth: 48, bits: 32_768, terms: 2000 }
    }
}

/// Why a text has no value.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum Stop {
    /// It costs more than it may.
    #[error("over the budget of {0}")]
    Budget(&'static str),
    /// It is no formula.
    #[error("expected {expected} at byte {at}")]
    Syntax {
        /// Where in the text that was read.
        at: usize,
        /// What would have been understood.
        expected: &'static str,
    },
    /// It divides by zero, or takes what has no value.
    #[error("it has no value: {0}")]
    Undefined(&'static str),
}

/// What is left of the limits.
#[derive(Debug)]
pub(super) struct Budget {
    pub(super) limits: Limits,
    spent: u64,
}

impl Budget {
    pub(super) fn new(limits: Limits) -> Self {
        Self { limits, spent: 0 }
    }

    /// Counts work.
    pub(super) fn spend(&mut self, steps: u64) -> Result<(), Stop> {
        self.spent = self.spent.saturating_add(steps);
        if self.spent > self.limits.steps { Err(Stop::Budget("steps")) } else { Ok(()) }
    }

    /// Counts an operation on numbers of so many bits, and refuses a result that would be too large.
    pub(super) fn number(&mut self, bits: u64) -> Result<(), Stop> {
        if bits > self.limits.bits {
            return Err(Stop::Budget("bits of a number"));
        }
        self.effort(bits)
    }

    /// Counts an operation on numbers of so many bits whose result is smaller than they.
    pub(super) fn effort(&mut self, bits: u64) -> Result<(), Stop> {
        let words = 1 + bits / 64;
        self.spend(words + words * words / 64)
    }

    /// Counts a product with a small number.
    pub(super) fn small_factor(&mut self, bits: u64) -> Result<(), Stop> {
        if bits > self.limits.bits {
            return Err(Stop::Budget("bits of a number"));
        }
        self.spend(1 + bits / 64)
    }

    /// Steps so far.
    pub(super) fn spent(&self) -> u64 {
        self.spent.min(self.limits.steps)
    }
}
