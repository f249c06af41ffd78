//! The rules between the keys of `trainer.algorithm`.

use std::fmt;

use thiserror::Error;

use super::{
    AdvantageEstimatorKind, AlgorithmConfig, CispoAnchor, DynamicSamplingKind, KlControlKind, PolicyLossKind,
    TisRatioType,
};
use crate::reduction::LossReduction;
use crate::tree::TreeCredit;

/// What the rules need to know of the rest of the configuration.
#[derive(Clone, Copy, Debug)]
pub struct Context<'a> {
    /// Whether `trainer.critic.model.path` is set.
    pub has_critic: bool,
    /// Whether `trainer.teacher.model.path` is set.
    pub has_teacher: bool,
    /// `generator.step_wise_trajectories`: one trajectory may be several rows.
    pub step_wise: bool,
    /// Whether the sampler's log-probabilities reach the trainer.
    pub rollout_logprobs: bool,
    /// `generator.n_samples_per_prompt`.
    pub samples_per_prompt: u32,
    /// Names of registered advantage estimators.
    pub custom_estimators: &'a [&'a str],
    /// Names of registered policy losses.
    pub custom_losses: &'a [&'a str],
}

impl Default for Context<'_> {
    fn default() -> Self {
        Self {
            has_critic: false,
            has_teacher: false,
            step_wise: false,
            rollout_logprobs: true,
            samples_per_prompt: 5,
            custom_estimators: &[],
            custom_losses: &[],
        }
    }
}

/// A rule that a configuration breaks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The key, below `trainer.algorithm`.
    pub key: &'static str,
    /// What is wrong, and what to change.
    pub message: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "`trainer.algorithm.{}`: {}", self.key, self.message)
    }
}

/// Every rule that a configuration breaks.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{}", list(.problems))]
pub struct InvalidConfig {
    /// In the order of the keys.
    pub problems: Vec<Problem>,
}

fn list(problems: &[Problem]) -> String {
    problems.iter().map(Problem::to_string).collect::<Vec<_>>().join("\n")
}

/// Something legal that is probably not meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigWarning {
    /// The key, below `trainer.algorithm`.
    pub key: &'static str,
    /// What may be wrong, and what to do.
    pub message: String,
}

impl fmt::Display for ConfigWarning {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "`trainer.algorithm.{}`: {}", self.key, self.message)
    }
}

/// Collects what the rules find.
#[derive(Default)]
struct Findings {
    problems: Vec<Problem>,
    warnings: Vec<ConfigWarning>,
}

impl Findings {
    fn problem(&mut self, key: &'static str, message: impl Into<String>) {
        self.problems.push(Problem { key, message: message.into() });
    }

    fn require(&mut self, holds: bool, key: &'static str, message: impl FnOnce() -> String) {
        if !holds {
            self.problem(key, message());
        }
    }

    fn warn(&mut self, key: &'static str, message: impl Into<String>) {
        self.warnings.push(ConfigWarning { key, message: message.into() });
    }

    /// A finite number at least `low`.
    fn at_least(&mut self, key: &'static str, value: f64, low: f64) {
        self.require(value.is_finite() && value >= low, key, || {
            format!("is {value}, expected a number of at least {low}")
        });
    }

    /// A finite number above `low`.
    fn above(&mut self, key: &'static str, value: f64, low: f64) {
        self.require(value.is_finite() && value > low, key, || format!("is {value}, expected a number above {low}"));
    }

    /// A number in `[low, high]`.
    fn within(&mut self, key: &'static str, value: f64, low: f64, high: f64) {
        self.require((low..=high).contains(&value), key, || {
            format!("is {value}, expected a number from {low} to {high}")
        });
    }
}

impl AlgorithmConfig {
    /// Rewrites deprecated keys, then checks every rule.
    ///
    /// All broken rules are reported at once. What is legal but probably not meant comes back as warnings, to be shown to
    /// the user. After success the deprecated keys are unset, so validating again gives no warning about them.
    pub fn validate(&mut self, context: &Context<'_>) -> Result<Vec<ConfigWarning>, InvalidConfig> {
        let mut findings = Findings::default();
        self.rewrite_deprecated(&mut findings);
        self.check_numbers(&mut findings);
        self.check_advantages(context, &mut findings);
        self.check_loss(context, &mut findings);
        self.check_off_policy(context, &mut findings);
        self.check_regularizers(&mut findings);
        self.check_distillation(context, &mut findings);
        self.check_sampling(context, &mut findings);
        if findings.problems.is_empty() {
            Ok(findings.warnings)
        } else {
            Err(InvalidConfig { problems: findings.problems })
        }
    }

