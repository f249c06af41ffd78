//! Soft adaptive policy optimisation: a sigmoid gate in place of the clip.

use tch::Tensor;

use super::{PolicyLoss, TokenBatch};
use crate::metrics::Recorder;
use crate::tokens::{TokenError, ratio};

/// The softly gated surrogate. See [`crate::losses`] for the formula.
///
/// At ratio 1 its gradient is that of the plain surrogate; it fades on both sides, faster for a larger temperature.
#[derive(Clone, Copy, Debug)]
pub struct Sapo {
    /// Temperature where the advantage is positive.
    pub tau_positive: f64,
    /// Temperature elsewhere.
    pub tau_negative: f64,
}

impl PolicyLoss for Sapo {
    fn name(&self) -> &'static str {
        "sapo"
    }

    fn token_losses(&self, batch: &TokenBatch, _: &mut Recorder) -> Result<Tensor, TokenError> {
        let ratio = ratio(&batch.logprobs, batch.old_logprobs()?);
        let advantages = batch.advantages()?;
        let tau = (advantages.zeros_like() + self.tau_positive)
            .where_self(&advantages.gt(0.0), &(advantages.zeros_like() + self.tau_negative));
        let gate = (&tau * (ratio - 1.0)).sigmoid() * 4.0 / tau;
        Ok(-(gate * advantages))
    }
}
