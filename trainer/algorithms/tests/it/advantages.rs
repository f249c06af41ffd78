//! Advantages: known numbers, groups, steps, failures.

use espalier_algorithms::advantages::group::{GroupFormula, Grouped, Grpo, MaxRl, Rloo};
use espalier_algorithms::advantages::temporal::{Gae, NoOp, ReinforcePlusPlus, generalized_advantages};
use espalier_algorithms::advantages::{
    AdvantageBatch, AdvantageError, AdvantageEstimator, AdvantageRow, Advantages, Estimate, TokenEstimate, whiten,
};
use espalier_algorithms::compute_advantages;
use espalier_algorithms::tree::TreeCredit;
use proptest::prelude::*;

use crate::batch::assert_close;

const GRPO: Grouped<Grpo> = Grouped(Grpo { divide_by_std: true });
const GRPO_WITHOUT_STD: Grouped<Grpo> = Grouped(Grpo { divide_by_std: false });

/// Owned columns of a row.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    pub(crate) trajectory: String,
    pub(crate) group: String,
    pub(crate) tree: String,
    pub(crate) depth: u32,
    pub(crate) rewards: Vec<f32>,
    pub(crate) mask: Vec<u8>,
    pub(crate) values: Option<Vec<f32>>,
    pub(crate) failed: bool,
}

impl Row {
    /// A root of its own with these rewards, everything trainable.
    pub(crate) fn new(trajectory: &str, group: &str, rewards: &[f32]) -> Self {
        Self {
            trajectory: trajectory.to_owned(),
            group: group.to_owned(),
            tree: trajectory.to_owned(),
            depth: 0,
            rewards: rewards.to_vec(),
            mask: vec![1; rewards.len()],
            values: None,
            failed: false,
        }
    }

    pub(crate) fn masked(mut self, mask: &[u8]) -> Self {
        self.mask = mask.to_vec();
        self
    }

    fn valued(mut self, values: &[f32]) -> Self {
        self.values = Some(values.to_vec());
        self
    }

    pub(crate) fn failed(mut self) -> Self {
        self.failed = true;
        self
    }

    pub(crate) fn child_of(mut self, tree: &str, depth: u32) -> Self {
        tree.clone_into(&mut self.tree);
        self.depth = depth;
        self
    }

    fn view(&self) -> AdvantageRow<'_> {
        AdvantageRow {
            trajectory: &self.trajectory,
            group: &self.group,
            tree: &self.tree,
            depth: self.depth,
            rewards: &self.rewards,
            mask: &self.mask,
            values: self.values.as_deref(),
            failed: self.failed,
        }
    }
}

pub(crate) fn views(rows: &[Row]) -> Vec<AdvantageRow<'_>> {
    rows.iter().map(Row::view).collect()
}

fn compute(rows: &[Row], estimator: &dyn AdvantageEstimator) -> Result<Advantages, AdvantageError> {
    compute_advantages(&views(rows), estimator, TreeCredit::Root, false)
}

/// A group of trajectories with these scores.
fn group(scores: &[f32]) -> Vec<Row> {
    scores.iter().enumerate().map(|(index, &score)| Row::new(&format!("t{index}"), "p", &[0.0, score])).collect()
}

fn last(rows: &[Vec<f32>]) -> Vec<f64> {
    rows.iter().map(|row| f64::from(*row.last().unwrap())).collect()
}

fn wide(rows: &[Vec<f32>]) -> Vec<f64> {
    rows.iter().flatten().map(|&value| f64::from(value)).collect()
}

