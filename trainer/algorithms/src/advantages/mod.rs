//! From rewards to advantages.
//!
//! | item | what it is |
//! |---|---|
//! | [`AdvantageRow`], [`AdvantageBatch`] | rows, and the trajectories that they make up |
//! | [`AdvantageEstimator`] | an estimator, built in or custom |
//! | [`group`] | GRPO, RLOO, MaxRL: scores against their group |
//! | [`temporal`] | REINFORCE++, GAE, and token rewards as they are |
//! | [`whiten`] | centring and scaling |
//! | [`compute_advantages`] | all of it, with trees |
//!
//! **One score a trajectory.** A trajectory may be several rows, where its history was rewritten or each turn is a row. Its
//! score is the sum of all its rewards; estimators that compare scores see it once, and every row gets the result on its
//! own trainable tokens.
//!
//! **Failed rollouts** have no reward. They enter no baseline and get no advantage.

pub mod group;
pub mod temporal;
pub mod whiten;

use std::collections::HashMap;

use thiserror::Error;

use crate::config::{AdvantageEstimatorKind, AlgorithmConfig};
use crate::tree::TreeCredit;

/// One training row, as estimators see it. All slices have one entry for each response token.
#[derive(Clone, Copy, Debug)]
pub struct AdvantageRow<'a> {
    /// The trajectory it is part of.
    pub trajectory: &'a str,
    /// What the trajectory is compared with: the prompt for a root, whatever the caller groups by for a child.
    pub group: &'a str,
    /// The tree the trajectory belongs to.
    pub tree: &'a str,
    /// 0 for a root.
    pub depth: u32,
    /// Reward of each token.
    pub rewards: &'a [f32],
    /// 1 on trainable tokens.
    pub mask: &'a [u8],
    /// The critic's value of each token.
    pub values: Option<&'a [f32]>,
    /// Whether the rollout failed, so that it has no reward.
    pub failed: bool,
}

/// A trajectory with its score.
#[derive(Clone, Debug)]
pub struct ScoredTrajectory<'a> {
    /// Its name.
    pub id: &'a str,
    /// What it is compared with.
    pub group: &'a str,
    /// The tree it belongs to.
    pub tree: &'a str,
    /// 0 for a root.
    pub depth: u32,
    /// Sum of all rewards of all its rows.
    pub score: f64,
    /// Sum of those above 0.
    pub positive_score: f64,
    /// Whether any of its rows is of a failed rollout.
    pub failed: bool,
    /// Its rows, as indices into [`AdvantageBatch::rows`].
    pub rows: Vec<usize>,
}

/// Why advantages cannot be computed.
#[derive(Clone, Debug, Error, PartialEq)]
pub enum AdvantageError {
    /// A column is not as long as the rewards.
    #[error("row {row}: `{column}` has {found} entries, `rewards` has {expected}")]
    Length {
        /// The row.
        row: usize,
        /// The column.
        column: &'static str,
        /// Entries of `rewards`.
        expected: usize,
        /// Entries of the column.
        found: usize,
    },
    /// A reward or a value that is not finite.
    #[error(
        "row {row}: `{column}` entry {token} is {found}, expected a finite number; a failed rollout must say `failed`"
    )]
    NotFinite {
        /// The row.
        row: usize,
        /// The column.
        column: &'static str,
        /// Where.
        token: usize,
        /// What stands there.
        found: f32,
    },
    /// Rows of one trajectory that disagree.
    #[error("row {row} says that trajectory `{trajectory}` has another `{column}` than an earlier row says")]
    Disagreement {
        /// The row.
        row: usize,
        /// The trajectory.
        trajectory: String,
        /// What they disagree about.
        column: &'static str,
    },
    /// A tree without a root, or with several.
    #[error("tree `{tree}` has {found} trajectories of depth 0, expected one: children take their root's advantage")]
    Roots {
        /// The tree.
        tree: String,
        /// How many roots it has.
        found: usize,
    },
    /// An estimator that needs values, without a critic.
    #[error("row {row} has no `values`, which `{estimator}` needs; run the critic first")]
    MissingValues {
        /// The row.
        row: usize,
        /// The estimator.
        estimator: String,
    },
    /// An estimator that follows rewards through a row, and a trajectory of several.
    #[error(
        "`{estimator}` follows rewards through one row, and trajectory `{trajectory}` is {rows} rows; \
         choose grpo, rloo or maxrl, or train on merged rows"
    )]
    SeveralRows {
        /// The estimator.
        estimator: String,
        /// The trajectory.
        trajectory: String,
        /// How many rows it is.
        rows: usize,
    },
    /// Children that take their root's advantage, and an estimator that gives none for a whole trajectory.
    #[error(
        "`{estimator}` gives each token its own advantage, so tree `{tree}` has no one advantage for its children; \
         set `trainer.algorithm.tree_credit = \"own\"`"
    )]
    NoScalar {
        /// The estimator.
        estimator: String,
        /// The tree.
        tree: String,
    },
    /// A custom estimator that answered something of another size.
    #[error("`{estimator}` answered {found} {what}, expected {expected}")]
    Answer {
        /// The estimator.
        estimator: String,
        /// What was counted.
        what: &'static str,
        /// How many there should be.
        expected: usize,
        /// How many came.
        found: usize,
    },
}

