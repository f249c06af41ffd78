//! The critic's loss.

use tch::{Kind, Tensor};

use crate::losses::LossOutput;
use crate::metrics::Recorder;
use crate::tokens::{Rows, TokenError, check_column, compute_kind, first_non_finite};

/// What the value loss reads. All tensors are `[tokens]`.
#[derive(Clone, Copy, Debug)]
pub struct ValueLossInput<'a> {
    /// Values of the critic being trained.
    pub values: &'a Tensor,
    /// Its values before the update.
    pub old_values: &'a Tensor,
    /// What it should have said.
    pub returns: &'a Tensor,
    /// Weight of each token, see [`crate::reduction`]. The original averages tokens in rows, then rows: `sequence_mean`.
    pub scales: &'a Tensor,
    /// Trainable tokens.
    pub mask: &'a Tensor,
    /// Row boundaries, `rows + 1` of them.
    pub row_offsets: &'a [i64],
}

/// PPO's clipped value loss: `sum of scale * max((V - R)^2, (V_clip - R)^2) / 2` with
/// `V_clip = V_old + clamp(V - V_old, -value_clip, value_clip)` (Schulman et al., arXiv:1707.06347; clipping as in the
/// authors' implementation, see Engstrom et al., arXiv:2005.12729).
///
/// The metric `value_clipfrac` is the share of trainable tokens whose clipped term is the larger one.
pub fn value_loss(input: &ValueLossInput<'_>, value_clip: f64) -> Result<LossOutput, TokenError> {
    let (tokens, device) = (input.values.numel() as i64, input.values.device());
    for (column, tensor) in [
        ("values", input.values),
        ("old_values", input.old_values),
        ("returns", input.returns),
        ("scales", input.scales),
        ("mask", input.mask),
    ] {
        check_column(column, tensor, tokens, device)?;
    }
    let rows = Rows::new(input.row_offsets, tokens, device)?;
    let kind = compute_kind(input.values);
    let mask = input.mask.to_kind(Kind::Bool);
    let outside = mask.logical_not();
    let clean = |tensor: &Tensor| tensor.to_kind(kind).masked_fill(&outside, 0.0);
    let values = clean(input.values);
    let old_values = clean(&input.old_values.detach());
    let returns = clean(&input.returns.detach());

    let clipped = &old_values + (&values - &old_values).clamp(-value_clip, value_clip);
    let plain_error = (&values - &returns).square();
    let clipped_error = (clipped - &returns).square();
    let token_losses = plain_error.maximum(&clipped_error) * 0.5 * clean(&input.scales.detach());
    let loss = token_losses.sum(kind);

    let mut recorder = Recorder::default();
    recorder.mean("value_clipfrac", &clipped_error.gt_tensor(&plain_error), &mask);
    recorder.mean("values_mean", &values, &mask);
    recorder.sum(FINITE, &loss.isfinite());
    let mut metrics = recorder.finish()?;
    if metrics.remove(FINITE) != Some(1.0) {
        return Err(match first_non_finite(&token_losses, &rows)? {
            Some((row, token)) => {
                let at = (rows.offsets()[row] + token as i64).max(0);
                TokenError::ValueNotFinite {
                    row,
                    token,
                    value: values.f_double_value(&[at])?,
                    old_value: old_values.f_double_value(&[at])?,
                    target: returns.f_double_value(&[at])?,
                }
            }
            None => TokenError::Overflow { loss: "value_loss".to_owned() },
        });
    }
    Ok(LossOutput { loss, token_losses: token_losses.detach(), metrics })
}

/// Carries "the loss is finite" in the one copy from the device.
const FINITE: &str = "finite";
