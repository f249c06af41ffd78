//! From tokens to hidden states, predictions and values.

use std::time::Instant;

use espalier_engine::fused;
use tch::Tensor;

use super::TrainModel;
use super::unit::Gathered;
use crate::decoder::{self, AdapterStep, LayerWeights, StepShape};
use crate::error::TrainError;
use crate::head::{self, HeadOptions, HeadWeights, Predictions, Want};
use crate::packing::MicroBatch;

impl TrainModel {
    /// Log-probabilities without gradients.
    pub fn predict(&self, batch: &MicroBatch, options: HeadOptions) -> Result<Predictions, TrainError> {
        self.predict_with(batch, options, self.options.lora.scaling())
    }

    /// The same of the base, as if there were no adapters.
    pub fn predict_base(&self, batch: &MicroBatch, options: HeadOptions) -> Result<Predictions, TrainError> {
        self.predict_with(batch, options, 0.0)
    }

    /// Values of the tokens that a critic looks at, (predictions), at least 32 bits, without gradients.
    pub fn values(&self, batch: &MicroBatch) -> Result<Tensor, TrainError> {
        let _guard = tch::no_grad_guard();
        self.says(true)?;
        let begun = Instant::now();
        let (root, hidden) = self.hidden(batch, self.options.lora.scaling())?;
        let head = self.head_weights(&root)?;
        let values = value_of(&hidden.f_to_kind(head.weight.kind())?, &head.weight)?;
        self.busy_since(begun);
        Ok(values)
    }

    /// Refuses to be asked for what this model does not say.
    pub(super) fn says(&self, values: bool) -> Result<(), TrainError> {
        if values == self.critic {
            return Ok(());
        }
        let (expected, found) = if values { ("a critic", "a policy") } else { ("a policy", "a critic") };
        Err(TrainError::Config { key: "model".to_owned(), expected: expected.to_owned(), found: found.to_owned() })
    }

    pub(super) fn layer_weights(&self, index: usize, whole: &Gathered) -> Result<LayerWeights, TrainError> {
        let layout = &self.units[index + 1].layout;
        let places = &self.layers[index];
        let rank = self.options.lora.rank;
        let get = |place| whole.get(layout, place);
        Ok(LayerWeights {
            input_norm: get(places.input_norm)?,
            qkv: whole.linear(layout, &places.qkv, rank)?,
            q_norm: places.q_norm.map(get).transpose()?,
            k_norm: places.k_norm.map(get).transpose()?,
            output: whole.linear(layout, &places.output, rank)?,
            post_norm: get(places.post_norm)?,
            gate_up: whole.linear(layout, &places.gate_up, rank)?,
            down: whole.linear(layout, &places.down, rank)?,
        })
    }

    pub(super) fn head_weights(&self, root: &Gathered) -> Result<HeadWeights, TrainError> {
        let kind = fused::product_kind(self.options.precision.compute());
        let get = |place| root.get(&self.units[0].layout, place)?.f_detach()?.f_to_kind(kind).map_err(TrainError::from);
        let weight = get(self.root.head.unwrap_or(self.root.embedding))?;
        let adapter = match self.root.adapter {
            None => None,
            Some((a, b)) => Some((get(a)?, get(b)?, self.options.lora.scaling())),
        };
        Ok(HeadWeights { weight, adapter })
    }

    pub(super) fn step_shape<'a>(&'a self, batch: &'a MicroBatch, training: bool) -> Result<StepShape<'a>, TrainError> {
        let kind = self.options.precision.compute();
        let (cos, sin) = decoder::rotation(&self.config, &batch.positions, kind)?;
        let dropout = if training { self.options.lora.dropout } else { 0.0 };
        let adapters = AdapterStep { scaling: self.options.lora.scaling(), dropout };
        Ok(StepShape { config: &self.config, cos, sin, runs: &batch.runs, adapters })
    }

    pub(super) fn embed(&self, root: &Gathered, batch: &MicroBatch) -> Result<Tensor, TrainError> {
        let table = root.get(&self.units[0].layout, self.root.embedding)?;
        Ok(Tensor::f_embedding(&table, &batch.ids, -1, false, false)?)
    }

    pub(super) fn check(&self, batch: &MicroBatch) -> Result<(), TrainError> {
        let longest = batch.runs.iter().map(|r| r.len).max().unwrap_or(0);
        if longest > self.config.context {
            let row = batch.rows.last().copied().unwrap_or(0);
            return Err(TrainError::Row {
                row,
                reason: format!("{longest} tokens, the model's context has {}", self.config.context),
            });
        }
        if batch.ids.numel() > 0 {
            let (least, most) = (batch.ids.f_min()?.f_int64_value(&[])?, batch.ids.f_max()?.f_int64_value(&[])?);
            if least < 0 || most >= self.config.vocab {
                let found = if least < 0 { least } else { most };
                return Err(TrainError::Row {
                    row: batch.rows.first().copied().unwrap_or(0),
                    reason: format!("token {found} in it or a row beside it, the vocabulary has {}", self.config.vocab),
                });
            }
        }
        Ok(())
    }

    /// The last norm's output at the tokens that predict something.
    pub(super) fn finish(&self, root: &Gathered, x: &Tensor, batch: &MicroBatch) -> Result<Tensor, TrainError> {
        let norm = root.get(&self.units[0].layout, self.root.norm)?;
        // The norm is by token: it need not see those that predict nothing.
        let selected = x.f_index_select(0, &batch.select)?;
        Ok(decoder::rms_norm(&selected, &norm, self.config.norm_eps)?)
    }

    /// The gathered root and the hidden states that predict something, without gradients.
    fn hidden(&self, batch: &MicroBatch, scaling: f64) -> Result<(Gathered, Tensor), TrainError> {
        self.check(batch)?;
        let root = self.gather(0, false)?;
        let mut step = self.step_shape(batch, false)?;
        step.adapters.scaling = scaling;
        let mut x = self.embed(&root, batch)?;
        for index in 0..self.layers.len() {
            let whole = self.gather(index + 1, false)?;
            x = decoder::layer(&x, &self.layer_weights(index, &whole)?, &step)?;
        }
        let hidden = self.finish(&root, &x, batch)?;
        Ok((root, hidden))
    }

    fn predict_with(&self, batch: &MicroBatch, options: HeadOptions, scaling: f64) -> Result<Predictions, TrainError> {
        let _guard = tch::no_grad_guard();
        self.says(false)?;
        let begun = Instant::now();
        let (root, hidden) = self.hidden(batch, scaling)?;
        let mut head = self.head_weights(&root)?;
        let hidden = hidden.f_to_kind(head.weight.kind())?;
        if let Some((_, _, own)) = &mut head.adapter {
            *own = scaling;
        }
        let predictions = head::forward(&head, &hidden, &batch.targets, options, Want::Predictions)?.predictions;
        self.busy_since(begun);
        Ok(predictions)
    }
}

/// Values of hidden states (predictions, hidden) under a head (1, hidden): (predictions), in the type of sums.
pub(super) fn value_of(hidden: &Tensor, weight: &Tensor) -> Result<Tensor, tch::TchError> {
    let values = hidden.f_linear(weight, None::<Tensor>)?.f_squeeze_dim(1)?;
    values.f_to_kind(decoder::wide(values.kind()))
}
