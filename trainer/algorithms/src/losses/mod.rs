//! Policy losses on flat tensors of response tokens.
//!
//! | item | what it is |
//! |---|---|
//! | [`policy_loss`] | computes a loss: checks the input, applies correction, scales and mask, sums, records figures |
//! | [`LossInput`], [`LossOutput`] | what goes in and what comes out |
//! | [`PolicyLoss`], [`TokenBatch`] | one token's loss, built in or custom, and what it may read |
//! | [`select_tokens`] | the choice that `clip_cov` and `kl_cov` make over a whole mini-batch |
//! | [`built_in`] | the loss that a configuration names |
//!
//! The loss is `sum over trainable tokens of scale * correction * l`. With `lp` the log-probability under the policy being
//! trained, `r = exp(clamp(lp - old, -20, 20))`, `sg` a stopped gradient, `A` the advantage:
//!
//! | name | `l` | source |
//! |---|---|---|
//! | [`ppo::Regular`] | `-min(r A, clamp(r, 1 - lo, 1 + hi) A)` | PPO, arXiv:1707.06347, eq. 7; separate bounds: DAPO, arXiv:2503.14476, eq. 10 |
//! | [`ppo::DualClip`] | as `regular`; where `A < 0`, at most `-c A` | Ye et al., arXiv:1912.09729, eq. 5 |
//! | [`gspo::Gspo`] | `regular` with `r_t = exp(min(10, lp - sg(lp) + sg(mean of lp - old over the row)))` | GSPO-token, arXiv:2507.18071, eq. 14 |
//! | [`sapo::Sapo`] | `-A sigmoid(tau (r - 1)) 4 / tau`, `tau` by the sign of `A` | SAPO, arXiv:2511.20347 |
//! | [`weighted::Cispo`] | `-sg(clamp(r, 1 - lo, 1 + hi)) A lp` | CISPO (MiniMax-M1), arXiv:2506.13585, eq. 4 |
//! | [`weighted::RolloutIs`] | `-sg(r) A lp` where `1 - lo < r < 1 + hi`, else 0; `r` against the sampler | - |
//! | [`dppo::Dppo`] | `-m r A`, `m` 0 where the update left the trust region; `r` against the sampler | DPPO, arXiv:2602.04879 |
//! | [`covariance::ClipCov`] | `max(-r A, -clamp(r) A)`, 0 on chosen tokens | Cui et al., arXiv:2505.22617, eq. 11 |
//! | [`covariance::KlCov`] | `-r A`, plus `k abs(lp - old)` on chosen tokens | Cui et al., arXiv:2505.22617, eq. 13 |
//! | [`likelihood::CrossEntropy`] | `-lp` | - |
//! | [`likelihood::ImportanceSampling`] | `-exp(lp - old) A` | - |
//!
//! Advantages are not pre-scaled: the scale is a column of its own. For losses that are linear in `A` that is the same; for
//! thresholds on covariances, KL penalties and likelihoods it is what makes them independent of the batch's size.

pub mod covariance;
pub mod dppo;
pub mod gspo;
pub mod likelihood;
pub mod ppo;
pub mod sapo;
pub mod weighted;

use tch::{Kind, Tensor};

use crate::config::{AlgorithmConfig, CispoAnchor, PolicyLossKind};
use crate::metrics::{Metrics, Recorder};
use crate::tokens::{Rows, TokenError, check_column, compute_kind, first_non_finite};

/// What a policy loss reads. Every tensor is `[tokens]`: the response tokens of all rows, one row after the other.
#[derive(Clone, Copy, Debug)]
pub struct LossInput<'a> {
    /// Log-probabilities under the policy being trained; the gradient flows through these alone.
    pub logprobs: &'a Tensor,
    /// Log-probabilities under the policy before the update, recomputed by the trainer.
    pub old_logprobs: Option<&'a Tensor>,
    /// Log-probabilities as the sampler reported them.
    pub rollout_logprobs: Option<&'a Tensor>,
    /// Advantages, not scaled.
    pub advantages: Option<&'a Tensor>,
    /// Weight of each token, see [`crate::reduction`].
    pub scales: &'a Tensor,
    /// Trainable tokens: not 0. Whatever stands at other tokens is ignored.
    pub mask: &'a Tensor,
    /// Row boundaries, `rows + 1` of them.
    pub row_offsets: &'a [i64],
    /// Weights of [`crate::off_policy::correct`].
    pub correction: Option<&'a Tensor>,
    /// What [`select_tokens`] chose over the whole mini-batch, cut to these tokens; none chooses among these tokens alone.
    pub selection: Option<&'a Tensor>,
}

/// What a policy loss gives.
#[derive(Debug)]
pub struct LossOutput {
    /// The loss, a scalar with a gradient.
    pub loss: Tensor,
    /// What each token adds to it, `[tokens]`, without a gradient.
    pub token_losses: Tensor,
    /// Figures that merge over micro-batches.
    pub metrics: Metrics,
}

