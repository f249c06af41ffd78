//! Estimators that follow rewards through the tokens of a row, and the one that takes them as they are.
//!
//! | estimator | formula | source |
//! |---|---|---|
//! | [`ReinforcePlusPlus`] | `R_t = r_t + gamma R_{t+1}`, whitened over the batch | Hu et al., arXiv:2501.03262, sec. 3 |
//! | [`Gae`] | `delta_t = r_t + gamma V_{t+1} - V_t`, `A_t = delta_t + gamma lambda A_{t+1}`, whitened over the batch | Schulman et al., arXiv:1506.02438, eq. 16 |
//! | [`NoOp`] | `r_t` | on-policy distillation: the reward is the teacher's log-ratio |
//!
//! A row ends with its last token: beyond it are no rewards and value 0. Masked tokens inside a row are what the environment
//! said; rewards flow back through them, so a later turn's reward reaches the turns before it, and so does one that sits on
//! an end-of-turn token that the policy did not sample. Results are whitened over trainable tokens only.

use super::{AdvantageBatch, AdvantageError, AdvantageEstimator, Estimate, TokenEstimate, whiten};

/// REINFORCE with discounted returns, whitened over the batch. See the module for the formula.
#[derive(Clone, Copy, Debug)]
pub struct ReinforcePlusPlus {
    /// Discount, a token.
    pub gamma: f64,
}

impl AdvantageEstimator for ReinforcePlusPlus {
    fn name(&self) -> &'static str {
        "reinforce++"
    }

    /// Returns are those before whitening.
    fn estimate(&self, batch: &AdvantageBatch<'_>) -> Result<Estimate, AdvantageError> {
        batch.require_single_rows(self.name())?;
        let returns: Vec<Vec<f64>> =
            batch
                .rows()
                .iter()
                .map(|row| {
                    if row.failed { vec![0.0; row.rewards.len()] } else { discounted_returns(row.rewards, self.gamma) }
                })
                .collect();
        Ok(whitened(batch, returns.clone(), returns))
    }
}

/// Generalised advantage estimation. See the module for the formula.
#[derive(Clone, Copy, Debug)]
pub struct Gae {
    /// Discount, a token.
    pub gamma: f64,
    /// From 0, one step ahead, to 1, the whole return.
    pub lambda: f64,
}

impl AdvantageEstimator for Gae {
    fn name(&self) -> &'static str {
        "gae"
    }

    /// Returns are the advantages before whitening, plus the values.
    fn estimate(&self, batch: &AdvantageBatch<'_>) -> Result<Estimate, AdvantageError> {
        batch.require_single_rows(self.name())?;
        let mut advantages = Vec::with_capacity(batch.rows().len());
        let mut returns = Vec::with_capacity(batch.rows().len());
        for (index, row) in batch.rows().iter().enumerate() {
            if row.failed {
                advantages.push(vec![0.0; row.rewards.len()]);
                returns.push(vec![0.0; row.rewards.len()]);
                continue;
            }
            let Some(values) = row.values else {
                return Err(AdvantageError::MissingValues { row: index, estimator: self.name().to_owned() });
            };
            let row_advantages = generalized_advantages(row.rewards, values, self.gamma, self.lambda);
            returns.push(row_advantages.iter().zip(values).map(|(a, &value)| a + f64::from(value)).collect());
            advantages.push(row_advantages);
        }
        Ok(whitened(batch, advantages, returns))
    }
}

/// Token rewards as advantages, neither followed nor whitened.
#[derive(Clone, Copy, Debug)]
pub struct NoOp;

impl AdvantageEstimator for NoOp {
    fn name(&self) -> &'static str {
        "no_op"
    }

    fn estimate(&self, batch: &AdvantageBatch<'_>) -> Result<Estimate, AdvantageError> {
        let tokens = batch.rows().iter().map(|row| {
            let rewards: Vec<f64> = row.rewards.iter().map(|&reward| f64::from(reward)).collect();
            TokenEstimate { advantages: rewards.clone(), returns: rewards }
        });
        Ok(Estimate::Tokens(tokens.collect()))
    }
}

/// `R_t = r_t + gamma R_{t+1}` of one row.
pub fn discounted_returns(rewards: &[f32], gamma: f64) -> Vec<f64> {
    let mut returns = vec![0.0; rewards.len()];
    let mut running = 0.0;
    for (slot, &reward) in returns.iter_mut().zip(rewards).rev() {
        running = f64::from(reward) + gamma * running;
        *slot = running;
    }
    returns
}

/// Generalised advantages of one row, not whitened. `rewards` and `values` have one entry for each response token.
pub fn generalized_advantages(rewards: &[f32], values: &[f32], gamma: f64, lambda: f64) -> Vec<f64> {
    let mut advantages = vec![0.0; rewards.len()];
    let (mut running, mut next_value) = (0.0, 0.0);
    for ((slot, &reward), &value) in advantages.iter_mut().zip(rewards).zip(values).rev() {
        let value = f64::from(value);
        let delta = f64::from(reward) + gamma * next_value - value;
        running = delta + gamma * lambda * running;
        next_value = value;
        *slot = running;
    }
    advantages
}

fn whitened(batch: &AdvantageBatch<'_>, mut advantages: Vec<Vec<f64>>, returns: Vec<Vec<f64>>) -> Estimate {
    let masks: Vec<&[u8]> = batch.rows().iter().map(|row| if row.failed { &[] } else { row.mask }).collect();
    whiten::whiten(&mut advantages, &masks);
    let tokens = advantages.into_iter().zip(returns);
    Estimate::Tokens(tokens.map(|(advantages, returns)| TokenEstimate { advantages, returns }).collect())
}
