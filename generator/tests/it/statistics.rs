//! Numbers against numbers worked out by hand.

use espalier_generator::metrics::rollout_metrics;
use espalier_generator::statistics::{bootstrap, deviation, paired_difference, pass_at_k, quantile};

use crate::output::tree;

#[test]
fn pass_at_k_is_the_unbiased_estimate() {
    // 1 - C(n-c, k) / C(n, k): 1 - C(7,2)/C(10,2) = 1 - 21/45.
    assert!((pass_at_k(10, 3, 2).unwrap() - (1.0 - 21.0 / 45.0)).abs() < 1e-12);
    assert_eq!(pass_at_k(4, 0, 4), Some(0.0));
    assert_eq!(pass_at_k(4, 1, 4), Some(1.0));
    assert!((pass_at_k(5, 2, 1).unwrap() - 0.4).abs() < 1e-12);
    assert_eq!(pass_at_k(3, 1, 4), None);
    assert_eq!(pass_at_k(3, 1, 0), None);
}

#[test]
fn quantiles_interpolate() {
    assert_eq!(quantile(&[4.0, 1.0, 3.0, 2.0], 0.5), 2.5);
    assert!((quantile(&[1.0, 2.0, 3.0, 4.0, 5.0], 0.9) - 4.6).abs() < 1e-12);
    assert_eq!(quantile(&[], 0.5), 0.0);
    assert_eq!(deviation(&[1.0, 3.0]), 1.0);
}

#[test]
fn bootstrap_intervals_follow_from_their_seed_and_hold_the_mean() {
    let values: Vec<f64> = (0..40).map(|number| f64::from(number % 2)).collect();
    let interval = bootstrap(&values, 3);
    assert_eq!(interval, bootstrap(&values, 3));
    assert!(interval.low < 0.5 && 0.5 < interval.high && interval.high - interval.low < 0.4, "{interval:?}");
    let constant = bootstrap(&[1.0; 5], 0);
    assert_eq!((constant.low, constant.high), (1.0, 1.0));
}

#[test]
fn a_paired_difference_sees_what_unpaired_means_would_not() {
    let pairs: Vec<(f64, f64)> = (0..20).map(|number| (f64::from(number), f64::from(number) + 0.5)).collect();
    let difference = paired_difference(&pairs, 1);
    assert_eq!((difference.low, difference.high), (0.5, 0.5));
}

#[tokio::test]
async fn metrics_carry_skyrls_names() {
    let metrics = rollout_metrics(&[tree("1").await]);
    for name in [
        "generate/min_num_tokens",
        "generate/max_num_tokens",
        "generate/avg_num_tokens",
        "generate/std_num_tokens",
        "generate/avg_tokens_non_zero_rewards",
        "generate/avg_tokens_zero_rewards",
        "generate/avg_assistant_tokens",
        "generate/tokens_per_turn_mean",
        "generate/tokens_per_turn_std",
        "generate/tokens_per_turn_max",
        "generate/trajectory_time_completion_mean",
        "generate/trajectory_time_llm_p90",
        "generate/trajectory_time_env_max",
        "generate/trajectory_time_other_mean",
        "environment/turns_used",
    ] {
        assert!(metrics.contains_key(name), "{name} of {metrics:?}");
    }
    assert_eq!(metrics["generate/avg_assistant_tokens"], 22.0);
    assert_eq!(metrics["generate/tokens_per_turn_max"], 11.0);
    assert_eq!(metrics["tree/avg_children"], 1.0);
    assert_eq!(metrics["stop/completed"], 1.0);
}
