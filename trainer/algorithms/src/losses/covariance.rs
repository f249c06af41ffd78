//! Losses that treat the tokens which drive entropy down differently.
//!
//! The covariance of a token is `(A - mean A) (lp - mean lp)`, means over the trainable tokens. Entropy falls mostly through
//! the few tokens where it is large (Cui et al., arXiv:2505.22617).
//!
//! Means and choice are over whatever batch is looked at. [`crate::losses::select_tokens`] looks at the whole mini-batch, so
//! that the choice does not depend on micro-batches; without it each micro-batch chooses for itself. Random choices and ties
//! follow from the seed and from the token (its place in its row, its advantage, its log-probability before the update), so
//! the order of rows does not matter.

use tch::{Device, Kind, Tensor};

use super::ppo::{ClipRange, clipped_surrogate};
use super::{PolicyLoss, TokenBatch};
use crate::config::{ClipCovConfig, KlCovConfig};
use crate::metrics::Recorder;
use crate::random::key;
use crate::tokens::{TokenError, ratio};

/// The clipped surrogate, with some tokens of high covariance detached. See [`crate::losses`] for the formula.
///
/// Candidates are tokens that the clip leaves alone and whose covariance is in `(clip_cov_lb, clip_cov_ub)`; of these
/// `max(1, floor(clip_ratio * trainable tokens))` are drawn. Records `clip_ratio` and `clip_cov_ratio`, the share of drawn
/// tokens.
#[derive(Clone, Copy, Debug)]
pub struct ClipCov {
    /// The range of the ratio.
    pub range: ClipRange,
    /// How many tokens, and which.
    pub choice: ClipCovConfig,
    /// Decides the draw. Give every training step its own.
    pub seed: u64,
}

impl PolicyLoss for ClipCov {
    fn name(&self) -> &'static str {
        "clip_cov"
    }

    fn accepts_correction(&self) -> bool {
        false
    }

    fn token_losses(&self, batch: &TokenBatch, metrics: &mut Recorder) -> Result<Tensor, TokenError> {
        let chosen = match batch.selection() {
            Some(selection) => selection.shallow_clone(),
            None => tch::no_grad(|| self.choose(batch))?,
        };
        metrics.mean("clip_cov_ratio", &chosen, &batch.mask);
        let surrogate = clipped_surrogate(&ratio(&batch.logprobs, batch.old_logprobs()?), self.range, batch, metrics)?;
        Ok(surrogate.masked_fill(&chosen, 0.0))
    }

    fn select(&self, batch: &TokenBatch) -> Result<Option<Tensor>, TokenError> {
        self.choose(batch).map(Some)
    }
}

impl ClipCov {
    fn choose(&self, batch: &TokenBatch) -> Result<Tensor, TokenError> {
        let tokens = Tokens::new(batch)?;
        let (low, high) = (1.0 - self.range.low, 1.0 + self.range.high);
        let mut candidates: Vec<usize> = tokens
            .live()
            .filter(|&token| {
                let ratio = (tokens.logprobs[token] - tokens.old_logprobs[token]).clamp(-20.0, 20.0).exp();
                let advantage = tokens.advantages[token];
                let clipped = (advantage > 0.0 && ratio > high) || (advantage < 0.0 && ratio < low);
                let covariance = tokens.covariance(token);
                !clipped && covariance > self.choice.clip_cov_lb && covariance < self.choice.clip_cov_ub
            })
            .collect();
        let wanted = count(self.choice.clip_ratio, tokens.count);
        candidates.sort_by_cached_key(|&token| tokens.key(self.seed, token));
        candidates.truncate(wanted);
        Ok(tokens.flags(&candidates, batch.logprobs.device())?)
    }
}

/// The plain surrogate, with a KL penalty on the tokens of highest covariance. See [`crate::losses`] for the formula.
///
/// `max(1, floor(kl_cov_frac * trainable tokens))` tokens get it. Records `kl_cov_ratio`, their share.
#[derive(Clone, Copy, Debug)]
pub struct KlCov {
    /// How many tokens, and how strong the penalty.
    pub choice: KlCovConfig,
    /// Decides ties.
    pub seed: u64,
}

