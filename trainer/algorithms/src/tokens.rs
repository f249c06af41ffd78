//! Flat tensors of response tokens, and the rows they belong to.
//!
//! | item | what it is |
//! |---|---|
//! | [`Rows`] | which row each token of a flat tensor belongs to; sums over rows, spreads to tokens |
//! | [`TokenError`] | why tensors do not make a batch, or a loss is not a number |
//! | [`first_non_finite`] | where a loss went wrong |

use tch::{Device, Kind, TchError, Tensor};
use thiserror::Error;

/// Why a tensor function cannot give a result.
#[derive(Debug, Error)]
pub enum TokenError {
    /// A tensor is not one-dimensional, or not as long as the log-probabilities.
    #[error("`{column}` has shape {found:?}, expected [{tokens}]: one entry for each response token")]
    Shape {
        /// The column.
        column: &'static str,
        /// Response tokens of the batch.
        tokens: i64,
        /// What came.
        found: Vec<i64>,
    },
    /// A tensor lies on another device than the log-probabilities.
    #[error("`{column}` is on {found:?}, the log-probabilities are on {expected:?}; move it there first")]
    Device {
        /// The column.
        column: &'static str,
        /// Where the log-probabilities are.
        expected: Device,
        /// Where the column is.
        found: Device,
    },
    /// Row offsets that do not cut the tokens into rows.
    #[error("`row_offsets` must start at 0, never fall and end at the {tokens} tokens; entry {index} is {found}")]
    Offsets {
        /// Response tokens of the batch.
        tokens: i64,
        /// Which offset.
        index: usize,
        /// What stands there.
        found: i64,
    },
    /// A loss needs a column that was not given.
    #[error("`{loss}` needs `{column}`, which this batch does not have; {hint}")]
    Missing {
        /// The loss.
        loss: String,
        /// The column.
        column: &'static str,
        /// Where it comes from.
        hint: &'static str,
    },
    /// Off-policy correction with a loss that has no place for it.
    #[error(
        "`{loss}` does not combine with off-policy correction; unset `off_policy_correction` or choose another loss"
    )]
    CorrectionRefused {
        /// The loss.
        loss: String,
    },
    /// A loss that is not a number.
    #[error(
        "`{loss}` is not finite: row {row}, token {token} of the row has loss {value} (log-probability {logprob}, \
         old {old_logprob:?}, rollout {rollout_logprob:?}, advantage {advantage:?}); look at what produced that row"
    )]
    NotFinite {
        /// The loss.
        loss: String,
        /// First row with such a token.
        row: usize,
        /// The token, counted from the start of the row's response.
        token: usize,
        /// Its loss.
        value: f64,
        /// Its log-probability under the policy being trained.
        logprob: f64,
        /// Its log-probability under the policy before the update.
        old_logprob: Option<f64>,
        /// Its log-probability as the sampler reported it.
        rollout_logprob: Option<f64>,
        /// Its advantage.
        advantage: Option<f64>,
    },
    /// A value loss that is not a number.
    #[error(
        "the value loss is not finite: row {row}, token {token} of the row has value {value}, old value {old_value}, \
         return {target}"
    )]
    ValueNotFinite {
        /// First row with such a token.
        row: usize,
        /// The token, counted from the start of the row's response.
        token: usize,
        /// What the critic says.
        value: f64,
        /// What it said before the update.
        old_value: f64,
        /// What it should have said.
        target: f64,
    },
    /// Every token's loss is finite, their sum is not.
    #[error("the sum of `{loss}` overflows although every token's loss is finite; check `scales` and the advantages")]
    Overflow {
        /// The loss.
        loss: String,
    },
    /// A custom loss that answered something else than one number for each token.
    #[error("`{loss}` answered token losses of shape {found:?}, expected [{tokens}]")]
    Answer {
        /// The loss.
        loss: String,
        /// Response tokens of the batch.
        tokens: i64,
        /// What came.
        found: Vec<i64>,
    },
    /// libtorch failed.
    #[error("libtorch: {0}")]
    Torch(#[from] TchError),
}

