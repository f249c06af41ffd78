//! Passes with gradients: recorded whole, or layer by layer computed again.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tch::Tensor;

use super::TrainModel;
use super::loss::Objective;
use super::unit::Gathered;
use crate::decoder;
use crate::error::TrainError;
use crate::head::{self, HeadOptions, Predictions};
use crate::layout::Place;
use crate::packing::MicroBatch;

impl TrainModel {
    /// One forward and backward pass; gradients are added to those that are there. `loss` takes the predictions, which
    /// record what is done with them, and returns a scalar to minimise. The result is that scalar.
    ///
    /// Errors: a loss that is not finite names the first row whose log-probability is not.
    pub fn forward_backward(
        &mut self,
        batch: &MicroBatch,
        options: HeadOptions,
        loss: &mut dyn FnMut(&Predictions) -> Result<Tensor, TrainError>,
    ) -> Result<f64, TrainError> {
        self.says(false)?;
        self.pass(batch, options, Objective::Of(loss))
    }

    /// The same for the sum of all log-probabilities, each times its number: `weights` is (predictions). As the loss is
    /// known beforehand, logits are computed once, however many there are.
    pub fn forward_backward_weighted(
        &mut self,
        batch: &MicroBatch,
        options: HeadOptions,
        weights: &Tensor,
    ) -> Result<f64, TrainError> {
        self.says(false)?;
        self.pass(batch, options, Objective::Weighted(weights))
    }

    /// The same for a critic: `loss` takes the values, (predictions).
    pub fn value_backward(
        &mut self,
        batch: &MicroBatch,
        loss: &mut dyn FnMut(&Tensor) -> Result<Tensor, TrainError>,
    ) -> Result<f64, TrainError> {
        self.says(true)?;
        self.pass(batch, HeadOptions::default(), Objective::OfValues(loss))
    }

    fn pass(&mut self, batch: &MicroBatch, options: HeadOptions, objective: Objective<'_>) -> Result<f64, TrainError> {
        let begun = Instant::now();
        self.check(batch)?;
        self.passes += 1;
        let root = self.gather(0, true)?;
        let value = if self.group.world_size() > 1 || self.options.gradient_checkpointing {
            self.recomputed(&root, batch, options, objective)?
        } else {
            self.recorded(&root, batch, options, objective)?
        };
        self.busy_since(begun);
        Ok(value)
    }

