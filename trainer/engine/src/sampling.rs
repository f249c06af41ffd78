//! Drawing a token from a row of probabilities.
//!
//! Noise depends on (seed, position in the generation) and nothing else: not on the batch, not on the history of a
//! generator. Log-probabilities are [`LogprobKind::Raw`](espalier_inference::engine::LogprobKind::Raw): the log-softmax
//! of the logits divided by the temperature, before top-k, top-p and min-p; for greedy decoding the temperature counts
//! as 1.
//!
//! Order of the filters, as in vLLM: temperature, min-p, top-k, top-p.

use espalier_inference::SamplingParams;

/// A uniform number in (0, 1) for a seed and a position.
pub fn noise(seed: u64, position: u64) -> f64 {
    let bits = mix(mix(seed ^ 0x9E37_79B9_7F4A_7C15).wrapping_add(position.wrapping_mul(0xD1B5_4A32_D192_ED03)));
    ((bits >> 11) as f64 + 0.5) * (1.0 / (1u64 << 53) as f64)
}

/// The finaliser of SplitMix64: every input bit changes every output bit with probability 1/2.
pub(crate) fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

/// Draws a token. `weights` are probabilities relative to the most probable token, whose weight is 1.
pub fn draw(weights: &[f32], params: &SamplingParams, uniform: f64) -> usize {
    if params.top_p >= 1.0 && params.top_k == 0 && params.min_p <= 0.0 {
        return draw_any(weights, uniform);
    }
    let total: f64 = weights.iter().filter(|w| **w >= params.min_p).map(|w| f64::from(*w)).sum();
    // All tokens below this together weigh less than what top-p cuts off: they need no sorting.
    let cut = if params.top_k == 0 { (1.0 - f64::from(params.top_p)) * total / weights.len() as f64 } else { 0.0 };
    let least = params.min_p.max(cut as f32);
    let mut kept: Vec<(f32, usize)> =
        weights.iter().enumerate().filter(|(_, w)| **w >= least).map(|(i, w)| (*w, i)).collect();
    let order = |a: &(f32, usize), b: &(f32, usize)| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1));
    if params.top_k > 0 && kept.len() > params.top_k as usize {
        let k = params.top_k as usize;
        kept.select_nth_unstable_by(k - 1, order);
        kept.truncate(k);
    }
    kept.sort_unstable_by(order);
    let mut mass: f64 = if params.top_k > 0 { kept.iter().map(|(w, _)| f64::from(*w)).sum() } else { total };
    if params.top_p < 1.0 {
        let (goal, mut sum, mut count) = (mass * f64::from(params.top_p), 0.0, 0);
        while count < kept.len() && (count == 0 || sum < goal) {
            sum += f64::from(kept[count].0);
            count += 1;
        }
        kept.truncate(count);
        mass = sum;
    }
    let mut left = uniform * mass;
    for (weight, index) in &kept {
        left -= f64::from(*weight);
        if left < 0.0 {
            return *index;
        }
    }
    kept.last().map_or(0, |(_, index)| *index)
}

/// Inverse CDF over the whole vocabulary: sums of chunks first, then inside one chunk.
fn draw_any(weights: &[f32], uniform: f64) -> usize {
    const CHUNK: usize = 256;
    let sums: Vec<f64> = weights
        .chunks(CHUNK)
        .map(|chunk| {
            let mut lanes = [0f32; 8];
            let eights = chunk.chunks_exact(8);
            let rest: f32 = eights.remainder().iter().sum();
            for eight in eights {
                lanes.iter_mut().zip(eight).for_each(|(lane, w)| *lane += w);
            }
            f64::from(lanes.iter().sum::<f32>() + rest)
        })
        .collect();
    let mut left = uniform * sums.iter().sum::<f64>();
    let mut last = 0;
    for (i, sum) in sums.iter().enumerate() {
        if left >= *sum {
            left -= sum;
            continue;
        }
        for (j, weight) in weights[i * CHUNK..].iter().take(CHUNK).enumerate() {
            left -= f64::from(*weight);
            if *weight > 0.0 {
                last = i * CHUNK + j;
                if left < 0.0 {
                    return last;
                }
            }
        }
        return last;
    }
    weights.iter().rposition(|w| *w > 0.0).unwrap_or(0)
}

