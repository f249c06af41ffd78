//! From rollout trees to rows that train.
//!
//! Only what the policy sampled trains: rows of trees whose tokens are known exactly, with the mask that the rollout set.
//! A rollout that failed has no reward and no mask; it stays in its group as failed.

use std::collections::HashMap;

use espalier_algorithms::advantages::{AdvantageBatch, AdvantageEstimator, AdvantageRow, compute_advantages};
use espalier_algorithms::config::AlgorithmConfig;
use espalier_algorithms::filters::{overlong, zero_variance_filter};
use espalier_algorithms::metrics::{Metric, Metrics};
use espalier_algorithms::reward_metrics::{advantage_metrics, reward_metrics};
use espalier_algorithms::tree::TreeCredit;
use espalier_generator::{Row, Trajectory, Tree};
use espalier_inference::Fidelity;
use serde::{Deserialize, Serialize};

use crate::error::TrainError;
use crate::update::{Column, UpdateRow};

/// One row of a rollout, before it has advantages.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RolloutRow {
    /// The row.
    pub row: Row,
    /// The trajectory it is part of.
    pub trajectory: String,
    /// The prompt it answers: the root's instance.
    pub prompt: String,
    /// The tree it belongs to.
    pub tree: String,
    /// 0 for a root.
    pub depth: u32,
    /// Whether the rollout failed.
    pub failed: bool,
}

/// Which rows of trees become training rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RowChoice {
    /// Whether children train too.
    pub children: bool,
    /// Whether rows of episodes that did not end by themselves (limits) keep their reward but lose their mask.
    pub overlong_filtering: bool,
    /// Whether such episodes lose their reward.
    pub zero_reward_on_non_stop: bool,
}

/// Rows of a tree, depth first: the root's, then its children's.
pub fn from_tree(tree: &Tree, choice: RowChoice) -> Result<Vec<RolloutRow>, TrainError> {
    let mut rows = Vec::new();
    for node in tree.nodes() {
        if !node.trained || (node.depth > 0 && !choice.children) {
            continue;
        }
        rows.extend(from_node(node, choice)?);
    }
    Ok(rows)
}

fn from_node(node: &Trajectory, choice: RowChoice) -> Result<Vec<RolloutRow>, TrainError> {
    let failed = node.stop.is_failure() || !node.stop.trains();
    if !failed && node.fidelity == Fidelity::Text {
        return Err(TrainError::Row {
            row: 0,
            reason: format!(
                "rollout `{}` has text only: its engine does not give the tokens that it sampled, so there is nothing to \
                 train on",
                node.rollout_id
            ),
        });
    }
    let natural = node.stop.is_natural();
    let made = node.rows.iter().filter(|row| !row.prompt_ids().is_empty()).map(|row| {
        let mut row = row.clone();
        if failed || (choice.overlong_filtering && !natural) {
            row.clear_mask();
        }
        if choice.zero_reward_on_non_stop && !natural {
            row.clear_rewards();
        }
        RolloutRow {
            row,
            trajectory: node.rollout_id.clone(),
            prompt: node.instance_id.clone(),
            tree: node.root_id.clone(),
            depth: node.depth,
            failed,
        }
    });
    Ok(made.collect())
}

/// Rows with advantages, and what is logged about them.
pub struct Prepared {
    /// What trains.
    pub rows: Vec<UpdateRow>,
    /// What a critic should have said of each response token.
    pub returns: Column,
    /// `reward/` and `loss/` figures.
    pub metrics: Metrics,
}

/// How the rows were sampled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sampled {
    /// Samples of each prompt.
    pub samples_per_prompt: u32,
    /// Longest response, tokens: what the punishment of long ones is measured against.
    pub max_response: usize,
}

