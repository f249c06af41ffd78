//! Losses that weigh a token's log-likelihood with a constant importance weight.

use tch::Tensor;

use super::ppo::ClipRange;
use super::{PolicyLoss, TokenBatch};
use crate::metrics::Recorder;
use crate::tokens::{TokenError, ratio};

/// Clipped importance weights on the log-likelihood. See [`crate::losses`] for the formula.
///
/// Unlike PPO's clip, a clipped token keeps its gradient. Records `clip_ratio` and `cispo/ratio_mean`,
/// `cispo/ratio_clamped_mean`, `cispo/ratio_max`, `cispo/ratio_min`.
#[derive(Clone, Copy, Debug)]
pub struct Cispo {
    /// The range of the weight.
    pub range: ClipRange,
    /// Whether weights are against what the sampler reported, not against the policy before the update.
    pub against_rollout: bool,
}

impl PolicyLoss for Cispo {
    fn name(&self) -> &'static str {
        "cispo"
    }

    fn token_losses(&self, batch: &TokenBatch, metrics: &mut Recorder) -> Result<Tensor, TokenError> {
        let anchor = if self.against_rollout { batch.rollout_logprobs()? } else { batch.old_logprobs()? };
        let ratio = ratio(&batch.logprobs, anchor).detach();
        let clamped = self.range.clamp(&ratio);
        metrics.mean("clip_ratio", &clamped.ne_tensor(&ratio), &batch.mask);
        metrics.mean("cispo/ratio_mean", &ratio, &batch.mask);
        metrics.mean("cispo/ratio_clamped_mean", &clamped, &batch.mask);
        metrics.max("cispo/ratio_max", &ratio, &batch.mask);
        metrics.min("cispo/ratio_min", &ratio, &batch.mask);
        Ok(-(clamped * batch.advantages()? * &batch.logprobs))
    }
}

/// Importance weights against the sampler, tokens out of range dropped. See [`crate::losses`] for the formula.
///
/// Records `clip_ratio`, the share of dropped tokens.
#[derive(Clone, Copy, Debug)]
pub struct RolloutIs {
    /// The range in which tokens are kept, exclusive.
    pub range: ClipRange,
}

impl PolicyLoss for RolloutIs {
    fn name(&self) -> &'static str {
        "rollout_is"
    }

    fn token_losses(&self, batch: &TokenBatch, metrics: &mut Recorder) -> Result<Tensor, TokenError> {
        let ratio = ratio(&batch.logprobs, batch.rollout_logprobs()?).detach();
        let dropped = self.range.inside(&ratio).logical_not();
        metrics.mean("clip_ratio", &dropped, &batch.mask);
        Ok(-(ratio * batch.advantages()? * &batch.logprobs).masked_fill(&dropped, 0.0))
    }
}