/// Names the first parameter that is out of range, with what was expected and what came.
pub fn check(params: &SamplingParams, vocab: u32) -> Result<(), String> {
    let p = params;
    let wrong = |name: &str, expected: &str, found: String| Err(format!("`{name}`: expected {expected}, got {found}"));
    if p.temperature != 0.0 && !(0.001..=100.0).contains(&p.temperature) {
        return wrong("temperature", "0, or a number from 0.001 to 100", p.temperature.to_string());
    }
    if !(p.top_p > 0.0 && p.top_p <= 1.0) {
        return wrong("top_p", "a number above 0, up to 1", p.top_p.to_string());
    }
    if !(p.min_p >= 0.0 && p.min_p <= 1.0) {
        return wrong("min_p", "a number from 0 to 1", p.min_p.to_string());
    }
    if p.max_tokens == 0 {
        return wrong("max_tokens", "at least 1", "0".to_owned());
    }
    if p.stop.len() > 64 {
        return wrong("stop", "at most 64 texts", format!("{}", p.stop.len()));
    }
    if let Some(text) = p.stop.iter().find(|s| s.is_empty() || s.len() > 4096) {
        return wrong("stop", "texts of 1 to 4096 bytes", format!("one of {}", text.len()));
    }
    if p.stop_token_ids.len() > 1024 {
        return wrong("stop_token_ids", "at most 1024 ids", p.stop_token_ids.len().to_string());
    }
    if let Some(id) = p.stop_token_ids.iter().find(|id| **id >= vocab) {
        return wrong("stop_token_ids", &format!("ids below {vocab}"), id.to_string());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn params(top_k: u32, top_p: f32, min_p: f32) -> SamplingParams {
        SamplingParams { top_k, top_p, min_p, ..SamplingParams::default() }
    }

    #[test]
    fn draws_follow_the_distribution() {
        let weights = [1.0, 0.5, 0.25, 0.25];
        let mut counts = [0usize; 4];
        for position in 0..40_000 {
            counts[draw(&weights, &params(0, 1.0, 0.0), noise(7, position))] += 1;
        }
        for (count, share) in counts.iter().zip([0.5, 0.25, 0.125, 0.125]) {
            assert!((*count as f64 / 40_000.0 - share).abs() < 0.01, "{counts:?}");
        }
    }

    #[test]
    fn filters_keep_what_they_say() {
        let weights = [0.5, 1.0, 0.25, 0.05];
        let kept = |p: &SamplingParams| {
            let mut seen: Vec<usize> = (0..2000).map(|i| draw(&weights, p, noise(1, i))).collect();
            seen.sort_unstable();
            seen.dedup();
            seen
        };
        assert_eq!(kept(&params(1, 1.0, 0.0)), [1]);
        assert_eq!(kept(&params(2, 1.0, 0.0)), [0, 1]);
        assert_eq!(kept(&params(0, 0.6, 0.0)), [0, 1]);
        assert_eq!(kept(&params(0, 0.5, 0.0)), [1]);
        assert_eq!(kept(&params(0, 1.0, 0.2)), [0, 1, 2]);
        assert_eq!(kept(&params(3, 0.9, 0.2)), [0, 1, 2]);
    }

    proptest! {
        #[test]
        fn a_drawn_token_is_one_of_the_kept(
            raw in prop::collection::vec(0.0f32..1.0, 1..600), k in 0u32..20, p in 0.01f32..=1.0, m in 0.0f32..1.0, u in 0.0f64..1.0
        ) {
            let most = raw.iter().copied().fold(f32::MIN_POSITIVE, f32::max);
            let weights: Vec<f32> = raw.iter().map(|w| w / most).collect();
            let token = draw(&weights, &params(k, p, m), u);
            prop_assert!(token < weights.len());
            if raw.iter().any(|w| *w > 0.0) {
                prop_assert!(weights[token] >= m);
                if k > 0 {
                    prop_assert!(weights.iter().filter(|w| **w > weights[token]).count() < k as usize);
                }
            }
        }
    }
}