/// Gives rows their advantages. `rewards` holds token rewards row by row, as they are or with a divergence taken off;
/// `values` what a critic says of each response token.
pub fn prepare(
    rows: &[RolloutRow],
    rewards: &[Vec<f32>],
    values: Option<&Column>,
    estimator: &dyn AdvantageEstimator,
    config: &AlgorithmConfig,
    sampling: Sampled,
) -> Result<Prepared, TrainError> {
    let raw: Vec<Vec<f32>> = rows.iter().map(|row| row.row.rewards().to_vec()).collect();
    let mut rewards = rewards.to_vec();
    if let Some(punishment) = &config.overlong {
        for (_, own) in rows.iter().zip(&mut rewards).filter(|(row, _)| row.depth == 0 && !row.failed) {
            overlong::punish_overlong(own, sampling.max_response, punishment);
        }
    }
    let groups: Vec<String> = rows.iter().map(|row| group_of(row, config.tree_credit)).collect();
    let seen = seen(rows, &groups, &rewards, values);
    let raw = self::seen(rows, &groups, &raw, None);
    let wrong = |e: espalier_algorithms::advantages::AdvantageError| TrainError::Row { row: 0, reason: e.to_string() };
    // What the environment gave; punishments and divergences are in `loss/`.
    let mut metrics = reward_metrics(&AdvantageBatch::new(&raw).map_err(wrong)?, sampling.samples_per_prompt);
    let batch = AdvantageBatch::new(&seen).map_err(wrong)?;
    let keep = if config.zero_variance_filter {
        let filtered = zero_variance_filter(&batch, config.tree_credit, config.zero_variance_filter_tol);
        metrics.insert("reward/num_zero_variance_filtered", Metric::Sum(filtered.filtered_groups as f64));
        filtered.keep
    } else {
        vec![true; rows.len()]
    };
    let advantages =
        compute_advantages(&seen, estimator, config.tree_credit, config.advantage_batch_normalize).map_err(wrong)?;
    metrics.merge(advantage_metrics(&seen, &advantages));
    let made = rows.iter().zip(advantages.advantages).zip(keep).map(|((row, advantages), keep)| {
        let mut tokens = row.row.prompt_ids().to_vec();
        tokens.extend_from_slice(row.row.response_ids());
        UpdateRow {
            tokens,
            response_start: row.row.prompt_ids().len(),
            mask: if keep && !row.failed { row.row.mask().to_vec() } else { vec![0; row.row.len()] },
            rollout_logprobs: row.row.logprobs().map(<[f32]>::to_vec),
            advantages,
            prompt: row.prompt.clone(),
            tree: row.tree.clone(),
        }
    });
    Ok(Prepared { rows: made.collect(), returns: advantages.returns, metrics })
}

/// Rows as estimators see them.
fn seen<'a>(
    rows: &'a [RolloutRow],
    groups: &'a [String],
    rewards: &'a [Vec<f32>],
    values: Option<&'a Column>,
) -> Vec<AdvantageRow<'a>> {
    let seen = rows.iter().zip(groups).zip(rewards).enumerate().map(|(i, ((row, group), rewards))| AdvantageRow {
        trajectory: &row.trajectory,
        group,
        tree: &row.tree,
        depth: row.depth,
        rewards,
        mask: row.row.mask(),
        values: values.and_then(|values| values.get(i)).map(Vec::as_slice),
        failed: row.failed,
    });
    seen.collect()
}

/// What a trajectory is compared with: the samples of its prompt, or for children with a credit of their own the other
/// children of the prompt at their depth.
fn group_of(row: &RolloutRow, credit: TreeCredit) -> String {
    if row.depth == 0 || credit != TreeCredit::Own {
        return row.prompt.clone();
    }
    format!("{}/depth {}", row.prompt, row.depth)
}

/// The roots of one prompt, in order of appearance: trajectory, score, whether it failed.
type Samples = Vec<(String, f64, bool)>;

/// Score of every root trajectory by prompt, failed ones left out: `(prompt, samples, scores)` in order of appearance.
pub fn scores(rows: &[RolloutRow]) -> Vec<(String, usize, Vec<f64>)> {
    let mut order: Vec<(String, Samples)> = Vec::new();
    let mut place: HashMap<&str, usize> = HashMap::new();
    for row in rows.iter().filter(|row| row.depth == 0) {
        let at = *place.entry(&row.prompt).or_insert_with(|| {
            order.push((row.prompt.clone(), Vec::new()));
            order.len() - 1
        });
        let samples = &mut order[at].1;
        match samples.iter_mut().find(|(id, _, _)| *id == row.trajectory) {
            Some((_, score, failed)) => {
                *score += row.row.reward();
                *failed |= row.failed;
            }
            None => samples.push((row.trajectory.clone(), row.row.reward(), row.failed)),
        }
    }
    order
        .into_iter()
        .map(|(prompt, samples)| {
            let scores = samples.iter().filter(|(_, _, failed)| !failed).map(|(_, score, _)| *score).collect();
            (prompt, samples.len(), scores)
        })
        .collect()
}
