//! Everything that has a number, against `tests/reference.py`: the same formulas in numpy, written separately.

use std::collections::BTreeMap;

use espalier_algorithms::advantages::{self, AdvantageRow};
use espalier_algorithms::config::OffPolicyConfig;
use espalier_algorithms::kl::{KlEstimator, kl_loss};
use espalier_algorithms::losses::{LossInput, built_in, policy_loss};
use espalier_algorithms::metrics::Metrics;
use espalier_algorithms::off_policy::{Correction, OffPolicyInput, correct};
use espalier_algorithms::reduction::{LossReduction, Reduction, ReductionRow};
use espalier_algorithms::value_loss::{ValueLossInput, value_loss};
use espalier_algorithms::{AlgorithmConfig, TreeCredit, compute_advantages};
use serde::Deserialize;
use serde_json::json;
use tch::Tensor;

use crate::batch::{assert_close, numbers};

const TOLERANCE: f64 = 1e-9;

#[derive(Deserialize)]
struct Reference {
    prompts: Vec<String>,
    row_offsets: Vec<i64>,
    mask: Vec<bool>,
    batch: BTreeMap<String, Vec<f64>>,
    losses: Vec<LossCase>,
    corrections: Vec<CorrectionCase>,
    reductions: Reductions,
    kl: BTreeMap<String, f64>,
    advantages: AdvantageCases,
    value_loss: f64,
}

#[derive(Deserialize)]
struct LossCase {
    config: serde_json::Value,
    loss: f64,
    token_losses: Vec<f64>,
    metrics: BTreeMap<String, f64>,
    /// The loss under each of the corrections; empty where it takes none.
    corrected: Vec<f64>,
}

#[derive(Deserialize)]
struct CorrectionCase {
    config: OffPolicyConfig,
    weights: Vec<f64>,
    metrics: BTreeMap<String, f64>,
}

#[derive(Deserialize)]
struct Reductions {
    weights: Vec<f64>,
    tokens: Vec<usize>,
    kept_tokens: Vec<usize>,
    max_seq_len: u32,
    cases: Vec<ReductionCase>,
}

#[derive(Deserialize)]
struct ReductionCase {
    kind: LossReduction,
    count_masked_tokens: bool,
    scales: Vec<Option<f64>>,
}

#[derive(Deserialize)]
struct AdvantageCases {
    gamma: f64,
    lambd: f64,
    advantages: BTreeMap<String, Vec<f64>>,
    gae_returns: Vec<f64>,
}

fn reference() -> Reference {
    serde_json::from_str(include_str!("../fixtures/reference.json")).unwrap()
}

impl Reference {
    fn column(&self, name: &str) -> Tensor {
        Tensor::from_slice(&self.batch[name])
    }

    fn loss(&self, config: &serde_json::Value, correction: Option<&Tensor>) -> espalier_algorithms::LossOutput {
        let loss = built_in(&serde_json::from_value(config.clone()).unwrap(), 0).unwrap();
        let input = LossInput {
            logprobs: &self.column("logprobs"),
            old_logprobs: Some(&self.column("old_logprobs")),
            rollout_logprobs: Some(&self.column("rollout_logprobs")),
            advantages: Some(&self.column("advantages")),
            scales: &self.column("scales"),
            mask: &Tensor::from_slice(&self.mask),
            row_offsets: &self.row_offsets,
            correction,
            selection: None,
        };
        policy_loss(loss.as_ref(), &input).unwrap()
    }

    fn correction(&self, config: &OffPolicyConfig) -> Correction {
        let input = OffPolicyInput {
            old_logprobs: &self.column("old_logprobs"),
            rollout_logprobs: &self.column("rollout_logprobs"),
            mask: &Tensor::from_slice(&self.mask),
            row_offsets: &self.row_offsets,
        };
        correct(config, &input).unwrap().unwrap()
    }
}

#[track_caller]
fn assert_metrics(found: &Metrics, expected: &BTreeMap<String, f64>) {
    let (names, values): (Vec<_>, Vec<_>) = found.values().map(|(name, value)| (name.to_owned(), value)).unzip();
    assert_eq!(names, expected.keys().cloned().collect::<Vec<_>>());
    assert_close(&values, &expected.values().copied().collect::<Vec<_>>(), TOLERANCE);
}

#[test]
fn losses_agree() {
    let reference = reference();
    assert_eq!(reference.losses.len(), 14);
    for case in &reference.losses {
        let output = reference.loss(&case.config, None);
        assert_close(&numbers(&output.token_losses), &case.token_losses, TOLERANCE);
        assert_close(&[output.loss.double_value(&[])], &[case.loss], TOLERANCE);
        assert_metrics(&output.metrics, &case.metrics);
    }
}

