//! The decoder as a differentiable function: one layer, the last norm, attention over packed sequences.
//!
//! Rows of many sequences lie one behind the other, without padding: `x` has shape (tokens, hidden). Linear layers and
//! norms see one matrix; attention takes views of the packed projections, one call for each run of equally long
//! sequences. Arithmetic follows `transformers`: norms in 32 bits, everything else in the type of the weights.

use espalier_engine::config::DecoderConfig;
use tch::{Device, Kind, TchError, Tensor};

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
    /// `x` of shape (rows, inputs) to (rows, outputs).
    pub fn apply(&self, x: &Tensor, step: AdapterStep) -> Result<Tensor, TchError> {
        let out = x.f_linear(&self.weight, self.bias.as_ref())?;
        let Some(adapter) = &self.adapter else { return Ok(out) };
        // Parts that share their input share what is dropped of it.
        let x = if step.dropout > 0.0 { x.f_dropout(step.dropout, true)? } else { x.shallow_clone() };
        let low = x.f_linear(&adapter.a, None::<Tensor>)?;
        let mut deltas: Vec<Option<Tensor>> = self.parts.iter().map(|_| None).collect();
        for (i, (part, b)) in adapter.b.iter().enumerate() {
            let own = if adapter.b.len() == 1 {
                low.shallow_clone()
            } else {
                low.f_narrow(1, i as i64 * adapter.rank, adapter.rank)?
            };
            deltas[*part] = Some(own.f_linear(b, None::<Tensor>)?.f_mul_scalar(step.scaling)?);
        }
        if let [Some(delta)] = &deltas[..] {
            return out.f_add(delta);
        }
        let rows = out.size()[0];
        let deltas: Vec<Tensor> = deltas
            .into_iter()
            .zip(&self.parts)
            .map(|(delta, width)| match delta {
                Some(delta) => Ok(delta),
                None => Tensor::f_zeros([rows, *width], (out.kind(), out.device())),
            })
            .collect::<Result<_, TchError>>()?;
        out.f_add(&Tensor::f_cat(&deltas, 1)?)
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
    /// Cosines of the step's positions, (tokens, 1, head_dim / 2).
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

/// Rotary embedding (<https://arxiv.org/abs/2104.09864>) of `x`, (tokens, heads, head_dim), pairing the halves of a head.
fn rotate(x: &Tensor, cos: &Tensor, sin: &Tensor) -> Result<Tensor, TchError> {
    let halves = x.f_chunk(2, -1)?;
    let first = halves[0].f_mul(cos)?.f_sub(&halves[1].f_mul(sin)?)?;
    let second = halves[1].f_mul(cos)?.f_add(&halves[0].f_mul(sin)?)?;
    Tensor::f_cat(&[first, second], -1)
}

/// Cosines and sines of `positions` (int64, any shape of one dimension), each (tokens, 1, head_dim / 2). Angles are
/// products of 32-bit floats, as in `transformers`.
pub fn rotation(config: &DecoderConfig, positions: &[i64], kind: Kind) -> Result<(Tensor, Tensor), TchError> {
    let frequencies = config.rope_frequencies();
    let frequencies = Tensor::f_from_slice(&frequencies)?;
    let positions = Tensor::f_from_slice(positions)?;
    let angle_kind = wide(kind);
    let angles = positions.f_to_kind(angle_kind)?.f_outer(&frequencies.f_to_kind(angle_kind)?)?.f_unsqueeze(1)?;
    let factor = config.rope_attention_factor();
    let table = |t: Tensor| t.f_mul_scalar(factor)?.f_to_kind(kind);
    Ok((table(angles.f_cos()?)?, table(angles.f_sin()?)?))
}

/// Causal attention of each sequence over itself. `qkv` is (tokens, (heads + 2 kv_heads) * head_dim); the result is
/// (tokens, heads * head_dim).
fn attention(qkv: &Tensor, weights: &LayerWeights, step: &StepShape<'_>) -> Result<Tensor, TchError> {
    let c = step.config;
    let tokens = qkv.size()[0];
    let (q_width, kv_width) = (c.heads * c.head_dim, c.kv_heads * c.head_dim);
    let heads = |from, width, count| qkv.f_narrow(1, from, width)?.f_view([tokens, count, c.head_dim]);
    let mut q = heads(0, q_width, c.heads)?;
    let mut k = heads(q_width, kv_width, c.kv_heads)?;
    let v = heads(q_width + kv_width, kv_width, c.kv_heads)?;
    if let Some(norm) = &weights.q_norm {
        q = rms_norm(&q, norm, c.norm_eps)?;
    }
    if let Some(norm) = &weights.k_norm {
        k = rms_norm(&k, norm, c.norm_eps)?;
    }
    let q = rotate(&q, &step.cos, &step.sin)?;
    let k = rotate(&k, &step.cos, &step.sin)?;
    let mut out = Vec::with_capacity(step.runs.len());
    for run in step.runs {
        let view = |x: &Tensor, count: i64| {
            let part = x.f_narrow(0, run.start, run.count * run.len)?;
            part.f_view([run.count, run.len, count, c.head_dim])?.f_transpose(1, 2)
        };
        let attended = Tensor::f_scaled_dot_product_attention(
            &view(&q, c.heads)?,
            &view(&k, c.kv_heads)?,
            &view(&v, c.kv_heads)?,
            None::<Tensor>,
            0.0,
            true,
            None,
            c.heads != c.kv_heads,
        )?;
        out.push(attended.f_transpose(1, 2)?.f_reshape([run.count * run.len, q_width])?);
    }
    match out.len() {
        1 => Ok(out.swap_remove(0)),
        _ => Tensor::f_cat(&out, 0),
    }
}

/// One layer: `x` of shape (tokens, hidden) to the same shape.
pub fn layer(x: &Tensor, weights: &LayerWeights, step: &StepShape<'_>) -> Result<Tensor, TchError> {
    let eps = step.config.norm_eps;
    let h = rms_norm(x, &weights.input_norm, eps)?;
    let qkv = weights.qkv.apply(&h, step.adapters)?;
    let attended = attention(&qkv, weights, step)?;
    let x = x.f_add(&weights.output.apply(&attended, step.adapters)?)?;
    let h = rms_norm(&x, &weights.post_norm, eps)?;
    let gate_up = weights.gate_up.apply(&h, step.adapters)?;
    let halves = gate_up.f_chunk(2, -1)?;
    let h = halves[0].f_silu()?.f_mul(&halves[1])?;
    x.f_add(&weights.down.apply(&h, step.adapters)?)
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
