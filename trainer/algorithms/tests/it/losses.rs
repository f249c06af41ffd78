//! Policy losses: known numbers, what they refuse, what they say when something is wrong.

use espalier_algorithms::config::{ClipCovConfig, DppoKind, KlCovConfig};
use espalier_algorithms::losses::covariance::{ClipCov, KlCov};
use espalier_algorithms::losses::dppo::Dppo;
use espalier_algorithms::losses::gspo::Gspo;
use espalier_algorithms::losses::likelihood::{CrossEntropy, ImportanceSampling};
use espalier_algorithms::losses::ppo::{ClipRange, DualClip, Regular};
use espalier_algorithms::losses::sapo::Sapo;
use espalier_algorithms::losses::weighted::{Cispo, RolloutIs};
use espalier_algorithms::losses::{LossInput, PolicyLoss, TokenBatch, policy_loss, select_tokens};
use espalier_algorithms::metrics::Recorder;
use espalier_algorithms::tokens::TokenError;
use tch::Tensor;

use crate::batch::{Batch, assert_close, built_in_losses, numbers};

const RANGE: ClipRange = ClipRange { low: 0.2, high: 0.2 };

/// Loss of one token whose log-probability moved by `log_ratio`.
fn token(loss: &dyn PolicyLoss, log_ratio: f64, advantage: f64) -> f64 {
    Batch::token(log_ratio, advantage).run(loss).loss
}

#[test]
fn the_clipped_surrogates_have_their_known_values() {
    let regular = Regular { range: RANGE };
    let dual_clip = DualClip { range: RANGE, bound: 3.0 };
    let sapo = Sapo { tau_positive: 1.0, tau_negative: 1.05 };
    let known = [
        (0.0, 1.0, -1.0, -1.0, Some(-2.0)),
        (0.0, -1.0, 1.0, 1.0, Some(1.904762)),
        (0.5, 1.0, -1.2, -1.2, Some(-2.626889)),
        (0.5, -1.0, 1.648721, 1.648721, Some(2.529512)),
        (-0.5, 1.0, -0.606531, -0.606531, Some(-1.61153)),
        (-0.5, -1.0, 0.8, 0.8, Some(1.516795)),
        (2.0, -1.0, 7.389056, 3.0, None),
    ];
    for (log_ratio, advantage, expected_regular, expected_dual, expected_sapo) in known {
        assert_close(&[token(&regular, log_ratio, advantage)], &[expected_regular], 1e-6);
        assert_close(&[token(&dual_clip, log_ratio, advantage)], &[expected_dual], 1e-6);
        if let Some(expected) = expected_sapo {
            assert_close(&[token(&sapo, log_ratio, advantage)], &[expected], 1e-6);
        }
    }
}

#[test]
fn clip_higher_lets_ratios_rise_further_than_fall() {
    let loss = Regular { range: ClipRange { low: 0.2, high: 0.28 } };
    assert_close(&[token(&loss, 0.5, 1.0), token(&loss, -0.5, -1.0)], &[-1.28, 0.8], 1e-12);
}

#[test]
fn dppo_masks_by_total_variation_where_the_ratio_says_nothing() {
    let batch = Batch { logprobs: vec![-0.5], rollout: vec![-1.0], ..Batch::token(0.0, 1.0) };
    let loss = |divergence| Dppo { divergence, delta_low: 0.2, delta_high: 0.2 };
    // The total variation is 0.238651, the binary divergence 0.115734.
    assert_eq!(batch.run(&loss(DppoKind::BinaryTv)).loss, 0.0);
    assert_close(&[batch.run(&loss(DppoKind::BinaryKl)).loss], &[-0.5_f64.exp()], 1e-12);
    let tight = |divergence, delta| Dppo { divergence, delta_low: 0.2, delta_high: delta };
    assert_eq!(batch.run(&tight(DppoKind::BinaryKl, 0.115733)).loss, 0.0);
    assert_ne!(batch.run(&tight(DppoKind::BinaryKl, 0.115735)).loss, 0.0);
    assert_eq!(batch.run(&tight(DppoKind::BinaryTv, 0.238650)).loss, 0.0);
    assert_ne!(batch.run(&tight(DppoKind::BinaryTv, 0.238652)).loss, 0.0);
    // An update that moves back is never masked.
    let back = Batch { advantages: vec![-1.0], ..batch };
    assert_ne!(back.run(&loss(DppoKind::BinaryTv)).loss, 0.0);
}

#[test]
fn dppo_stays_finite_where_a_probability_is_one() {
    let batch = Batch { logprobs: vec![0.0], rollout: vec![-1.0], ..Batch::token(0.0, -1.0) };
    let loss = Dppo { divergence: DppoKind::BinaryKl, delta_low: 0.2, delta_high: 0.2 };
    assert_close(&[batch.run(&loss).loss], &[1.0_f64.exp()], 1e-12);
}

