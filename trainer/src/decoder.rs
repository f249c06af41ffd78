//! The decoder as a differentiable function: one layer, the last norm, attention over packed sequences.
//!
//! Rows of many sequences lie one behind the other, without padding: `x` has shape (tokens, hidden). Linear layers and
//! norms see one matrix; attention works on views of the packed projections, once for each run of equally long sequences.
//! Arithmetic follows `transformers`, but that what is one step here is rounded once: see [`fused`].

use espalier_engine::config::DecoderConfig;
use espalier_engine::fused::{self, Before, Heads, LowRank};
use tch::{Device, Kind, TchError, Tensor};

use crate::error::TrainError;

/// Sequences of equal length that lie one behind the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// First token.
    pub start: i64,
    /// How many sequences.
    pub count: i64,
    /// Tokens of each.
    pub len: i64,
}

/// An adapter on one linear layer, or on several that share their input.
pub struct Adapter {
    /// (sum of ranks, inputs).
    pub a: Tensor,
    /// One (outputs, rank) for each adapted part, with the index of the part among the layer's stacked outputs.
    pub b: Vec<(usize, Tensor)>,
    /// Rank of each.
    pub rank: i64,
}

/// A linear layer whose outputs may be several stacked parts.
pub struct Linear {
    /// (outputs, inputs).
    pub weight: Tensor,
    /// (outputs).
    pub bias: Option<Tensor>,
    /// Outputs of each stacked part.
    pub parts: Vec<i64>,
    /// An adapter.
    pub adapter: Option<Adapter>,
}

/// What the adapters of a step have in common.
#[derive(Clone, Copy, Debug)]
pub struct AdapterStep {
    /// What the product is multiplied with.
    pub scaling: f64,
    /// Share of inputs that is dropped; 0 outside training.
    pub dropout: f64,
}

impl Linear {
    /// `x` of shape (rows, inputs), before what stands in front of the layer, to (rows, outputs).
    pub fn apply(&self, x: &Tensor, before: Before<'_>, step: AdapterStep) -> Result<Tensor, TrainError> {
        let first = |part: usize| self.parts[..part].iter().sum::<i64>();
        let b: Vec<(i64, &Tensor)> =
            self.adapter.iter().flat_map(|adapter| &adapter.b).map(|(part, b)| (first(*part), b)).collect();
        let adapter = self.adapter.as_ref().map(|adapter| LowRank {
            a: &adapter.a,
            b: &b,
            rank: adapter.rank,
            scaling: step.scaling,
            dropout: step.dropout,
        });
        Ok(fused::linear(x, before, &self.weight, self.bias.as_ref(), adapter)?)
    }
}

/// The tensors of one layer, as views of what was gathered.
pub struct LayerWeights {
    /// Norm before attention.
    pub input_norm: Tensor,
    /// Query, key and value, stacked.
    pub qkv: Linear,
    /// Norm over each query head.
    pub q_norm: Option<Tensor>,
    /// Norm over each key head.
    pub k_norm: Option<Tensor>,
    /// Output of the attention.
    pub output: Linear,
    /// Norm before the feed-forward part.
    pub post_norm: Tensor,
    /// Gate and up, stacked.
    pub gate_up: Linear,
    /// Down.
    pub down: Linear,
}

/// What all layers of a step share.
pub struct StepShape<'a> {
    /// The decoder's shape.
    pub config: &'a DecoderConfig,
    /// Cosines of the step's positions, (tokens, head_dim / 2).
    pub cos: Tensor,
    /// Sines.
    pub sin: Tensor,
    /// How the tokens divide into sequences.
    pub runs: &'a [Run],
    /// Adapters.
    pub adapters: AdapterStep,
}

/// RMS norm (<https://arxiv.org/abs/1910.07467>, equation 4) over the last dimension, in at least 32 bits.
pub fn rms_norm(x: &Tensor, weight: &Tensor, eps: f64) -> Result<Tensor, TchError> {
    let kind = x.kind();
    let wide = x.f_to_kind(wide(kind))?;
    let scale = wide.f_square()?.f_mean_dim([-1i64].as_slice(), true, None)?.f_add_scalar(eps)?.f_rsqrt()?;
    wide.f_mul(&scale)?.f_to_kind(kind)?.f_mul(weight)
}

