//! From token losses to one number: the weight of each token in the mini-batch's loss.
//!
//! Every term of the loss is a sum over trainable tokens of `scale * term`. All denominators are over the whole
//! mini-batch and the scales are known before the first micro-batch, so micro-batches and ranks only add. KL and entropy
//! terms take the same scales as the policy loss.
//!
//! With row weights `w` (see [`crate::tree`]; 1 without trees), `n_i` trainable tokens in row `i`, `W = sum_i w_i`:
//!
//! | [`LossReduction`] | scale of a token of row `i` | source |
//! |---|---|---|
//! | `token_mean` | `w_i / sum_j w_j n_j` | DAPO, arXiv:2503.14476, eq. 8 |
//! | `sequence_mean` | `w_i / (W n_i)` | GRPO, arXiv:2402.03300, eq. 3 |
//! | `seq_mean_token_sum_norm` | `w_i / (W max_seq_len)` | Dr. GRPO, arXiv:2503.20783, sec. 3.2 |
//! | `prompt_mean` | `w_i / (P sum_{j of the same prompt} w_j n_j)` with `P` prompts | - |
//!
//! **Tokens that off-policy correction drops.** With `count_masked_tokens = true`, the default, they stay in `n`: a batch
//! of which half is dropped gives half the gradient. With `false` the loss is the mean over what is kept: dropped tokens
//! leave `n`, rows without a kept token leave `W`, prompts without one leave `P`.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::config::AlgorithmConfig;

/// How token losses become one number. See the module for the formulas.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LossReduction {
    /// Every token weighs the same.
    #[default]
    TokenMean,
    /// Every row weighs the same.
    SequenceMean,
    /// Every row is divided by the same length.
    SeqMeanTokenSumNorm,
    /// Every prompt weighs the same.
    PromptMean,
}

/// Why scales cannot be computed.
#[derive(Clone, Debug, Error, PartialEq)]
pub enum ReductionError {
    /// `seq_mean_token_sum_norm` without its denominator.
    #[error("`trainer.algorithm.max_seq_len` is not set; `seq_mean_token_sum_norm` divides by it")]
    MissingMaxSeqLen,
    /// More kept than trainable tokens.
    #[error("row {row} keeps {kept} of {tokens} trainable tokens; a correction can only drop tokens")]
    Kept {
        /// The row.
        row: usize,
        /// Its trainable tokens.
        tokens: usize,
        /// Those that are left.
        kept: usize,
    },
    /// A weight that is negative or not a number.
    #[error("row {row} weighs {weight}, expected a finite number of at least 0")]
    Weight {
        /// The row.
        row: usize,
        /// Its weight.
        weight: f64,
    },
}

/// What the scales need to know of a row.
#[derive(Clone, Copy, Debug)]
pub struct ReductionRow<'a> {
    /// The prompt it answers, the root's for a child trajectory.
    pub prompt: &'a str,
    /// Its trainable tokens.
    pub tokens: usize,
    /// Those that off-policy correction leaves; `tokens` without correction.
    pub kept_tokens: usize,
    /// Its weight.
    pub weight: f64,
}

/// How the scales of a mini-batch are computed.
#[derive(Clone, Copy, Debug)]
pub struct Reduction {
    /// The formula.
    pub kind: LossReduction,
    /// Whether tokens that off-policy correction drops stay in the denominators.
    pub count_masked_tokens: bool,
    /// The denominator of `seq_mean_token_sum_norm`, tokens.
    pub max_seq_len: Option<u32>,
}

impl Reduction {
    /// What a configuration asks for.
    pub fn new(config: &AlgorithmConfig) -> Self {
        Self {
            kind: config.loss_reduction,
            count_masked_tokens: config.count_masked_tokens,
            max_seq_len: config.max_seq_len,
        }
    }

    /// The scale of every token of each row. `rows` is the whole mini-batch, over all micro-batches and ranks.
    pub fn row_scales(&self, rows: &[ReductionRow<'_>]) -> Result<Vec<f64>, ReductionError> {
        for (row, entry) in rows.iter().enumerate() {
            if entry.kept_tokens > entry.tokens {
                return Err(ReductionError::Kept { row, tokens: entry.tokens, kept: entry.kept_tokens });
            }
            if !(entry.weight.is_finite() && entry.weight >= 0.0) {
                return Err(ReductionError::Weight { row, weight: entry.weight });
            }
        }
        let tokens =
            |row: &ReductionRow<'_>| (if self.count_masked_tokens { row.tokens } else { row.kept_tokens }) as f64;
        let counts = |row: &ReductionRow<'_>| self.count_masked_tokens || row.kept_tokens > 0;
        let weighted = |row: &ReductionRow<'_>| row.weight * tokens(row);
        let total_weight = || rows.iter().filter(|row| counts(row)).map(|row| row.weight).sum::<f64>();

        Ok(match self.kind {
            LossReduction::TokenMean => {
                let total: f64 = rows.iter().map(weighted).sum();
                rows.iter().map(|row| over(row.weight, total)).collect()
            }
            LossReduction::SequenceMean => {
                let total = total_weight();
                rows.iter().map(|row| over(row.weight, total * tokens(row))).collect()
            }
            LossReduction::SeqMeanTokenSumNorm => {
                let length = self.max_seq_len.filter(|&length| length > 0).ok_or(ReductionError::MissingMaxSeqLen)?;
                let total = total_weight() * f64::from(length);
                rows.iter().map(|row| over(row.weight, total)).collect()
            }
            LossReduction::PromptMean => {
                let mut prompts: HashMap<&str, f64> = HashMap::new();
                for row in rows.iter().filter(|row| counts(row)) {
                    *prompts.entry(row.prompt).or_default() += weighted(row);
                }
                let of = |row: &ReductionRow<'_>| prompts.get(row.prompt).copied().unwrap_or(0.0);
                rows.iter().map(|row| over(row.weight, prompts.len() as f64 * of(row))).collect()
            }
        })
    }
}

/// A quotient, 0 where there is nothing to divide among.
fn over(weight: f64, total: f64) -> f64 {
    if total > 0.0 { weight / total } else { 0.0 }
}

/// Gives every response token its row's scale: the flat `scales` that losses take. `lengths` are the rows' response
/// lengths, masked tokens included.
pub fn token_scales(row_scales: &[f64], lengths: &[usize]) -> Vec<f32> {
    row_scales.iter().zip(lengths).flat_map(|(&scale, &length)| std::iter::repeat_n(scale as f32, length)).collect()
}
