//! Credit and weight in rollout trees.

use espalier_algorithms::advantages::group::{Grouped, Grpo};
use espalier_algorithms::advantages::temporal::{NoOp, ReinforcePlusPlus};
use espalier_algorithms::advantages::{AdvantageError, AdvantageEstimator};
use espalier_algorithms::tree::{TreeRow, row_weights};
use espalier_algorithms::{RowWeighting, TreeCredit, compute_advantages};
use proptest::prelude::*;

use crate::advantages::{Row, views};

const ESTIMATOR: Grouped<Grpo> = Grouped(Grpo { divide_by_std: false });

/// Two trees of one prompt: a good root with two children and a grandchild, and a bad root alone. Children come first.
fn trees() -> Vec<Row> {
    vec![
        Row::new("a/0", "children of a", &[0.0, 5.0]).child_of("a", 1).masked(&[1, 0]),
        Row::new("a/1", "children of a", &[0.0, 1.0]).child_of("a", 1),
        Row::new("a/1/0", "children of a/1", &[3.0]).child_of("a", 2),
        Row::new("a", "p", &[0.0, 1.0]),
        Row::new("b", "p", &[0.0]),
    ]
}

fn credit(rows: &[Row], credit: TreeCredit) -> Vec<Vec<f32>> {
    compute_advantages(&views(rows), &ESTIMATOR, credit, false).unwrap().advantages
}

#[test]
fn children_take_the_advantage_of_their_root() {
    let found = credit(&trees(), TreeCredit::Root);
    assert_eq!(found, [vec![0.5, 0.0], vec![0.5, 0.5], vec![0.5], vec![0.5, 0.5], vec![-0.5]]);
}

#[test]
fn credit_fades_with_depth() {
    let found = credit(&trees(), TreeCredit::Discounted { gamma: 0.5 });
    assert_eq!(found, [vec![0.25, 0.0], vec![0.25, 0.25], vec![0.125], vec![0.5, 0.5], vec![-0.5]]);
}

#[test]
fn children_may_be_compared_with_their_siblings() {
    let found = credit(&trees(), TreeCredit::Own);
    assert_eq!(found, [vec![2.0, 0.0], vec![-2.0, -2.0], vec![3.0], vec![0.5, 0.5], vec![-0.5]]);
}

#[test]
fn a_failed_root_gives_its_children_nothing_and_a_failed_child_gets_nothing() {
    let mut rows = trees();
    rows[1] = rows[1].clone().failed();
    assert_eq!(credit(&rows, TreeCredit::Root)[1], [0.0, 0.0]);
    let mut rows = trees();
    rows[3] = rows[3].clone().failed();
    assert_eq!(credit(&rows, TreeCredit::Root)[..3], [vec![0.0, 0.0], vec![0.0, 0.0], vec![0.0]]);
}

#[test]
fn a_child_without_one_root_is_named() {
    let roots = |rows: &[Row]| compute_advantages(&views(rows), &ESTIMATOR, TreeCredit::Root, false).unwrap_err();
    let mut rows = trees();
    rows.remove(3);
    assert_eq!(roots(&rows), AdvantageError::Roots { tree: "a".to_owned(), found: 0 });
    let mut rows = trees();
    rows.push(Row::new("second", "p", &[0.0]).child_of("a", 0));
    assert_eq!(roots(&rows), AdvantageError::Roots { tree: "a".to_owned(), found: 2 });
}

#[test]
fn token_advantages_cannot_be_handed_down() {
    for estimator in [&NoOp as &dyn AdvantageEstimator, &ReinforcePlusPlus { gamma: 1.0 }] {
        let error = compute_advantages(&views(&trees()), estimator, TreeCredit::Root, false).unwrap_err();
        let name = estimator.name().to_owned();
        assert_eq!(error, AdvantageError::NoScalar { estimator: name, tree: "a".to_owned() });
        assert!(error.to_string().contains("tree_credit = \"own\""));
        assert!(compute_advantages(&views(&trees()), estimator, TreeCredit::Own, false).is_ok());
    }
}

#[test]
fn a_tree_weighs_as_much_as_a_single_row() {
    let rows = [
        TreeRow { tree: "a", tokens: 3 },
        TreeRow { tree: "b", tokens: 5 },
        TreeRow { tree: "a", tokens: 9 },
        TreeRow { tree: "a", tokens: 0 },
        TreeRow { tree: "c", tokens: 0 },
        TreeRow { tree: "c", tokens: 0 },
    ];
    assert_eq!(row_weights(&rows, RowWeighting::ByTree), [0.5, 1.0, 0.5, 0.0, 0.5, 0.5]);
    assert_eq!(row_weights(&rows, RowWeighting::ByToken), [1.0; 6]);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn weights_of_every_tree_sum_to_one(rows in proptest::collection::vec((0_usize..5, 0_usize..3), 0..30)) {
        let names: Vec<String> = rows.iter().map(|(tree, _)| tree.to_string()).collect();
        let rows: Vec<TreeRow<'_>> =
            names.iter().zip(&rows).map(|(tree, &(_, tokens))| TreeRow { tree, tokens }).collect();
        let weights = row_weights(&rows, RowWeighting::ByTree);
        for name in &names {
            let sum: f64 = rows.iter().zip(&weights).filter(|(row, _)| row.tree == name).map(|(_, weight)| weight).sum();
            prop_assert!((sum - 1.0).abs() < 1e-12);
        }
    }
}
