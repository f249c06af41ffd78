//! The output layer under a loss, and the gradients that come back from both.

use tch::{Kind, Tensor};

use super::TrainModel;
use super::forward::value_of;
use super::unit::Gathered;
use crate::decoder;
use crate::error::TrainError;
use crate::head::{self, Entropy, HeadOptions, Predictions, Want};
use crate::layout::Place;
use crate::packing::MicroBatch;

/// What a pass minimises.
pub(super) enum Objective<'a> {
    /// A scalar made of the predictions.
    Of(&'a mut dyn FnMut(&Predictions) -> Result<Tensor, TrainError>),
    /// The sum of all log-probabilities, each times its number.
    Weighted(&'a Tensor),
    /// A scalar made of a critic's values.
    OfValues(&'a mut dyn FnMut(&Tensor) -> Result<Tensor, TrainError>),
}

impl TrainModel {
    /// Output layer and loss: the loss's value, the gradient of the hidden states, gradients of the output layer.
    pub(super) fn head(
        &self,
        root: &Gathered,
        hidden: &Tensor,
        batch: &MicroBatch,
        options: HeadOptions,
        objective: Objective<'_>,
    ) -> Result<(f64, Tensor, head::HeadGradients), TrainError> {
        let weights = self.head_weights(root)?;
        let kind = hidden.kind();
        let hidden = hidden.f_detach()?.f_to_kind(weights.weight.kind())?;
        let trained = matches!(self.root.head.unwrap_or(self.root.embedding), Place::Trained(_));
        let loss = match objective {
            Objective::Of(loss) => loss,
            Objective::OfValues(loss) => {
                let (value, of_hidden, gradients) = value_head(&hidden, &weights.weight, batch, loss)?;
                return Ok((value, of_hidden.f_to_kind(kind)?, gradients));
            }
            Objective::Weighted(by) => {
                let want = Want::GradientsOf { by, train_weight: trained };
                let pass = head::forward(&weights, &hidden, &batch.targets, options, want)?;
                let logprobs = pass.predictions.logprobs.shallow_clone();
                let value = logprobs.f_mul(&by.f_to_kind(logprobs.kind())?)?.f_sum(Kind::Double)?.f_double_value(&[])?;
                if !value.is_finite() {
                    return Err(not_finite(value, &logprobs, batch)?);
                }
                let found = head::backward(pass, &weights, &hidden, &batch.targets, options, (by, None), trained)?;
                return Ok((value, found.hidden.f_to_kind(kind)?, found));
            }
        };
        let want = Want::Gradients { train_weight: trained };
        let pass = head::forward(&weights, &hidden, &batch.targets, options, want)?;
        let leaf = |t: &Tensor| t.f_detach()?.f_set_requires_grad(true);
        let of_entropy = |t: &Tensor| if options.entropy == Entropy::Gradients { leaf(t) } else { t.f_detach() };
        let leaves = Predictions {
            logprobs: leaf(&pass.predictions.logprobs)?,
            entropy: pass.predictions.entropy.as_ref().map(of_entropy).transpose()?,
        };
        let scalar = loss(&leaves)?;
        let value = scalar.f_double_value(&[])?;
        if !value.is_finite() {
            return Err(not_finite(value, &leaves.logprobs, batch)?);
        }
        let mut wanted = vec![&leaves.logprobs];
        wanted.extend(leaves.entropy.as_ref().filter(|entropy| entropy.requires_grad()));
        let mut found = if scalar.requires_grad() {
            // What the loss does not use has no gradient; asking for it must not be an error.
            let zero = wanted.iter().try_fold(scalar, |sum, leaf| sum.f_add(&leaf.f_mul_scalar(0.0)?.f_sum(None)?))?;
            Tensor::f_run_backward(&[zero], &wanted, false, false)?
        } else {
            wanted.iter().map(|leaf| leaf.f_zeros_like()).collect::<Result<_, _>>()?
        };
        let of_entropy = if found.len() > 1 { found.pop() } else { None };
        let of_logprobs = found.swap_remove(0);
        let gradients = head::backward(
            pass,
            &weights,
            &hidden,
            &batch.targets,
            options,
            (&of_logprobs, of_entropy.as_ref()),
            trained,
        )?;
        Ok((value, gradients.hidden.f_to_kind(kind)?, gradients))
    }
}

fn not_finite(value: f64, logprobs: &Tensor, batch: &MicroBatch) -> Result<TrainError, TrainError> {
    let values = Vec::<f64>::try_from(logprobs.f_detach()?.f_to_kind(Kind::Double)?)?;
    let at = values.iter().position(|v| !v.is_finite());
    let place = at.unwrap_or(0) as i64;
    let row = batch.offsets.iter().rposition(|offset| *offset <= place).unwrap_or(0);
    let row = row.min(batch.rows.len().saturating_sub(1));
    Ok(TrainError::NonFinite {
        value,
        row: batch.rows.get(row).copied().unwrap_or(0),
        token: (place - batch.offsets.get(row).copied().unwrap_or(0)) as usize,
        logprob: values.get(place as usize).copied().unwrap_or(f64::NAN),
    })
}

/// Value head and loss: the loss's value, the gradient of the hidden states, the gradient of the head.
fn value_head(
    hidden: &Tensor,
    weight: &Tensor,
    batch: &MicroBatch,
    loss: &mut dyn FnMut(&Tensor) -> Result<Tensor, TrainError>,
) -> Result<(f64, Tensor, head::HeadGradients), TrainError> {
    let leaf = tch::no_grad(|| value_of(hidden, weight))?.f_set_requires_grad(true)?;
    let scalar = loss(&leaf)?;
    let value = scalar.f_double_value(&[])?;
    if !value.is_finite() {
        let row = batch.rows.first().copied().unwrap_or(0);
        return Err(TrainError::Row { row, reason: format!("the critic's loss of its micro-batch is {value}") });
    }
    let d_values = if scalar.requires_grad() {
        Tensor::f_run_backward(&[scalar], &[&leaf], false, false)?.swap_remove(0)
    } else {
        leaf.f_zeros_like()?
    };
    let _guard = tch::no_grad_guard();
    let d_values = d_values.f_unsqueeze(1)?.f_to_kind(hidden.kind())?;
    let of_hidden = d_values.f_matmul(weight)?;
    let wide = decoder::wide(hidden.kind());
    let of_weight = d_values.f_to_kind(wide)?.f_transpose(0, 1)?.f_matmul(&hidden.f_to_kind(wide)?)?;
    let gradients = head::HeadGradients { hidden: of_hidden.shallow_clone(), weight: Some(of_weight), adapter: None };
    Ok((value, of_hidden, gradients))
}
