//! One update of a policy from rows with advantages.
//!
//! What was sampled becomes [`UpdateRow`]s; [`Policy::update`] computes the log-probabilities before the update and those
//! of the reference, cuts the batch into mini-batches of whole prompts, and takes an optimiser step on each. All terms of
//! the loss (policy, KL, entropy) share the same token scales, whose denominators are over the whole mini-batch, so
//! neither micro-batches nor processes change the result. Log-probabilities of the policy before and during the update
//! and of the reference use the same temperature.

use espalier_algorithms::config::{AdvantageEstimatorKind, AlgorithmConfig};
use espalier_algorithms::entropy;
use espalier_algorithms::kl::{KlController, kl_loss};
use espalier_algorithms::losses::{LossInput, PolicyLoss, built_in, policy_loss, select_tokens};
use espalier_algorithms::metrics::{Metric, Metrics};
use espalier_algorithms::off_policy::{self, OffPolicyInput};
use espalier_algorithms::reduction::{Reduction, ReductionRow};
use espalier_algorithms::tree::{TreeRow, row_weights};
use espalier_distributed::Reduction as Collective;
use espalier_inference::TokenId;
use tch::{Kind, Tensor};

use crate::error::TrainError;
use crate::head::{Entropy, HeadOptions, Predictions};
use crate::model::TrainModel;
use crate::optimizer::AdamW;
use crate::packing::{MicroBatch, PackRow, plan};

/// One row to train on. Slices over response tokens are all as long as the response.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct UpdateRow {
    /// Prompt and response.
    pub tokens: Vec<TokenId>,
    /// Where the response begins.
    pub response_start: usize,
    /// 1 on trainable response tokens.
    pub mask: Vec<u8>,
    /// Log-probabilities as the sampler reported them.
    pub rollout_logprobs: Option<Vec<f32>>,
    /// Advantages.
    pub advantages: Vec<f32>,
    /// The prompt it answers, the root's for a child.
    pub prompt: String,
    /// The tree it belongs to.
    pub tree: String,
}

impl UpdateRow {
    pub(crate) fn response_len(&self) -> usize {
        self.tokens.len() - self.response_start
    }

    pub(crate) fn trainable(&self) -> usize {
        self.mask.iter().map(|m| usize::from(*m)).sum()
    }

    fn check(&self, row: usize) -> Result<(), TrainError> {
        let wrong = |reason: String| Err(TrainError::Row { row, reason });
        if self.response_start == 0 || self.response_start > self.tokens.len() {
            return wrong(format!(
                "expected a prompt of at least one token before the response, found {} of {} tokens",
                self.response_start,
                self.tokens.len()
            ));
        }
        let expected = self.response_len();
        let columns = [
            ("mask", Some(self.mask.len())),
            ("advantages", Some(self.advantages.len())),
            ("rollout_logprobs", self.rollout_logprobs.as_ref().map(Vec::len)),
        ];
        match columns.into_iter().find(|(_, found)| found.is_some_and(|n| n != expected)) {
            Some((column, found)) => {
                wrong(format!("`{column}` has {} entries, the response has {expected} tokens", found.unwrap_or(0)))
            }
            None => Ok(()),
        }
    }
}

/// What an update did.
#[derive(Debug, Default)]
pub struct UpdateReport {
    /// Figures under SkyRL's names (`policy/...`, `loss/...`).
    pub metrics: Metrics,
    /// Optimiser steps that were taken, those left out included.
    pub steps: u64,
    /// KL to the reference, mean over trainable tokens, where there is a reference.
    pub reference_kl: Option<f64>,
}

/// How an update is divided.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct UpdateOptions {
    /// Prompts of a mini-batch; 0 for all.
    pub mini_batch_prompts: usize,
    /// Passes over the batch.
    pub epochs: u32,
    /// Tokens that go through the model at once.
    pub max_tokens: usize,
    /// Planned optimiser steps of the whole run, for the schedule.
    pub total_steps: u64,
    /// What logits are divided by: the sampler's temperature.
    pub temperature: f64,
    /// Seeds the losses that choose tokens.
    pub seed: u64,
}

