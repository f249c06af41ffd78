//! The output layer without a full matrix of logits.
//!
//! Log-probabilities of the wanted tokens and, if asked for, entropies are computed chunk by chunk; so are their
//! gradients, by hand. With `z` the logits over the temperature, `p = softmax(z)` and `t` the target:
//!
//! ```text
//! logprob = z_t - logsumexp(z)          d logprob / d z_j = [j = t] - p_j
//! entropy = logsumexp(z) - sum_j p_j z_j    d entropy / d z_j = -p_j (z_j - sum_k p_k z_k)
//! ```

use tch::{TchError, Tensor};

use crate::decoder::wide;

/// The output layer's tensors.
#[derive(Debug)]
pub struct HeadWeights {
    /// (vocab, hidden).
    pub weight: Tensor,
    /// `A` (rank, hidden), `B` (vocab, rank) and the scaling of an adapter.
    pub adapter: Option<(Tensor, Tensor, f64)>,
}

/// How the output layer is computed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HeadOptions {
    /// What the logits are divided by.
    pub temperature: f64,
    /// Whether entropies are wanted.
    pub entropy: bool,
    /// Bytes of one chunk of logits.
    pub chunk_bytes: usize,
    /// Logits up to this many bytes are kept for the backward pass; more are computed again.
    pub keep_bytes: usize,
}

impl Default for HeadOptions {
    fn default() -> Self {
        Self { temperature: 1.0, entropy: false, chunk_bytes: 64 << 20, keep_bytes: 128 << 20 }
    }
}

/// What the output layer says of the predicted tokens, each (predictions).
#[derive(Debug)]
pub struct Predictions {
    /// Log-probabilities of the targets at the temperature, at least 32 bits.
    pub logprobs: Tensor,
    /// Entropies of the whole distributions, in nats.
    pub entropy: Option<Tensor>,
}

/// A forward pass through the output layer, with what its gradient needs.
#[derive(Debug)]
pub struct HeadPass {
    /// Its results.
    pub predictions: Predictions,
    /// (predictions).
    logsumexp: Tensor,
    /// `sum_k p_k z_k`, (predictions).
    mean: Option<Tensor>,
    kept: Vec<Option<Tensor>>,
}

/// Gradients of the output layer.
#[derive(Debug)]
pub struct HeadGradients {
    /// Of the hidden states, (predictions, hidden).
    pub hidden: Tensor,
    /// Of the weight.
    pub weight: Option<Tensor>,
    /// Of `A` and `B`.
    pub adapter: Option<(Tensor, Tensor)>,
}

impl HeadWeights {
    /// Logits over the temperature of some rows, in the type of sums; also `A h` where there is an adapter.
    fn logits(&self, hidden: &Tensor, temperature: f64) -> Result<Tensor, TchError> {
        let mut z = hidden.f_linear(&self.weight, None::<Tensor>)?;
        if let Some((a, b, scaling)) = &self.adapter {
            let low = hidden.f_linear(a, None::<Tensor>)?;
            let _ = z.f_add_(&low.f_linear(b, None::<Tensor>)?.f_mul_scalar(*scaling)?)?;
        }
        let z = z.f_to_kind(wide(z.kind()))?;
        if temperature == 1.0 { Ok(z) } else { z.f_div_scalar(temperature) }
    }

    fn vocab(&self) -> i64 {
        self.weight.size()[0]
    }
}

fn chunks(rows: i64, options: HeadOptions, vocab: i64) -> impl Iterator<Item = (i64, i64)> {
    let each = (options.chunk_bytes as i64 / (vocab * 4)).max(1);
    (0..(rows + each - 1) / each).map(move |i| (i * each, each.min(rows - i * each)))
}

/// Log-probabilities of `targets` (predictions) given hidden states (predictions, hidden). Nothing here is recorded by
/// autograd. With `keep`, small logits stay for [`backward`].
pub fn forward(
    weights: &HeadWeights,
    hidden: &Tensor,
    targets: &Tensor,
    options: HeadOptions,
    keep: bool,
) -> Result<HeadPass, TchError> {
    let _guard = tch::no_grad_guard();
    let rows = targets.size()[0];
    let keep = keep && rows as usize * weights.vocab() as usize * 4 <= options.keep_bytes;
    let (mut logprobs, mut logsumexp, mut means, mut kept) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for (from, count) in chunks(rows, options, weights.vocab()) {
        let z = weights.logits(&hidden.f_narrow(0, from, count)?, options.temperature)?;
        let lse = z.f_logsumexp([-1i64].as_slice(), false)?;
        let target = targets.f_narrow(0, from, count)?.f_unsqueeze(1)?;
        logprobs.push(z.f_gather(1, &target, false)?.f_squeeze_dim(1)?.f_sub(&lse)?);
        if options.entropy {
            let mut p = z.f_sub(&lse.f_unsqueeze(1)?)?.f_exp()?;
            let weighted = p.f_mul_(&z)?;
            means.push(weighted.f_sum_dim_intlist([-1i64].as_slice(), false, None)?);
        }
        logsumexp.push(lse);
        kept.push(keep.then_some(z));
    }
    let kind = wide(hidden.kind());
    let join = |parts: &[Tensor]| {
        if parts.is_empty() { crate::decoder::zeros(&[0], kind) } else { Tensor::f_cat(parts, 0) }
    };
    let logsumexp = join(&logsumexp)?;
    let mean = if options.entropy { Some(join(&means)?) } else { None };
    let entropy = mean.as_ref().map(|m| logsumexp.f_sub(m)).transpose()?;
    Ok(HeadPass { predictions: Predictions { logprobs: join(&logprobs)?, entropy }, logsumexp, mean, kept })
}