/// A loss of one token. The sum, the mask, the scales and the correction are not its business.
pub trait PolicyLoss: Send + Sync {
    /// Its name, for messages.
    fn name(&self) -> &str;

    /// The loss of each token, `[tokens]`, neither masked nor scaled. Figures go to `metrics`.
    fn token_losses(&self, batch: &TokenBatch, metrics: &mut Recorder) -> Result<Tensor, TokenError>;

    /// Whether off-policy correction may weigh its tokens.
    fn accepts_correction(&self) -> bool {
        true
    }

    /// Tokens that it treats differently, as bools, for losses that choose some by looking at the whole batch.
    fn select(&self, batch: &TokenBatch) -> Result<Option<Tensor>, TokenError> {
        let _ = batch;
        Ok(None)
    }
}

/// What a [`PolicyLoss`] may read: checked, in one kind (`f64` if the log-probabilities are, else `f32`), and 0 at masked
/// tokens.
#[derive(Debug)]
pub struct TokenBatch {
    loss: String,
    /// Log-probabilities under the policy being trained.
    pub logprobs: Tensor,
    old_logprobs: Option<Tensor>,
    rollout_logprobs: Option<Tensor>,
    advantages: Option<Tensor>,
    /// Weight of each token.
    pub scales: Tensor,
    /// Trainable tokens, bool.
    pub mask: Tensor,
    /// Which row each token belongs to.
    pub rows: Rows,
    correction: Option<Tensor>,
    selection: Option<Tensor>,
}

impl TokenBatch {
    /// Checks the input of a loss.
    fn new(loss: &str, input: &LossInput<'_>) -> Result<Self, TokenError> {
        let (tokens, device) = (input.logprobs.numel() as i64, input.logprobs.device());
        let columns = [
            ("logprobs", Some(input.logprobs)),
            ("old_logprobs", input.old_logprobs),
            ("rollout_logprobs", input.rollout_logprobs),
            ("advantages", input.advantages),
            ("scales", Some(input.scales)),
            ("mask", Some(input.mask)),
            ("correction", input.correction),
            ("selection", input.selection),
        ];
        for (column, tensor) in columns {
            if let Some(tensor) = tensor {
                check_column(column, tensor, tokens, device)?;
            }
        }
        let rows = Rows::new(input.row_offsets, tokens, device)?;
        let kind = compute_kind(input.logprobs);
        let mask = input.mask.to_kind(Kind::Bool);
        let outside = mask.logical_not();
        // Filled before any arithmetic: 0 times the gradient of a NaN is a NaN.
        let clean = |tensor: &Tensor| tensor.to_kind(kind).masked_fill(&outside, 0.0);
        let constant = |tensor: &Tensor| clean(&tensor.detach());
        Ok(Self {
            loss: loss.to_owned(),
            logprobs: clean(input.logprobs),
            old_logprobs: input.old_logprobs.map(constant),
            rollout_logprobs: input.rollout_logprobs.map(constant),
            advantages: input.advantages.map(constant),
            scales: constant(input.scales),
            rows,
            correction: input.correction.map(constant),
            selection: input.selection.map(|selection| selection.to_kind(Kind::Bool).logical_and(&mask)),
            mask,
        })
    }

    /// Log-probabilities under the policy before the update.
    pub fn old_logprobs(&self) -> Result<&Tensor, TokenError> {
        self.require("old_logprobs", self.old_logprobs.as_ref(), "run the policy forward before the update")
    }

    /// Log-probabilities as the sampler reported them.
    pub fn rollout_logprobs(&self) -> Result<&Tensor, TokenError> {
        let hint = "set `generator.sampling_params.logprobs = 1`";
        self.require("rollout_logprobs", self.rollout_logprobs.as_ref(), hint)
    }

    /// What the sampler reported, or the policy before the update where it reported nothing.
    pub fn sampler_logprobs(&self) -> Result<&Tensor, TokenError> {
        if self.rollout_logprobs.is_some() { self.rollout_logprobs() } else { self.old_logprobs() }
    }

    /// Advantages, not scaled.
    pub fn advantages(&self) -> Result<&Tensor, TokenError> {
        self.require("advantages", self.advantages.as_ref(), "compute them with `compute_advantages`")
    }

    /// What was chosen over the whole mini-batch, if anything was.
    pub fn selection(&self) -> Option<&Tensor> {
        self.selection.as_ref()
    }

    fn require<'a>(
        &self,
        column: &'static str,
        tensor: Option<&'a Tensor>,
        hint: &'static str,
    ) -> Result<&'a Tensor, TokenError> {
        tensor.ok_or_else(|| TokenError::Missing { loss: self.loss.clone(), column, hint })
    }
}