    fn rewrite_deprecated(&mut self, findings: &mut Findings) {
        let cap = self.tis_imp_ratio_cap.take();
        let Some(use_tis) = self.use_tis.take() else {
            if cap.is_some() {
                findings.warn(
                    "tis_imp_ratio_cap",
                    "is deprecated and has no effect without `use_tis`; set \
                     `off_policy_correction.token_tis_ratio_clip_high` instead",
                );
            }
            return;
        };
        if !use_tis {
            findings.warn("use_tis", "is deprecated; remove it: without it nothing is corrected");
            return;
        }
        if self.off_policy_correction.tis_ratio_type == Some(TisRatioType::Sequence) {
            findings.problem(
                "use_tis",
                "means token ratios, but `off_policy_correction.tis_ratio_type` is `sequence`; remove `use_tis`",
            );
            return;
        }
        self.off_policy_correction.tis_ratio_type = Some(TisRatioType::Token);
        // The old default of -1 meant "no cap was given".
        if let Some(cap) = cap.filter(|&cap| cap > 0.0) {
            self.off_policy_correction.token_tis_ratio_clip_high = cap;
        }
        findings.warn(
            "use_tis",
            format!(
                "is deprecated; it was read as `off_policy_correction.tis_ratio_type = \"token\"` and \
                 `off_policy_correction.token_tis_ratio_clip_high = {}`",
                self.off_policy_correction.token_tis_ratio_clip_high
            ),
        );
    }

    fn check_numbers(&self, findings: &mut Findings) {
        findings.within("gamma", self.gamma, 0.0, 1.0);
        findings.within("lambd", self.lambd, 0.0, 1.0);
        findings.within("eps_clip_low", self.eps_clip_low, 0.0, 1.0);
        findings.at_least("eps_clip_high", self.eps_clip_high, 0.0);
        findings.above("clip_ratio_c", self.clip_ratio_c, 1.0);
        findings.above("value_clip", self.value_clip, 0.0);
        findings.above("sapo.tau_pos", self.sapo.tau_pos, 0.0);
        findings.above("sapo.tau_neg", self.sapo.tau_neg, 0.0);
        findings.within("cispo.cispo_eps_clip_low", self.cispo.cispo_eps_clip_low, 0.0, 1.0);
        findings.at_least("cispo.cispo_eps_clip_high", self.cispo.cispo_eps_clip_high, 0.0);
        findings.at_least("dppo.delta_low", self.dppo.delta_low, 0.0);
        findings.at_least("dppo.delta_high", self.dppo.delta_high, 0.0);
        findings.within("clip_cov.clip_ratio", self.clip_cov.clip_ratio, 0.0, 1.0);
        findings.require(self.clip_cov.clip_cov_lb < self.clip_cov.clip_cov_ub, "clip_cov.clip_cov_lb", || {
            format!(
                "is {}, expected less than `clip_cov.clip_cov_ub` = {}",
                self.clip_cov.clip_cov_lb, self.clip_cov.clip_cov_ub
            )
        });
        findings.within("kl_cov.kl_cov_frac", self.kl_cov.kl_cov_frac, 0.0, 1.0);
        findings.at_least("kl_cov.ppo_kl_coef", self.kl_cov.ppo_kl_coef, 0.0);
        findings.at_least("zero_variance_filter_tol", self.zero_variance_filter_tol, 0.0);
        if let Some(temperature) = self.temperature {
            findings.require(temperature.is_finite() && temperature > 0.0, "temperature", || {
                format!("is {temperature}, expected a number above 0, or nothing for the sampling temperature")
            });
        }
        if let Some(overlong) = &self.overlong {
            findings.require(overlong.buffer > 0, "overlong.buffer", || {
                "is 0, expected at least 1 token; remove `overlong` to switch the punishment off".to_owned()
            });
            findings.at_least("overlong.factor", overlong.factor, 0.0);
        }
    }