/// The type of sums: 64 bits stay, anything smaller becomes 32.
pub fn wide(kind: Kind) -> Kind {
    if kind == Kind::Double { Kind::Double } else { Kind::Float }
}

/// Cosines and sines of the rotary embedding (<https://arxiv.org/abs/2104.09864>) at `positions`, each
/// (tokens, head_dim / 2). Angles are products of 32-bit floats, as in `transformers`.
pub fn rotation(config: &DecoderConfig, positions: &[i64], kind: Kind) -> Result<(Tensor, Tensor), TchError> {
    let frequencies = config.rope_frequencies();
    let frequencies = Tensor::f_from_slice(&frequencies)?;
    let positions = Tensor::f_from_slice(positions)?;
    let angle_kind = wide(kind);
    let angles = positions.f_to_kind(angle_kind)?.f_outer(&frequencies.f_to_kind(angle_kind)?)?;
    let factor = config.rope_attention_factor();
    let table = |t: Tensor| t.f_mul_scalar(factor)?.f_to_kind(kind);
    Ok((table(angles.f_cos()?)?, table(angles.f_sin()?)?))
}

/// Causal attention of each sequence over itself. `qkv` is (tokens, (heads + 2 kv_heads) * head_dim); the result is
/// (tokens, heads * head_dim).
fn attention(qkv: &Tensor, weights: &LayerWeights, step: &StepShape<'_>) -> Result<Tensor, TrainError> {
    let c = step.config;
    let normed = match (&weights.q_norm, &weights.k_norm) {
        (None, None) => None,
        (q_norm, k_norm) => Some(normed_heads(qkv, c, q_norm.as_ref(), k_norm.as_ref())?),
    };
    let heads = Heads { heads: c.heads, kv_heads: c.kv_heads, dim: c.head_dim, cos: &step.cos, sin: &step.sin };
    let runs = step.runs.iter().map(|run| (run.start, run.count, run.len));
    Ok(fused::attention(normed.as_ref().unwrap_or(qkv), heads, runs)?)
}

/// The projections with a norm over each head of queries and keys.
fn normed_heads(
    qkv: &Tensor,
    c: &DecoderConfig,
    q_norm: Option<&Tensor>,
    k_norm: Option<&Tensor>,
) -> Result<Tensor, TchError> {
    let (q_width, kv_width) = (c.heads * c.head_dim, c.kv_heads * c.head_dim);
    let parts = qkv.f_split_with_sizes([q_width, kv_width, kv_width], 1)?;
    let over_heads = |x: &Tensor, norm: Option<&Tensor>| match norm {
        None => Ok(x.shallow_clone()),
        Some(norm) => rms_norm(&x.f_reshape([-1, c.head_dim])?, norm, c.norm_eps)?.f_view(x.size().as_slice()),
    };
    Tensor::f_cat(&[over_heads(&parts[0], q_norm)?, over_heads(&parts[1], k_norm)?, parts[2].shallow_clone()], 1)
}

/// One layer: `x` of shape (tokens, hidden) to the same shape.
pub fn layer(x: &Tensor, weights: &LayerWeights, step: &StepShape<'_>) -> Result<Tensor, TrainError> {
    let eps = step.config.norm_eps;
    let qkv = weights.qkv.apply(x, Before::Norm(&weights.input_norm, eps), step.adapters)?;
    let attended = attention(&qkv, weights, step)?;
    drop(qkv);
    let x = weights.output.apply(&attended, Before::Nothing, step.adapters)?.f_add_(x)?;
    let gate_up = weights.gate_up.apply(&x, Before::Norm(&weights.post_norm, eps), step.adapters)?;
    Ok(weights.down.apply(&gate_up, Before::Swiglu, step.adapters)?.f_add_(&x)?)
}

/// A copy with memory of its own.
pub(crate) fn copied(tensor: &Tensor) -> Result<Tensor, TchError> {
    let mut copy = tensor.f_detach()?.f_empty_like()?;
    copy.f_copy_(tensor)?;
    Ok(copy)
}

/// A tensor of zeros on the CPU.
pub(crate) fn zeros(shape: &[i64], kind: Kind) -> Result<Tensor, TchError> {
    Tensor::f_zeros(shape, (kind, Device::Cpu))
}
