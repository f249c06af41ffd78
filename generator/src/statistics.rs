//! Means, quantiles, pass@k and seeded bootstrap intervals.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};

/// The mean; 0 of nothing.
pub fn mean(values: &[f64]) -> f64 {
    if values.is_empty() { 0.0 } else { values.iter().sum::<f64>() / values.len() as f64 }
}

/// The population's standard deviation, as numpy computes it by default; 0 of nothing.
pub fn deviation(values: &[f64]) -> f64 {
    let mean = mean(values);
    let squares: Vec<f64> = values.iter().map(|value| (value - mean).powi(2)).collect();
    self::mean(&squares).sqrt()
}

/// A quantile between 0 and 1, with linear interpolation; 0 of nothing.
pub fn quantile(values: &[f64], at: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    quantile_of_sorted(&sorted, at)
}

fn quantile_of_sorted(sorted: &[f64], at: f64) -> f64 {
    let Some(last) = sorted.len().checked_sub(1) else { return 0.0 };
    let place = at.clamp(0.0, 1.0) * last as f64;
    let below = place.floor() as usize;
    let above = (below + 1).min(last);
    sorted[below] + (sorted[above] - sorted[below]) * (place - below as f64)
}

/// The unbiased estimate of the chance that one of `k` samples is right, from `right` right ones among `samples`:
/// `1 - C(samples - right, k) / C(samples, k)` (Chen et al. 2021, arXiv 2107.03374). `None` where `k` is 0 or there
/// are fewer than `k` samples.
pub fn pass_at_k(samples: u32, right: u32, k: u32) -> Option<f64> {
    if k == 0 || k > samples || right > samples {
        return None;
    }
    if samples - right < k {
        return Some(1.0);
    }
    // The product form: no binomial overflows.
    let missed: f64 = (samples - right + 1..=samples).map(|n| 1.0 - f64::from(k) / f64::from(n)).product();
    Some(1.0 - missed)
}

/// A mean and the interval that holds it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Interval {
    /// The mean.
    pub mean: f64,
    /// Lower end.
    pub low: f64,
    /// Upper end.
    pub high: f64,
}

/// How often the bootstrap draws.
const DRAWS: usize = 2000;

/// The mean with its 95 % percentile-bootstrap interval. Each value is one independent unit (an instance, its samples
/// averaged). The same values and seed give the same interval.
pub fn bootstrap(values: &[f64], seed: u64) -> Interval {
    let mean = mean(values);
    if values.len() < 2 {
        return Interval { mean, low: mean, high: mean };
    }
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let mut means: Vec<f64> = (0..DRAWS)
        .map(|_| {
            let sum: f64 = (0..values.len()).map(|_| values[random.random_range(0..values.len())]).sum();
            sum / values.len() as f64
        })
        .collect();
    means.sort_by(f64::total_cmp);
    Interval { mean, low: quantile_of_sorted(&means, 0.025), high: quantile_of_sorted(&means, 0.975) }
}

/// The mean difference `b - a` over units that both have, with its interval: the paired bootstrap.
pub fn paired_difference(pairs: &[(f64, f64)], seed: u64) -> Interval {
    let differences: Vec<f64> = pairs.iter().map(|(a, b)| b - a).collect();
    bootstrap(&differences, seed)
}
