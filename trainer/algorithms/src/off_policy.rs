//! Corrections for rollouts that another policy, or the same policy in another kernel, sampled.
//!
//! With `rho_t = exp(clamp(old - rollout, -20, 20))` of each trainable token, in this order:
//!
//! 1. **Outlier rows.** A row with a token below `outlier_token_is_threshold_low` or above
//!    `outlier_token_is_threshold_high` is dropped; either bound may be absent.
//! 2. **Token mask.** Tokens outside `[token_mask_is_threshold_low, token_mask_is_threshold_high]` are dropped.
//! 3. **Truncated importance sampling.** What is left is multiplied with `min(rho_t, token_tis_ratio_clip_high)`, or with
//!    the row's `min(prod_t rho_t, sequence_tis_ratio_clip_high)` (Yao et al., "Your efficient RL framework secretly brings
//!    you off-policy RL training", 2025; the sequence form is that of Liu et al., "When speed kills stability", 2025).
//! 4. **Sequence mask.** Rows whose geometric mean, or product, of `rho_t` is out of bounds are dropped (the same, section
//!    on masked importance sampling).
//!
//! Products and means are over the tokens that the steps before left, products through a log-sum clamped to `+-20`. The
//! result is constant: no gradient flows through it.
//!
//! Figures of ratios are over trainable tokens, so a masked token is no ratio of 0 or 1. The share that a part drops or caps is
//! one of the tokens, or of the rows with a token, that the parts before left.

use tch::{Kind, Tensor};

use crate::config::{OffPolicyConfig, SequenceMaskMetric, TisRatioType};
use crate::metrics::{Metrics, Recorder};
use crate::tokens::{Rows, TokenError, check_column, compute_kind, ratio};

/// Log-probabilities whose difference is to be corrected. All tensors are `[tokens]`.
#[derive(Clone, Copy, Debug)]
pub struct OffPolicyInput<'a> {
    /// Under the policy before the update, recomputed by the trainer.
    pub old_logprobs: &'a Tensor,
    /// As the sampler reported them.
    pub rollout_logprobs: &'a Tensor,
    /// Trainable tokens.
    pub mask: &'a Tensor,
    /// Row boundaries, `rows + 1` of them.
    pub row_offsets: &'a [i64],
}

/// What a correction does to a batch.
#[derive(Debug)]
pub struct Correction {
    /// What each token's loss is multiplied with, `[tokens]`; 0 where it is dropped.
    pub weights: Tensor,
    /// Trainable tokens that are left, `[tokens]`, bool. [`crate::reduction`] can take its denominators from these.
    pub kept: Tensor,
    /// `is_ratio_*`, and a share for each part that is switched on.
    pub metrics: Metrics,
}

/// Computes the correction of a batch of whole rows; none where nothing is switched on.
pub fn correct(config: &OffPolicyConfig, input: &OffPolicyInput<'_>) -> Result<Option<Correction>, TokenError> {
    if !config.is_active() {
        return Ok(None);
    }
    tch::no_grad(|| Corrector::new(input)?.run(config)).map(Some)
}

/// How far the trainer's log-probabilities are from the sampler's: `rollout_train_logprobs_abs_diff_max`, `_min`, `_mean`
/// and `_std` over trainable tokens.
pub fn logprob_difference(input: &OffPolicyInput<'_>) -> Result<Metrics, TokenError> {
    tch::no_grad(|| {
        let corrector = Corrector::new(input)?;
        let difference = (&corrector.old - &corrector.rollout).abs();
        let mut recorder = Recorder::default();
        recorder.max("rollout_train_logprobs_abs_diff_max", &difference, &corrector.trainable);
        recorder.min("rollout_train_logprobs_abs_diff_min", &difference, &corrector.trainable);
        recorder.mean("rollout_train_logprobs_abs_diff_mean", &difference, &corrector.trainable);
        recorder.std("rollout_train_logprobs_abs_diff_std", &difference, &corrector.trainable);
        Ok(recorder.finish()?)
    })
}

struct Corrector {
    rows: Rows,
    old: Tensor,
    rollout: Tensor,
    /// Trainable tokens.
    trainable: Tensor,
    recorder: Recorder,
}

impl Corrector {
    fn new(input: &OffPolicyInput<'_>) -> Result<Self, TokenError> {
        let (tokens, device) = (input.old_logprobs.numel() as i64, input.old_logprobs.device());
        for (column, tensor) in
            [("old_logprobs", input.old_logprobs), ("rollout_logprobs", input.rollout_logprobs), ("mask", input.mask)]
        {
            check_column(column, tensor, tokens, device)?;
        }
        let rows = Rows::new(input.row_offsets, tokens, device)?;
        let kind = compute_kind(input.old_logprobs);
        let trainable = input.mask.to_kind(Kind::Bool);
        let outside = trainable.logical_not();
        let clean = |tensor: &Tensor| tensor.detach().to_kind(kind).masked_fill(&outside, 0.0);
        Ok(Self {
            old: clean(input.old_logprobs),
            rollout: clean(input.rollout_logprobs),
            rows,
            trainable,
            recorder: Recorder::default(),
        })
    }

