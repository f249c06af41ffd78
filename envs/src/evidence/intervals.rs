//! Sets of character positions as intervals, and how well one such set covers another.
//!
//! Invariants: every score is between 0 and 1; swapping prediction and truth swaps precision and recall and leaves F1;
//! a set against itself scores 1.

use serde::{Deserialize, Serialize};

/// Positions from `start` up to and without `end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Interval {
    /// The first.
    pub start: u64,
    /// One past the last.
    pub end: u64,
}

/// The same positions as intervals in order, none empty, none touching another.
pub fn merged(intervals: &[Interval]) -> Vec<Interval> {
    let mut sorted: Vec<Interval> = intervals.iter().copied().filter(|it| it.start < it.end).collect();
    sorted.sort_unstable();
    let mut out: Vec<Interval> = Vec::with_capacity(sorted.len());
    for next in sorted {
        match out.last_mut() {
            Some(last) if next.start <= last.end => last.end = last.end.max(next.end),
            _ => out.push(next),
        }
    }
    out
}

/// How many positions merged intervals hold.
pub fn length(merged: &[Interval]) -> u64 {
    merged.iter().map(|it| it.end - it.start).sum()
}

/// How many positions two lists of merged intervals share.
pub fn overlap(left: &[Interval], right: &[Interval]) -> u64 {
    let (mut i, mut j, mut shared) = (0, 0, 0);
    while let (Some(a), Some(b)) = (left.get(i), right.get(j)) {
        shared += a.end.min(b.end).saturating_sub(a.start.max(b.start));
        if a.end <= b.end { i += 1 } else { j += 1 }
    }
    shared
}

/// Precision, recall and their harmonic mean.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Score {
    /// How much of the prediction is true.
    pub precision: f64,
    /// How much of the truth was predicted.
    pub recall: f64,
    /// 2PR / (P + R); 0 where both are.
    pub f1: f64,
}

/// What a score is made of. Counts of several texts may be added up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Positions in both.
    pub shared: u64,
    /// Positions predicted, those that are nowhere in the text included.
    pub predicted: u64,
    /// Positions of the truth.
    pub truth: u64,
}

impl Counts {
    /// Of two sets of positions in one text.
    pub fn of(predicted: &[Interval], truth: &[Interval]) -> Self {
        let (predicted, truth) = (merged(predicted), merged(truth));
        Self { shared: overlap(&predicted, &truth), predicted: length(&predicted), truth: length(&truth) }
    }

    /// Both together.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            shared: self.shared + other.shared,
            predicted: self.predicted + other.predicted,
            truth: self.truth + other.truth,
        }
    }

    /// The score. Nothing predicted where there is nothing is right; nothing against something is 0.
    pub fn score(self) -> Score {
        if self.predicted == 0 && self.truth == 0 {
            return Score { precision: 1.0, recall: 1.0, f1: 1.0 };
        }
        let share = |of: u64| if of == 0 { 0.0 } else { self.shared as f64 / of as f64 };
        let (precision, recall) = (share(self.predicted), share(self.truth));
        let sum = precision + recall;
        let f1 = if sum > 0.0 { 2.0 * precision * recall / sum } else { 0.0 };
        Score { precision, recall, f1 }
    }
}

/// Precision, recall and F1 of predicted against true positions of one text.
pub fn score(predicted: &[Interval], truth: &[Interval]) -> Score {
    Counts::of(predicted, truth).score()
}
