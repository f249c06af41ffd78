//! Divergence proximal policy optimisation: a trust region in probabilities, not in ratios.
//!
//! With `p` the probability of the token under the policy being trained and `mu` under the sampler, the divergence is that of
//! the two-outcome distribution "this token or another":
//!
//! - total variation: `abs(p - mu)`;
//! - Kullback-Leibler: `mu log(mu / p) + (1 - mu) log((1 - mu) / (1 - p))`.
//!
//! A token is masked where the divergence is above its bound and the update would push further: `p > mu` with a positive
//! advantage, `p < mu` with a negative one.

use tch::Tensor;

use super::{PolicyLoss, TokenBatch};
use crate::config::DppoKind;
use crate::metrics::Recorder;
use crate::tokens::{TokenError, ratio};

/// The masked surrogate. See [`crate::losses`] for the formula, the module for the mask.
///
/// Records `clip_ratio`, the share of masked tokens.
#[derive(Clone, Copy, Debug)]
pub struct Dppo {
    /// The divergence.
    pub divergence: DppoKind,
    /// Its bound where the probability fell.
    pub delta_low: f64,
    /// Its bound where the probability rose.
    pub delta_high: f64,
}

/// Keeps logarithms of `p` and `1 - p` finite; above the rounding of `f32` near 1.
const PROBABILITY_FLOOR: f64 = 1e-7;

impl PolicyLoss for Dppo {
    fn name(&self) -> &'static str {
        "dppo"
    }

    fn token_losses(&self, batch: &TokenBatch, metrics: &mut Recorder) -> Result<Tensor, TokenError> {
        let anchor = batch.sampler_logprobs()?;
        let advantages = batch.advantages()?;
        let p = batch.logprobs.detach().exp();
        let mu = anchor.exp();
        let divergence = match self.divergence {
            DppoKind::BinaryTv => (&p - &mu).abs(),
            DppoKind::BinaryKl => binary_kl(&mu, &p),
        };
        let above = p.gt_tensor(&mu).logical_and(&advantages.gt(0.0)).logical_and(&divergence.gt(self.delta_high));
        let below = p.lt_tensor(&mu).logical_and(&advantages.lt(0.0)).logical_and(&divergence.gt(self.delta_low));
        let masked = above.logical_or(&below);
        metrics.mean("clip_ratio", &masked, &batch.mask);
        let surrogate = ratio(&batch.logprobs, anchor) * advantages;
        Ok(-surrogate.masked_fill(&masked, 0.0))
    }
}

fn binary_kl(mu: &Tensor, p: &Tensor) -> Tensor {
    let mu = mu.clamp(PROBABILITY_FLOOR, 1.0 - PROBABILITY_FLOOR);
    let p = p.clamp(PROBABILITY_FLOOR, 1.0 - PROBABILITY_FLOOR);
    let (not_mu, not_p): (Tensor, Tensor) = (1.0 - &mu, 1.0 - &p);
    &mu * (&mu / &p).log() + &not_mu * (&not_mu / &not_p).log()
}