    fn run(mut self, config: &OffPolicyConfig) -> Result<Correction, TokenError> {
        let log_ratio = &self.old - &self.rollout;
        let rho = ratio(&self.old, &self.rollout);
        self.recorder.mean("is_ratio_mean", &rho, &self.trainable);
        self.recorder.std("is_ratio_std", &rho, &self.trainable);
        self.recorder.max("is_ratio_max", &rho, &self.trainable);
        self.recorder.min("is_ratio_min", &rho, &self.trainable);

        let mut kept = self.trainable.shallow_clone();
        if config.outlier_token_is_threshold_low.is_some() || config.outlier_token_is_threshold_high.is_some() {
            kept = self.drop_outlier_rows(config, &rho, &kept);
        }
        if let (Some(low), Some(high)) = (config.token_mask_is_threshold_low, config.token_mask_is_threshold_high) {
            let out = rho.lt(low).logical_or(&rho.gt(high));
            self.recorder.mean("token_mask_ratio", &out, &kept);
            kept = kept.logical_and(&out.logical_not());
        }
        let mut weights = rho.ones_like();
        if let Some(kind) = config.tis_ratio_type {
            weights = self.truncated_weights(kind, config, &rho, &log_ratio, &kept);
        }
        if let Some(metric) = config.sequence_mask_metric {
            kept = self.drop_rows_out_of_bounds(metric, config, &log_ratio, &kept);
        }
        let weights = weights.masked_fill(&kept.logical_not(), 0.0);
        Ok(Correction { weights, kept, metrics: self.recorder.finish()? })
    }

    fn drop_outlier_rows(&mut self, config: &OffPolicyConfig, rho: &Tensor, kept: &Tensor) -> Tensor {
        let none = || rho.zeros_like().to_kind(Kind::Bool);
        let over = config.outlier_token_is_threshold_high.map_or_else(none, |high| rho.gt(high));
        let under = config.outlier_token_is_threshold_low.map_or_else(none, |low| rho.lt(low));
        let (over, under) = (self.rows_with(&over.logical_and(kept)), self.rows_with(&under.logical_and(kept)));
        let left = self.rows_with(kept);
        let dropped = over.logical_or(&under);
        self.recorder.mean("outlier_seq_masked_ratio", &dropped, &left);
        self.recorder.mean("outlier_seq_over_high_ratio", &over, &left);
        self.recorder.mean("outlier_seq_under_low_ratio", &under, &left);
        kept.logical_and(&self.rows.spread(&dropped.logical_not()))
    }

    fn truncated_weights(
        &mut self,
        kind: TisRatioType,
        config: &OffPolicyConfig,
        rho: &Tensor,
        log_ratio: &Tensor,
        kept: &Tensor,
    ) -> Tensor {
        match kind {
            TisRatioType::Token => {
                let cap = config.token_tis_ratio_clip_high;
                self.recorder.mean("tis_token_clip_high_ratio", &rho.gt(cap), kept);
                rho.clamp_max(cap)
            }
            TisRatioType::Sequence => {
                let cap = config.sequence_tis_ratio_clip_high;
                let product = self.row_product(log_ratio, kept);
                self.recorder.mean("tis_seq_clip_high_ratio", &product.gt(cap), &self.rows_with(kept));
                self.rows.spread(&product.clamp_max(cap))
            }
        }
    }

    fn drop_rows_out_of_bounds(
        &mut self,
        metric: SequenceMaskMetric,
        config: &OffPolicyConfig,
        log_ratio: &Tensor,
        kept: &Tensor,
    ) -> Tensor {
        let (name, value, low, high) = match metric {
            SequenceMaskMetric::Geometric => {
                let mean = self.rows.masked_mean(log_ratio, kept).clamp(-20.0, 20.0).exp();
                ("geo", mean, config.geo_mask_low, config.geo_mask_high)
            }
            SequenceMaskMetric::Product => {
                ("product", self.row_product(log_ratio, kept), config.product_mask_low, config.product_mask_high)
            }
        };
        let left = self.rows_with(kept);
        let over = value.gt(high);
        let under = value.lt(low);
        let dropped = over.logical_or(&under);
        self.recorder.mean(&format!("{name}_sequence_mask_masked_ratio"), &dropped, &left);
        self.recorder.mean(&format!("{name}_sequence_mask_over_high_ratio"), &over, &left);
        self.recorder.mean(&format!("{name}_sequence_mask_under_low_ratio"), &under, &left);
        kept.logical_and(&self.rows.spread(&dropped.logical_not()))
    }

    /// Whether any of `tokens` is set, for each row.
    fn rows_with(&self, tokens: &Tensor) -> Tensor {
        self.rows.sum(&tokens.to_kind(Kind::Int64)).gt(0)
    }

    /// Product of the kept tokens' ratios, of each row.
    fn row_product(&self, log_ratio: &Tensor, kept: &Tensor) -> Tensor {
        self.rows.sum(&log_ratio.masked_fill(&kept.logical_not(), 0.0)).clamp(-20.0, 20.0).exp()
    }
}