#[test]
fn the_ratio_of_a_row_under_gspo_grows_up_to_its_bound() {
    // With a negative advantage the clip leaves large ratios alone.
    let loss = Gspo { range: RANGE };
    assert_close(&[token(&loss, 2.0, -1.0), token(&loss, 9.0, -1.0)], &[2.0_f64.exp(), 9.0_f64.exp()], 1e-9);
    assert_close(&[token(&loss, 12.0, -1.0)], &[10.0_f64.exp()], 1e-9);
}

#[test]
fn rollout_is_gives_tokens_out_of_range_no_gradient() {
    let batch = Batch::token(0.5, 1.0);
    let result = batch.run(&RolloutIs { range: RANGE });
    assert_eq!((result.loss, result.gradient), (0.0, vec![0.0]));
    assert_eq!(result.output.metrics.value("clip_ratio"), Some(1.0));
}

#[test]
fn cispo_gives_clipped_tokens_a_gradient() {
    let loss = Cispo { range: ClipRange { low: 1.0, high: 4.0 }, against_rollout: false };
    let result = Batch::token(2.0, 1.5).run(&loss);
    assert_close(&result.gradient, &[-7.5], 1e-12);
    let metrics = &result.output.metrics;
    assert_eq!(metrics.value("cispo/ratio_clamped_mean"), Some(5.0));
    assert_close(&[metrics.value("cispo/ratio_max").unwrap()], &[2.0_f64.exp()], 1e-12);
}

#[test]
fn the_clip_ratio_counts_trainable_tokens_only() {
    let mut batch = Batch::random(1, &[4]);
    batch.logprobs = vec![-1.0; 4];
    batch.old = vec![-2.0, -1.0, -2.0, -1.0];
    batch.advantages = vec![1.0; 4];
    batch.mask = vec![true, true, true, false];
    let metrics = batch.run(&Regular { range: RANGE }).output.metrics;
    assert_close(&[metrics.value("clip_ratio").unwrap()], &[2.0 / 3.0], 1e-12);
}

#[test]
fn a_clip_cov_draw_follows_from_its_seed() {
    let choice = ClipCovConfig { clip_ratio: 0.1, clip_cov_lb: 0.0, clip_cov_ub: 5.0 };
    let batch = Batch::random(3, &[30, 30, 30]);
    let choose = |seed| {
        let loss = ClipCov { range: RANGE, choice, seed };
        let flags = batch.with_input(|input| select_tokens(&loss, input)).unwrap().unwrap();
        Vec::<bool>::try_from(flags).unwrap()
    };
    assert_eq!(choose(1), choose(1));
    assert_ne!(choose(1), choose(2));
    let trainable = batch.mask.iter().filter(|&&bit| bit).count();
    assert_eq!(choose(1).iter().filter(|&&flag| flag).count(), trainable / 10);
}

#[test]
fn clip_cov_detaches_only_candidates() {
    // Covariances over the trainable tokens: only the first is in the range.
    let batch = Batch {
        logprobs: vec![-0.1, -2.0, -2.0, -9.0],
        old: vec![-0.1, -2.0, -2.0, -9.0],
        rollout: vec![-0.1, -2.0, -2.0, -9.0],
        advantages: vec![3.0, 0.0, 0.0, 50.0],
        scales: vec![1.0; 4],
        mask: vec![true, true, true, false],
        offsets: vec![0, 4],
        ..Batch::default()
    };
    let choice = ClipCovConfig { clip_ratio: 1.0, clip_cov_lb: 1.0, clip_cov_ub: 5.0 };
    let result = batch.run(&ClipCov { range: RANGE, choice, seed: 0 });
    assert_eq!(result.gradient, [0.0; 4]);
    let narrow = ClipCovConfig { clip_cov_lb: 4.0, ..choice };
    let result = batch.run(&ClipCov { range: RANGE, choice: narrow, seed: 0 });
    assert_close(&result.gradient, &[-3.0, 0.0, 0.0, 0.0], 1e-12);
    let low = ClipCovConfig { clip_cov_ub: 2.0, ..choice };
    let result = batch.run(&ClipCov { range: RANGE, choice: low, seed: 0 });
    assert_close(&result.gradient, &[-3.0, 0.0, 0.0, 0.0], 1e-12);
}

