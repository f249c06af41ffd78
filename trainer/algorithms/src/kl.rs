//! The divergence between the policy and its reference.
//!
//! | item | what it is |
//! |---|---|
//! | [`KlEstimator`] | one token's estimate, on numbers and on tensors |
//! | [`penalize_rewards`], [`KlController`] | the divergence in the reward, and its coefficient |
//! | [`kl_loss`] | the divergence as a term of the loss |
//!
//! With `d = log pi - log pi_ref` of a sampled token, estimators of `KL(pi || pi_ref)` (Schulman, "Approximating KL
//! Divergence", 2020):
//!
//! | name | estimate |
//! |---|---|
//! | `k1` | `d` |
//! | `abs` | `abs(d)` |
//! | `k2` | `d^2 / 2` |
//! | `k3` | `exp(-d) - 1 + d`, with `-d` clamped to `+-20` and the result to `+-10` |
//!
//! Both log-probabilities must be taken at the same temperature, or the estimate measures the temperature.

use serde::{Deserialize, Serialize};
use tch::{Kind, Tensor};
use thiserror::Error;

use crate::config::{AlgorithmConfig, KlControlConfig, KlControlKind};
use crate::metrics::{Metrics, Recorder};
use crate::tokens::{TokenError, check_column, compute_kind};

/// One token's estimate of the divergence. See the module for the formulas.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KlEstimator {
    /// The log-ratio.
    K1,
    /// Its size.
    Abs,
    /// Half its square.
    K2,
    /// Unbiased and never negative.
    #[default]
    K3,
}

impl KlEstimator {
    /// The estimate of one token, nats.
    pub fn estimate(self, logprob: f64, ref_logprob: f64) -> f64 {
        let difference = logprob - ref_logprob;
        match self {
            Self::K1 => difference,
            Self::Abs => difference.abs(),
            Self::K2 => difference * difference / 2.0,
            Self::K3 => {
                let negative = (-difference).clamp(-20.0, 20.0);
                (negative.exp() - negative - 1.0).clamp(-10.0, 10.0)
            }
        }
    }

    /// The estimates of many tokens; the gradient flows through `logprobs`.
    pub fn estimates(self, logprobs: &Tensor, ref_logprobs: &Tensor) -> Tensor {
        let difference = logprobs - ref_logprobs;
        match self {
            Self::K1 => difference,
            Self::Abs => difference.abs(),
            Self::K2 => difference.square() / 2.0,
            Self::K3 => {
                let negative = (-difference).clamp(-20.0, 20.0);
                (negative.exp() - negative - 1.0).clamp(-10.0, 10.0)
            }
        }
    }
}

/// Columns that do not belong to one row.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("`{column}` has {found} entries, the row has {expected} response tokens")]
pub struct KlLength {
    /// The column.
    pub column: &'static str,
    /// Response tokens of the row.
    pub expected: usize,
    /// Entries of the column.
    pub found: usize,
}

/// The divergence of one row, over its trainable tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RowKl {
    /// Mean, 0 without trainable tokens.
    pub mean: f64,
    /// Largest size.
    pub max: f64,
}

/// Takes `coefficient * kl` off the reward of every trainable token of a row, in place. A negative coefficient counts as 0.
pub fn penalize_rewards(
    rewards: &mut [f32],
    logprobs: &[f32],
    ref_logprobs: &[f32],
    mask: &[u8],
    estimator: KlEstimator,
    coefficient: f64,
) -> Result<RowKl, KlLength> {
    let expected = rewards.len();
    for (column, found) in [("logprobs", logprobs.len()), ("ref_logprobs", ref_logprobs.len()), ("mask", mask.len())] {
        if found != expected {
            return Err(KlLength { column, expected, found });
        }
    }
    let coefficient = coefficient.max(0.0);
    let (mut sum, mut max, mut count) = (0.0, 0.0_f64, 0_usize);
    for (index, reward) in rewards.iter_mut().enumerate().filter(|&(index, _)| mask[index] != 0) {
        let kl = estimator.estimate(f64::from(logprobs[index]), f64::from(ref_logprobs[index]));
        *reward = (f64::from(*reward) - coefficient * kl) as f32;
        sum += kl;
        max = max.max(kl.abs());
        count += 1;
    }
    Ok(RowKl { mean: sum / count.max(1) as f64, max })
}