/// Rows and the trajectories that they make up.
#[derive(Clone, Debug)]
pub struct AdvantageBatch<'a> {
    rows: Vec<AdvantageRow<'a>>,
    trajectories: Vec<ScoredTrajectory<'a>>,
}

impl<'a> AdvantageBatch<'a> {
    /// Checks the rows and gathers their trajectories, in the order in which they first appear.
    pub fn new(rows: &[AdvantageRow<'a>]) -> Result<Self, AdvantageError> {
        let mut trajectories: Vec<ScoredTrajectory<'a>> = Vec::new();
        let mut known: HashMap<&str, usize> = HashMap::new();
        for (index, row) in rows.iter().enumerate() {
            check_row(index, row)?;
            let place = *known.entry(row.trajectory).or_insert_with(|| {
                trajectories.push(ScoredTrajectory {
                    id: row.trajectory,
                    group: row.group,
                    tree: row.tree,
                    depth: row.depth,
                    score: 0.0,
                    positive_score: 0.0,
                    failed: false,
                    rows: Vec::new(),
                });
                trajectories.len() - 1
            });
            let trajectory = &mut trajectories[place];
            for (column, same) in [
                ("group", trajectory.group == row.group),
                ("tree", trajectory.tree == row.tree),
                ("depth", trajectory.depth == row.depth),
            ] {
                if !same {
                    let trajectory = row.trajectory.to_owned();
                    return Err(AdvantageError::Disagreement { row: index, trajectory, column });
                }
            }
            trajectory.failed |= row.failed;
            if !row.failed {
                trajectory.score += row.rewards.iter().map(|&reward| f64::from(reward)).sum::<f64>();
                trajectory.positive_score += row.rewards.iter().map(|&reward| f64::from(reward.max(0.0))).sum::<f64>();
            }
            trajectory.rows.push(index);
        }
        Ok(Self { rows: rows.to_vec(), trajectories })
    }

    /// The rows.
    pub fn rows(&self) -> &[AdvantageRow<'a>] {
        &self.rows
    }

    /// The trajectories.
    pub fn trajectories(&self) -> &[ScoredTrajectory<'a>] {
        &self.trajectories
    }

    /// Fails where a trajectory is several rows, in the name of an estimator that follows rewards through one.
    pub fn require_single_rows(&self, estimator: &str) -> Result<(), AdvantageError> {
        match self.trajectories.iter().find(|trajectory| trajectory.rows.len() > 1) {
            Some(trajectory) => Err(AdvantageError::SeveralRows {
                estimator: estimator.to_owned(),
                trajectory: trajectory.id.to_owned(),
                rows: trajectory.rows.len(),
            }),
            None => Ok(()),
        }
    }

    /// Places of the trajectories of each group, groups in the order in which they first appear.
    pub fn groups(&self) -> Vec<(&'a str, Vec<usize>)> {
        let mut groups: Vec<(&'a str, Vec<usize>)> = Vec::new();
        let mut known: HashMap<&str, usize> = HashMap::new();
        for (place, trajectory) in self.trajectories.iter().enumerate() {
            let group = *known.entry(trajectory.group).or_insert_with(|| {
                groups.push((trajectory.group, Vec::new()));
                groups.len() - 1
            });
            groups[group].1.push(place);
        }
        groups
    }
}

fn check_row(index: usize, row: &AdvantageRow<'_>) -> Result<(), AdvantageError> {
    let expected = row.rewards.len();
    let length = |column, found| {
        if found == expected { Ok(()) } else { Err(AdvantageError::Length { row: index, column, expected, found }) }
    };
    length("mask", row.mask.len())?;
    if let Some(values) = row.values {
        length("values", values.len())?;
    }
    // What a failed rollout left in its rewards is not read.
    let rewards = if row.failed { &[] } else { row.rewards };
    for (column, column_values) in [("rewards", rewards), ("values", row.values.unwrap_or(&[]))] {
        if let Some(token) = column_values.iter().position(|value| !value.is_finite()) {
            return Err(AdvantageError::NotFinite { row: index, column, token, found: column_values[token] });
        }
    }
    Ok(())
}

/// What an estimator answers.
#[derive(Clone, Debug, PartialEq)]
pub enum Estimate {
    /// One advantage for each trajectory, in the batch's order: every trainable token of all its rows gets it.
    Trajectories(Vec<f64>),
    /// One advantage for each token of each row, in the batch's order. What stands at masked tokens is ignored.
    Tokens(Vec<TokenEstimate>),
}

/// An advantage and a return for each token of a row.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenEstimate {
    /// What the policy loss is weighted with.
    pub advantages: Vec<f64>,
    /// What a critic should have said.
    pub returns: Vec<f64>,
}

/// A way from rewards to advantages.
pub trait AdvantageEstimator: Send + Sync {
    /// Its name, for messages.
    fn name(&self) -> &str;

