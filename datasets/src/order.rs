//! Seeded shuffle within bounded memory, and splits that do not depend on order.

use serde::{Deserialize, Serialize};

use crate::source::Rows;
use crate::{DataError, Row};

/// A shuffle: rows leave a buffer in random order. With a buffer as large as the data it is a full shuffle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Shuffle {
    /// The seed.
    pub seed: u64,
    /// Rows held at a time.
    #[serde(default = "default_buffer")]
    pub buffer: usize,
}

fn default_buffer() -> usize {
    10_000
}

/// A part of the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Part {
    /// What the other parts leave.
    Train,
    /// For watching training.
    Validation,
    /// For the end.
    Test,
}

/// A split: every row belongs to one part, by its number and the seed.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Split {
    /// The part to read.
    pub part: Part,
    /// The validation part's share.
    #[serde(default)]
    pub validation: f64,
    /// The test part's share.
    #[serde(default)]
    pub test: f64,
    /// The seed.
    #[serde(default)]
    pub seed: u64,
}

impl Split {
    /// Refuses shares that are none: the key and why.
    pub(crate) fn check(&self) -> Result<(), (&'static str, String)> {
        for (key, share) in [("split.validation", self.validation), ("split.test", self.test)] {
            if !(0.0..=1.0).contains(&share) {
                return Err((key, format!("must be a share from 0 to 1, got {share}")));
            }
        }
        if self.validation + self.test > 1.0 {
            return Err(("split", format!("has shares of more than 1 together ({})", self.validation + self.test)));
        }
        Ok(())
    }

    /// Whether row `number` belongs to the part.
    pub fn holds(&self, number: u64) -> bool {
        let share = (mix(self.seed ^ mix(number)) >> 11) as f64 / (1_u64 << 53) as f64;
        let part = if share < self.test {
            Part::Test
        } else if share < self.test + self.validation {
            Part::Validation
        } else {
            Part::Train
        };
        part == self.part
    }
}

/// SplitMix64's finaliser (Steele, Lea, Flood 2014): a bijection that spreads every bit.
fn mix(number: u64) -> u64 {
    let mut z = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Rows in the order of a [`Shuffle`].
pub(crate) struct Shuffled {
    rows: Rows,
    buffer: Vec<Row>,
    size: usize,
    state: u64,
}

impl Shuffled {
    pub(crate) fn new(rows: Rows, shuffle: Shuffle) -> Self {
        Self { rows, buffer: Vec::new(), size: shuffle.buffer.max(1), state: shuffle.seed }
    }

    fn below(&mut self, bound: usize) -> usize {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        ((u128::from(mix(self.state)) * bound as u128) >> 64) as usize
    }
}

impl Iterator for Shuffled {
    type Item = Result<Row, DataError>;

    fn next(&mut self) -> Option<Self::Item> {
        while self.buffer.len() < self.size {
            match self.rows.next() {
                Some(Ok(row)) => self.buffer.push(row),
                Some(Err(error)) => return Some(Err(error)),
                None => break,
            }
        }
        if self.buffer.is_empty() {
            return None;
        }
        let index = self.below(self.buffer.len());
        Some(Ok(self.buffer.swap_remove(index)))
    }
}