/// The coefficient of a KL in the reward. Serialisable: it belongs into checkpoints.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "type", deny_unknown_fields)]
pub enum KlController {
    /// It stays.
    Fixed {
        /// The coefficient.
        #[serde(with = "exact")]
        value: f64,
    },
    /// It grows while the divergence is above its target and shrinks while it is below (Ziegler et al., arXiv:1909.08593,
    /// sec. 2.2).
    Adaptive {
        /// The coefficient.
        #[serde(with = "exact")]
        value: f64,
        /// The divergence aimed at, nats a token.
        target: f64,
        /// How slowly it moves, rows.
        horizon: f64,
    },
}

/// A number as text with all of its digits: readers of JSON may round numbers in the last one, and a run that goes on must
/// go on exactly.
mod exact {
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks for a reference")]
    pub(super) fn serialize<S: Serializer>(value: &f64, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&value.to_string())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
        let text = String::deserialize(from)?;
        let number = text.parse::<f64>().ok().filter(|value| value.is_finite());
        number.ok_or_else(|| D::Error::custom(format!("expected a finite number as text, found `{text}`")))
    }
}

impl KlController {
    /// What a configuration asks for, at its first coefficient.
    pub fn new(config: &AlgorithmConfig) -> Self {
        let value = config.kl_loss_coef;
        let KlControlConfig { kind, kl_target: target, horizon } = config.kl_ctrl;
        match kind {
            KlControlKind::Fixed => Self::Fixed { value },
            KlControlKind::Adaptive => Self::Adaptive { value, target, horizon },
        }
    }

    /// The coefficient.
    pub fn value(&self) -> f64 {
        match *self {
            Self::Fixed { value } | Self::Adaptive { value, .. } => value,
        }
    }

    /// Moves the coefficient after a batch of `rows` rows whose mean divergence was `kl`:
    /// `value *= 1 + clamp(kl / target - 1, -0.2, 0.2) * rows / horizon`. A divergence that is not a number moves nothing.
    pub fn update(&mut self, kl: f64, rows: usize) {
        if let Self::Adaptive { value, target, horizon } = self
            && kl.is_finite()
        {
            let error = (kl / *target - 1.0).clamp(-0.2, 0.2);
            *value *= 1.0 + error * rows as f64 / *horizon;
        }
    }
}

/// The divergence as a term of the loss: `sum over trainable tokens of scale * kl`, before its coefficient.
///
/// All tensors are `[tokens]`. With the scales of the policy loss, its weight relative to that loss does not depend on how
/// the mini-batch is cut. The metric `policy_kl` is the mean over trainable tokens.
pub fn kl_loss(
    estimator: KlEstimator,
    logprobs: &Tensor,
    ref_logprobs: &Tensor,
    scales: &Tensor,
    mask: &Tensor,
) -> Result<(Tensor, Metrics), TokenError> {
    let (tokens, device) = (logprobs.numel() as i64, logprobs.device());
    for (column, tensor) in [("logprobs", logprobs), ("ref_logprobs", ref_logprobs), ("scales", scales), ("mask", mask)]
    {
        check_column(column, tensor, tokens, device)?;
    }
    let kind = compute_kind(logprobs);
    let mask = mask.to_kind(Kind::Bool);
    let outside = mask.logical_not();
    let clean = |tensor: &Tensor| tensor.to_kind(kind).masked_fill(&outside, 0.0);
    let kl = estimator.estimates(&clean(logprobs), &clean(&ref_logprobs.detach()));
    let loss = (&kl * clean(&scales.detach())).sum(kind);
    let mut recorder = Recorder::default();
    recorder.mean("policy_kl", &kl, &mask);
    Ok((loss, recorder.finish()?))
}
