//! How lengths are spread, in bounded memory: exact below 128, within 1.6 % above.

use std::collections::BTreeMap;

use serde_json::{Value, json};

/// Steps within each power of two.
const STEPS: u32 = 64;

/// Lengths, counted.
#[derive(Debug, Default)]
pub(super) struct Lengths {
    /// How many by bucket.
    buckets: BTreeMap<u32, u64>,
    count: u64,
    sum: u128,
    least: u64,
    most: u64,
}

/// The bucket of a length: lengths below twice the steps have their own.
fn bucket(length: u64) -> u32 {
    let exponent = (64 - length.leading_zeros()).saturating_sub(STEPS.trailing_zeros() + 1);
    exponent * STEPS + u32::try_from(length >> exponent).unwrap_or(u32::MAX)
}

/// The least length of a bucket.
fn floor(bucket: u32) -> u64 {
    let exponent = (bucket / STEPS).saturating_sub(1);
    u64::from(bucket - exponent * STEPS) << exponent
}

impl Lengths {
    pub(super) fn add(&mut self, length: u64) {
        *self.buckets.entry(bucket(length)).or_default() += 1;
        self.least = if self.count == 0 { length } else { self.least.min(length) };
        self.most = self.most.max(length);
        self.sum += u128::from(length);
        self.count += 1;
    }

    /// The length that `share` of all do not exceed.
    fn quantile(&self, share: f64) -> u64 {
        let rank = ((self.count as f64 * share).ceil() as u64).max(1);
        let mut seen = 0;
        for (bucket, count) in &self.buckets {
            seen += count;
            if seen >= rank {
                return floor(*bucket).clamp(self.least, self.most);
            }
        }
        self.most
    }

    /// Least, half, 90 %, 99 %, most.
    pub(super) fn figures(&self) -> [u64; 5] {
        [self.least, self.quantile(0.5), self.quantile(0.9), self.quantile(0.99), self.most]
    }

    pub(super) fn mean(&self) -> f64 {
        if self.count == 0 { 0.0 } else { self.sum as f64 / self.count as f64 }
    }

    pub(super) fn to_json(&self) -> Value {
        let [min, p50, p90, p99, max] = self.figures();
        json!({"min": min, "p50": p50, "p90": p90, "p99": p99, "max": max, "mean": self.mean()})
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_exact_for_short_lengths_and_close_for_long_ones() {
        for length in (0..300).chain([1000, 12_345, 1 << 20, (1 << 40) + 12_345]) {
            let low = floor(bucket(length));
            assert!(low <= length && (length - low) * 64 <= length, "{length}: {low}");
            assert!(length >= 128 || low == length, "{length}: {low}");
        }
    }

    #[test]
    fn quantiles_are_those_of_the_numbers() {
        let mut lengths = Lengths::default();
        (1..=100).for_each(|length| lengths.add(length));
        assert_eq!(lengths.figures(), [1, 50, 90, 99, 100]);
        assert_eq!(lengths.mean(), 50.5);
    }
}
