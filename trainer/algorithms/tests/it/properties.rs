//! What holds for every batch.

use espalier_algorithms::config::OffPolicyConfig;
use espalier_algorithms::losses::select_tokens;
use espalier_algorithms::metrics::Metrics;
use espalier_algorithms::off_policy::{OffPolicyInput, correct};
use proptest::prelude::*;
use tch::Tensor;

use crate::batch::{Batch, assert_close, built_in_losses};

/// Row lengths, some rows empty, and a seed.
fn batches() -> impl Strategy<Value = Batch> {
    (proptest::collection::vec(0_usize..9, 1..7), any::<u64>())
        .prop_map(|(lengths, seed)| Batch::random(seed, &lengths))
}

/// Where to cut the rows: for each row but the first, whether a micro-batch starts there.
fn cuts() -> impl Strategy<Value = Vec<bool>> {
    proptest::collection::vec(any::<bool>(), 8)
}

fn micro_batches(rows: usize, cuts: &[bool]) -> Vec<Vec<usize>> {
    let mut parts: Vec<Vec<usize>> = vec![Vec::new()];
    for (row, cut) in cuts.iter().enumerate().take(rows) {
        if row > 0 && *cut {
            parts.push(Vec::new());
        }
        parts.last_mut().unwrap().push(row);
    }
    parts
}

fn corrected(batch: &Batch, config: &OffPolicyConfig) -> (Vec<f64>, Metrics) {
    let input = OffPolicyInput {
        old_logprobs: &Tensor::from_slice(&batch.old),
        rollout_logprobs: &Tensor::from_slice(&batch.rollout),
        mask: &Tensor::from_slice(&batch.mask),
        row_offsets: &batch.offsets,
    };
    let correction = correct(config, &input).unwrap().unwrap();
    (crate::batch::numbers(&correction.weights), correction.metrics)
}

fn correction_config() -> OffPolicyConfig {
    serde_json::from_str(
        r#"{"tis_ratio_type": "sequence", "sequence_mask_metric": "product", "outlier_token_is_threshold_low": 0.76,
            "token_mask_is_threshold_low": 0.8, "token_mask_is_threshold_high": 1.25}"#,
    )
    .unwrap()
}

fn assert_same_metrics(found: &Metrics, expected: &Metrics) {
    let (found, expected): (Vec<_>, Vec<_>) = (found.values().collect(), expected.values().collect());
    let names = |list: &[(&str, f64)]| list.iter().map(|(name, _)| (*name).to_owned()).collect::<Vec<_>>();
    assert_eq!(names(&found), names(&expected));
    let values = |list: &[(&str, f64)]| list.iter().map(|&(_, value)| value).collect::<Vec<_>>();
    assert_close(&values(&found), &values(&expected), 1e-9);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn cutting_a_mini_batch_changes_nothing(batch in batches(), cuts in cuts()) {
        for (name, loss) in built_in_losses() {
            let mut batch = batch.clone();
            let selection = batch.with_input(|input| select_tokens(loss.as_ref(), input)).unwrap();
            batch.selection = selection.map(|flags| Vec::try_from(flags).unwrap());
            if loss.accepts_correction() {
                batch.correction = Some(corrected(&batch, &correction_config()).0);
            }
            let whole = batch.run(loss.as_ref());
            let (mut loss_sum, mut gradient, mut metrics) = (0.0, Vec::new(), Metrics::default());
            for part in micro_batches(batch.rows(), &cuts) {
                let result = batch.pick(&part).run(loss.as_ref());
                loss_sum += result.loss;
                gradient.extend(result.gradient);
                metrics.merge(result.output.metrics);
            }
            prop_assert!((loss_sum - whole.loss).abs() < 1e-9, "{}: {} against {}", name, loss_sum, whole.loss);
            assert_close(&gradient, &whole.gradient, 1e-9);
            assert_same_metrics(&metrics, &whole.output.metrics);
        }
    }

    #[test]
    fn correcting_micro_batches_is_correcting_the_mini_batch(batch in batches(), cuts in cuts()) {
        let (weights, metrics) = corrected(&batch, &correction_config());
        let (mut part_weights, mut part_metrics) = (Vec::new(), Metrics::default());
        for part in micro_batches(batch.rows(), &cuts) {
            let (weights, metrics) = corrected(&batch.pick(&part), &correction_config());
            part_weights.extend(weights);
            part_metrics.merge(metrics);
        }
        assert_close(&part_weights, &weights, 1e-12);
        assert_same_metrics(&part_metrics, &metrics);
    }

    #[test]
    fn the_order_of_rows_changes_nothing(batch in batches(), seed in any::<u64>()) {
        let mut order: Vec<usize> = (0..batch.rows()).collect();
        order.sort_by_key(|&row| (row as u64 + 1).wrapping_mul(seed | 1));
        let shuffled = batch.pick(&order);
        for (name, loss) in built_in_losses() {
            let straight = batch.run(loss.as_ref());
            let result = shuffled.run(loss.as_ref());
            prop_assert!((result.loss - straight.loss).abs() < 1e-9, "{}", name);
            let permuted = Batch { logprobs: straight.gradient, ..batch.clone() }.pick(&order).logprobs;
            assert_close(&result.gradient, &permuted, 1e-9);
        }
    }

    #[test]
    fn masked_tokens_have_no_gradient(batch in batches()) {
        for (name, loss) in built_in_losses() {
            let gradient = batch.run(loss.as_ref()).gradient;
            for (token, slope) in gradient.iter().enumerate() {
                prop_assert!(batch.mask[token] || *slope == 0.0, "{}: token {}", name, token);
            }
        }
    }
}