#[test]
fn a_choice_by_covariance_takes_one_token_at_least() {
    let batch = Batch::random(3, &[4, 3]);
    let clip_cov = ClipCovConfig { clip_ratio: 1e-6, clip_cov_lb: -1e9, clip_cov_ub: 1e9 };
    let kl_cov = KlCovConfig { kl_cov_frac: 1e-6, ppo_kl_coef: 1.0 };
    let clip_cov = ClipCov { range: ClipRange { low: 1.0, high: 1e9 }, choice: clip_cov, seed: 0 };
    let losses: [&dyn PolicyLoss; 2] = [&clip_cov, &KlCov { choice: kl_cov, seed: 0 }];
    for loss in losses {
        let flags = batch.with_input(|input| select_tokens(loss, input)).unwrap().unwrap();
        let chosen = Vec::<bool>::try_from(flags).unwrap().into_iter().filter(|&flag| flag).count();
        assert_eq!(chosen, 1, "{}", loss.name());
    }
}

#[test]
fn kl_cov_penalises_the_highest_covariances() {
    let batch = Batch {
        logprobs: vec![-0.1, -2.0, -2.0, -2.0, -2.0],
        old: vec![-0.6, -2.5, -2.5, -2.5, -2.5],
        rollout: vec![-0.6; 5],
        advantages: vec![3.0, 0.0, 0.0, 0.0, 0.0],
        scales: vec![1.0; 5],
        mask: vec![true; 5],
        offsets: vec![0, 2, 5],
        ..Batch::default()
    };
    let result = batch.run(&KlCov { choice: KlCovConfig { kl_cov_frac: 0.2, ppo_kl_coef: 2.0 }, seed: 0 });
    let expected = -3.0 * 0.5_f64.exp() + 2.0;
    assert_close(&result.gradient, &[expected, 0.0, 0.0, 0.0, 0.0], 1e-12);
    assert_eq!(result.output.metrics.value("kl_cov_ratio"), Some(0.2));
}

#[test]
fn cross_entropy_needs_neither_advantages_nor_old_logprobs() {
    let logprobs = Tensor::from_slice(&[-1.0_f64, -2.0]);
    let input = LossInput {
        logprobs: &logprobs,
        old_logprobs: None,
        rollout_logprobs: None,
        advantages: None,
        scales: &Tensor::from_slice(&[0.5, -3.0]),
        mask: &Tensor::from_slice(&[1_i64, 1]),
        row_offsets: &[0, 1, 2],
        correction: None,
        selection: None,
    };
    assert_eq!(policy_loss(&CrossEntropy, &input).unwrap().loss.double_value(&[]), 0.5 - 6.0);
    let message = policy_loss(&Regular { range: RANGE }, &input).unwrap_err().to_string();
    assert!(message.contains("`regular` needs `old_logprobs`"), "{message}");
}

#[test]
fn a_loss_that_is_not_finite_names_its_row_and_token() {
    let mut batch = Batch::random(5, &[3, 4, 2]);
    batch.mask = vec![true; 9];
    batch.logprobs[5] = f64::NAN;
    match batch.try_run(&Regular { range: RANGE }).err().unwrap() {
        TokenError::NotFinite { row: 1, token: 2, logprob, old_logprob: Some(old), .. } => {
            assert!(logprob.is_nan());
            assert_eq!(old, batch.old[5]);
        }
        other => panic!("{other}"),
    }
    batch.logprobs[5] = 1000.0;
    let message = batch.try_run(&ImportanceSampling).err().unwrap().to_string();
    assert!(message.contains("`importance_sampling` is not finite: row 1, token 2"), "{message}");
}

#[test]
fn a_sum_that_overflows_is_told_from_a_bad_token() {
    let mut batch = Batch::random(5, &[2]);
    batch.mask = vec![true; 2];
    batch.scales = vec![1.0; 2];
    batch.logprobs = vec![-1.5e308; 2];
    assert!(matches!(batch.try_run(&CrossEntropy), Err(TokenError::Overflow { .. })));
}

#[test]
fn whatever_stands_at_a_masked_token_is_ignored() {
    for (name, loss) in built_in_losses() {
        let mut batch = Batch::random(9, &[6, 6]);
        batch.mask[2] = false;
        batch.mask[7] = false;
        let clean = batch.run(loss.as_ref());
        for token in [2, 7] {
            batch.logprobs[token] = f64::NAN;
            batch.old[token] = f64::NEG_INFINITY;
            batch.rollout[token] = f64::INFINITY;
            batch.advantages[token] = f64::NAN;
            batch.scales[token] = f64::NAN;
        }
        let dirty = batch.run(loss.as_ref());
        assert_eq!(dirty.loss, clean.loss, "{name}");
        assert_eq!(dirty.gradient, clean.gradient, "{name}");
        assert_eq!(dirty.output.metrics, clean.output.metrics, "{name}");
        assert_eq!((dirty.gradient[2], dirty.gradient[7]), (0.0, 0.0), "{name}");
    }
}

