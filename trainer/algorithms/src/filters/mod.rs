//! Which groups and rows train at all.
//!
//! | item | what it is |
//! |---|---|
//! | [`zero_variance_filter`] | masks groups whose scores do not differ |
//! | [`dynamic_sampling`] | samples more, or copies, until every group has a signal |
//! | [`overlong`] | responses that were cut, or nearly |
//!
//! A group carries a signal if its scores differ by more than a tolerance. Scores are sums of all rewards of a trajectory,
//! so graded rewards, token rewards and step-wise rows are all the same here. A group of one sample by design has nothing to
//! differ from and counts as a signal.

pub mod dynamic_sampling;
pub mod overlong;

use std::collections::HashSet;

use crate::advantages::{AdvantageBatch, ScoredTrajectory};
use crate::tree::TreeCredit;

/// Whether scores carry a signal. `samples` is how many the group was to have, `scores` are those that did not fail.
pub fn carries_signal(samples: usize, scores: &[f64], tolerance: f64) -> bool {
    match scores {
        [] => false,
        [_] => samples <= 1,
        _ => {
            let low = scores.iter().copied().fold(f64::INFINITY, f64::min);
            let high = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            high - low > tolerance
        }
    }
}

/// What [`zero_variance_filter`] found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ZeroVariance {
    /// For each row of the batch, whether it trains; where not, its mask is to be cleared.
    pub keep: Vec<bool>,
    /// Groups without a signal, for `reward/num_zero_variance_filtered`.
    pub filtered_groups: usize,
}

/// Finds the rows of groups whose scores differ by no more than `tolerance`.
///
/// Where children have advantages of their own, every group is judged. Else groups of roots are, and a root takes its whole
/// tree along. Failed trajectories neither give a signal nor take one away.
pub fn zero_variance_filter(batch: &AdvantageBatch<'_>, credit: TreeCredit, tolerance: f64) -> ZeroVariance {
    let judged = |trajectory: &ScoredTrajectory<'_>| credit == TreeCredit::Own || trajectory.depth == 0;
    let trajectories = batch.trajectories();
    let mut filtered_groups = 0;
    let (mut filtered, mut filtered_trees) = (HashSet::new(), HashSet::new());
    for (_, places) in batch.groups() {
        let group: Vec<_> = places.iter().map(|&place| &trajectories[place]).filter(|member| judged(member)).collect();
        let scores: Vec<f64> = group.iter().filter(|member| !member.failed).map(|member| member.score).collect();
        if !group.is_empty() && !carries_signal(group.len(), &scores, tolerance) {
            filtered_groups += 1;
            filtered.extend(group.iter().map(|member| member.id));
            filtered_trees.extend(group.iter().map(|member| member.tree));
        }
    }
    let mut keep = vec![true; batch.rows().len()];
    for trajectory in trajectories {
        let out = if judged(trajectory) {
            filtered.contains(trajectory.id)
        } else {
            filtered_trees.contains(trajectory.tree)
        };
        for &row in trajectory.rows.iter().filter(|_| out) {
            keep[row] = false;
        }
    }
    ZeroVariance { keep, filtered_groups }
}
