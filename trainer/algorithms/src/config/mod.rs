//! Every key of `trainer.algorithm`, and the rules between them.
//!
//! | item | what it is |
//! |---|---|
//! | [`AlgorithmConfig`] | the keys, with their defaults |
//! | [`AlgorithmConfig::validate`] | the rules; names the key that breaks one and says what to change |
//! | the other structs and enums | the nested sections |

mod validate;

use serde::{Deserialize, Serialize};

pub use validate::{ConfigWarning, Context, InvalidConfig, Problem};

use crate::kl::KlEstimator;
use crate::reduction::LossReduction;
use crate::tree::{RowWeighting, TreeCredit};

/// How rewards become advantages. See [`crate::advantages`] for the formulas.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AdvantageEstimatorKind {
    /// Scores relative to their group.
    #[default]
    Grpo,
    /// Scores against the mean of the others.
    Rloo,
    /// Scores relative to their group's mean.
    Maxrl,
    /// Discounted returns, whitened over the batch.
    #[serde(rename = "reinforce++")]
    ReinforcePlusPlus,
    /// Generalised advantages with a critic.
    Gae,
    /// Token rewards as they are.
    NoOp,
    /// An estimator that the program registers under this name.
    #[serde(untagged)]
    Custom(String),
}

/// What is minimised. See [`crate::losses`] for the formulas.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PolicyLossKind {
    /// PPO's clipped surrogate.
    #[default]
    Regular,
    /// PPO's, bounded where the advantage is negative.
    DualClip,
    /// Sequence-level ratios.
    Gspo,
    /// A soft gate in place of the clip.
    Sapo,
    /// Clipped importance weights on the log-likelihood.
    Cispo,
    /// Importance weights against the sampler, tokens out of range dropped.
    RolloutIs,
    /// Tokens masked by a divergence bound.
    Dppo,
    /// PPO's with some tokens of high covariance detached.
    ClipCov,
    /// A KL penalty on the tokens of highest covariance.
    KlCov,
    /// Negative log-likelihood.
    CrossEntropy,
    /// Plain importance sampling.
    ImportanceSampling,
    /// A loss that the program registers under this name.
    #[serde(untagged)]
    Custom(String),
}

/// How the coefficient of a KL in the reward moves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KlControlKind {
    /// It stays.
    #[default]
    Fixed,
    /// It follows a target.
    Adaptive,
}

/// `kl_ctrl`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct KlControlConfig {
    /// Whether the coefficient moves.
    #[serde(rename = "type")]
    pub kind: KlControlKind,
    /// The divergence that an adaptive coefficient aims at, nats a token.
    pub kl_target: f64,
    /// How slowly it moves, in rows.
    pub horizon: f64,
}

impl Default for KlControlConfig {
    fn default() -> Self {
        Self { kind: KlControlKind::Fixed, kl_target: 0.1, horizon: 10_000.0 }
    }
}

/// `sapo`: temperatures of the soft gate.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SapoConfig {
    /// Where the advantage is positive.
    pub tau_pos: f64,
    /// Elsewhere.
    pub tau_neg: f64,
}

impl Default for SapoConfig {
    fn default() -> Self {
        Self { tau_pos: 1.0, tau_neg: 1.05 }
    }
}

/// Which policy CISPO's ratios are against.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CispoAnchor {
    /// The policy before the update, recomputed by the trainer.
    #[default]
    Old,
    /// The policy as the sampler reported it.
    Rollout,
}

/// `cispo`: the range of the importance weights is `[1 - low, 1 + high]`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CispoConfig {
    /// How far below 1 a weight may lie.
    pub cispo_eps_clip_low: f64,
    /// How far above 1 a weight may lie.
    pub cispo_eps_clip_high: f64,
    /// What the weights are against.
    pub anchor: CispoAnchor,
}

impl Default for CispoConfig {
    fn default() -> Self {
        Self { cispo_eps_clip_low: 1.0, cispo_eps_clip_high: 4.0, anchor: CispoAnchor::Old }
    }
}

/// Which divergence DPPO bounds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DppoKind {
    /// Total variation of "this token or another".
    #[default]
    BinaryTv,
    /// Kullback-Leibler divergence of "this token or another".
    BinaryKl,
}

/// `dppo`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DppoConfig {
    /// The divergence.
    pub dppo_type: DppoKind,
    /// Its bound where the probability fell and the advantage is negative.
    pub delta_low: f64,
    /// Its bound where the probability rose and the advantage is positive.
    pub delta_high: f64,
}

impl Default for DppoConfig {
    fn default() -> Self {
        Self { dppo_type: DppoKind::BinaryTv, delta_low: 0.2, delta_high: 0.2 }
    }
}

/// `clip_cov`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ClipCovConfig {
    /// Share of the trainable tokens that are detached; at least one is.
    pub clip_ratio: f64,
    /// Only tokens whose covariance is above are candidates.
    pub clip_cov_lb: f64,
    /// Only tokens whose covariance is below are candidates.
    pub clip_cov_ub: f64,
}

