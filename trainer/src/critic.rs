//! A critic: a decoder that says what each response token is worth, and learns it from returns.
//!
//! The value of a token is that of the state before it: the hidden state that predicts the token, through a linear layer to
//! one number (Schulman et al., arXiv:1506.02438, sec. 4). Its loss is PPO's clipped value loss,
//! [`value_loss`]: the mean over rows of the mean over trainable tokens of
//! `max((V - R)^2, (V_clip - R)^2) / 2`, over the whole mini-batch, whatever micro-batches and processes it is divided into.
//! Trees weigh as `trainer.algorithm.row_weighting` says.

use espalier_algorithms::config::AlgorithmConfig;
use espalier_algorithms::metrics::{Metric, Metrics};
use espalier_algorithms::reduction::LossReduction;
use espalier_algorithms::value_loss::{ValueLossInput, value_loss};
use tch::{Kind, Tensor};

use crate::error::TrainError;
use crate::model::TrainModel;
use crate::optimizer::AdamW;
use crate::packing::{MicroBatch, PackRow, plan};
use crate::update::{Column, UpdateOptions, UpdateRow, at_row, by_row, mini_batches, scales, sum_over};

/// A critic that learns.
pub struct Critic {
    /// The model; made with [`TrainModel::load_critic`].
    pub model: TrainModel,
    /// Its optimiser.
    pub optimizer: AdamW,
    /// The policy's settings, with the critic's own reduction.
    algorithm: AlgorithmConfig,
}

/// Flat columns of some rows of a mini-batch.
struct Columns {
    old: Tensor,
    returns: Tensor,
    scales: Tensor,
    mask: Tensor,
    offsets: Vec<i64>,
}

impl Critic {
    /// A critic with its optimiser. Of the algorithm's settings it uses `value_clip` and `row_weighting`.
    pub fn new(model: TrainModel, optimizer: AdamW, algorithm: &AlgorithmConfig) -> Result<Self, TrainError> {
        if !model.is_critic() {
            return Err(TrainError::Config {
                key: "trainer.critic.model".to_owned(),
                expected: "a model with a value head".to_owned(),
                found: "one with an output layer over the vocabulary".to_owned(),
            });
        }
        let algorithm = AlgorithmConfig { loss_reduction: LossReduction::SequenceMean, ..algorithm.clone() };
        Ok(Self { model, optimizer, algorithm })
    }

    /// The value of every response token of each row.
    pub fn values(&self, rows: &[UpdateRow], max_tokens: usize) -> Result<Column, TrainError> {
        by_row(&self.model, rows, max_tokens, |batch| self.model.values(batch))
    }

    /// Learns from returns, the same on every process. `values` are those from before the update.
    pub fn update(
        &mut self,
        rows: &[UpdateRow],
        values: &Column,
        returns: &Column,
        options: &UpdateOptions,
    ) -> Result<Metrics, TrainError> {
        for (name, column) in [("values", values), ("returns", returns)] {
            if let Some(row) = (0..rows.len()).find(|i| column.get(*i).map(Vec::len) != Some(rows[*i].response_len())) {
                let found = column.get(row).map_or(0, Vec::len);
                let reason =
                    format!("`{name}` has {found} entries, the response has {} tokens", rows[row].response_len());
                return Err(TrainError::Row { row, reason });
            }
        }
        let mut metrics = Metrics::default();
        if rows.iter().all(|row| row.trainable() == 0) {
            return Ok(metrics);
        }
        for _ in 0..options.epochs.max(1) {
            for chosen in mini_batches(rows, options.mini_batch_prompts) {
                self.mini_batch(rows, &chosen, values, returns, options, &mut metrics)?;
            }
        }
        Ok(metrics)
    }

    fn mini_batch(
        &mut self,
        rows: &[UpdateRow],
        chosen: &[usize],
        values: &Column,
        returns: &Column,
        options: &UpdateOptions,
        metrics: &mut Metrics,
    ) -> Result<(), TrainError> {
        let scales = Vec::<f32>::try_from(scales(rows, chosen, &self.algorithm, None)?)?;
        let mut starts = vec![0];
        for i in chosen {
            starts.push(starts[starts.len() - 1] + rows[*i].response_len());
        }
        let pack: Vec<PackRow<'_>> = chosen
            .iter()
            .map(|i| PackRow { tokens: &rows[*i].tokens, predict_from: rows[*i].response_start })
            .collect();
        let lengths: Vec<usize> = pack.iter().map(|r| r.tokens.len()).collect();
        let mut own = plan(&lengths, options.max_tokens, self.model.group().world_size());
        let own = own.swap_remove(self.model.group().rank());
        let mut found = Metrics::default();
        let mut total = 0.0;
        for group in own {
            let batch = MicroBatch::packed(&pack, &group)?;
            let flat = |of: &dyn Fn(usize) -> Vec<f32>| -> Result<Tensor, TrainError> {
                let values: Vec<f32> = batch.rows.iter().flat_map(|place| of(*place)).collect();
                Ok(Tensor::f_from_slice(&values)?)
            };
            let columns = Columns {
                old: flat(&|place| values[chosen[place]].clone())?,
                returns: flat(&|place| returns[chosen[place]].clone())?,
                scales: flat(&|place| scales[starts[place]..starts[place + 1]].to_vec())?,
                mask: flat(&|place| rows[chosen[place]].mask.iter().map(|bit| f32::from(*bit)).collect())?,
                offsets: batch.offsets.clone(),
            };
            let clip = self.algorithm.value_clip;
            total += self.model.value_backward(&batch, &mut |values| {
                let input = ValueLossInput {
                    values,
                    old_values: &columns.old,
                    returns: &columns.returns,
                    scales: &columns.scales,
                    mask: &columns.mask,
                    row_offsets: &columns.offsets,
                };
                let mut output = value_loss(&input, clip).map_err(|error| at_row(error, &batch.rows, chosen))?;
                let weight = columns.mask.f_sum(Kind::Double)?.f_double_value(&[])?;
                for (name, of) in [("critic/values_clipfrac", "value_clipfrac"), ("critic/values_mean", "values_mean")]
                {
                    if let Some(mean) = output.metrics.remove(of) {
                        let mut one = Metrics::default();
                        one.insert(name, Metric::Mean { sum: mean * weight, weight });
                        found.merge(one);
                    }
                }
                Ok(output.loss)
            })?;
        }
        let step = self.optimizer.step(&mut self.model, options.total_steps)?;
        let mut mean = |name: &str, value: f64| {
            let mut one = Metrics::default();
            one.insert(name, Metric::Mean { sum: value, weight: 1.0 });
            metrics.merge(one);
        };
        mean("critic/critic_loss", sum_over(&self.model, total)?);
        mean("critic/critic_lr", step.lr);
        mean("critic/skipped_steps", f64::from(u8::from(step.skipped)));
        if step.grad_norm.is_finite() {
            mean("critic/grad_norm", step.grad_norm);
        }
        for own in self.model.group().all_gather_json(&found)? {
            metrics.merge(own);
        }
        Ok(())
    }
}
