//! The mathematics of reinforcement learning on language models, as pure functions.
//!
//! Data are packed: there is no padding anywhere. A batch is a list of rows, a row has response tokens, and what a loss
//! sees is the concatenation of all response tokens in flat `[tokens]` tensors with row offsets.
//!
//! | module | what lives there | works on |
//! |---|---|---|
//! | [`config`] | [`AlgorithmConfig`]: every key of `trainer.algorithm`, and the rules between them | - |
//! | [`advantages`] | estimators from rewards to advantages, whitening, normalisation | slices, `f64` inside |
//! | [`tree`] | what child trajectories are credited with, and how much a row of a tree weighs | slices |
//! | [`reduction`] | the weight of each token in the mini-batch's loss | slices |
//! | [`kl`] | estimators of the divergence to a reference, KL in the reward, KL as a loss, controllers | both |
//! | [`losses`] | policy losses | tensors |
//! | [`value_loss`], [`entropy`] | the critic's loss, the entropy bonus | tensors |
//! | [`off_policy`] | corrections for rollouts that another policy, or another kernel, sampled | tensors |
//! | [`filters`] | groups without signal, dynamic sampling, overlong responses | slices |
//! | [`reward_metrics`] | what is logged about rewards and advantages | slices |
//! | [`metrics`] | figures that merge over micro-batches and ranks as if there were one batch | - |
//!
//! Invariants:
//!
//! - **A loss is a sum.** Every loss is `sum over trainable tokens of scale * token loss`. The scales come from
//!   [`reduction`] and have their denominators from the whole mini-batch, so how the mini-batch is cut into micro-batches
//!   or spread over ranks changes nothing. Policy, KL and entropy terms share the same scales.
//! - **A masked token does not exist.** Whatever stands at a masked position, a NaN included, changes neither a loss, a
//!   gradient nor a metric.
//! - **Degenerate batches are ordinary.** Identical rewards, single samples, empty masks and failed rollouts have defined
//!   results; nothing divides by zero.

pub mod advantages;
pub mod config;
pub mod entropy;
pub mod filters;
pub mod kl;
pub mod losses;
pub mod metrics;
pub mod off_policy;
mod random;
pub mod reduction;
pub mod reward_metrics;
pub mod tokens;
pub mod tree;
pub mod value_loss;

pub use advantages::{AdvantageBatch, AdvantageEstimator, AdvantageRow, Advantages, compute_advantages};
pub use config::AlgorithmConfig;
pub use losses::{LossInput, LossOutput, PolicyLoss, policy_loss};
pub use metrics::Metrics;
pub use reduction::{Reduction, ReductionRow};
pub use tokens::TokenError;
pub use tree::{RowWeighting, TreeCredit};