    fn check_advantages(&self, context: &Context<'_>, findings: &mut Findings) {
        match &self.advantage_estimator {
            AdvantageEstimatorKind::Gae => {
                findings.require(context.has_critic, "advantage_estimator", || {
                    "`gae` needs a critic; set `trainer.critic.model.path` or choose another estimator".to_owned()
                });
            }
            AdvantageEstimatorKind::Rloo if context.samples_per_prompt < 2 => findings.warn(
                "advantage_estimator",
                "`rloo` compares samples of one prompt, and `generator.n_samples_per_prompt` is 1: every advantage is 0",
            ),
            AdvantageEstimatorKind::Custom(name) if !context.custom_estimators.contains(&name.as_str()) => findings
                .problem(
                    "advantage_estimator",
                    unknown(name, "grpo, rloo, maxrl, reinforce++, gae, no_op", context.custom_estimators),
                ),
            _ => {}
        }
        let temporal = match self.advantage_estimator {
            AdvantageEstimatorKind::Gae => Some("gae"),
            AdvantageEstimatorKind::ReinforcePlusPlus => Some("reinforce++"),
            _ => None,
        };
        if let (Some(name), true) = (temporal, context.step_wise) {
            findings.problem(
                "advantage_estimator",
                format!(
                    "`{name}` follows rewards through one row, and `generator.step_wise_trajectories` cuts trajectories \
                     into rows; choose grpo, rloo or maxrl, or switch step-wise rows off"
                ),
            );
        }
        if let TreeCredit::Discounted { gamma } = self.tree_credit {
            findings.within("tree_credit.discounted.gamma", gamma, 0.0, 1.0);
        }
    }

    fn check_loss(&self, context: &Context<'_>, findings: &mut Findings) {
        if let PolicyLossKind::Custom(name) = &self.policy_loss_type
            && !context.custom_losses.contains(&name.as_str())
        {
            findings.problem(
                "policy_loss_type",
                unknown(
                    name,
                    "regular, dual_clip, gspo, sapo, cispo, rollout_is, dppo, clip_cov, kl_cov, cross_entropy, \
                     importance_sampling",
                    context.custom_losses,
                ),
            );
        }
        match self.loss_reduction {
            LossReduction::SeqMeanTokenSumNorm => findings.require(
                self.max_seq_len.is_some_and(|length| length > 0),
                "max_seq_len",
                || "`loss_reduction = \"seq_mean_token_sum_norm\"` divides by it; set it to the longest response, in tokens".to_owned(),
            ),
            _ => findings.require(self.max_seq_len != Some(0), "max_seq_len", || "is 0, expected at least 1 token".to_owned()),
        }
        if self.policy_loss_type == PolicyLossKind::Gspo && self.loss_reduction != LossReduction::SequenceMean {
            findings.warn(
                "loss_reduction",
                "`policy_loss_type = \"gspo\"` is defined with `sequence_mean`; another reduction weighs long responses more",
            );
        }
        let against_rollout = match self.policy_loss_type {
            PolicyLossKind::RolloutIs => Some("rollout_is"),
            PolicyLossKind::Cispo if self.cispo.anchor == CispoAnchor::Rollout => {
                Some("cispo with `anchor = \"rollout\"`")
            }
            _ => None,
        };
        if let (Some(name), false) = (against_rollout, context.rollout_logprobs) {
            findings.problem(
                "policy_loss_type",
                format!("{name} needs the sampler's log-probabilities; set `generator.sampling_params.logprobs = 1`"),
            );
        }
    }

