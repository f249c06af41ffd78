//! Seeded draws that are the same on every machine and with every version of the random-number crates.

use std::collections::BTreeSet;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

/// A source of draws.
#[derive(Clone, Debug)]
pub struct Draw {
    rng: ChaCha8Rng,
}

impl Draw {
    /// A source for one row: the rows of one data set, told apart by `stream`, do not repeat each other.
    pub fn new(seed: u64, stream: u64) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        rng.set_stream(stream);
        Self { rng }
    }

    /// A number below `bound`; 0 when `bound` is 0.
    pub fn below(&mut self, bound: usize) -> usize {
        let wide = u128::from(self.rng.next_u64()) * bound as u128;
        (wide >> 64) as usize
    }

    /// A number from `low` to `high`, both included.
    pub fn between(&mut self, low: i64, high: i64) -> i64 {
        low + self.below(usize::try_from(high - low + 1).unwrap_or(0)) as i64
    }

    /// A place among weights, as often as its share; 0 where all weights are 0.
    pub fn weighted(&mut self, weights: &[usize]) -> usize {
        let mut left = self.below(weights.iter().sum());
        let stands_for = |weight: &usize| {
            let here = left < *weight;
            left = left.saturating_sub(*weight);
            here
        };
        weights.iter().position(stands_for).unwrap_or(0)
    }

    /// One of several; never called with an empty list.
    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len())]
    }

    /// Puts a list into a random order.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for index in (1..items.len()).rev() {
            items.swap(index, self.below(index + 1));
        }
    }

    /// `count` different numbers below `bound` (all of them, where there are no more), in ascending order.
    pub fn distinct(&mut self, count: usize, bound: usize) -> Vec<usize> {
        // Floyd's method: as many draws as numbers.
        let mut chosen = BTreeSet::new();
        for top in bound.saturating_sub(count)..bound {
            let candidate = self.below(top + 1);
            if !chosen.insert(candidate) {
                chosen.insert(top);
            }
        }
        chosen.into_iter().collect()
    }
}