/// A policy that learns by reinforcement.
pub struct Policy {
    /// The model.
    pub model: TrainModel,
    /// Its optimiser.
    pub optimizer: AdamW,
    /// The reference of KL terms. Without one the base without adapters is the reference, where there are adapters.
    pub reference: Option<TrainModel>,
    algorithm: AlgorithmConfig,
    custom_loss: Option<Box<dyn PolicyLoss>>,
}

/// A column of the batch, row by row.
pub type Column = Vec<Vec<f32>>;

impl Policy {
    /// A policy with its algorithm. `custom_loss` serves a `policy_loss_type` that is not built in.
    pub fn new(
        model: TrainModel,
        optimizer: AdamW,
        reference: Option<TrainModel>,
        algorithm: AlgorithmConfig,
        custom_loss: Option<Box<dyn PolicyLoss>>,
    ) -> Result<Self, TrainError> {
        if built_in(&algorithm, 0).is_none() && custom_loss.is_none() {
            return Err(TrainError::Config {
                key: "trainer.algorithm.policy_loss_type".to_owned(),
                expected: "a built-in loss, or one that the program brings".to_owned(),
                found: format!("{:?}", algorithm.policy_loss_type),
            });
        }
        Ok(Self { model, optimizer, reference, algorithm, custom_loss })
    }

    /// The algorithm.
    pub fn algorithm(&self) -> &AlgorithmConfig {
        &self.algorithm
    }

    /// Time spent in passes through the models and in optimiser steps so far.
    pub fn busy(&self) -> std::time::Duration {
        self.model.busy() + self.reference.as_ref().map_or(std::time::Duration::ZERO, TrainModel::busy)
    }

    /// Log-probabilities of all response tokens of each row, under the policy as it is.
    pub fn logprobs(&self, rows: &[UpdateRow], options: &UpdateOptions) -> Result<Column, TrainError> {
        let head = head_options(options.temperature, Entropy::No);
        by_row(&self.model, rows, options.max_tokens, |batch| Ok(self.model.predict(batch, head)?.logprobs))
    }

    /// Log-probabilities under the reference.
    pub fn reference_logprobs(&self, rows: &[UpdateRow], options: &UpdateOptions) -> Result<Column, TrainError> {
        if let Some(reference) = &self.reference {
            return reference_logprobs(reference, rows, options);
        }
        if self.model.targets().is_none() {
            return Err(TrainError::Config {
                key: "trainer.ref.model.path".to_owned(),
                expected: "a reference model, as all weights are trained and a KL term is used".to_owned(),
                found: "none".to_owned(),
            });
        }
        let head = head_options(options.temperature, Entropy::No);
        by_row(&self.model, rows, options.max_tokens, |batch| Ok(self.model.predict_base(batch, head)?.logprobs))
    }

    /// Trains on a batch, the same on every process. `reference` holds log-probabilities from
    /// [`Policy::reference_logprobs`] where a KL loss is used.
    pub fn update(
        &mut self,
        rows: &[UpdateRow],
        reference: Option<&Column>,
        options: &UpdateOptions,
    ) -> Result<UpdateReport, TrainError> {
        rows.iter().enumerate().try_for_each(|(i, row)| row.check(i))?;
        if rows.iter().all(|row| row.trainable() == 0) {
            return Ok(UpdateReport::default());
        }
        let old = self.logprobs(rows, options)?;
        self.update_from(rows, &old, reference, options)
    }

    /// The same with log-probabilities from before the update that are known already.
    pub fn update_from(
        &mut self,
        rows: &[UpdateRow],
        old: &Column,
        reference: Option<&Column>,
        options: &UpdateOptions,
    ) -> Result<UpdateReport, TrainError> {
        rows.iter().enumerate().try_for_each(|(i, row)| row.check(i))?;
        let mut report = UpdateReport::default();
        let everything = Columns::new(rows, &(0..rows.len()).collect::<Vec<_>>(), old, None);
        let everything = everything.select(&(0..rows.len()).collect::<Vec<_>>(), None)?;
        if let Some(input) = everything.against_sampler() {
            let difference = off_policy::logprob_difference(&input).map_err(token_error)?;
            report.metrics.merge(difference.prefixed("policy/"));
        }
        drop(everything);
        let batches = mini_batches(rows, options.mini_batch_prompts);
        for epoch in 0..options.epochs.max(1) {
            for (number, chosen) in batches.iter().enumerate() {
                let seed = options.seed.wrapping_add(u64::from(epoch) << 32).wrapping_add(number as u64);
                self.mini_batch(rows, chosen, old, reference, options, seed, &mut report)?;
            }
        }
        Ok(report)
    }