/// Gradients given those of the log-probabilities and entropies, each (predictions).
pub fn backward(
    mut pass: HeadPass,
    weights: &HeadWeights,
    hidden: &Tensor,
    targets: &Tensor,
    options: HeadOptions,
    gradient: (&Tensor, Option<&Tensor>),
    train_weight: bool,
) -> Result<HeadGradients, TchError> {
    let _guard = tch::no_grad_guard();
    let kind = hidden.kind();
    let mut total = Totals::new(weights, train_weight)?;
    let mut d_hidden = Vec::new();
    for (i, (from, count)) in chunks(targets.size()[0], options, weights.vocab()).enumerate() {
        let part = |t: &Tensor| t.f_narrow(0, from, count);
        let rows = part(hidden)?;
        let mut z = match pass.kept[i].take() {
            Some(z) => z,
            None => weights.logits(&rows, options.temperature)?,
        };
        let lse = part(&pass.logsumexp)?.f_unsqueeze(1)?;
        let own = part(gradient.0)?.f_unsqueeze(1)?;
        let mut d = if let (Some(of_entropy), Some(mean)) = (gradient.1, &pass.mean) {
            let p = z.f_sub(&lse)?.f_exp()?;
            let centred = z.f_sub_(&part(mean)?.f_unsqueeze(1)?)?;
            let mut factor = centred;
            let factor = factor.f_mul_(&part(of_entropy)?.f_unsqueeze(1)?)?.f_add_(&own)?;
            p.f_mul(&factor)?.f_neg_()?
        } else {
            z.f_sub_(&lse)?.f_exp_()?.f_mul_(&own.f_neg()?)?
        };
        let target = part(targets)?.f_unsqueeze(1)?;
        let mut d = d.f_scatter_add_(1, &target, &own)?;
        if options.temperature != 1.0 {
            d = d.f_div_scalar_(options.temperature)?;
        }
        let d = d.f_to_kind(kind)?;
        d_hidden.push(total.add(weights, &d, &rows)?);
    }
    let hidden = if d_hidden.is_empty() { hidden.f_zeros_like()? } else { Tensor::f_cat(&d_hidden, 0)? };
    Ok(HeadGradients { hidden, weight: total.weight, adapter: total.adapter })
}

/// Sums over chunks, in at least 32 bits.
struct Totals {
    weight: Option<Tensor>,
    adapter: Option<(Tensor, Tensor)>,
}

impl Totals {
    fn new(weights: &HeadWeights, train_weight: bool) -> Result<Self, TchError> {
        let zeros = |t: &Tensor| crate::decoder::zeros(&t.size(), wide(t.kind()));
        let weight = if train_weight { Some(zeros(&weights.weight)?) } else { None };
        let adapter =
            weights.adapter.as_ref().map(|(a, b, _)| Ok::<_, TchError>((zeros(a)?, zeros(b)?))).transpose()?;
        Ok(Self { weight, adapter })
    }

    /// Adds a chunk's gradients and returns that of its hidden rows. `d` is (rows, vocab).
    fn add(&mut self, weights: &HeadWeights, d: &Tensor, rows: &Tensor) -> Result<Tensor, TchError> {
        let sum = |total: &mut Tensor, d: Tensor| -> Result<(), TchError> {
            let _ = total.f_add_(&d.f_to_kind(total.kind())?)?;
            Ok(())
        };
        let mut d_rows = d.f_matmul(&weights.weight)?;
        if let Some(total) = &mut self.weight {
            sum(total, d.f_transpose(0, 1)?.f_matmul(rows)?)?;
        }
        if let (Some((d_a, d_b)), Some((a, b, scaling))) = (&mut self.adapter, &weights.adapter) {
            let low = rows.f_linear(a, None::<Tensor>)?;
            let scaled = d.f_mul_scalar(*scaling)?;
            sum(d_b, scaled.f_transpose(0, 1)?.f_matmul(&low)?)?;
            let d_low = scaled.f_matmul(b)?;
            sum(d_a, d_low.f_transpose(0, 1)?.f_matmul(rows)?)?;
            let _ = d_rows.f_add_(&d_low.f_matmul(a)?)?;
        }
        Ok(d_rows)
    }
}
