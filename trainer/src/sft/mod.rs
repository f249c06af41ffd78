//! Supervised fine-tuning: conversations, tokens or the rollouts of a run, as a token mean over each batch.
//!
//! | module | what lives there |
//! |---|---|
//! | [`examples`] | conversations to tokens, and which of them are learned |
//! | [`data`] | sets of examples: read, cached, filtered, mixed |
//! | [`config`] | what `espalier sft` reads |
//! | this one | the loop |
//!
//! The loss of a step is the sum over all learned tokens of `-weight * logprob`, divided by the sum of the weights in the
//! whole batch, whatever micro-batches and processes it is divided into.

pub mod config;
pub mod data;
pub mod examples;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Instant;

use espalier_distributed::{Group, Reduction};
use serde::{Deserialize, Serialize};
use tch::{Kind, Tensor};

pub use self::config::SftConfig;
use self::data::{DataSet, Mixture};
use self::examples::Example;
use crate::checkpoint::CheckpointStore;
use crate::error::TrainError;
use crate::head::HeadOptions;
use crate::model::TrainModel;
use crate::optimizer::{AdamW, StepReport};
use crate::packing::{MicroBatch, PackRow, plan};

/// Numbers of a step by name.
pub type Numbers = BTreeMap<String, f64>;

/// What the loop tells while it runs.
pub trait Watch {
    /// A step, or an evaluation after it, has these numbers.
    fn log(&mut self, step: u64, numbers: &Numbers);

    /// A checkpoint was written.
    fn saved(&mut self, step: u64, path: &std::path::Path) {
        let _ = (step, path);
    }

    /// Whether to stop after this step, with a checkpoint.
    fn stop(&mut self) -> bool {
        false
    }
}

/// What a checkpoint keeps of the loop.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Position {
    /// Finished steps.
    pub step: u64,
    /// Examples seen.
    pub examples: u64,
    /// Tokens learned from.
    pub tokens: u64,
}

/// How a run of the loop ended.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SftReport {
    /// Where it stopped.
    pub position: Position,
    /// Loss of the last step.
    pub last_loss: f64,
    /// Steps that this run took.
    pub taken: u64,
    /// Steps that were left out because gradients were not finite, since the beginning.
    pub skipped: u64,
    /// Whether all steps were done.
    pub finished: bool,
}

/// One optimiser step over examples: the weighted mean loss and what the step did. Every process must be given the same
/// examples; each takes its share.
pub fn step(
    model: &mut TrainModel,
    optimizer: &mut AdamW,
    examples: &[&Example],
    max_tokens: usize,
    total_steps: u64,
) -> Result<(f64, StepReport), TrainError> {
    let loss = accumulate(model, examples, max_tokens)?;
    Ok((loss, optimizer.step(model, total_steps)?))
}

/// Gradients of the weighted mean loss over examples, added to those that are there. Returns the loss.
pub fn accumulate(model: &mut TrainModel, examples: &[&Example], max_tokens: usize) -> Result<f64, TrainError> {
    let weight: f64 = examples.iter().map(|e| e.weight()).sum();
    if weight <= 0.0 {
        return Err(TrainError::Row { row: 0, reason: "a batch in which nothing is to be learned".to_owned() });
    }
    let mut sum = 0.0;
    for (batch, weights) in micro_batches(model.group(), examples, max_tokens)? {
        sum += model.forward_backward_weighted(&batch, HeadOptions::default(), &weights.f_div_scalar(-weight)?)?;
    }
    all_sum(model.group(), sum)
}

/// The weighted mean loss without gradients.
pub fn evaluate(model: &TrainModel, examples: &[&Example], max_tokens: usize) -> Result<f64, TrainError> {
    let weight: f64 = examples.iter().map(|e| e.weight()).sum();
    let mut sum = 0.0;
    for (batch, weights) in micro_batches(model.group(), examples, max_tokens)? {
        let logprobs = model.predict(&batch, HeadOptions::default())?.logprobs;
        sum -= logprobs.f_mul(&weights.f_to_kind(logprobs.kind())?)?.f_sum(Kind::Double)?.f_double_value(&[])?;
    }
    Ok(all_sum(model.group(), sum)? / weight)
}

/// This process's micro-batches, each with the weights of its predictions.
fn micro_batches(
    group: &Group,
    examples: &[&Example],
    max_tokens: usize,
) -> Result<Vec<(MicroBatch, Tensor)>, TrainError> {
    let rows: Vec<PackRow<'_>> = examples
        .iter()
        .map(|e| PackRow { tokens: &e.tokens, predict_from: e.first_learned().unwrap_or(e.tokens.len()).max(1) })
        .collect();
    let lengths: Vec<usize> = rows.iter().map(|r| r.tokens.len()).collect();
    let mut own = plan(&lengths, max_tokens, group.world_size());
    let own = own.swap_remove(group.rank());
    own.into_iter()
        .map(|chosen| {
            let batch = MicroBatch::packed(&rows, &chosen)?;
            let weights: Vec<f32> =
                batch.rows.iter().flat_map(|i| examples[*i].weights[rows[*i].predict_from..].iter().copied()).collect();
            Ok((batch, Tensor::f_from_slice(&weights)?))
        })
        .collect()
}

fn all_sum(group: &Group, value: f64) -> Result<f64, TrainError> {
    let mut sum = Tensor::f_from_slice(&[value])?;
    group.all_reduce(&mut sum, Reduction::Sum)?;
    Ok(sum.f_double_value(&[0])?)
}

