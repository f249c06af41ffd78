//! The divergence between the policy and its reference.

use espalier_algorithms::AlgorithmConfig;
use espalier_algorithms::kl::{KlController, KlEstimator, KlLength, kl_loss, penalize_rewards};
use proptest::prelude::*;
use tch::Tensor;

use crate::batch::{Batch, assert_close, numbers};

const ALL: [KlEstimator; 4] = [KlEstimator::K1, KlEstimator::Abs, KlEstimator::K2, KlEstimator::K3];

#[test]
fn k3_has_its_known_values() {
    for (difference, expected) in
        [(0.1, 0.005171), (-0.1, 0.004837), (1.0, 0.718282), (-1.0, 0.367879), (5.0, 10.0), (-5.0, 4.006738)]
    {
        // The difference is reference minus policy.
        assert!((KlEstimator::K3.estimate(0.0, difference) - expected).abs() < 1e-6, "{difference}");
    }
}

#[test]
fn the_other_estimators_are_what_they_are_called() {
    assert_eq!(KlEstimator::K1.estimate(-3.0, -1.0), -2.0);
    assert_eq!(KlEstimator::Abs.estimate(-3.0, -1.0), 2.0);
    assert_eq!(KlEstimator::K2.estimate(-3.0, -1.0), 2.0);
}

#[test]
fn a_penalty_is_taken_off_trainable_tokens() {
    let mut rewards = [0.0, 0.0, 1.0];
    let kl = penalize_rewards(&mut rewards, &[-1.0, -9.0, -1.0], &[-1.5, 0.0, -0.5], &[1, 0, 1], KlEstimator::K1, 0.1);
    assert_eq!(rewards, [-0.05, 0.0, 1.05]);
    let kl = kl.unwrap();
    assert_eq!((kl.mean, kl.max), (0.0, 0.5));
    let mut rewards = [1.0];
    penalize_rewards(&mut rewards, &[-1.0], &[-3.0], &[1], KlEstimator::K1, -0.5).unwrap();
    assert_eq!(rewards, [1.0], "a negative coefficient counts as 0");
    let error = penalize_rewards(&mut rewards, &[-1.0], &[], &[1], KlEstimator::K1, 0.1).unwrap_err();
    assert_eq!(error, KlLength { column: "ref_logprobs", expected: 1, found: 0 });
}

#[test]
fn the_mean_of_a_row_is_over_its_trainable_tokens() {
    let mut rewards = [0.0; 4];
    let kl = penalize_rewards(
        &mut rewards,
        &[-1.0, -9.0, -1.0, -9.0],
        &[-2.0, 0.0, -4.0, 0.0],
        &[1, 0, 1, 0],
        KlEstimator::K1,
        0.1,
    );
    let kl = kl.unwrap();
    assert_eq!((kl.mean, kl.max), (2.0, 3.0));
}

#[test]
fn an_adaptive_coefficient_follows_its_target_and_can_be_stored() {
    let config: AlgorithmConfig = serde_json::from_str(r#"{"kl_ctrl": {"type": "adaptive"}}"#).unwrap();
    let mut controller = KlController::new(&config);
    controller.update(0.3, 512);
    assert!((controller.value() - 0.00101024).abs() < 1e-12);
    let text = serde_json::to_string(&controller).unwrap();
    let mut restored: KlController = serde_json::from_str(&text).unwrap();
    controller.update(0.0, 512);
    restored.update(0.0, 512);
    assert_eq!(restored, controller);
    // Both ways by a fifth at most.
    assert!((restored.value() - 0.00101024 * (1.0 - 0.01024)).abs() < 1e-12);
    let before = restored.value();
    restored.update(f64::NAN, 512);
    assert_eq!(restored.value(), before);
}

#[test]
fn a_fixed_coefficient_stays() {
    let mut controller = KlController::new(&AlgorithmConfig::default());
    controller.update(5.0, 512);
    assert_eq!(controller.value(), 0.001);
}

#[test]
fn the_loss_shares_the_scales_and_ignores_masked_tokens() {
    let mut batch = Batch::random(1, &[5, 4]);
    batch.mask[3] = false;
    for estimator in ALL {
        let run = |batch: &Batch| {
            let logprobs = Tensor::from_slice(&batch.logprobs).set_requires_grad(true);
            let [reference, scales] = [&batch.old, &batch.scales].map(|column| Tensor::from_slice(column));
            let mask = Tensor::from_slice(&batch.mask);
            let (loss, metrics) = kl_loss(estimator, &logprobs, &reference, &scales, &mask).unwrap();
            loss.backward();
            (loss.double_value(&[]), numbers(&logprobs.grad()), metrics.value("policy_kl").unwrap())
        };
        let (loss, gradient, mean) = run(&batch);
        let live: Vec<usize> = (0..9).filter(|&token| batch.mask[token]).collect();
        let kl = |token: usize, step: f64| estimator.estimate(batch.logprobs[token] + step, batch.old[token]);
        let expected: f64 = live.iter().map(|&token| batch.scales[token] * kl(token, 0.0)).sum();
        assert_close(&[loss], &[expected], 1e-12);
        let expected: f64 = live.iter().map(|&token| kl(token, 0.0)).sum::<f64>() / live.len() as f64;
        assert_close(&[mean], &[expected], 1e-12);
        let slope = |token: usize| batch.scales[token] * (kl(token, 1e-6) - kl(token, -1e-6)) / 2e-6;
        let expected: Vec<f64> = (0..9).map(|token| if batch.mask[token] { slope(token) } else { 0.0 }).collect();
        assert_close(&gradient, &expected, 1e-7);
        let mut dirty = batch.clone();
        dirty.logprobs[3] = f64::NAN;
        dirty.old[3] = f64::NEG_INFINITY;
        assert_eq!(run(&dirty), (loss, gradient, mean));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn numbers_and_tensors_agree(logprob in -60.0_f64..0.0, reference in -60.0_f64..0.0) {
        for estimator in ALL {
            let tensor = estimator.estimates(&Tensor::from_slice(&[logprob]), &Tensor::from_slice(&[reference]));
            let number = estimator.estimate(logprob, reference);
            prop_assert!((tensor.double_value(&[0]) - number).abs() < 1e-9);
        }
    }
}