impl Default for ClipCovConfig {
    fn default() -> Self {
        Self { clip_ratio: 2e-4, clip_cov_lb: 1.0, clip_cov_ub: 5.0 }
    }
}

/// `kl_cov`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct KlCovConfig {
    /// Share of the trainable tokens that get the penalty; at least one does.
    pub kl_cov_frac: f64,
    /// Weight of the penalty.
    pub ppo_kl_coef: f64,
}

impl Default for KlCovConfig {
    fn default() -> Self {
        Self { kl_cov_frac: 0.2, ppo_kl_coef: 1.0 }
    }
}

/// What to do with groups whose rewards do not differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DynamicSamplingKind {
    /// Sample more batches until enough other groups are there.
    Filter,
    /// Put copies of other groups in their place.
    Replace,
}

/// `dynamic_sampling`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DynamicSamplingConfig {
    /// What to do; none keeps every group.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<DynamicSamplingKind>,
    /// Batches sampled for one training step, at most.
    pub max_sample_batches: u32,
    /// `replace` needs more than this share of groups with a signal.
    pub min_replace_ratio: f64,
}

impl Default for DynamicSamplingConfig {
    fn default() -> Self {
        Self { kind: None, max_sample_batches: 30, min_replace_ratio: 0.3 }
    }
}

/// What truncated importance sampling multiplies a token's loss with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TisRatioType {
    /// The token's own ratio.
    Token,
    /// The product of its row's ratios.
    Sequence,
}

/// What a sequence mask looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SequenceMaskMetric {
    /// The geometric mean of a row's ratios.
    Geometric,
    /// Their product.
    Product,
}

/// `off_policy_correction`. See [`crate::off_policy`] for what each part does.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct OffPolicyConfig {
    /// Truncated importance sampling; none is off.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tis_ratio_type: Option<TisRatioType>,
    /// Cap of a token's ratio.
    pub token_tis_ratio_clip_high: f64,
    /// Cap of a sequence's ratio.
    pub sequence_tis_ratio_clip_high: f64,
    /// Drops rows whose ratio is out of bounds; none is off.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sequence_mask_metric: Option<SequenceMaskMetric>,
    /// Largest geometric mean that is kept.
    pub geo_mask_high: f64,
    /// Smallest geometric mean that is kept.
    pub geo_mask_low: f64,
    /// Largest product that is kept.
    pub product_mask_high: f64,
    /// Smallest product that is kept.
    pub product_mask_low: f64,
    /// Drops rows with a token whose ratio is below.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outlier_token_is_threshold_low: Option<f64>,
    /// Drops rows with a token whose ratio is above.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outlier_token_is_threshold_high: Option<f64>,
    /// Drops tokens whose ratio is below; needs the other bound too.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token_mask_is_threshold_low: Option<f64>,
    /// Drops tokens whose ratio is above; needs the other bound too.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token_mask_is_threshold_high: Option<f64>,
}

impl Default for OffPolicyConfig {
    fn default() -> Self {
        Self {
            tis_ratio_type: None,
            token_tis_ratio_clip_high: 2.0,
            sequence_tis_ratio_clip_high: 5.0,
            sequence_mask_metric: None,
            geo_mask_high: 1.01,
            geo_mask_low: 0.99,
            product_mask_high: 2.0,
            product_mask_low: 0.5,
            outlier_token_is_threshold_low: None,
            outlier_token_is_threshold_high: None,
            token_mask_is_threshold_low: None,
            token_mask_is_threshold_high: None,
        }
    }
}

impl OffPolicyConfig {
    /// Whether anything is switched on.
    pub fn is_active(&self) -> bool {
        self.tis_ratio_type.is_some()
            || self.sequence_mask_metric.is_some()
            || self.outlier_token_is_threshold_low.is_some()
            || self.outlier_token_is_threshold_high.is_some()
            || self.token_mask_is_threshold_low.is_some()
            || self.token_mask_is_threshold_high.is_some()
    }
}

/// `overlong`: DAPO's soft punishment of long responses.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct OverlongConfig {
    /// The punishment grows over this many tokens before the limit.
    pub buffer: u32,
    /// The punishment at the limit.
    pub factor: f64,
}

impl Default for OverlongConfig {
    fn default() -> Self {
        Self { buffer: 512, factor: 1.0 }
    }
}

/// `distillation`: the reverse KL to a teacher, `trainer.teacher.model`, as the reward of each token.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DistillationConfig {
    /// The reward of a trainable token is `coef * (log p_teacher - log p_policy)`.
    pub coef: f64,
    /// Whether the environment's rewards stay and are added.
    pub keep_rewards: bool,
}

impl Default for DistillationConfig {
    fn default() -> Self {
        Self { coef: 1.0, keep_rewards: false }
    }
}