/// Which row each token of a flat `[tokens]` tensor belongs to.
#[derive(Debug)]
pub struct Rows {
    offsets: Vec<i64>,
    /// Row of each token, `[tokens]`, i64.
    index: Tensor,
}

impl Rows {
    /// Rows from their boundaries: row `i` is `offsets[i]..offsets[i + 1]`, so there is one more offset than rows. Empty
    /// rows are allowed.
    pub fn new(offsets: &[i64], tokens: i64, device: Device) -> Result<Self, TokenError> {
        let wrong = |index: usize, found: i64| Err(TokenError::Offsets { tokens, index, found });
        match offsets.first() {
            Some(0) => {}
            first => return wrong(0, first.copied().unwrap_or(-1)),
        }
        if let Some(index) = (1..offsets.len()).find(|&index| offsets[index] < offsets[index - 1]) {
            return wrong(index, offsets[index]);
        }
        let last = offsets[offsets.len() - 1];
        if last != tokens {
            return wrong(offsets.len() - 1, last);
        }
        let mut index = Vec::with_capacity(tokens as usize);
        for (row, bounds) in offsets.windows(2).enumerate() {
            index.resize(bounds[1] as usize, row as i64);
        }
        Ok(Self { offsets: offsets.to_vec(), index: Tensor::from_slice(&index).f_to_device(device)? })
    }

    /// Number of rows.
    pub fn len(&self) -> usize {
        self.offsets.len() - 1
    }

    /// Whether there is no row.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The boundaries.
    pub fn offsets(&self) -> &[i64] {
        &self.offsets
    }

    /// The row of a token, and the token's place in it.
    pub fn locate(&self, token: i64) -> (usize, usize) {
        let row = self.offsets.partition_point(|&offset| offset <= token).saturating_sub(1);
        (row, (token - self.offsets[row]) as usize)
    }

    /// Sums `values` (`[tokens]`) over each row: `[rows]`.
    pub fn sum(&self, values: &Tensor) -> Tensor {
        Tensor::zeros([self.len() as i64], (values.kind(), values.device())).index_add(0, &self.index, values)
    }

    /// Gives every token its row's entry of `per_row` (`[rows]`): `[tokens]`.
    pub fn spread(&self, per_row: &Tensor) -> Tensor {
        per_row.index_select(0, &self.index)
    }

    /// Mean of `values` over each row's tokens whose `mask` (bool) is set, 0 for rows without any: `[rows]`.
    pub fn masked_mean(&self, values: &Tensor, mask: &Tensor) -> Tensor {
        let count = self.sum(&mask.to_kind(values.kind())).clamp_min(1.0);
        self.sum(&values.masked_fill(&mask.logical_not(), 0.0)) / count
    }
}

/// Finds the first entry of `token_losses` (`[tokens]`) that is NaN or infinite: its row, and its place in the row.
pub fn first_non_finite(token_losses: &Tensor, rows: &Rows) -> Result<Option<(usize, usize)>, TokenError> {
    let places = token_losses.f_detach()?.f_isfinite()?.f_logical_not()?.f_nonzero()?.f_flatten(0, -1)?;
    let places = Vec::<i64>::try_from(places.f_to_device(Device::Cpu)?)?;
    Ok(places.first().map(|&token| rows.locate(token)))
}

/// The kind that a loss is computed in: `f64` stays, everything else is `f32`.
pub(crate) fn compute_kind(tensor: &Tensor) -> Kind {
    if tensor.kind() == Kind::Double { Kind::Double } else { Kind::Float }
}

/// Checks that a column fits the log-probabilities.
pub(crate) fn check_column(
    column: &'static str,
    tensor: &Tensor,
    tokens: i64,
    device: Device,
) -> Result<(), TokenError> {
    if tensor.size() != [tokens] {
        return Err(TokenError::Shape { column, tokens, found: tensor.size() });
    }
    if tensor.device() != device {
        return Err(TokenError::Device { column, expected: device, found: tensor.device() });
    }
    Ok(())
}

/// `exp(clamp(a - b, -20, 20))`: the ratio of two probabilities, with finite value and gradient.
pub(crate) fn ratio(a: &Tensor, b: &Tensor) -> Tensor {
    (a - b).clamp(-20.0, 20.0).exp()
}