#[test]
fn corrections_agree() {
    let reference = reference();
    for case in &reference.corrections {
        let correction = reference.correction(&case.config);
        assert_close(&numbers(&correction.weights), &case.weights, TOLERANCE);
        assert_metrics(&correction.metrics, &case.metrics);
    }
}

#[test]
fn losses_under_every_correction_agree() {
    let reference = reference();
    let mut pairs = 0;
    for case in &reference.losses {
        for (expected, correction) in case.corrected.iter().zip(&reference.corrections) {
            let weights = reference.correction(&correction.config).weights;
            let loss = reference.loss(&case.config, Some(&weights)).loss.double_value(&[]);
            assert_close(&[loss], &[*expected], TOLERANCE);
            pairs += 1;
        }
    }
    assert_eq!(pairs, 10 * 9);
}

#[test]
fn reductions_agree() {
    let reference = reference();
    let reductions = &reference.reductions;
    let rows: Vec<ReductionRow<'_>> = (0..reference.prompts.len())
        .map(|row| ReductionRow {
            prompt: &reference.prompts[row],
            tokens: reductions.tokens[row],
            kept_tokens: reductions.kept_tokens[row],
            weight: reductions.weights[row],
        })
        .collect();
    for case in &reductions.cases {
        let reduction = Reduction {
            kind: case.kind,
            count_masked_tokens: case.count_masked_tokens,
            max_seq_len: Some(reductions.max_seq_len),
        };
        let scales = reduction.row_scales(&rows).unwrap();
        for (row, (found, expected)) in scales.iter().zip(&case.scales).enumerate() {
            let Some(expected) = expected else { continue };
            assert!((found - expected).abs() < TOLERANCE, "{:?}, row {row}: {found} against {expected}", case.kind);
        }
    }
}

#[test]
fn divergences_agree() {
    let reference = reference();
    for (name, expected) in &reference.kl {
        let estimator: KlEstimator = serde_json::from_value(json!(name)).unwrap();
        let mask = Tensor::from_slice(&reference.mask);
        let [logprobs, reference, scales] = ["logprobs", "ref_logprobs", "scales"].map(|name| reference.column(name));
        let (loss, _) = kl_loss(estimator, &logprobs, &reference, &scales, &mask).unwrap();
        assert_close(&[loss.double_value(&[])], &[*expected], TOLERANCE);
    }
}

#[test]
fn advantages_agree() {
    let reference = reference();
    let narrow = |name: &str| reference.batch[name].iter().map(|&value| value as f32).collect::<Vec<_>>();
    let (rewards, values) = (narrow("rewards"), narrow("values"));
    let mask: Vec<u8> = reference.mask.iter().map(|&bit| u8::from(bit)).collect();
    let names: Vec<String> = (0..reference.prompts.len()).map(|row| row.to_string()).collect();
    let rows: Vec<AdvantageRow<'_>> = names
        .iter()
        .enumerate()
        .map(|(row, name)| {
            let span = reference.row_offsets[row] as usize..reference.row_offsets[row + 1] as usize;
            AdvantageRow {
                trajectory: name,
                group: &reference.prompts[row],
                tree: name,
                depth: 0,
                rewards: &rewards[span.clone()],
                mask: &mask[span.clone()],
                values: Some(&values[span]),
                failed: false,
            }
        })
        .collect();
    let cases = &reference.advantages;
    for (name, expected) in &cases.advantages {
        let config: AlgorithmConfig = serde_json::from_value(json!({
            "advantage_estimator": name, "gamma": cases.gamma, "lambd": cases.lambd,
        }))
        .unwrap();
        let estimator = advantages::built_in(&config).unwrap();
        let found = compute_advantages(&rows, estimator.as_ref(), TreeCredit::Root, false).unwrap();
        let flat = |rows: &[Vec<f32>]| rows.iter().flatten().map(|&value| f64::from(value)).collect::<Vec<_>>();
        // Advantages are single precision.
        assert_close(&flat(&found.advantages), expected, 1e-6);
        if name == "gae" {
            assert_close(&flat(&found.returns), &cases.gae_returns, 1e-6);
        }
    }
}

#[test]
fn value_losses_agree() {
    let reference = reference();
    let input = ValueLossInput {
        values: &reference.column("values"),
        old_values: &reference.column("old_values"),
        returns: &reference.column("rewards"),
        scales: &reference.column("scales"),
        mask: &Tensor::from_slice(&reference.mask),
        row_offsets: &reference.row_offsets,
    };
    let output = value_loss(&input, 0.2).unwrap();
    assert_close(&[output.loss.double_value(&[])], &[reference.value_loss], TOLERANCE);
}
