//! Group sequence policy optimisation: one ratio for a whole row.

use tch::Tensor;

use super::ppo::{ClipRange, clipped_surrogate};
use super::{PolicyLoss, TokenBatch};
use crate::metrics::Recorder;
use crate::tokens::TokenError;

/// The clipped surrogate with the row's ratio and the token's gradient. See [`crate::losses`] for the formula.
///
/// The ratio is the geometric mean of the row's token ratios. Meant for `loss_reduction = "sequence_mean"`.
#[derive(Clone, Copy, Debug)]
pub struct Gspo {
    /// The range of the ratio.
    pub range: ClipRange,
}

/// Largest log-ratio.
const LOG_BOUND: f64 = 10.0;

impl PolicyLoss for Gspo {
    fn name(&self) -> &'static str {
        "gspo"
    }

    fn token_losses(&self, batch: &TokenBatch, metrics: &mut Recorder) -> Result<Tensor, TokenError> {
        let current = batch.logprobs.detach();
        let row_ratios = batch.rows.masked_mean(&(&current - batch.old_logprobs()?), &batch.mask);
        let log_ratio = &batch.logprobs - &current + batch.rows.spread(&row_ratios);
        clipped_surrogate(&log_ratio.clamp_max(LOG_BOUND).exp(), self.range, batch, metrics)
    }
}