#[test]
fn a_batch_without_trainable_tokens_has_loss_zero() {
    for (name, loss) in built_in_losses() {
        let mut masked = Batch::random(9, &[3, 2]);
        masked.mask = vec![false; 5];
        let result = masked.run(loss.as_ref());
        assert_eq!((result.loss, result.gradient), (0.0, vec![0.0; 5]), "{name}");
        let empty = Batch::random(9, &[0, 0]);
        assert_eq!(empty.run(loss.as_ref()).loss, 0.0, "{name}");
    }
}

#[test]
fn half_precision_logprobs_are_computed_in_single() {
    let logprobs = Tensor::from_slice(&[-1.0_f32, -2.0]).to_kind(tch::Kind::BFloat16);
    let column = Tensor::from_slice(&[-1.5_f32, -2.5]);
    let ones = Tensor::from_slice(&[1.0_f32, 1.0]);
    let input = LossInput {
        logprobs: &logprobs,
        old_logprobs: Some(&column),
        rollout_logprobs: None,
        advantages: Some(&ones),
        scales: &ones,
        mask: &ones,
        row_offsets: &[0, 2],
        correction: None,
        selection: None,
    };
    let output = policy_loss(&ImportanceSampling, &input).unwrap();
    assert_eq!(output.loss.kind(), tch::Kind::Float);
    assert_close(&numbers(&output.token_losses), &[-0.5_f64.exp(); 2], 1e-6);
}

#[test]
fn correction_is_refused_where_it_has_no_place() {
    let refused: Vec<String> = built_in_losses()
        .into_iter()
        .filter_map(|(_, loss)| {
            let mut batch = Batch::random(2, &[4]);
            batch.correction = Some(vec![1.0; 4]);
            let refused = matches!(batch.try_run(loss.as_ref()), Err(TokenError::CorrectionRefused { .. }));
            refused.then(|| loss.name().to_owned())
        })
        .collect();
    assert_eq!(refused, ["clip_cov", "kl_cov", "cross_entropy", "importance_sampling"]);
}

#[test]
fn columns_that_do_not_fit_are_named() {
    let message = |batch: &Batch| batch.try_run(&Regular { range: RANGE }).err().unwrap().to_string();
    let batch = Batch::random(2, &[4, 2]);
    let short = Batch { advantages: vec![1.0; 5], ..batch.clone() };
    assert_eq!(message(&short), "`advantages` has shape [5], expected [6]: one entry for each response token");
    for (offsets, index, found) in
        [(vec![0, 4, 5], 2, 5), (vec![1, 4, 6], 0, 1), (vec![0, 4, 3, 6], 2, 3), (vec![], 0, -1), (vec![0], 0, 0)]
    {
        let wrong = Batch { offsets, ..batch.clone() };
        let expected = format!("entry {index} is {found}");
        assert!(message(&wrong).ends_with(&expected), "{}, expected {expected}", message(&wrong));
    }
}

/// A custom loss: plain policy gradient.
struct Reinforce;

impl PolicyLoss for Reinforce {
    fn name(&self) -> &'static str {
        "reinforce"
    }

    fn token_losses(&self, batch: &TokenBatch, metrics: &mut Recorder) -> Result<Tensor, TokenError> {
        metrics.max("largest_advantage", batch.advantages()?, &batch.mask);
        Ok(-(batch.advantages()? * &batch.logprobs))
    }
}

#[test]
fn a_custom_loss_is_masked_scaled_and_summed_like_any_other() {
    let batch = Batch::random(4, &[5, 3]);
    let result = batch.run(&Reinforce);
    let expected: Vec<f64> = (0..8)
        .map(|token| if batch.mask[token] { -batch.advantages[token] * batch.scales[token] } else { 0.0 })
        .collect();
    assert_close(&result.gradient, &expected, 1e-12);
    let largest = (0..8).filter(|&token| batch.mask[token]).map(|token| batch.advantages[token]).fold(-9.0, f64::max);
    assert_eq!(result.output.metrics.value("largest_advantage"), Some(largest));
}

/// A custom loss that answers one number for the whole batch.
struct Wrong;

impl PolicyLoss for Wrong {
    fn name(&self) -> &'static str {
        "wrong"
    }

    fn token_losses(&self, batch: &TokenBatch, _: &mut Recorder) -> Result<Tensor, TokenError> {
        Ok(batch.logprobs.sum(tch::Kind::Double))
    }
}

#[test]
fn a_custom_loss_that_sums_by_itself_is_refused() {
    let message = Batch::random(4, &[5]).try_run(&Wrong).err().unwrap().to_string();
    assert_eq!(message, "`wrong` answered token losses of shape [], expected [5]");
}
