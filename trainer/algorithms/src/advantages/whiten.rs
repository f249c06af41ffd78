//! Centring and scaling over the trainable tokens of a batch.
//!
//! Both functions work in place on one list of numbers a row, and read one mask a row; a mask that is shorter than its row
//! masks the rest. Masked tokens neither enter the mean and the variance, nor are they changed.

/// Added to a variance, or its smallest value.
const VARIANCE_FLOOR: f64 = 1e-8;

/// Mean 0 and variance 1: `(x - mean) * rsqrt(var + 1e-8)`, with Bessel's correction in `var`.
///
/// A single trainable token has no spread and becomes 0.
pub fn whiten(rows: &mut [Vec<f64>], masks: &[&[u8]]) {
    let Some((mean, squares, count)) = moments(rows, masks) else { return };
    let variance = squares / (count - 1.0).max(1.0);
    apply(rows, masks, |value| (value - mean) / (variance + VARIANCE_FLOOR).sqrt());
}

/// Mean 0 and variance 1: `(x - mean) * rsqrt(max(var, 1e-8))`, with the population variance.
pub fn normalize(rows: &mut [Vec<f64>], masks: &[&[u8]]) {
    let Some((mean, squares, count)) = moments(rows, masks) else { return };
    let variance = (squares / count).max(VARIANCE_FLOOR);
    apply(rows, masks, |value| (value - mean) / variance.sqrt());
}

/// Mean, sum of squared differences and number of the trainable tokens; none without any.
fn moments(rows: &[Vec<f64>], masks: &[&[u8]]) -> Option<(f64, f64, f64)> {
    let live = || {
        rows.iter()
            .zip(masks)
            .flat_map(|(row, mask)| row.iter().zip(*mask).filter(|&(_, &bit)| bit != 0).map(|(&value, _)| value))
    };
    let (sum, count) = live().fold((0.0, 0.0), |(sum, count), value| (sum + value, count + 1.0));
    if count == 0.0 {
        return None;
    }
    let mean = sum / count;
    Some((mean, live().map(|value| (value - mean).powi(2)).sum(), count))
}

fn apply(rows: &mut [Vec<f64>], masks: &[&[u8]], formula: impl Fn(f64) -> f64) {
    for (row, mask) in rows.iter_mut().zip(masks) {
        for (value, _) in row.iter_mut().zip(*mask).filter(|&(_, &bit)| bit != 0) {
            *value = formula(*value);
        }
    }
}