    #[expect(clippy::too_many_arguments, reason = "one caller, and each is a different thing")]
    fn mini_batch(
        &mut self,
        rows: &[UpdateRow],
        chosen: &[usize],
        old: &Column,
        reference: Option<&Column>,
        options: &UpdateOptions,
        seed: u64,
        report: &mut UpdateReport,
    ) -> Result<(), TrainError> {
        let config = self.algorithm.clone();
        let loss = built_in(&config, seed);
        let loss: &dyn PolicyLoss = match (&loss, &self.custom_loss) {
            (Some(loss), _) => loss.as_ref(),
            (None, Some(custom)) => custom.as_ref(),
            (None, None) => return Ok(()),
        };
        let columns = Columns::new(rows, chosen, old, reference);
        let whole = columns.select(&(0..chosen.len()).collect::<Vec<_>>(), None)?;
        let corrected = match whole.against_sampler() {
            Some(input) => off_policy::correct(&config.off_policy_correction, &input).map_err(token_error)?,
            None => None,
        };
        let (correction, kept) = match corrected {
            Some(corrected) => {
                report.metrics.merge(corrected.metrics.prefixed("policy/loss_metrics/"));
                (Some(corrected.weights), Some(corrected.kept))
            }
            None => (None, None),
        };
        let kept = kept.map(|kept| kept_tokens(&kept, &whole.offsets)).transpose()?;
        let scales = scales(rows, chosen, &config, kept.as_deref())?;
        let selection = {
            let input = whole.input(&whole.old, &scales, correction.as_ref(), None);
            select_tokens(loss, &input).map_err(token_error)?
        };
        let extra = Extra { scales: &scales, correction: correction.as_ref(), selection: selection.as_ref() };
        let pack: Vec<PackRow<'_>> = chosen
            .iter()
            .map(|i| PackRow { tokens: &rows[*i].tokens, predict_from: rows[*i].response_start })
            .collect();
        let lengths: Vec<usize> = pack.iter().map(|r| r.tokens.len()).collect();
        let mut own = plan(&lengths, options.max_tokens, self.model.group().world_size());
        let own = own.swap_remove(self.model.group().rank());
        let entropy = if config.use_entropy_loss { Entropy::Gradients } else { Entropy::Values };
        let head = head_options(options.temperature, entropy);
        let mut metrics = Metrics::default();
        let mut total = 0.0;
        for group in own {
            let batch = MicroBatch::packed(&pack, &group)?;
            let part = columns.select(&batch.rows, Some(&extra))?;
            let mut failed = None;
            let result = self.model.forward_backward(&batch, head, &mut |predictions| match micro_loss(
                loss,
                &config,
                predictions,
                &part,
            ) {
                Ok((value, own)) => {
                    metrics.merge(own);
                    Ok(value)
                }
                Err(error) => {
                    let reason = error.to_string();
                    failed = Some((&batch.rows, error));
                    Err(TrainError::Row { row: 0, reason })
                }
            });
            total += match (result, failed) {
                (Ok(value), _) => value,
                (Err(_), Some((places, error))) => return Err(at_row(error, places, chosen)),
                (Err(error), None) => return Err(error),
            };
        }
        let step = self.optimizer.step(&mut self.model, options.total_steps)?;
        report.steps += 1;
        let mut mean = |name: &str, value: f64| {
            let mut one = Metrics::default();
            one.insert(name, Metric::Mean { sum: value, weight: 1.0 });
            report.metrics.merge(one);
        };
        mean("policy/final_loss", sum_over(&self.model, total)?);
        mean("policy/policy_lr", step.lr);
        mean("policy/skipped_steps", f64::from(u8::from(step.skipped)));
        if step.grad_norm.is_finite() {
            mean("policy/grad_norm", step.grad_norm);
        }
        let merged = self.model.group().all_gather_json(&metrics)?;
        for own in merged {
            report.metrics.merge(own);
        }
        report.reference_kl = report.metrics.value("policy/policy_kl");
        Ok(())
    }
}

