//! Scores against the scores of their group.
//!
//! With scores `s` of a group of `n` trajectories, their mean `m`, their unbiased standard deviation `d`, and
//! `eps = 1e-6`:
//!
//! | estimator | advantage | single trajectory | source |
//! |---|---|---|---|
//! | [`Grpo`] | `(s - m) / (d + eps)` | `s / (1 + eps)` | Shao et al., arXiv:2402.03300, sec. 4.1.2 |
//! | [`Grpo`] without division | `s - m` | `s` | Liu et al. (Dr. GRPO), arXiv:2503.20783, sec. 3.2 |
//! | [`Rloo`] | `n / (n - 1) * (s - m)` | 0 | Ahmadian et al., arXiv:2402.14740, eq. 8 |
//! | [`MaxRl`] | `(s - m) / (m + eps)` | `s` | maximum-likelihood RL: the mean of a 0/1 score is the pass rate |
//!
//! A trajectory whose siblings all failed has nothing to compare with, which is not the same as a group of one by design:
//! it gets 0.

use super::{AdvantageBatch, AdvantageError, AdvantageEstimator, Estimate};

const EPSILON: f64 = 1e-6;

/// A formula on the scores of one group.
pub trait GroupFormula: Send + Sync {
    /// Its name, for messages.
    fn name(&self) -> &str;

    /// One advantage for each score. There is at least one score.
    fn advantages(&self, scores: &[f64]) -> Vec<f64>;
}

/// An estimator from a formula on groups.
#[derive(Clone, Copy, Debug)]
pub struct Grouped<F>(
    /// The formula.
    pub F,
);

impl<F: GroupFormula> AdvantageEstimator for Grouped<F> {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn estimate(&self, batch: &AdvantageBatch<'_>) -> Result<Estimate, AdvantageError> {
        let trajectories = batch.trajectories();
        let mut answers = vec![0.0; trajectories.len()];
        for (_, places) in batch.groups() {
            let live: Vec<usize> = places.iter().copied().filter(|&place| !trajectories[place].failed).collect();
            if live.is_empty() || (live.len() == 1 && places.len() > 1) {
                continue;
            }
            let scores: Vec<f64> = live.iter().map(|&place| trajectories[place].score).collect();
            let advantages = self.0.advantages(&scores);
            if advantages.len() != scores.len() {
                return Err(AdvantageError::Answer {
                    estimator: self.name().to_owned(),
                    what: "advantages for a group",
                    expected: scores.len(),
                    found: advantages.len(),
                });
            }
            for (place, advantage) in live.into_iter().zip(advantages) {
                answers[place] = advantage;
            }
        }
        Ok(Estimate::Trajectories(answers))
    }
}

/// Group relative policy optimisation. See the module for the formula.
#[derive(Clone, Copy, Debug)]
pub struct Grpo {
    /// Whether differences are divided by the group's standard deviation.
    pub divide_by_std: bool,
}

impl GroupFormula for Grpo {
    fn name(&self) -> &'static str {
        "grpo"
    }

    fn advantages(&self, scores: &[f64]) -> Vec<f64> {
        let (mean, std) = match scores {
            [_] => (0.0, 1.0),
            _ => {
                let mean = mean(scores);
                let squares: f64 = scores.iter().map(|score| (score - mean).powi(2)).sum();
                (mean, (squares / (scores.len() - 1) as f64).sqrt())
            }
        };
        let divisor = if self.divide_by_std { std + EPSILON } else { 1.0 };
        scores.iter().map(|score| (score - mean) / divisor).collect()
    }
}

/// REINFORCE leave-one-out. See the module for the formula.
#[derive(Clone, Copy, Debug)]
pub struct Rloo;

impl GroupFormula for Rloo {
    fn name(&self) -> &'static str {
        "rloo"
    }

    fn advantages(&self, scores: &[f64]) -> Vec<f64> {
        if let [_] = scores {
            return vec![0.0];
        }
        let count = scores.len() as f64;
        let mean = mean(scores);
        scores.iter().map(|score| count / (count - 1.0) * (score - mean)).collect()
    }
}

/// Maximum-likelihood reinforcement learning. See the module for the formula.
///
/// Meant for scores that are not negative: below a group mean of 0 the sign of every advantage turns.
#[derive(Clone, Copy, Debug)]
pub struct MaxRl;

impl GroupFormula for MaxRl {
    fn name(&self) -> &'static str {
        "maxrl"
    }

    fn advantages(&self, scores: &[f64]) -> Vec<f64> {
        if let [score] = scores {
            return vec![*score];
        }
        let mean = mean(scores);
        let divisor = mean + EPSILON;
        scores.iter().map(|score| if divisor == 0.0 { 0.0 } else { (score - mean) / divisor }).collect()
    }
}

fn mean(scores: &[f64]) -> f64 {
    scores.iter().sum::<f64>() / scores.len() as f64
}