#[test]
fn group_estimators_have_their_known_values() {
    let half = |x: f64| vec![x, -x, -x, x];
    let one_of_four = |x: f64, y: f64| vec![x, y, y, y];
    let known: [(&[f32], &dyn AdvantageEstimator, Vec<f64>); 16] = [
        (&[1.0, 0.0, 0.0, 1.0], &GRPO, half(0.866024)),
        (&[1.0, 0.0, 0.0, 1.0], &GRPO_WITHOUT_STD, half(0.5)),
        (&[1.0, 0.0, 0.0, 1.0], &Grouped(Rloo), half(0.666667)),
        (&[1.0, 0.0, 0.0, 1.0], &Grouped(MaxRl), half(0.999998)),
        (&[1.0, 0.0, 0.0, 0.0], &GRPO, one_of_four(1.499997, -0.499999)),
        (&[1.0, 0.0, 0.0, 0.0], &GRPO_WITHOUT_STD, one_of_four(0.75, -0.25)),
        (&[1.0, 0.0, 0.0, 0.0], &Grouped(Rloo), one_of_four(1.0, -0.333333)),
        (&[1.0, 0.0, 0.0, 0.0], &Grouped(MaxRl), one_of_four(2.999988, -0.999996)),
        (&[1.0, 0.2, -1.0], &GRPO, vec![0.927172, 0.132453, -1.059625]),
        (&[1.0, 0.2, -1.0], &GRPO_WITHOUT_STD, vec![0.933333, 0.133333, -1.066667]),
        (&[1.0, 0.2, -1.0], &Grouped(Rloo), vec![1.4, 0.2, -1.6]),
        (&[1.0, 0.2, -1.0], &Grouped(MaxRl), vec![13.99979, 1.99997, -15.99976]),
        (&[0.7], &GRPO, vec![0.699999]),
        (&[0.7], &GRPO_WITHOUT_STD, vec![0.7]),
        (&[0.7], &Grouped(Rloo), vec![0.0]),
        (&[0.7], &Grouped(MaxRl), vec![0.7]),
    ];
    for (scores, estimator, expected) in known {
        let found = compute(&group(scores), estimator).unwrap();
        assert_close(&last(&found.advantages), &expected, 1e-6);
        assert_eq!(found.advantages, found.returns);
    }
}

#[test]
fn gae_has_its_known_values() {
    let row = Row::new("t", "p", &[0.0, 0.0, 1.0]).valued(&[0.5, 0.6, 0.7]);
    let raw = generalized_advantages(&row.rewards, row.values.as_ref().unwrap(), 1.0, 0.95);
    assert_close(&raw, &[0.46575, 0.385, 0.3], 1e-6);
    let found = compute(&[row], &Gae { gamma: 1.0, lambda: 0.95 }).unwrap();
    assert_close(&wide(&found.returns), &[0.96575, 0.985, 1.0], 1e-6);
    assert_close(&wide(&found.advantages), &[0.991344, 0.017092, -1.008436], 1e-6);
}

#[test]
fn gae_without_values_names_the_row() {
    let rows = [Row::new("a", "p", &[1.0]).valued(&[0.0]), Row::new("b", "p", &[1.0])];
    let error = compute(&rows, &Gae { gamma: 1.0, lambda: 1.0 }).unwrap_err();
    assert_eq!(error, AdvantageError::MissingValues { row: 1, estimator: "gae".to_owned() });
}

#[test]
fn discounted_returns_are_whitened_over_the_batch() {
    let rows = [Row::new("a", "p", &[0.0, 1.0]), Row::new("b", "p", &[2.0])];
    let found = compute(&rows, &ReinforcePlusPlus { gamma: 0.5 }).unwrap();
    assert_close(&wide(&found.returns), &[0.5, 1.0, 2.0], 1e-6);
    // Mean 7/6, unbiased variance 7/12.
    let std = (7.0_f64 / 12.0).sqrt();
    let expected = [0.5, 1.0, 2.0].map(|value: f64| (value - 7.0 / 6.0) / std);
    assert_close(&wide(&found.advantages), &expected, 1e-6);
}

#[test]
fn a_reward_behind_an_observation_reaches_the_turn_before_it() {
    // Two turns, the reward on an end-of-turn token that the policy did not sample.
    let rows = [Row::new("a", "p", &[0.0, 0.0, 0.0, 1.0]).masked(&[1, 0, 1, 0]), Row::new("b", "p", &[0.0])];
    let found = compute(&rows, &ReinforcePlusPlus { gamma: 1.0 }).unwrap();
    assert_eq!(found.returns[0], [1.0, 0.0, 1.0, 0.0]);
    assert!(found.advantages[0][0] > 0.0 && found.advantages[1][0] < 0.0);
}

#[test]
fn no_op_passes_token_rewards_through() {
    let rows = [Row::new("a", "p", &[0.5, -0.25, 9.0]).masked(&[1, 1, 0])];
    assert_eq!(compute(&rows, &NoOp).unwrap().advantages, [[0.5, -0.25, 0.0]]);
}

#[test]
fn groups_need_not_be_contiguous() {
    let rows = [
        Row::new("a0", "a", &[1.0]),
        Row::new("b0", "b", &[0.0]),
        Row::new("a1", "a", &[0.0]),
        Row::new("b1", "b", &[4.0]),
    ];
    let found = compute(&rows, &GRPO_WITHOUT_STD).unwrap();
    assert_eq!(wide(&found.advantages), [0.5, -2.0, -0.5, 2.0]);
}