/// Columns that are computed for a whole mini-batch and cut to micro-batches.
struct Extra<'a> {
    scales: &'a Tensor,
    correction: Option<&'a Tensor>,
    selection: Option<&'a Tensor>,
}

/// Flat columns of some rows.
struct Flat {
    old: Tensor,
    rollout: Option<Tensor>,
    reference: Option<Tensor>,
    advantages: Tensor,
    mask: Tensor,
    offsets: Vec<i64>,
    scales: Option<Tensor>,
    correction: Option<Tensor>,
    selection: Option<Tensor>,
}

impl Flat {
    /// What the sampler said beside what the trainer says, where the sampler said something.
    fn against_sampler(&self) -> Option<OffPolicyInput<'_>> {
        let rollout_logprobs = self.rollout.as_ref()?;
        Some(OffPolicyInput { old_logprobs: &self.old, rollout_logprobs, mask: &self.mask, row_offsets: &self.offsets })
    }

    fn input<'a>(
        &'a self,
        logprobs: &'a Tensor,
        scales: &'a Tensor,
        correction: Option<&'a Tensor>,
        selection: Option<&'a Tensor>,
    ) -> LossInput<'a> {
        LossInput {
            logprobs,
            old_logprobs: Some(&self.old),
            rollout_logprobs: self.rollout.as_ref(),
            advantages: Some(&self.advantages),
            scales,
            mask: &self.mask,
            row_offsets: &self.offsets,
            correction,
            selection,
        }
    }
}

/// Columns of a mini-batch, rows in its order.
struct Columns<'a> {
    rows: Vec<&'a UpdateRow>,
    old: Vec<&'a [f32]>,
    reference: Option<Vec<&'a [f32]>>,
    offsets: Vec<i64>,
}

impl<'a> Columns<'a> {
    fn new(rows: &'a [UpdateRow], chosen: &[usize], old: &'a Column, reference: Option<&'a Column>) -> Self {
        let mut offsets = vec![0];
        for i in chosen {
            offsets.push(offsets[offsets.len() - 1] + rows[*i].response_len() as i64);
        }
        Self {
            rows: chosen.iter().map(|i| &rows[*i]).collect(),
            old: chosen.iter().map(|i| old[*i].as_slice()).collect(),
            reference: reference.map(|r| chosen.iter().map(|i| r[*i].as_slice()).collect()),
            offsets,
        }
    }

    /// The columns of some rows of the mini-batch, in the given order.
    fn select(&self, places: &[usize], extra: Option<&Extra<'_>>) -> Result<Flat, TrainError> {
        let join = |of: &dyn Fn(usize) -> &'a [f32]| -> Result<Tensor, TrainError> {
            let values: Vec<f32> = places.iter().flat_map(|i| of(*i).iter().copied()).collect();
            Ok(Tensor::f_from_slice(&values)?)
        };
        let mut offsets = vec![0];
        for i in places {
            offsets.push(offsets[offsets.len() - 1] + self.offsets[i + 1] - self.offsets[*i]);
        }
        let rollout = if self.rows.iter().all(|r| r.rollout_logprobs.is_some()) {
            Some(join(&|i| self.rows[i].rollout_logprobs.as_deref().unwrap_or_default())?)
        } else {
            None
        };
        let mask: Vec<f32> = places.iter().flat_map(|i| self.rows[*i].mask.iter().map(|m| f32::from(*m))).collect();
        let cut = |whole: Option<&Tensor>| -> Result<Option<Tensor>, TrainError> {
            let Some(whole) = whole else { return Ok(None) };
            let parts: Vec<Tensor> = places
                .iter()
                .map(|i| whole.f_narrow(0, self.offsets[*i], self.offsets[i + 1] - self.offsets[*i]))
                .collect::<Result<_, _>>()?;
            Ok(Some(if parts.is_empty() { whole.f_narrow(0, 0, 0)? } else { Tensor::f_cat(&parts, 0)? }))
        };
        Ok(Flat {
            old: join(&|i| self.old[i])?,
            rollout,
            reference: match &self.reference {
                Some(reference) => Some(join(&|i| reference[i])?),
                None => None,
            },
            advantages: join(&|i| self.rows[i].advantages.as_slice())?,
            mask: Tensor::f_from_slice(&mask)?,
            offsets,
            scales: cut(extra.map(|e| e.scales))?,
            correction: cut(extra.and_then(|e| e.correction))?,
            selection: cut(extra.and_then(|e| e.selection))?,
        })
    }
}

