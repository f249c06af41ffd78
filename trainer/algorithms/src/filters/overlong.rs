//! Responses that were cut, or nearly.

use crate::config::OverlongConfig;

/// Overlong filtering: masks a response that did not end by itself, so that being cut is neither rewarded nor punished.
///
/// Its reward stays in the group's baseline. DAPO, arXiv:2503.14476, sec. 3.4.
pub fn filter_overlong(mask: &mut [u8], ended_by_itself: bool) {
    if !ended_by_itself {
        mask.fill(0);
    }
}

/// The soft punishment of a response of `length` tokens where `max_length` are allowed, from 0 down to `-factor`:
///
/// ```text
/// 0                                               up to max_length - buffer
/// factor * (max_length - buffer - length)/buffer  up to max_length
/// -factor                                         beyond
/// ```
///
/// DAPO, arXiv:2503.14476, eq. 13. A longer response is never punished less.
pub fn overlong_penalty(length: usize, max_length: usize, config: &OverlongConfig) -> f64 {
    let buffer = f64::from(config.buffer.max(1));
    let exceeding = length as f64 - (max_length as f64 - buffer);
    -config.factor * (exceeding / buffer).clamp(0.0, 1.0)
}

/// Adds the punishment to the reward of a row's last token, and answers it. `rewards` has one entry for each response token.
pub fn punish_overlong(rewards: &mut [f32], max_length: usize, config: &OverlongConfig) -> f64 {
    let penalty = overlong_penalty(rewards.len(), max_length, config);
    if let Some(last) = rewards.last_mut() {
        *last = (f64::from(*last) + penalty) as f32;
    }
    penalty
}
