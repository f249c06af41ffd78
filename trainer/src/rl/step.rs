//! What a step does with its rows: rewards, values, advantages, updates of critic and policy.
//!
//! Rewards of trainable tokens change before they become advantages, in this order:
//!
//! - `use_kl_in_reward`: `r_t <- r_t - coef * kl(policy, reference)`;
//! - `distillation`: `r_t <- [keep_rewards] r_t - coef * (log p_policy - log p_teacher)`: the reverse KL to a teacher, one
//!   sample a token (on-policy distillation: Agarwal et al., arXiv:2306.13649; Thinking Machines, 2025).
//!
//! All log-probabilities are of the sampled tokens, under the policy as it is before the update, and of logits divided by the
//! training temperature: the policy's, the reference's and the teacher's alike.

use std::collections::BTreeMap;
use std::time::Instant;

use espalier_algorithms::advantages;
use espalier_algorithms::kl::{KlController, KlEstimator, penalize_rewards};
use espalier_algorithms::metrics::{Metric, Metrics};

use super::Loop;
use super::rows::{self, RolloutRow, Sampled};
use crate::error::TrainError;
use crate::update::{Column, UpdateOptions, UpdateRow, needs_reference, reference_logprobs};

impl Loop {
    /// Trains on a step's rows.
    pub(super) fn train(
        &mut self,
        rows: &[RolloutRow],
        options: &UpdateOptions,
        kl: &mut KlController,
        times: &mut BTreeMap<&'static str, f64>,
    ) -> Result<Metrics, TrainError> {
        let algorithm = self.config.trainer.algorithm.clone();
        let g = &self.config.generator;
        let sampled =
            Sampled { samples_per_prompt: g.n_samples_per_prompt, max_response: g.sampling_params.max_tokens as usize };
        let mut metrics = Metrics::default();
        let at = Instant::now();
        let bare: Vec<UpdateRow> = rows.iter().map(bare).collect();
        let mut rewards: Vec<Vec<f32>> = rows.iter().map(|row| row.row.rewards().to_vec()).collect();
        let reference =
            if needs_reference(&algorithm) { Some(self.policy.reference_logprobs(&bare, options)?) } else { None };
        // The policy as it is: neither the critic's update nor anything else here changes it before its own.
        let shaped = algorithm.use_kl_in_reward || algorithm.distillation.is_some();
        let old = if shaped { Some(self.policy.logprobs(&bare, options)?) } else { None };
        if let (true, Some(reference), Some(old)) = (algorithm.use_kl_in_reward, &reference, &old) {
            let estimator = algorithm.kl_estimator_type;
            let (mean, most) = take_off(rows, &mut rewards, old, reference, estimator, kl.value())?;
            for (name, value) in [("loss/avg_kl", mean), ("loss/avg_kl_max", most), ("loss/kl_loss_coef", kl.value())] {
                metrics.insert(name, Metric::Mean { sum: value, weight: 1.0 });
            }
            kl.update(mean, rows.len());
        }
        if let (Some(distillation), Some(old)) = (&algorithm.distillation, &old) {
            let Some(teacher) = &self.teacher else {
                return Err(TrainError::Config {
                    key: "trainer.teacher.model.path".to_owned(),
                    expected: "a teacher, as `trainer.algorithm.distillation` is set".to_owned(),
                    found: "none".to_owned(),
                });
            };
            if !distillation.keep_rewards {
                for own in &mut rewards {
                    own.fill(0.0);
                }
            }
            let teacher = reference_logprobs(teacher, &bare, options)?;
            let (mean, most) = take_off(rows, &mut rewards, old, &teacher, KlEstimator::K1, distillation.coef)?;
            for (name, value) in [("distillation/reverse_kl_mean", mean), ("distillation/reverse_kl_max", most)] {
                metrics.insert(name, Metric::Mean { sum: value, weight: 1.0 });
            }
        }
        let values = self.critic.as_ref().map(|critic| critic.values(&bare, options.max_tokens)).transpose()?;
        times.insert("fwd_logprobs_values_reward", at.elapsed().as_secs_f64());
        let at = Instant::now();
        let built_in = advantages::built_in(&algorithm);
        let estimator = built_in.as_deref().or(self.estimator.as_deref()).ok_or_else(|| TrainError::Config {
            key: "trainer.algorithm.advantage_estimator".to_owned(),
            expected: "a built-in estimator, or one that the program brings".to_owned(),
            found: format!("{:?}", algorithm.advantage_estimator),
        })?;
        let prepared = rows::prepare(rows, &rewards, values.as_ref(), estimator, &algorithm, sampled)?;
        metrics.merge(prepared.metrics);
        times.insert("compute_advantages_and_returns", at.elapsed().as_secs_f64());
        if let (Some(critic), Some(values)) = (&mut self.critic, &values) {
            let at = Instant::now();
            let prompts = self.config.trainer.critic_mini_batch_size;
            let batches = (self.config.trainer.train_batch_size / prompts.max(1)).max(1) as u64;
            let own = UpdateOptions {
                mini_batch_prompts: prompts,
                total_steps: self.total_steps.saturating_mul(batches * u64::from(options.epochs)),
                ..*options
            };
            metrics.merge(critic.update(&prepared.rows, values, &prepared.returns, &own)?);
            times.insert("critic_train", at.elapsed().as_secs_f64());
        }
        let at = Instant::now();
        let reference = reference.filter(|_| algorithm.use_kl_loss);
        let update = self.policy.update(&prepared.rows, reference.as_ref(), options)?;
        metrics.merge(update.metrics);
        times.insert("policy_train", at.elapsed().as_secs_f64());
        Ok(metrics)
    }
}

/// Takes a divergence off the rewards of rows that did not fail; its mean over rows of the rows' means, and the largest size.
fn take_off(
    rows: &[RolloutRow],
    rewards: &mut [Vec<f32>],
    old: &Column,
    other: &Column,
    estimator: KlEstimator,
    coefficient: f64,
) -> Result<(f64, f64), TrainError> {
    let (mut sum, mut most, mut count) = (0.0, 0.0_f64, 0.0);
    for (i, row) in rows.iter().enumerate().filter(|(_, row)| !row.failed) {
        let own = penalize_rewards(&mut rewards[i], &old[i], &other[i], row.row.mask(), estimator, coefficient)
            .map_err(|e| TrainError::Row { row: i, reason: e.to_string() })?;
        sum += own.mean;
        most = most.max(own.max);
        count += 1.0;
    }
    Ok((if count > 0.0 { sum / count } else { 0.0 }, most))
}

/// A row as the forward passes need it.
fn bare(row: &RolloutRow) -> UpdateRow {
    let mut tokens = row.row.prompt_ids().to_vec();
    tokens.extend_from_slice(row.row.response_ids());
    UpdateRow { tokens, response_start: row.row.prompt_ids().len(), ..UpdateRow::default() }
}
