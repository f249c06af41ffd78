//! What is logged about rewards and advantages.
//!
//! | name | what it is |
//! |---|---|
//! | `reward/avg_pass_at_{n}` | share of groups with a trajectory whose total reward is above 0 |
//! | `reward/avg_raw_reward` | mean total reward of a trajectory |
//! | `reward/mean_positive_reward` | mean sum of a trajectory's positive rewards |
//! | `reward/num_failed` | trajectories that failed and have no reward |
//! | `loss/avg_final_rewards` | mean total reward of a row, after a KL in the reward |
//! | `loss/avg_raw_advantages`, `loss/avg_raw_advantages_abs` | mean advantage of a trainable token, and mean size |
//!
//! Rewards are those of roots: a child's reward is not the task's. A group without any live trajectory is not counted.

use std::collections::HashMap;

use crate::advantages::{AdvantageBatch, AdvantageRow, Advantages};
use crate::metrics::{Metric, Metrics};

/// The `reward/` figures of a batch as it was sampled, before anything is masked or punished.
pub fn reward_metrics(batch: &AdvantageBatch<'_>, samples_per_prompt: u32) -> Metrics {
    let roots = || batch.trajectories().iter().filter(|trajectory| trajectory.depth == 0);
    let live = || roots().filter(|trajectory| !trajectory.failed);
    let count = live().count() as f64;
    let mut passed: HashMap<&str, bool> = HashMap::new();
    for trajectory in live() {
        *passed.entry(trajectory.group).or_default() |= trajectory.score > 0.0;
    }
    let mut metrics = Metrics::default();
    metrics.insert(
        format!("reward/avg_pass_at_{samples_per_prompt}"),
        Metric::Mean { sum: passed.values().filter(|&&passed| passed).count() as f64, weight: passed.len() as f64 },
    );
    let mean = |sum: f64| Metric::Mean { sum, weight: count };
    metrics.insert("reward/avg_raw_reward", mean(live().map(|trajectory| trajectory.score).sum()));
    metrics.insert("reward/mean_positive_reward", mean(live().map(|trajectory| trajectory.positive_score).sum()));
    metrics.insert("reward/num_failed", Metric::Sum(roots().count() as f64 - count));
    metrics
}

/// The `loss/` figures of a batch as it trains.
pub fn advantage_metrics(rows: &[AdvantageRow<'_>], advantages: &Advantages) -> Metrics {
    let live = || rows.iter().filter(|row| !row.failed);
    let reward = live().flat_map(|row| row.rewards).map(|&reward| f64::from(reward)).sum();
    let (mut sum, mut size, mut tokens) = (0.0, 0.0, 0.0);
    for (row, values) in rows.iter().zip(&advantages.advantages).filter(|(row, _)| !row.failed) {
        for (_, &value) in row.mask.iter().zip(values).filter(|&(&bit, _)| bit != 0) {
            sum += f64::from(value);
            size += f64::from(value.abs());
            tokens += 1.0;
        }
    }
    let mut metrics = Metrics::default();
    metrics.insert("loss/avg_final_rewards", Metric::Mean { sum: reward, weight: live().count() as f64 });
    metrics.insert("loss/avg_raw_advantages", Metric::Mean { sum, weight: tokens });
    metrics.insert("loss/avg_raw_advantages_abs", Metric::Mean { sum: size, weight: tokens });
    metrics
}
