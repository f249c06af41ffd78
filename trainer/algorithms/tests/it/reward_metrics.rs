//! What is logged about rewards and advantages, and how figures merge.

use espalier_algorithms::advantages::AdvantageBatch;
use espalier_algorithms::advantages::temporal::NoOp;
use espalier_algorithms::metrics::{Metric, Metrics};
use espalier_algorithms::reward_metrics::{advantage_metrics, reward_metrics};
use espalier_algorithms::{TreeCredit, compute_advantages};

use crate::advantages::{Row, views};

#[test]
fn a_group_passes_by_the_total_reward_of_a_root() {
    let rows = [
        // The last token is punished, the total is above 0.
        Row::new("a0", "a", &[2.0, -0.5]),
        Row::new("a1", "a", &[0.0, 0.0]),
        // The last token is above 0, the total is not.
        Row::new("b0", "b", &[-1.0, 0.5]),
        // A child's reward does not pass its root's group, and a failed rollout passes nothing.
        Row::new("b0/0", "b", &[9.0]).child_of("b0", 1),
        Row::new("b1", "b", &[7.0]).failed(),
        // A group of which nothing is left is not counted.
        Row::new("c0", "c", &[1.0]).failed(),
    ];
    let metrics = reward_metrics(&AdvantageBatch::new(&views(&rows)).unwrap(), 2);
    assert_eq!(
        metrics.values().collect::<Vec<_>>(),
        [
            ("reward/avg_pass_at_2", 0.5),
            ("reward/avg_raw_reward", (1.5 + 0.0 - 0.5) / 3.0),
            ("reward/mean_positive_reward", (2.0 + 0.5) / 3.0),
            ("reward/num_failed", 2.0),
        ]
    );
}

#[test]
fn steps_of_one_trajectory_are_one_reward() {
    let rows = [Row::new("a", "p", &[0.0]), Row::new("a", "p", &[1.0]), Row::new("b", "p", &[0.0])];
    let metrics = reward_metrics(&AdvantageBatch::new(&views(&rows)).unwrap(), 2);
    assert_eq!(metrics.value("reward/avg_raw_reward"), Some(0.5));
}

#[test]
fn advantages_are_averaged_over_trainable_tokens() {
    let rows = [Row::new("a", "p", &[1.0, -3.0, 50.0]).masked(&[1, 1, 0]), Row::new("b", "p", &[8.0]).failed()];
    let advantages = compute_advantages(&views(&rows), &NoOp, TreeCredit::Root, false).unwrap();
    let metrics = advantage_metrics(&views(&rows), &advantages);
    assert_eq!(metrics.value("loss/avg_final_rewards"), Some(48.0));
    assert_eq!(metrics.value("loss/avg_raw_advantages"), Some(-1.0));
    assert_eq!(metrics.value("loss/avg_raw_advantages_abs"), Some(2.0));
}

#[test]
fn figures_merge_as_if_there_had_been_one_batch() {
    let part = |values: &[f64]| {
        let (count, sum) = (values.len() as f64, values.iter().sum::<f64>());
        let mean = sum / count;
        let mut metrics = Metrics::default();
        metrics.insert("mean", Metric::Mean { sum, weight: count });
        let squares = values.iter().map(|value| (value - mean).powi(2)).sum();
        metrics.insert("std", Metric::Std { count, mean, squares });
        metrics.insert("max", Metric::Max(values.iter().copied().fold(f64::NEG_INFINITY, f64::max)));
        metrics.insert("min", Metric::Min(values.iter().copied().fold(f64::INFINITY, f64::min)));
        metrics.insert("sum", Metric::Sum(sum));
        metrics
    };
    let mut merged = part(&[1.0, 2.0, 6.0]);
    merged.merge(part(&[-1.0]));
    // What a rank sends is what another reads.
    let sent: Metrics = serde_json::from_str(&serde_json::to_string(&part(&[4.0, 4.0])).unwrap()).unwrap();
    merged.merge(sent);
    let whole = part(&[1.0, 2.0, 6.0, -1.0, 4.0, 4.0]);
    for ((name, found), (_, expected)) in merged.values().zip(whole.values()) {
        assert!((found - expected).abs() < 1e-12, "{name}: {found} against {expected}");
    }
}

#[test]
fn what_was_not_measured_has_no_value() {
    let mut metrics = Metrics::default();
    metrics.insert("mean", Metric::Mean { sum: 0.0, weight: 0.0 });
    metrics.insert("std", Metric::Std { count: 0.0, mean: 0.0, squares: 0.0 });
    metrics.insert("max", Metric::Max(f64::NEG_INFINITY));
    metrics.insert("min", Metric::Min(f64::INFINITY));
    assert_eq!(metrics.values().count(), 0);
}