/// `trainer.algorithm`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AlgorithmConfig {
    /// How rewards become advantages.
    pub advantage_estimator: AdvantageEstimatorKind,
    /// Whether GRPO divides by the group's standard deviation.
    pub grpo_norm_by_std: bool,
    /// Whether advantages are centred and scaled over the batch afterwards.
    pub advantage_batch_normalize: bool,
    /// Discount of later rewards, a token.
    pub gamma: f64,
    /// GAE's lambda.
    pub lambd: f64,
    /// What child trajectories are credited with.
    pub tree_credit: TreeCredit,
    /// How much a row of a tree weighs.
    pub row_weighting: RowWeighting,

    /// What is minimised.
    pub policy_loss_type: PolicyLossKind,
    /// How token losses become one number.
    pub loss_reduction: LossReduction,
    /// Whether tokens that off-policy correction drops stay in the denominators of `loss_reduction`.
    pub count_masked_tokens: bool,
    /// Denominator of `seq_mean_token_sum_norm`, tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_seq_len: Option<u32>,
    /// The ratio's range is `[1 - eps_clip_low, 1 + eps_clip_high]`.
    pub eps_clip_low: f64,
    /// The ratio's range is `[1 - eps_clip_low, 1 + eps_clip_high]`.
    pub eps_clip_high: f64,
    /// `dual_clip`'s bound on the ratio where the advantage is negative.
    pub clip_ratio_c: f64,
    /// The range of the value loss.
    pub value_clip: f64,
    /// Name of the critic's head among its weights.
    pub value_head_prefix: String,
    /// For `policy_loss_type = "sapo"`.
    pub sapo: SapoConfig,
    /// For `policy_loss_type = "cispo"`.
    pub cispo: CispoConfig,
    /// For `policy_loss_type = "dppo"`.
    pub dppo: DppoConfig,
    /// For `policy_loss_type = "clip_cov"`.
    pub clip_cov: ClipCovConfig,
    /// For `policy_loss_type = "kl_cov"`.
    pub kl_cov: KlCovConfig,
    /// Corrections for rollouts of another policy or another kernel.
    pub off_policy_correction: OffPolicyConfig,
    /// Deprecated: `off_policy_correction.tis_ratio_type = "token"`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub use_tis: Option<bool>,
    /// Deprecated: `off_policy_correction.token_tis_ratio_clip_high`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tis_imp_ratio_cap: Option<f64>,

    /// The estimator of the divergence to the reference.
    pub kl_estimator_type: KlEstimator,
    /// Whether the divergence is taken off the rewards.
    pub use_kl_in_reward: bool,
    /// Whether the divergence is a term of the loss.
    pub use_kl_loss: bool,
    /// Its weight, and the first coefficient of `kl_ctrl`.
    pub kl_loss_coef: f64,
    /// How the coefficient of a KL in the reward moves.
    pub kl_ctrl: KlControlConfig,
    /// On-policy distillation from a teacher; none is off.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub distillation: Option<DistillationConfig>,
    /// Whether entropy is a term of the loss.
    pub use_entropy_loss: bool,
    /// Its weight.
    pub entropy_loss_coef: f64,
    /// What logits are divided by before log-probabilities are taken, of the policy, the reference and a teacher alike;
    /// none is the sampling temperature.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub temperature: Option<f64>,

    /// Whether groups whose rewards do not differ are masked.
    pub zero_variance_filter: bool,
    /// Rewards that differ by no more than this are the same.
    pub zero_variance_filter_tol: f64,
    /// What happens to groups whose rewards do not differ before training.
    pub dynamic_sampling: DynamicSamplingConfig,
    /// The punishment of long responses; none is off.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub overlong: Option<OverlongConfig>,
}

impl Default for AlgorithmConfig {
    fn default() -> Self {
        Self {
            advantage_estimator: AdvantageEstimatorKind::default(),
            grpo_norm_by_std: true,
            advantage_batch_normalize: false,
            gamma: 1.0,
            lambd: 1.0,
            tree_credit: TreeCredit::default(),
            row_weighting: RowWeighting::default(),
            policy_loss_type: PolicyLossKind::default(),
            loss_reduction: LossReduction::default(),
            count_masked_tokens: true,
            max_seq_len: None,
            eps_clip_low: 0.2,
            eps_clip_high: 0.2,
            clip_ratio_c: 3.0,
            value_clip: 0.2,
            value_head_prefix: "value_head".to_owned(),
            sapo: SapoConfig::default(),
            cispo: CispoConfig::default(),
            dppo: DppoConfig::default(),
            clip_cov: ClipCovConfig::default(),
            kl_cov: KlCovConfig::default(),
            off_policy_correction: OffPolicyConfig::default(),
            use_tis: None,
            tis_imp_ratio_cap: None,
            kl_estimator_type: KlEstimator::default(),
            use_kl_in_reward: false,
            use_kl_loss: true,
            kl_loss_coef: 0.001,
            kl_ctrl: KlControlConfig::default(),
            distillation: None,
            use_entropy_loss: false,
            entropy_loss_coef: 0.01,
            temperature: None,
            zero_variance_filter: false,
            zero_variance_filter_tol: 1e-6,
            dynamic_sampling: DynamicSamplingConfig::default(),
            overlong: None,
        }
    }
}