/// The loss of a micro-batch: policy, KL and entropy terms over the same scales.
fn micro_loss(
    loss: &dyn PolicyLoss,
    config: &AlgorithmConfig,
    predictions: &Predictions,
    part: &Flat,
) -> Result<(Tensor, Metrics), espalier_algorithms::TokenError> {
    let empty = Tensor::from_slice::<f32>(&[]);
    let scales = part.scales.as_ref().unwrap_or(&empty);
    let logprobs = &predictions.logprobs;
    let input = part.input(logprobs, scales, part.correction.as_ref(), part.selection.as_ref());
    let output = policy_loss(loss, &input)?;
    let mut metrics = output.metrics.prefixed("policy/loss_metrics/");
    let mut sum = |name: &str, value: &Tensor| -> Result<(), espalier_algorithms::TokenError> {
        metrics.insert(name, Metric::Sum(value.f_detach()?.f_to_kind(Kind::Double)?.f_double_value(&[])?));
        Ok(())
    };
    sum("policy/policy_loss", &output.loss)?;
    let mut total = output.loss;
    if let Some(reference) = &part.reference {
        let (term, own) = kl_loss(config.kl_estimator_type, logprobs, reference, scales, &part.mask)?;
        if config.use_kl_loss {
            total = total.f_add(&term.f_mul_scalar(config.kl_loss_coef)?)?;
        }
        metrics.merge(own.prefixed("policy/"));
    }
    if let Some(of_policy) = &predictions.entropy {
        let (term, own) = entropy::entropy_term(of_policy, scales, &part.mask)?;
        if config.use_entropy_loss {
            total = total.f_sub(&term.f_mul_scalar(config.entropy_loss_coef)?)?;
        }
        metrics.merge(own.prefixed("policy/"));
    }
    Ok((total, metrics))
}

/// How the output layer is computed for an update.
fn head_options(temperature: f64, entropy: Entropy) -> HeadOptions {
    HeadOptions { temperature, entropy, ..HeadOptions::default() }
}

/// Whether a configuration needs log-probabilities of the reference.
pub fn needs_reference(config: &AlgorithmConfig) -> bool {
    config.use_kl_loss || config.use_kl_in_reward
}

/// Whether an estimator needs a critic.
pub fn needs_critic(config: &AlgorithmConfig) -> bool {
    config.advantage_estimator == AdvantageEstimatorKind::Gae
}

/// The controller of a KL in the reward, as a run starts.
pub fn kl_controller(config: &AlgorithmConfig) -> KlController {
    KlController::new(config)
}

/// How many tokens of each row off-policy correction keeps.
fn kept_tokens(kept: &Tensor, offsets: &[i64]) -> Result<Vec<usize>, TrainError> {
    let kept = Vec::<i64>::try_from(kept.f_to_kind(Kind::Int64)?)?;
    Ok(offsets.windows(2).map(|w| kept[w[0] as usize..w[1] as usize].iter().sum::<i64>() as usize).collect())
}

/// The scale of every response token of a mini-batch; `kept` says how many tokens of each row are left by a correction.
pub(crate) fn scales(
    rows: &[UpdateRow],
    chosen: &[usize],
    config: &AlgorithmConfig,
    kept: Option<&[usize]>,
) -> Result<Tensor, TrainError> {
    let trees: Vec<TreeRow<'_>> =
        chosen.iter().map(|i| TreeRow { tree: &rows[*i].tree, tokens: rows[*i].trainable() }).collect();
    let weights = row_weights(&trees, config.row_weighting);
    let entries: Vec<ReductionRow<'_>> = chosen
        .iter()
        .enumerate()
        .map(|(n, i)| ReductionRow {
            prompt: &rows[*i].prompt,
            tokens: trees[n].tokens,
            kept_tokens: kept.map_or(trees[n].tokens, |kept| kept[n]),
            weight: weights[n],
        })
        .collect();
    let by_row = Reduction::new(config).row_scales(&entries).map_err(|e| TrainError::Config {
        key: "trainer.algorithm.loss_reduction".to_owned(),
        expected: "scales for every row".to_owned(),
        found: e.to_string(),
    })?;
    let lengths: Vec<usize> = chosen.iter().map(|i| rows[*i].response_len()).collect();
    Ok(Tensor::f_from_slice(&espalier_algorithms::reduction::token_scales(&by_row, &lengths))?)
}