#[test]
fn every_step_of_a_trajectory_carries_its_advantage_on_its_own_tokens() {
    // Four turns as four rows, the reward in the last one; beside a trajectory of one row.
    let mut rows: Vec<Row> = (0..4)
        .map(|turn| {
            let reward = if turn == 3 { 1.0 } else { 0.0 };
            Row::new("steps", "p", &[0.0, reward, 0.0]).masked(if turn == 3 { &[0, 1, 0] } else { &[1, 1, 0] })
        })
        .collect();
    rows.push(Row::new("single", "p", &[0.0]));
    let found = compute(&rows, &GRPO_WITHOUT_STD).unwrap().advantages;
    assert_eq!(found[..3], [[0.5, 0.5, 0.0], [0.5, 0.5, 0.0], [0.5, 0.5, 0.0]]);
    assert_eq!(found[3..], [vec![0.0, 0.5, 0.0], vec![-0.5]]);
}

#[test]
fn estimators_that_follow_rewards_refuse_trajectories_in_pieces() {
    let rows = [Row::new("a", "p", &[1.0]).valued(&[0.0]), Row::new("a", "p", &[1.0]).valued(&[0.0])];
    let estimators: [&dyn AdvantageEstimator; 2] =
        [&Gae { gamma: 1.0, lambda: 1.0 }, &ReinforcePlusPlus { gamma: 1.0 }];
    for estimator in estimators {
        let error = compute(&rows, estimator).unwrap_err();
        let name = estimator.name().to_owned();
        assert_eq!(error, AdvantageError::SeveralRows { estimator: name, trajectory: "a".to_owned(), rows: 2 });
    }
}

#[test]
fn failed_rollouts_enter_no_baseline_and_get_no_advantage() {
    let mut rows = group(&[1.0, 0.0]);
    rows.push(Row::new("t2", "p", &[f32::NAN, 7.0]).failed());
    let found = compute(&rows, &GRPO_WITHOUT_STD).unwrap();
    assert_eq!(last(&found.advantages), [0.5, -0.5, 0.0]);
    // With everything else failed there is nothing to compare with, which is not a group of one.
    let rows = [Row::new("a", "p", &[1.0]), Row::new("b", "p", &[1.0]).failed()];
    for estimator in [&GRPO as &dyn AdvantageEstimator, &Grouped(MaxRl), &Grouped(Rloo)] {
        assert_eq!(wide(&compute(&rows, estimator).unwrap().advantages), [0.0, 0.0]);
    }
    let rows = [Row::new("a", "p", &[1.0]).failed(), Row::new("b", "p", &[1.0]), Row::new("c", "p", &[3.0])];
    let found = compute(&rows, &ReinforcePlusPlus { gamma: 1.0 }).unwrap();
    assert_eq!(found.advantages[0], [0.0]);
    assert_close(&wide(&found.advantages)[1..], &[-1.0 / 2.0_f64.sqrt(), 1.0 / 2.0_f64.sqrt()], 1e-6);
}

#[test]
fn batch_normalisation_reads_trainable_tokens_only() {
    let rows = [
        Row::new("a", "p", &[3.0, 100.0, 100.0]).masked(&[1, 0, 0]),
        Row::new("b", "p", &[1.0, 100.0]).masked(&[1, 0]),
    ];
    let found = compute_advantages(&views(&rows), &NoOp, TreeCredit::Root, true).unwrap();
    assert_eq!(found.advantages, [vec![1.0, 0.0, 0.0], vec![-1.0, 0.0]]);
}

#[test]
fn whitening_survives_batches_without_spread() {
    let mut single = vec![vec![5.0, 7.0]];
    whiten::whiten(&mut single, &[&[1, 0]]);
    assert_eq!(single, [[0.0, 7.0]]);
    let mut nothing = vec![vec![5.0]];
    whiten::whiten(&mut nothing, &[&[0]]);
    whiten::normalize(&mut nothing, &[&[0]]);
    assert_eq!(nothing, [[5.0]]);
    let mut same = vec![vec![2.0, 2.0]];
    whiten::whiten(&mut same, &[&[1, 1]]);
    assert_eq!(same, [[0.0, 0.0]]);
}

