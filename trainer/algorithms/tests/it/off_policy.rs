//! Off-policy correction: known numbers, its order, its figures.

use espalier_algorithms::config::OffPolicyConfig;
use espalier_algorithms::off_policy::{Correction, OffPolicyInput, correct, logprob_difference};
use tch::Tensor;

use crate::batch::{assert_close, numbers};

/// Corrects rows of ratios `exp(log_ratios)`; `None` is a masked token.
fn run(config: &str, rows: &[&[Option<f64>]]) -> Correction {
    try_run(config, rows).unwrap()
}

fn try_run(config: &str, rows: &[&[Option<f64>]]) -> Option<Correction> {
    let config: OffPolicyConfig = serde_json::from_str(config).unwrap();
    with_input(rows, |input| correct(&config, input).unwrap())
}

fn with_input<R>(rows: &[&[Option<f64>]], call: impl FnOnce(&OffPolicyInput<'_>) -> R) -> R {
    let tokens: Vec<Option<f64>> = rows.concat();
    // Masked tokens hold what a sampler leaves there: 0, and a trainer's number.
    let old: Vec<f64> = tokens.iter().map(|token| token.map_or(-4.0, |log_ratio| log_ratio - 1.0)).collect();
    let rollout: Vec<f64> = tokens.iter().map(|token| token.map_or(0.0, |_| -1.0)).collect();
    let mask: Vec<bool> = tokens.iter().map(Option::is_some).collect();
    let mut offsets = vec![0];
    for row in rows {
        offsets.push(offsets[offsets.len() - 1] + row.len() as i64);
    }
    call(&OffPolicyInput {
        old_logprobs: &Tensor::from_slice(&old),
        rollout_logprobs: &Tensor::from_slice(&rollout),
        mask: &Tensor::from_slice(&mask),
        row_offsets: &offsets,
    })
}

#[track_caller]
fn assert_metric(correction: &Correction, name: &str, expected: f64) {
    assert_close(&[correction.metrics.value(name).unwrap_or(f64::NAN)], &[expected], 1e-9);
}

const ROW: &[Option<f64>] = &[Some(0.5), None, Some(-0.5), Some(1.0)];

#[test]
fn nothing_switched_on_is_no_correction() {
    assert!(try_run("{}", &[ROW]).is_none());
}

#[test]
fn token_importance_weights_are_capped() {
    let correction = run(r#"{"tis_ratio_type": "token"}"#, &[ROW]);
    assert_close(&numbers(&correction.weights), &[1.648721, 0.0, 0.606531, 2.0], 1e-6);
    assert_metric(&correction, "tis_token_clip_high_ratio", 1.0 / 3.0);
}

#[test]
fn sequence_importance_weights_are_products_of_trainable_tokens() {
    let correction = run(r#"{"tis_ratio_type": "sequence"}"#, &[ROW, &[Some(3.0)], &[None]]);
    let e = 1.0_f64.exp();
    assert_close(&numbers(&correction.weights), &[e, 0.0, e, e, 5.0, 0.0], 1e-9);
    // The row without a trainable token does not count.
    assert_metric(&correction, "tis_seq_clip_high_ratio", 0.5);
}

#[test]
fn a_log_sum_is_clamped_before_it_becomes_a_product() {
    let config = r#"{"tis_ratio_type": "sequence", "sequence_tis_ratio_clip_high": 1e30}"#;
    let correction = run(config, &[&[Some(15.0), Some(15.0)]]);
    assert_close(&numbers(&correction.weights), &[20.0_f64.exp(); 2], 1e-9);
}

#[test]
fn figures_of_ratios_leave_masked_tokens_out() {
    let correction = run(r#"{"tis_ratio_type": "token"}"#, &[ROW]);
    let ratios = [0.5_f64.exp(), (-0.5_f64).exp(), 1.0_f64.exp()];
    let mean = ratios.iter().sum::<f64>() / 3.0;
    let std = (ratios.iter().map(|ratio| (ratio - mean).powi(2)).sum::<f64>() / 3.0).sqrt();
    assert_metric(&correction, "is_ratio_mean", mean);
    assert_metric(&correction, "is_ratio_std", std);
    assert_metric(&correction, "is_ratio_max", ratios[2]);
    assert_metric(&correction, "is_ratio_min", ratios[1]);
}

#[test]
fn an_outlier_token_drops_its_row_on_either_side() {
    let rows: &[&[Option<f64>]] = &[&[Some(0.0), Some(3.0)], &[Some(0.0), Some(-3.0)], &[Some(0.1), None], &[None]];
    let both = run(r#"{"outlier_token_is_threshold_low": 0.1, "outlier_token_is_threshold_high": 10}"#, rows);
    assert_close(&numbers(&both.weights), &[0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0], 1e-12);
    assert_metric(&both, "outlier_seq_masked_ratio", 2.0 / 3.0);
    assert_metric(&both, "outlier_seq_over_high_ratio", 1.0 / 3.0);
    assert_metric(&both, "outlier_seq_under_low_ratio", 1.0 / 3.0);
    let high = run(r#"{"outlier_token_is_threshold_high": 10}"#, rows);
    assert_close(&numbers(&high.weights), &[0.0, 0.0, 1.0, 1.0, 1.0, 0.0, 0.0], 1e-12);
    let low = run(r#"{"outlier_token_is_threshold_low": 0.1}"#, rows);
    assert_close(&numbers(&low.weights), &[1.0, 1.0, 0.0, 0.0, 1.0, 0.0, 0.0], 1e-12);
}

#[test]
fn the_token_mask_drops_tokens_and_keeps_bounds() {
    let config = r#"{"token_mask_is_threshold_low": 0.5, "token_mask_is_threshold_high": 1.0}"#;
    let correction = run(config, &[&[Some(0.0), Some(0.1), Some(-1.0), None]]);
    assert_close(&numbers(&correction.weights), &[1.0, 0.0, 0.0, 0.0], 1e-12);
    assert_eq!(Vec::<bool>::try_from(&correction.kept).unwrap(), [true, false, false, false]);
    assert_metric(&correction, "token_mask_ratio", 2.0 / 3.0);
}

#[test]
fn geometric_and_product_masks_disagree_about_long_rows() {
    let rows: &[&[Option<f64>]] =
        &[&[Some(0.009); 100], &[Some(0.02), None], &[Some(-0.02)], &[Some(0.5), Some(-0.5)], &[None]];
    let kept = |metric: &str| {
        let correction = run(&format!(r#"{{"sequence_mask_metric": "{metric}"}}"#), rows);
        let kept = numbers(&correction.kept);
        ([kept[0], kept[100], kept[102], kept[103]], correction)
    };
    let (geometric, correction) = kept("geometric");
    assert_eq!(geometric, [1.0, 0.0, 0.0, 1.0]);
    assert_metric(&correction, "geo_sequence_mask_masked_ratio", 0.5);
    assert_metric(&correction, "geo_sequence_mask_over_high_ratio", 0.25);
    assert_metric(&correction, "geo_sequence_mask_under_low_ratio", 0.25);
    let (product, correction) = kept("product");
    assert_eq!(product, [0.0, 1.0, 1.0, 1.0]);
    assert_metric(&correction, "product_sequence_mask_masked_ratio", 0.25);
    assert_metric(&correction, "product_sequence_mask_over_high_ratio", 0.25);
    assert_metric(&correction, "product_sequence_mask_under_low_ratio", 0.0);
}

#[test]
fn later_parts_see_what_earlier_ones_left() {
    // The token mask takes the large ratio out, so the product of the rest is within bounds and is what weighs.
    let config = r#"{"token_mask_is_threshold_low": 0.5, "token_mask_is_threshold_high": 2.0,
                     "tis_ratio_type": "sequence", "sequence_mask_metric": "product"}"#;
    let correction = run(config, &[&[Some(0.1), Some(5.0), Some(0.2)]]);
    let weight = 0.3_f64.exp();
    assert_close(&numbers(&correction.weights), &[weight, 0.0, weight], 1e-9);
    // An outlier drops the row first: then no token is left for the token mask to count.
    let config = r#"{"token_mask_is_threshold_low": 0.5, "token_mask_is_threshold_high": 2.0,
                     "outlier_token_is_threshold_high": 100}"#;
    let correction = run(config, &[&[Some(0.1), Some(5.0), Some(0.2)]]);
    assert_close(&numbers(&correction.weights), &[0.0; 3], 1e-12);
    assert_eq!(correction.metrics.value("token_mask_ratio"), None);
}

#[test]
fn the_distance_between_trainer_and_sampler_is_over_trainable_tokens() {
    let metrics = with_input(&[&[Some(0.5), None, Some(-0.1)]], |input| logprob_difference(input).unwrap());
    let value = |part: &str| metrics.value(&format!("rollout_train_logprobs_abs_diff_{part}")).unwrap();
    assert_close(&[value("max"), value("min"), value("mean"), value("std")], &[0.5, 0.1, 0.3, 0.2], 1e-9);
}