/// Whole prompts, in the order in which they appear, `prompts` at a time. All rows of a prompt stay together.
pub(crate) fn mini_batches(rows: &[UpdateRow], prompts: usize) -> Vec<Vec<usize>> {
    let mut order: Vec<(&str, Vec<usize>)> = Vec::new();
    let mut place = std::collections::HashMap::new();
    for (i, row) in rows.iter().enumerate() {
        let at = *place.entry(row.prompt.as_str()).or_insert_with(|| {
            order.push((&row.prompt, Vec::new()));
            order.len() - 1
        });
        order[at].1.push(i);
    }
    let each = if prompts == 0 { order.len().max(1) } else { prompts };
    order.chunks(each).map(|chunk| chunk.iter().flat_map(|(_, rows)| rows.iter().copied()).collect()).collect()
}

/// Log-probabilities of all response tokens of each row under a model that does not train: a reference, a teacher.
pub fn reference_logprobs(
    model: &TrainModel,
    rows: &[UpdateRow],
    options: &UpdateOptions,
) -> Result<Column, TrainError> {
    let head = head_options(options.temperature, Entropy::No);
    by_row(model, rows, options.max_tokens, |batch| Ok(model.predict(batch, head)?.logprobs))
}

/// One number for each response token, each row computed by one process and told to all. `of` gives the numbers of a
/// micro-batch, (predictions).
pub(crate) fn by_row(
    model: &TrainModel,
    rows: &[UpdateRow],
    max_tokens: usize,
    of: impl Fn(&MicroBatch) -> Result<Tensor, TrainError>,
) -> Result<Column, TrainError> {
    let pack: Vec<PackRow<'_>> =
        rows.iter().map(|r| PackRow { tokens: &r.tokens, predict_from: r.response_start }).collect();
    let lengths: Vec<usize> = pack.iter().map(|r| r.tokens.len()).collect();
    let group = model.group();
    let mut own = plan(&lengths, max_tokens, group.world_size());
    let mut found: Vec<(usize, Vec<f32>)> = Vec::new();
    for chosen in own.swap_remove(group.rank()) {
        let batch = MicroBatch::packed(&pack, &chosen)?;
        let values = Vec::<f32>::try_from(of(&batch)?.f_to_kind(Kind::Float)?)?;
        for (place, row) in batch.rows.iter().enumerate() {
            let (from, to) = (batch.offsets[place] as usize, batch.offsets[place + 1] as usize);
            found.push((*row, values[from..to].to_vec()));
        }
    }
    let mut all = vec![Vec::new(); rows.len()];
    for (row, values) in group.all_gather_json(&found)?.into_iter().flatten() {
        all[row] = values;
    }
    Ok(all)
}

pub(crate) fn sum_over(model: &TrainModel, value: f64) -> Result<f64, TrainError> {
    let mut sum = Tensor::f_from_slice(&[value])?;
    model.group().all_reduce(&mut sum, Collective::Sum)?;
    Ok(sum.f_double_value(&[0])?)
}

fn token_error(error: espalier_algorithms::TokenError) -> TrainError {
    TrainError::Row { row: 0, reason: error.to_string() }
}

/// Names the row of the batch instead of that of the micro-batch.
pub(crate) fn at_row(error: espalier_algorithms::TokenError, places: &[usize], chosen: &[usize]) -> TrainError {
    let row = match &error {
        espalier_algorithms::TokenError::NotFinite { row, .. }
        | espalier_algorithms::TokenError::ValueNotFinite { row, .. } => places.get(*row).and_then(|p| chosen.get(*p)),
        _ => None,
    };
    TrainError::Row { row: row.copied().unwrap_or(0), reason: error.to_string() }
}