#[test]
fn rows_that_do_not_fit_are_named() {
    let error = |rows: &[Row]| compute(rows, &GRPO).unwrap_err().to_string();
    let short = Row::new("a", "p", &[1.0, 1.0]).masked(&[1]);
    assert_eq!(error(&[short]), "row 0: `mask` has 1 entries, `rewards` has 2");
    let nan = Row::new("a", "p", &[1.0, f32::NAN]);
    assert!(error(&[nan]).starts_with("row 0: `rewards` entry 1 is NaN"));
    let rows = [Row::new("a", "p", &[1.0]), Row::new("a", "q", &[1.0])];
    assert!(error(&rows).contains("trajectory `a` has another `group`"));
}

/// A custom formula: the best of the group against the rest.
struct Best;

impl GroupFormula for Best {
    fn name(&self) -> &'static str {
        "best"
    }

    fn advantages(&self, scores: &[f64]) -> Vec<f64> {
        let best = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        scores.iter().map(|&score| if score == best { 1.0 } else { -1.0 }).collect()
    }
}

/// A custom estimator that answers for one row, whatever it is asked.
struct Short;

impl AdvantageEstimator for Short {
    fn name(&self) -> &'static str {
        "short"
    }

    fn estimate(&self, _: &AdvantageBatch<'_>) -> Result<Estimate, AdvantageError> {
        Ok(Estimate::Tokens(vec![TokenEstimate { advantages: vec![1.0], returns: vec![1.0] }]))
    }
}

#[test]
fn custom_estimators_take_part_and_are_checked() {
    let found = compute(&group(&[0.1, 0.9, 0.3]), &Grouped(Best)).unwrap();
    assert_eq!(last(&found.advantages), [-1.0, 1.0, -1.0]);
    let error = compute(&group(&[0.1, 0.9]), &Short).unwrap_err().to_string();
    assert_eq!(error, "`short` answered 1 rows, expected 2");
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_batch_of_identical_rewards_is_harmless(
        reward in prop_oneof![Just(0.0_f32), Just(1.0), Just(-1.0), -2.0_f32..2.0],
        groups in 0_usize..4,
        samples in 1_usize..5,
        length in 0_usize..4,
        live in any::<bool>(),
        normalize in any::<bool>(),
    ) {
        let rows: Vec<Row> = (0..groups * samples)
            .map(|index| {
                let row = Row::new(&format!("t{index}"), &format!("p{}", index / samples), &vec![reward; length]);
                row.masked(&vec![u8::from(live); length]).valued(&vec![0.5; length])
            })
            .collect();
        let estimators: [&dyn AdvantageEstimator; 7] = [
            &GRPO, &GRPO_WITHOUT_STD, &Grouped(Rloo), &Grouped(MaxRl), &ReinforcePlusPlus { gamma: 0.9 },
            &Gae { gamma: 0.9, lambda: 0.9 }, &NoOp,
        ];
        for estimator in estimators {
            let found = compute_advantages(&views(&rows), estimator, TreeCredit::Root, normalize).unwrap();
            prop_assert!(wide(&found.advantages).iter().all(|value| value.is_finite()));
            prop_assert!(live || wide(&found.advantages).iter().all(|&value| value == 0.0));
        }
    }

    #[test]
    fn the_order_of_rows_changes_no_advantage(
        rewards in proptest::collection::vec((-1.0_f32..1.0, 0_usize..3, 1_usize..4), 1..10),
        seed in any::<u64>(),
    ) {
        let rows: Vec<Row> = rewards
            .iter()
            .enumerate()
            .map(|(index, &(reward, group, length))| {
                Row::new(&format!("t{index}"), &format!("p{group}"), &vec![reward; length]).valued(&vec![0.1; length])
            })
            .collect();
        let mut order: Vec<usize> = (0..rows.len()).collect();
        order.sort_by_key(|&row| (row as u64 + 1).wrapping_mul(seed | 1));
        let shuffled: Vec<Row> = order.iter().map(|&row| rows[row].clone()).collect();
        let estimators: [&dyn AdvantageEstimator; 4] =
            [&GRPO, &Grouped(Rloo), &ReinforcePlusPlus { gamma: 0.9 }, &Gae { gamma: 0.9, lambda: 0.9 }];
        for estimator in estimators {
            let straight = compute(&rows, estimator).unwrap().advantages;
            let permuted: Vec<Vec<f32>> = order.iter().map(|&row| straight[row].clone()).collect();
            let found = compute(&shuffled, estimator).unwrap().advantages;
            assert_close(&wide(&found), &wide(&permuted), 1e-4);
        }
    }
}