    fn check_off_policy(&self, context: &Context<'_>, findings: &mut Findings) {
        let config = &self.off_policy_correction;
        findings.above("off_policy_correction.token_tis_ratio_clip_high", config.token_tis_ratio_clip_high, 0.0);
        findings.above("off_policy_correction.sequence_tis_ratio_clip_high", config.sequence_tis_ratio_clip_high, 0.0);
        let mut ordered = |key: &'static str, low: f64, high: f64| {
            findings.require(low >= 0.0 && low < high, key, || {
                format!("the range from {low} to {high} is empty or negative; expected 0 <= low < high")
            });
        };
        ordered("off_policy_correction.geo_mask_low", config.geo_mask_low, config.geo_mask_high);
        ordered("off_policy_correction.product_mask_low", config.product_mask_low, config.product_mask_high);
        if let (Some(low), Some(high)) = (config.outlier_token_is_threshold_low, config.outlier_token_is_threshold_high)
        {
            ordered("off_policy_correction.outlier_token_is_threshold_low", low, high);
        }
        match (config.token_mask_is_threshold_low, config.token_mask_is_threshold_high) {
            (Some(low), Some(high)) => ordered("off_policy_correction.token_mask_is_threshold_low", low, high),
            (Some(_), None) => findings.problem(
                "off_policy_correction.token_mask_is_threshold_high",
                "is missing: the token mask needs both bounds; set it, or unset `token_mask_is_threshold_low`",
            ),
            (None, Some(_)) => findings.problem(
                "off_policy_correction.token_mask_is_threshold_low",
                "is missing: the token mask needs both bounds; set it, or unset `token_mask_is_threshold_high`",
            ),
            (None, None) => {}
        }
        if !config.is_active() {
            return;
        }
        findings.require(context.rollout_logprobs, "off_policy_correction", || {
            "needs the sampler's log-probabilities; set `generator.sampling_params.logprobs = 1`".to_owned()
        });
        let name = match self.policy_loss_type {
            PolicyLossKind::ClipCov => "clip_cov",
            PolicyLossKind::KlCov => "kl_cov",
            PolicyLossKind::CrossEntropy => "cross_entropy",
            PolicyLossKind::ImportanceSampling => "importance_sampling",
            PolicyLossKind::Cispo if self.cispo.anchor == CispoAnchor::Rollout && config.tis_ratio_type.is_some() => {
                findings.problem(
                    "off_policy_correction.tis_ratio_type",
                    "`cispo` with `anchor = \"rollout\"` already weighs against the sampler; unset one of the two",
                );
                return;
            }
            _ => return,
        };
        findings.problem(
            "off_policy_correction",
            format!("does not combine with `policy_loss_type = \"{name}\"`; unset it or choose another loss"),
        );
    }

    fn check_regularizers(&self, findings: &mut Findings) {
        if self.use_kl_in_reward && self.use_kl_loss {
            findings.problem("use_kl_in_reward", "excludes `use_kl_loss`; set one of the two to false");
        }
        findings.at_least("kl_loss_coef", self.kl_loss_coef, 0.0);
        findings.at_least("entropy_loss_coef", self.entropy_loss_coef, 0.0);
        findings.above("kl_ctrl.kl_target", self.kl_ctrl.kl_target, 0.0);
        findings.above("kl_ctrl.horizon", self.kl_ctrl.horizon, 0.0);
        if self.kl_ctrl.kind == KlControlKind::Adaptive && !self.use_kl_in_reward {
            findings.warn("kl_ctrl.type", "`adaptive` moves the coefficient of `use_kl_in_reward` only, which is off");
        }
    }

    fn check_distillation(&self, context: &Context<'_>, findings: &mut Findings) {
        let Some(distillation) = &self.distillation else { return };
        findings.above("distillation.coef", distillation.coef, 0.0);
        findings.require(context.has_teacher, "distillation", || {
            "needs a teacher; set `trainer.teacher.model.path`, or remove `distillation`".to_owned()
        });
        let group = match self.advantage_estimator {
            AdvantageEstimatorKind::Grpo => "grpo",
            AdvantageEstimatorKind::Rloo => "rloo",
            AdvantageEstimatorKind::Maxrl => "maxrl",
            _ => return,
        };
        findings.warn(
            "advantage_estimator",
            format!(
                "`{group}` adds up the rewards that `distillation` gives to tokens and compares whole responses; `no_op` \
                 gives each token its own"
            ),
        );
    }

    fn check_sampling(&self, context: &Context<'_>, findings: &mut Findings) {
        let sampling = &self.dynamic_sampling;
        findings.require(sampling.max_sample_batches > 0, "dynamic_sampling.max_sample_batches", || {
            "is 0, expected at least 1: sampling without a bound is not offered".to_owned()
        });
        findings.within("dynamic_sampling.min_replace_ratio", sampling.min_replace_ratio, 0.0, 1.0);
        if let (Some(kind), true) = (sampling.kind, context.samples_per_prompt < 2) {
            let name = match kind {
                DynamicSamplingKind::Filter => "filter",
                DynamicSamplingKind::Replace => "replace",
            };
            findings.warn(
                "dynamic_sampling.type",
                format!(
                    "`{name}` compares samples of one prompt, and `generator.n_samples_per_prompt` is 1: it keeps all"
                ),
            );
        }
    }
}

fn unknown(name: &str, built_in: &str, custom: &[&str]) -> String {
    let registered = if custom.is_empty() { "none".to_owned() } else { custom.join(", ") };
    format!("`{name}` is unknown; built in: {built_in}; registered: {registered}")
}
