//! Summaries of what episodes report.

use std::collections::BTreeMap;

use serde_json::{Number, Value};

use crate::env::Metrics;

/// The mean of every key over the episodes that carry it. Truths count as 0 and 1; everything that is no number is
/// left out.
pub fn mean(episodes: &[Metrics]) -> Metrics {
    let mut sums: BTreeMap<&str, (f64, u64)> = BTreeMap::new();
    for (key, value) in episodes.iter().flatten() {
        let number = match value {
            Value::Bool(truth) => f64::from(u8::from(*truth)),
            Value::Number(number) => match number.as_f64() {
                Some(number) => number,
                None => continue,
            },
            _ => continue,
        };
        let entry = sums.entry(key).or_default();
        entry.0 += number;
        entry.1 += 1;
    }
    sums.into_iter()
        .filter_map(|(key, (sum, count))| {
            Number::from_f64(sum / count as f64).map(|mean| (key.to_owned(), Value::Number(mean)))
        })
        .collect()
}