impl PolicyLoss for KlCov {
    fn name(&self) -> &'static str {
        "kl_cov"
    }

    fn accepts_correction(&self) -> bool {
        false
    }

    fn token_losses(&self, batch: &TokenBatch, metrics: &mut Recorder) -> Result<Tensor, TokenError> {
        let chosen = match batch.selection() {
            Some(selection) => selection.shallow_clone(),
            None => tch::no_grad(|| self.choose(batch))?,
        };
        metrics.mean("kl_cov_ratio", &chosen, &batch.mask);
        let old = batch.old_logprobs()?;
        let penalty = (&batch.logprobs - old).abs() * self.choice.ppo_kl_coef;
        let surrogate = ratio(&batch.logprobs, old) * batch.advantages()?;
        Ok(penalty.masked_fill(&chosen.logical_not(), 0.0) - surrogate)
    }

    fn select(&self, batch: &TokenBatch) -> Result<Option<Tensor>, TokenError> {
        self.choose(batch).map(Some)
    }
}

impl KlCov {
    fn choose(&self, batch: &TokenBatch) -> Result<Tensor, TokenError> {
        let tokens = Tokens::new(batch)?;
        let wanted = count(self.choice.kl_cov_frac, tokens.count);
        let mut ranked: Vec<(f64, u64, usize)> =
            tokens.live().map(|token| (tokens.covariance(token), tokens.key(self.seed, token), token)).collect();
        ranked.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        ranked.truncate(wanted);
        let chosen: Vec<usize> = ranked.into_iter().map(|(_, _, token)| token).collect();
        Ok(tokens.flags(&chosen, batch.logprobs.device())?)
    }
}

fn count(share: f64, tokens: usize) -> usize {
    ((share * tokens as f64) as usize).max(1)
}

/// The tokens of a batch on the host.
struct Tokens {
    logprobs: Vec<f64>,
    old_logprobs: Vec<f64>,
    advantages: Vec<f64>,
    mask: Vec<bool>,
    /// Place of each token in its row.
    places: Vec<u64>,
    mean_logprob: f64,
    mean_advantage: f64,
    /// Trainable tokens.
    count: usize,
}

impl Tokens {
    fn new(batch: &TokenBatch) -> Result<Self, TokenError> {
        let columns = [&batch.logprobs.detach(), batch.old_logprobs()?, batch.advantages()?].map(double);
        let stacked = Tensor::f_stack(&columns, 0)?.f_to_device(Device::Cpu)?;
        let column = |index: i64| Vec::<f64>::try_from(stacked.f_get(index)?);
        let mask = Vec::<bool>::try_from(batch.mask.f_to_device(Device::Cpu)?)?;
        let (logprobs, old_logprobs, advantages) = (column(0)?, column(1)?, column(2)?);
        let count = mask.iter().filter(|&&bit| bit).count();
        // Sums in an order that does not depend on the order of rows, so that ties stay ties.
        let mean = |values: &[f64]| {
            let mut live: Vec<f64> =
                values.iter().zip(&mask).filter(|&(_, &bit)| bit).map(|(&value, _)| value).collect();
            live.sort_by(f64::total_cmp);
            live.iter().sum::<f64>() / count.max(1) as f64
        };
        let (mean_logprob, mean_advantage) = (mean(&logprobs), mean(&advantages));
        let places = batch.rows.offsets().windows(2).flat_map(|bounds| 0..(bounds[1] - bounds[0]) as u64).collect();
        Ok(Self { logprobs, old_logprobs, advantages, mask, places, mean_logprob, mean_advantage, count })
    }

    fn live(&self) -> impl Iterator<Item = usize> {
        (0..self.mask.len()).filter(|&token| self.mask[token])
    }

    fn covariance(&self, token: usize) -> f64 {
        (self.advantages[token] - self.mean_advantage) * (self.logprobs[token] - self.mean_logprob)
    }

    fn key(&self, seed: u64, token: usize) -> u64 {
        key(seed, &[self.places[token], self.old_logprobs[token].to_bits(), self.advantages[token].to_bits()])
    }

    fn flags(&self, chosen: &[usize], device: Device) -> Result<Tensor, tch::TchError> {
        let mut flags = vec![false; self.mask.len()];
        for &token in chosen {
            flags[token] = true;
        }
        Tensor::from_slice(&flags).f_to_device(device)
    }
}

fn double(tensor: &Tensor) -> Tensor {
    tensor.to_kind(Kind::Double)
}