/// Everything a run of the loop needs.
pub struct SftRun {
    /// Settings.
    pub config: SftConfig,
    /// The model.
    pub model: TrainModel,
    /// What is learned.
    pub train: Vec<DataSet>,
    /// What is evaluated.
    pub eval: Vec<DataSet>,
}

impl SftRun {
    /// Runs until all steps are done or `watch` wants to stop.
    pub fn run(mut self, watch: &mut dyn Watch) -> Result<(SftReport, TrainModel), TrainError> {
        let c = &self.config;
        let mut optimizer = AdamW::new(c.optimizer_config.clone(), &self.model)?;
        let mut mixture = Mixture::new(&self.train, c.sampler, c.seed);
        let per_epoch = mixture.epoch_len().div_ceil(c.batch_size as u64);
        let total = c.num_steps.unwrap_or(per_epoch * c.num_epochs.unwrap_or(1));
        let store = c.ckpt_path.as_ref().map(|root| CheckpointStore::new(root, c.max_ckpts_to_keep()));
        let lock = store.as_ref().filter(|_| self.model.group().rank() == 0).map(CheckpointStore::lock).transpose()?;
        let mut position = Position::default();
        if let Some(checkpoint) = c.resume_from.open(store.as_ref(), "resume_from")? {
            checkpoint.restore(&mut self.model, &mut optimizer)?;
            position = serde_json::from_value(checkpoint.state().clone()).map_err(|e| TrainError::File {
                path: checkpoint.path().join("trainer_state.json"),
                reason: format!("`state`: {e}"),
            })?;
        }
        let started = position;
        if c.eval_before_train && position.step == 0 {
            let numbers = self.evaluate_all()?;
            if !numbers.is_empty() {
                watch.log(0, &numbers);
            }
        }
        let mut last_loss = f64::NAN;
        let mut saved_at = None;
        while position.step < total {
            let begun = Instant::now();
            let batch: Vec<&Example> = (0..self.config.batch_size as u64)
                .map(|i| {
                    let (set, index) = mixture.at(position.examples + i);
                    &self.train[set].examples[index]
                })
                .collect();
            let max_tokens = self.config.max_tokens_per_microbatch;
            let (loss, report) = step(&mut self.model, &mut optimizer, &batch, max_tokens, total)?;
            let tokens: usize = batch.iter().map(|e| e.tokens.len()).sum();
            let learned: u64 = batch.iter().map(|e| e.weights.iter().filter(|w| **w != 0.0).count() as u64).sum();
            position = Position {
                step: position.step + 1,
                examples: position.examples + batch.len() as u64,
                tokens: position.tokens + learned,
            };
            last_loss = loss;
            let seconds = begun.elapsed().as_secs_f64();
            let mut numbers = Numbers::from([
                ("train/loss".to_owned(), loss),
                ("train/grad_norm".to_owned(), report.grad_norm),
                ("train/lr".to_owned(), report.lr),
                ("train/skipped_steps".to_owned(), optimizer.skipped() as f64),
                ("train/tokens_per_second".to_owned(), tokens as f64 / seconds),
                ("train/actual_num_tokens".to_owned(), tokens as f64),
                ("train/total_tokens_processed".to_owned(), position.tokens as f64),
                ("train/epoch".to_owned(), (position.examples / mixture.epoch_len().max(1)) as f64),
                ("train/global_step".to_owned(), position.step as f64),
                ("timing/step".to_owned(), seconds),
            ]);
            let every = self.config.eval_interval;
            if every > 0 && position.step.is_multiple_of(every) {
                numbers.extend(self.evaluate_all()?);
            }
            watch.log(position.step, &numbers);
            let stop = self.agree(watch.stop())?;
            let every = self.config.ckpt_interval;
            let due = every > 0 && position.step.is_multiple_of(every);
            if let Some(store) = store.as_ref().filter(|_| due || stop || position.step == total) {
                self.save(store, &optimizer, position, watch)?;
                saved_at = Some(position.step);
            }
            if stop {
                break;
            }
        }
        if let Some(store) = store.as_ref().filter(|_| saved_at.is_none() && position.step > started.step) {
            self.save(store, &optimizer, position, watch)?;
        }
        drop(lock);
        let report = SftReport {
            position,
            last_loss,
            taken: position.step - started.step,
            skipped: optimizer.skipped(),
            finished: position.step >= total,
        };
        Ok((report, self.model))
    }

    /// Whether any process wants to stop.
    fn agree(&self, stop: bool) -> Result<bool, TrainError> {
        Ok(all_sum(self.model.group(), f64::from(u8::from(stop)))? > 0.0)
    }

    fn save(
        &self,
        store: &CheckpointStore,
        optimizer: &AdamW,
        position: Position,
        watch: &mut dyn Watch,
    ) -> Result<(), TrainError> {
        let state = serde_json::to_value(position).unwrap_or_default();
        let base = self.config.model.path.display().to_string();
        let path: PathBuf = store.save(position.step, &self.model, optimizer, &state, &base)?;
        watch.saved(position.step, &path);
        Ok(())
    }

    fn evaluate_all(&self) -> Result<Numbers, TrainError> {
        let mut numbers = Numbers::new();
        for set in &self.eval {
            let examples: Vec<&Example> = set.examples.iter().collect();
            let loss = evaluate(&self.model, &examples, self.config.max_tokens_per_microbatch)?;
            numbers.insert(format!("eval/{}/loss", set.name), loss);
        }
        Ok(numbers)
    }
}
