//! PPO's clipped surrogate, and the same bounded from above.

use tch::Tensor;

use super::{PolicyLoss, TokenBatch};
use crate::metrics::Recorder;
use crate::tokens::{TokenError, ratio};

/// The range `[1 - low, 1 + high]` of a ratio.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ClipRange {
    /// How far below 1.
    pub low: f64,
    /// How far above 1.
    pub high: f64,
}

impl ClipRange {
    /// Brings ratios into the range.
    pub(super) fn clamp(self, ratio: &Tensor) -> Tensor {
        ratio.clamp(1.0 - self.low, 1.0 + self.high)
    }

    /// Ratios strictly inside the range.
    pub(super) fn inside(self, ratio: &Tensor) -> Tensor {
        ratio.gt(1.0 - self.low).logical_and(&ratio.lt(1.0 + self.high))
    }
}

/// `-min(r A, clamp(r) A)`. Records `clip_ratio`, the share of tokens whose clipped term is the smaller one.
pub(super) fn clipped_surrogate(
    ratio: &Tensor,
    range: ClipRange,
    batch: &TokenBatch,
    metrics: &mut Recorder,
) -> Result<Tensor, TokenError> {
    let advantages = batch.advantages()?;
    let plain = ratio * advantages;
    let clipped = range.clamp(ratio) * advantages;
    metrics.mean("clip_ratio", &clipped.lt_tensor(&plain), &batch.mask);
    Ok(-plain.minimum(&clipped))
}

/// The clipped surrogate. See [`crate::losses`] for the formula.
#[derive(Clone, Copy, Debug)]
pub struct Regular {
    /// The range of the ratio.
    pub range: ClipRange,
}

impl PolicyLoss for Regular {
    fn name(&self) -> &'static str {
        "regular"
    }

    fn token_losses(&self, batch: &TokenBatch, metrics: &mut Recorder) -> Result<Tensor, TokenError> {
        clipped_surrogate(&ratio(&batch.logprobs, batch.old_logprobs()?), self.range, batch, metrics)
    }
}

/// The clipped surrogate, bounded where the advantage is negative. See [`crate::losses`] for the formula.
///
/// Records `dual_clip_ratio`, the share of tokens at the bound.
#[derive(Clone, Copy, Debug)]
pub struct DualClip {
    /// The range of the ratio.
    pub range: ClipRange,
    /// Largest ratio that counts where the advantage is negative; above 1.
    pub bound: f64,
}

impl PolicyLoss for DualClip {
    fn name(&self) -> &'static str {
        "dual_clip"
    }

    fn token_losses(&self, batch: &TokenBatch, metrics: &mut Recorder) -> Result<Tensor, TokenError> {
        let ratio = ratio(&batch.logprobs, batch.old_logprobs()?);
        let regular = clipped_surrogate(&ratio, self.range, batch, metrics)?;
        let advantages = batch.advantages()?;
        let negative = advantages.lt(0.0);
        let bound = advantages * -self.bound;
        metrics.mean("dual_clip_ratio", &negative.logical_and(&bound.lt_tensor(&regular)), &batch.mask);
        Ok(bound.minimum(&regular).where_self(&negative, &regular))
    }
}