/// Computes a policy loss of a micro-batch.
///
/// The result is a sum: losses of micro-batches add up to the loss of the mini-batch, and so do their gradients, provided
/// that losses which choose tokens get the mini-batch's [`LossInput::selection`]. There is one copy from the device, for
/// the figures. Fails if the loss is not finite, and names the row and the token.
pub fn policy_loss(loss: &dyn PolicyLoss, input: &LossInput<'_>) -> Result<LossOutput, TokenError> {
    let batch = TokenBatch::new(loss.name(), input)?;
    if batch.correction.is_some() && !loss.accepts_correction() {
        return Err(TokenError::CorrectionRefused { loss: batch.loss });
    }
    let mut recorder = Recorder::default();
    let token_losses = loss.token_losses(&batch, &mut recorder)?;
    if token_losses.size() != batch.logprobs.size() {
        let (tokens, found) = (batch.logprobs.numel() as i64, token_losses.size());
        return Err(TokenError::Answer { loss: batch.loss, tokens, found });
    }
    let mut token_losses = token_losses.masked_fill(&batch.mask.logical_not(), 0.0) * &batch.scales;
    if let Some(correction) = &batch.correction {
        token_losses *= correction;
    }
    let total = token_losses.sum(token_losses.kind());
    recorder.sum(FINITE, &total.isfinite());
    let mut metrics = recorder.finish()?;
    if metrics.remove(FINITE) != Some(1.0) {
        return Err(not_finite(&batch, &token_losses)?);
    }
    Ok(LossOutput { loss: total, token_losses: token_losses.detach(), metrics })
}

/// Carries "the loss is finite" in the one copy from the device.
const FINITE: &str = "finite";

fn not_finite(batch: &TokenBatch, token_losses: &Tensor) -> Result<TokenError, TokenError> {
    let loss = batch.loss.clone();
    let Some((row, token)) = first_non_finite(token_losses, &batch.rows)? else {
        return Ok(TokenError::Overflow { loss });
    };
    let at = batch.rows.offsets()[row] + token as i64;
    let entry = |tensor: Option<&Tensor>| tensor.map(|tensor| tensor.f_double_value(&[at])).transpose();
    Ok(TokenError::NotFinite {
        loss,
        row,
        token,
        value: token_losses.f_double_value(&[at])?,
        logprob: batch.logprobs.f_double_value(&[at])?,
        old_logprob: entry(batch.old_logprobs.as_ref())?,
        rollout_logprob: entry(batch.rollout_logprobs.as_ref())?,
        advantage: entry(batch.advantages.as_ref())?,
    })
}

/// Lets a loss choose its tokens over a whole mini-batch, once, before it is cut into micro-batches; none for losses that
/// do not choose.
///
/// `logprobs` may be those from before the update: no later ones are known for the whole mini-batch then.
pub fn select_tokens(loss: &dyn PolicyLoss, mini_batch: &LossInput<'_>) -> Result<Option<Tensor>, TokenError> {
    tch::no_grad(|| loss.select(&TokenBatch::new(loss.name(), mini_batch)?))
}

/// The built-in loss that a configuration names; none where it names a custom one. `seed` decides ties and random choices.
pub fn built_in(config: &AlgorithmConfig, seed: u64) -> Option<Box<dyn PolicyLoss>> {
    let range = ppo::ClipRange { low: config.eps_clip_low, high: config.eps_clip_high };
    Some(match config.policy_loss_type {
        PolicyLossKind::Regular => Box::new(ppo::Regular { range }),
        PolicyLossKind::DualClip => Box::new(ppo::DualClip { range, bound: config.clip_ratio_c }),
        PolicyLossKind::Gspo => Box::new(gspo::Gspo { range }),
        PolicyLossKind::Sapo => {
            Box::new(sapo::Sapo { tau_positive: config.sapo.tau_pos, tau_negative: config.sapo.tau_neg })
        }
        PolicyLossKind::Cispo => Box::new(weighted::Cispo {
            range: ppo::ClipRange { low: config.cispo.cispo_eps_clip_low, high: config.cispo.cispo_eps_clip_high },
            against_rollout: config.cispo.anchor == CispoAnchor::Rollout,
        }),
        PolicyLossKind::RolloutIs => Box::new(weighted::RolloutIs { range }),
        PolicyLossKind::Dppo => Box::new(dppo::Dppo {
            divergence: config.dppo.dppo_type,
            delta_low: config.dppo.delta_low,
            delta_high: config.dppo.delta_high,
        }),
        PolicyLossKind::ClipCov => Box::new(covariance::ClipCov { range, choice: config.clip_cov, seed }),
        PolicyLossKind::KlCov => Box::new(covariance::KlCov { choice: config.kl_cov, seed }),
        PolicyLossKind::CrossEntropy => Box::new(likelihood::CrossEntropy),
        PolicyLossKind::ImportanceSampling => Box::new(likelihood::ImportanceSampling),
        PolicyLossKind::Custom(_) => return None,
    })
}