    /// Advantages for a batch. Where children take their root's advantage the batch holds roots only.
    fn estimate(&self, batch: &AdvantageBatch<'_>) -> Result<Estimate, AdvantageError>;
}

/// The built-in estimator that a configuration names; none where it names a custom one.
pub fn built_in(config: &AlgorithmConfig) -> Option<Box<dyn AdvantageEstimator>> {
    Some(match config.advantage_estimator {
        AdvantageEstimatorKind::Grpo => {
            Box::new(group::Grouped(group::Grpo { divide_by_std: config.grpo_norm_by_std }))
        }
        AdvantageEstimatorKind::Rloo => Box::new(group::Grouped(group::Rloo)),
        AdvantageEstimatorKind::Maxrl => Box::new(group::Grouped(group::MaxRl)),
        AdvantageEstimatorKind::ReinforcePlusPlus => Box::new(temporal::ReinforcePlusPlus { gamma: config.gamma }),
        AdvantageEstimatorKind::Gae => Box::new(temporal::Gae { gamma: config.gamma, lambda: config.lambd }),
        AdvantageEstimatorKind::NoOp => Box::new(temporal::NoOp),
        AdvantageEstimatorKind::Custom(_) => return None,
    })
}

/// What [`compute_advantages`] gives: for each row, one entry for each response token, 0 at masked tokens.
#[derive(Clone, Debug, PartialEq)]
pub struct Advantages {
    /// What the policy loss is weighted with.
    pub advantages: Vec<Vec<f32>>,
    /// What a critic should have said; the advantages where the estimator knows no returns.
    pub returns: Vec<Vec<f32>>,
}

/// Advantages of a whole batch.
///
/// 1. Where children take their root's advantage ([`TreeCredit::Root`], [`TreeCredit::Discounted`]) the estimator sees
///    roots only, else everything.
/// 2. Results go to every row of their trajectory or tree, on trainable tokens; rows of failed rollouts get 0.
/// 3. With `batch_normalize` they are centred and scaled over all trainable tokens of the batch
///    ([`whiten::normalize`]).
pub fn compute_advantages(
    rows: &[AdvantageRow<'_>],
    estimator: &dyn AdvantageEstimator,
    credit: TreeCredit,
    batch_normalize: bool,
) -> Result<Advantages, AdvantageError> {
    let own = credit == TreeCredit::Own;
    let seen: Vec<usize> = (0..rows.len()).filter(|&row| own || rows[row].depth == 0).collect();
    // Children are checked too, although the estimator may not see them.
    AdvantageBatch::new(rows)?;
    let batch = AdvantageBatch::new(&seen.iter().map(|&row| rows[row]).collect::<Vec<_>>())?;
    let counted = |what, expected: usize, found: usize| {
        if found == expected {
            return Ok(());
        }
        Err(AdvantageError::Answer { estimator: estimator.name().to_owned(), what, expected, found })
    };

    let mut advantages: Vec<Vec<f64>>;
    let mut returns: Vec<Vec<f64>>;
    match estimator.estimate(&batch)? {
        Estimate::Trajectories(answers) => {
            counted("trajectories", batch.trajectories.len(), answers.len())?;
            advantages = spread_scalars(rows, &batch, &answers, credit)?;
            returns = advantages.clone();
        }
        Estimate::Tokens(answers) => {
            if let Some(child) = rows.iter().find(|row| !own && row.depth > 0) {
                let (estimator, tree) = (estimator.name().to_owned(), child.tree.to_owned());
                return Err(AdvantageError::NoScalar { estimator, tree });
            }
            counted("rows", rows.len(), answers.len())?;
            for (row, answer) in rows.iter().zip(&answers) {
                counted("advantages for a row", row.rewards.len(), answer.advantages.len())?;
                counted("returns for a row", row.rewards.len(), answer.returns.len())?;
            }
            (advantages, returns) = answers.into_iter().map(|answer| (answer.advantages, answer.returns)).unzip();
        }
    }
    for (index, row) in rows.iter().enumerate() {
        for token in (0..row.mask.len()).filter(|&token| row.failed || row.mask[token] == 0) {
            advantages[index][token] = 0.0;
            returns[index][token] = 0.0;
        }
    }
    if batch_normalize {
        let masks: Vec<&[u8]> = rows.iter().map(|row| if row.failed { &[] } else { row.mask }).collect();
        whiten::normalize(&mut advantages, &masks);
    }
    let narrow = |wide: Vec<Vec<f64>>| -> Vec<Vec<f32>> {
        wide.into_iter().map(|row| row.into_iter().map(|value| value as f32).collect()).collect()
    };
    Ok(Advantages { advantages: narrow(advantages), returns: narrow(returns) })
}

/// Gives every row its trajectory's advantage, or its share of its root's.
fn spread_scalars(
    rows: &[AdvantageRow<'_>],
    batch: &AdvantageBatch<'_>,
    answers: &[f64],
    credit: TreeCredit,
) -> Result<Vec<Vec<f64>>, AdvantageError> {
    let by_trajectory: HashMap<&str, f64> =
        batch.trajectories.iter().zip(answers).map(|(trajectory, &answer)| (trajectory.id, answer)).collect();
    // Advantage of the last root, and how many roots there are.
    let mut roots: HashMap<&str, (f64, usize)> = HashMap::new();
    for trajectory in batch.trajectories.iter().filter(|trajectory| trajectory.depth == 0) {
        let root = roots.entry(trajectory.tree).or_default();
        root.0 = if trajectory.failed { 0.0 } else { by_trajectory[trajectory.id] };
        root.1 += 1;
    }
    rows.iter()
        .map(|row| {
            let value = match credit.share(row.depth) {
                Some(share) if row.depth > 0 => match roots.get(row.tree) {
                    Some(&(advantage, 1)) => advantage * share,
                    found => {
                        let found = found.map_or(0, |&(_, found)| found);
                        return Err(AdvantageError::Roots { tree: row.tree.to_owned(), found });
                    }
                },
                _ => by_trajectory.get(row.trajectory).copied().unwrap_or(0.0),
            };
            Ok(vec![value; row.mask.len()])
        })
        .collect()
}
