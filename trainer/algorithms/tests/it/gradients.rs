//! Values and gradients of every loss against finite differences of a plain formula.
//!
//! The formula of a token takes what has a stopped gradient from the batch, and only its own log-probability varies.

use crate::batch::{Batch, assert_close, built_in_losses};

const STEP: f64 = 1e-6;

/// A token's loss at log-probability `x`; `batch` gives everything that is constant.
type Formula = fn(&Batch, usize, f64) -> f64;

fn clipped(ratio: f64, advantage: f64, low: f64, high: f64) -> f64 {
    -(ratio * advantage).min(ratio.clamp(1.0 - low, 1.0 + high) * advantage)
}

fn regular(batch: &Batch, token: usize, x: f64) -> f64 {
    clipped((x - batch.old[token]).exp(), batch.advantages[token], 0.2, 0.2)
}

fn dual_clip(batch: &Batch, token: usize, x: f64) -> f64 {
    let advantage = batch.advantages[token];
    if advantage < 0.0 { regular(batch, token, x).min(-1.5 * advantage) } else { regular(batch, token, x) }
}

fn gspo(batch: &Batch, token: usize, x: f64) -> f64 {
    let row = (0..batch.rows()).find(|&row| (token as i64) < batch.offsets[row + 1]).unwrap();
    let live: Vec<usize> =
        (batch.offsets[row] as usize..batch.offsets[row + 1] as usize).filter(|&token| batch.mask[token]).collect();
    let mean = live.iter().map(|&token| batch.logprobs[token] - batch.old[token]).sum::<f64>() / live.len() as f64;
    clipped((x - batch.logprobs[token] + mean).exp(), batch.advantages[token], 0.05, 0.08)
}

fn sapo(batch: &Batch, token: usize, x: f64) -> f64 {
    let advantage = batch.advantages[token];
    let tau = if advantage > 0.0 { 1.0 } else { 1.05 };
    let ratio = (x - batch.old[token]).exp();
    -advantage * 4.0 / tau / (1.0 + (-tau * (ratio - 1.0)).exp())
}

fn cispo(batch: &Batch, token: usize, x: f64) -> f64 {
    let weight = (batch.logprobs[token] - batch.old[token]).exp().clamp(0.7, 1.4);
    -batch.advantages[token] * weight * x
}

fn cispo_rollout(batch: &Batch, token: usize, x: f64) -> f64 {
    let weight = (batch.logprobs[token] - batch.rollout[token]).exp().clamp(0.0, 1.4);
    -batch.advantages[token] * weight * x
}

fn rollout_is(batch: &Batch, token: usize, x: f64) -> f64 {
    let weight = (batch.logprobs[token] - batch.rollout[token]).exp();
    if weight > 0.8 && weight < 1.2 { -batch.advantages[token] * weight * x } else { 0.0 }
}

fn dppo(batch: &Batch, token: usize, x: f64, divergence: fn(f64, f64) -> f64, low: f64, high: f64) -> f64 {
    let (p, mu) = (batch.logprobs[token].exp(), batch.rollout[token].exp());
    let advantage = batch.advantages[token];
    let masked = (advantage > 0.0 && p > mu && divergence(mu, p) > high)
        || (advantage < 0.0 && p < mu && divergence(mu, p) > low);
    if masked { 0.0 } else { -advantage * (x - batch.rollout[token]).exp() }
}

fn dppo_tv(batch: &Batch, token: usize, x: f64) -> f64 {
    dppo(batch, token, x, |mu, p| (mu - p).abs(), 0.05, 0.1)
}

fn dppo_kl(batch: &Batch, token: usize, x: f64) -> f64 {
    let kl = |mu: f64, p: f64| mu * (mu / p).ln() + (1.0 - mu) * ((1.0 - mu) / (1.0 - p)).ln();
    dppo(batch, token, x, kl, 0.01, 0.03)
}

fn clip_cov(batch: &Batch, token: usize, x: f64) -> f64 {
    if batch.selection.as_ref().unwrap()[token] { 0.0 } else { regular(batch, token, x) }
}

fn kl_cov(batch: &Batch, token: usize, x: f64) -> f64 {
    let difference = x - batch.old[token];
    let penalty = if batch.selection.as_ref().unwrap()[token] { difference.abs() } else { 0.0 };
    -batch.advantages[token] * difference.exp() + penalty
}

fn cross_entropy(_: &Batch, _: usize, x: f64) -> f64 {
    -x
}

fn importance_sampling(batch: &Batch, token: usize, x: f64) -> f64 {
    -batch.advantages[token] * (x - batch.old[token]).exp()
}

/// In the order of [`built_in_losses`].
const FORMULAS: [Formula; 13] = [
    regular,
    dual_clip,
    gspo,
    sapo,
    cispo,
    cispo_rollout,
    rollout_is,
    dppo_tv,
    dppo_kl,
    clip_cov,
    kl_cov,
    cross_entropy,
    importance_sampling,
];

#[test]
fn every_loss_and_its_gradient_are_those_of_the_formula() {
    for ((name, loss), formula) in built_in_losses().iter().zip(FORMULAS) {
        for seed in 0..8 {
            let mut batch = Batch::random(seed, &[7, 1, 12, 5]);
            let tokens = batch.old.len();
            batch.selection = Some((0..tokens).map(|token| token % 3 == 0).collect());
            if loss.accepts_correction() {
                batch.correction = Some((0..tokens).map(|token| (token % 4) as f64 / 2.0).collect());
            }
            let weight = |token: usize| {
                let correction = batch.correction.as_ref().map_or(1.0, |weights| weights[token]);
                if batch.mask[token] { batch.scales[token] * correction } else { 0.0 }
            };
            let live = |token: usize| weight(token) != 0.0;
            let at = |token: usize, x: f64| if live(token) { weight(token) * formula(&batch, token, x) } else { 0.0 };
            let expected: f64 = (0..tokens).map(|token| at(token, batch.logprobs[token])).sum();
            let slope = |token: usize| {
                let x = batch.logprobs[token];
                (at(token, x + STEP) - at(token, x - STEP)) / (2.0 * STEP)
            };
            let gradient: Vec<f64> = (0..tokens).map(slope).collect();
            let result = batch.run(loss.as_ref());
            assert!((result.loss - expected).abs() < 1e-9, "{name}, seed {seed}: {} against {expected}", result.loss);
            assert_close(&result.gradient, &gradient, 1e-7);
        }
    }
}
