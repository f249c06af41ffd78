//! Losses without a trust region.

use tch::Tensor;

use super::{PolicyLoss, TokenBatch};
use crate::metrics::Recorder;
use crate::tokens::TokenError;

/// Negative log-likelihood of the tokens. Weights of tokens are their scales.
#[derive(Clone, Copy, Debug)]
pub struct CrossEntropy;

impl PolicyLoss for CrossEntropy {
    fn name(&self) -> &'static str {
        "cross_entropy"
    }

    fn accepts_correction(&self) -> bool {
        false
    }

    fn token_losses(&self, batch: &TokenBatch, _: &mut Recorder) -> Result<Tensor, TokenError> {
        Ok(-&batch.logprobs)
    }
}

/// Plain importance sampling. See [`crate::losses`] for the formula.
///
/// Nothing is clamped: a ratio that overflows is an error, not a silent number. Records `importance_ratio`, its mean.
#[derive(Clone, Copy, Debug)]
pub struct ImportanceSampling;

impl PolicyLoss for ImportanceSampling {
    fn name(&self) -> &'static str {
        "importance_sampling"
    }

    fn accepts_correction(&self) -> bool {
        false
    }

    fn token_losses(&self, batch: &TokenBatch, metrics: &mut Recorder) -> Result<Tensor, TokenError> {
        let ratio = (&batch.logprobs - batch.old_logprobs()?).exp();
        metrics.mean("importance_ratio", &ratio, &batch.mask);
        Ok(-(ratio * batch.advantages()?))
    }
}