    /// Seeds torch's generator for a layer of the current pass, where something is drawn. The generator is the whole
    /// process's: it is ours for as long as the guard lives, whatever other models train beside this one.
    fn seed_layer(&self, index: usize) -> Option<MutexGuard<'static, ()>> {
        static GENERATOR: Mutex<()> = Mutex::new(());
        if self.options.lora.dropout <= 0.0 {
            return None;
        }
        let guard = GENERATOR.lock().unwrap_or_else(PoisonError::into_inner);
        let seed = self.options.seed ^ self.passes.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let rank = (self.group.rank() as u64) << 32;
        tch::manual_seed((seed.wrapping_add(rank + index as u64) >> 1) as i64);
        Some(guard)
    }

    /// The whole pass recorded by autograd.
    fn recorded(
        &mut self,
        root: &Gathered,
        batch: &MicroBatch,
        options: HeadOptions,
        objective: Objective<'_>,
    ) -> Result<f64, TrainError> {
        let step = self.step_shape(batch, true)?;
        let first = self.embed(root, batch)?.f_detach()?;
        let first = if self.trained_embedding().is_some() { first.f_set_requires_grad(true)? } else { first };
        let mut x = first.shallow_clone();
        let mut leaves: Vec<Tensor> = Vec::new();
        let mut of_unit = Vec::new();
        for index in 0..self.layers.len() {
            let whole = self.gather(index + 1, true)?;
            let _drawing = self.seed_layer(index);
            x = decoder::layer(&x, &self.layer_weights(index, &whole)?, &step)?;
            of_unit.push((index + 1, whole.leaves.len()));
            leaves.extend(whole.leaves);
        }
        let hidden = self.finish(root, &x, batch)?;
        drop(x);
        drop(step);
        let (value, d_hidden, d_root) = self.head(root, &hidden, batch, options, objective)?;
        let mut gradients = self.root_gradients(d_root)?;
        if hidden.requires_grad() {
            let norm = self.trained_norm();
            let mut inputs: Vec<&Tensor> = leaves.iter().collect();
            inputs.extend(norm.map(|slot| &root.leaves[slot]));
            inputs.extend(self.trained_embedding().map(|_| &first));
            let scalar = hidden.f_mul(&d_hidden)?.f_sum(None)?;
            drop((hidden, d_hidden));
            let mut found = Tensor::f_run_backward(&[scalar], &inputs, false, false)?.into_iter();
            for (unit, count) in of_unit {
                let own: Vec<Option<Tensor>> = found.by_ref().take(count).map(Some).collect();
                self.add_gradients(unit, own)?;
            }
            if let Some(slot) = norm {
                add_to(&mut gradients, slot, found.next().unwrap_or_default())?;
            }
            self.add_embedding(&mut gradients, batch, found.next())?;
        }
        self.add_gradients(0, gradients)?;
        Ok(value)
    }

    /// Layer inputs kept, everything else computed again.
    fn recomputed(
        &mut self,
        root: &Gathered,
        batch: &MicroBatch,
        options: HeadOptions,
        objective: Objective<'_>,
    ) -> Result<f64, TrainError> {
        let mut inputs = Vec::new();
        let leaf = |x: &Tensor| x.f_detach()?.f_set_requires_grad(true);
        {
            let _guard = tch::no_grad_guard();
            let step = self.step_shape(batch, true)?;
            let mut x = self.embed(root, batch)?;
            for index in 0..self.layers.len() {
                let whole = self.gather(index + 1, false)?;
                let _drawing = self.seed_layer(index);
                let y = decoder::layer(&x, &self.layer_weights(index, &whole)?, &step)?;
                inputs.push(std::mem::replace(&mut x, y));
            }
            inputs.push(x);
        }
        let last = leaf(&inputs.pop().unwrap_or_default())?;
        let hidden = self.finish(root, &last, batch)?;
        let (value, d_hidden, d_root) = self.head(root, &hidden, batch, options, objective)?;
        let mut gradients = self.root_gradients(d_root)?;
        let norm = self.trained_norm();
        let mut wanted: Vec<&Tensor> = vec![&last];
        wanted.extend(norm.map(|slot| &root.leaves[slot]));
        let scalar = hidden.f_mul(&d_hidden)?.f_sum(None)?;
        drop((hidden, d_hidden));
        let mut found = Tensor::f_run_backward(&[scalar], &wanted, false, false)?;
        for (slot, gradient) in norm.into_iter().zip(found.drain(1..)) {
            add_to(&mut gradients, slot, gradient)?;
        }
        let mut d_x = found.swap_remove(0);
        let embedding = self.trained_embedding().is_some();
        for index in (0..self.layers.len()).rev() {
            let whole = self.gather(index + 1, true)?;
            // Under the first layer lies only the embedding.
            let through = index > 0 || embedding;
            let input = inputs.pop().unwrap_or_default();
            let x = if through { leaf(&input)? } else { input };
            let y = {
                let step = self.step_shape(batch, true)?;
                let _drawing = self.seed_layer(index);
                decoder::layer(&x, &self.layer_weights(index, &whole)?, &step)?
            };
            let mut wanted: Vec<&Tensor> = whole.leaves.iter().collect();
            if through {
                wanted.push(&x);
            }
            let scalar = y.f_mul(&d_x)?.f_sum(None)?;
            drop(y);
            let mut found =
                if wanted.is_empty() { Vec::new() } else { Tensor::f_run_backward(&[scalar], &wanted, false, false)? };
            if through && let Some(next) = found.pop() {
                d_x = next;
            }
            drop(whole.frozen);
            self.add_gradients(index + 1, found.into_iter().map(Some).collect())?;
        }
        self.add_embedding(&mut gradients, batch, Some(d_x))?;
        self.add_gradients(0, gradients)?;
        Ok(value)
    }

    /// Slot of the last norm, where it is trained.
    fn trained_norm(&self) -> Option<usize> {
        trained_slot(self.root.norm)
    }

    /// Slot of the embedding, where it is trained.
    fn trained_embedding(&self) -> Option<usize> {
        trained_slot(self.root.embedding)
    }

    /// Adds the gradient of the embedded tokens to the rows of the embedding that they came from.
    fn add_embedding(
        &self,
        gradients: &mut [Option<Tensor>],
        batch: &MicroBatch,
        d_x: Option<Tensor>,
    ) -> Result<(), TrainError> {
        let (Some(slot), Some(d_x)) = (self.trained_embedding(), d_x) else { return Ok(()) };
        let _guard = tch::no_grad_guard();
        let kind = decoder::wide(d_x.kind());
        let mut total = match gradients[slot].take() {
            Some(total) => total.f_to_kind(kind)?,
            None => decoder::zeros(&self.units[0].layout.trained.slots()[slot].shape(), kind)?,
        };
        let _ = total.f_index_add_(0, &batch.ids, &d_x.f_to_kind(kind)?)?;
        gradients[slot] = Some(total);
        Ok(())
    }

    fn root_gradients(&self, of_head: head::HeadGradients) -> Result<Vec<Option<Tensor>>, TrainError> {
        let mut gradients: Vec<Option<Tensor>> = self.units[0].layout.trained.slots().iter().map(|_| None).collect();
        let mut put = |place: Place, gradient: Option<Tensor>| match (place, gradient) {
            (Place::Trained(slot), Some(gradient)) => add_to(&mut gradients, slot, gradient),
            _ => Ok(()),
        };
        put(self.root.head.unwrap_or(self.root.embedding), of_head.weight)?;
        if let (Some((a, b)), Some((d_a, d_b))) = (self.root.adapter, of_head.adapter) {
            put(a, Some(d_a))?;
            put(b, Some(d_b))?;
        }
        Ok(gradients)
    }
}

fn trained_slot(place: Place) -> Option<usize> {
    match place {
        Place::Trained(slot) => Some(slot),
        Place::Frozen(_) => None,
    }
}

fn add_to(gradients: &mut [Option<Tensor>], slot: usize, gradient: Tensor) -> Result<(), TrainError> {
    if !gradient.defined() {
        return Ok(());
    }
    let _guard = tch::no_grad_guard();
    gradients[slot] = Some(match gradients[slot].take() {
        None => gradient,
        Some(sum) => {
            let kind = decoder::wide(sum.kind());
            sum.f_to_kind(kind)?.f_add(&gradient.f_to_kind(kind)?)?
        }
    });
    Ok(())
}
