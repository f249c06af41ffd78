//! The output layer without a full matrix of logits.
//!
//! Log-probabilities of the wanted tokens and, if asked for, entropies are computed chunk by chunk; so are their
//! gradients, by hand. With `z` the logits over the temperature `T`, `p = softmax(z)` and `t` the target:
//!
//! ```text
//! logprob = z_t - logsumexp(z)              d logprob / d z_j = [j = t] - p_j
//! entropy = logsumexp(z) - sum_j p_j z_j    d entropy / d z_j = -p_j (z_j - sum_k p_k z_k)
//! ```
//!
//! What a loss says of a row's log-probability is one number `g`. So the row's gradient is `g` times a direction,
//! `([j = t] - p_j) / T` times the weight's rows, that the forward pass knows already: logits are computed once, and a
//! chunk of them is gone when the next comes. Logits are needed again only where the layer itself is trained by a loss that
//! was not known in the forward pass and they were too many to keep, or where the loss has an entropy in it.

use espalier_engine::fused::{self, Logits};
use tch::{Kind, TchError, Tensor};

use crate::decoder::wide;
use crate::error::TrainError;

/// The output layer's tensors.
#[derive(Debug)]
pub struct HeadWeights {
    /// (vocab, hidden).
    pub weight: Tensor,
    /// `A` (rank, hidden), `B` (vocab, rank) and the scaling of an adapter.
    pub adapter: Option<(Tensor, Tensor, f64)>,
}

/// What is wanted of the entropies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Entropy {
    /// Nothing.
    #[default]
    No,
    /// Their values: a loss sees them as constants.
    Values,
    /// Values, and the gradient of a loss that has them in it.
    Gradients,
}

/// How the output layer is computed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HeadOptions {
    /// What the logits are divided by.
    pub temperature: f64,
    /// Whether entropies are wanted.
    pub entropy: Entropy,
    /// Bytes of one chunk of logits.
    pub chunk_bytes: usize,
    /// Logits up to this many bytes are kept for the backward pass where it needs them; more are computed again.
    pub keep_bytes: usize,
}

impl Default for HeadOptions {
    fn default() -> Self {
        Self { temperature: 1.0, entropy: Entropy::No, chunk_bytes: 64 << 20, keep_bytes: 256 << 20 }
    }
}

/// What a forward pass is for.
#[derive(Clone, Copy, Debug)]
pub enum Want<'a> {
    /// Predictions alone.
    Predictions,
    /// A backward pass will follow.
    Gradients {
        /// Whether the layer's own weight is trained.
        train_weight: bool,
    },
    /// Gradients of the sum of all log-probabilities, each times its number (predictions, wide), at once.
    GradientsOf {
        /// The numbers.
        by: &'a Tensor,
        /// Whether the layer's own weight is trained.
        train_weight: bool,
    },
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
    after: After,
}

/// What a forward pass leaves behind.
#[derive(Debug)]
enum After {
    /// Log-sum-exps and means of logits: the backward pass computes the logits again.
    Sums { lse: Tensor, mean: Option<Tensor> },
    /// The gradient of each row's log-probability: of its hidden state, and, where the layer is trained, of its logits.
    Directions { hidden: Tensor, logits: Option<Tensor> },
    /// All gradients.
    Gradients(HeadGradients),
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
    /// Logits of some rows.
    fn logits(&self, hidden: &Tensor) -> Result<Tensor, TchError> {
        let mut z = hidden.f_linear(&self.weight, None::<Tensor>)?;
        if let Some((a, b, scaling)) = &self.adapter {
            let low = hidden.f_linear(a, None::<Tensor>)?;
            let _ = z.f_add_(&low.f_linear(b, None::<Tensor>)?.f_mul_scalar(*scaling)?)?;
        }
        Ok(z)
    }

    fn vocab(&self) -> i64 {
        self.weight.size()[0]
    }
}

/// First row and number of rows of each chunk.
fn chunks(rows: i64, bytes: usize, weights: &HeadWeights) -> impl Iterator<Item = (i64, i64)> {
    let row = weights.vocab() * weights.weight.kind().elt_size_in_bytes() as i64;
    let each = (bytes as i64 / row).max(1);
    (0..(rows + each - 1) / each).map(move |i| (i * each, each.min(rows - i * each)))
}

/// One after the other, or none of the given kind.
fn join(parts: &[Tensor], kind: Kind) -> Result<Tensor, TchError> {
    if parts.is_empty() { crate::decoder::zeros(&[0], kind) } else { Tensor::f_cat(parts, 0) }
}

/// Log-probabilities of `targets` (predictions) given hidden states (predictions, hidden). Nothing here is recorded by
/// autograd.
pub fn forward(
    weights: &HeadWeights,
    hidden: &Tensor,
    targets: &Tensor,
    options: HeadOptions,
    want: Want<'_>,
) -> Result<HeadPass, TrainError> {
    let _guard = tch::no_grad_guard();
    let rows = targets.size()[0];
    let all_bytes = rows as usize * weights.vocab() as usize * weights.weight.kind().elt_size_in_bytes();
    let (mut total, trained) = match want {
        Want::GradientsOf { train_weight, .. } => (Some(Totals::new(weights, train_weight)?), false),
        Want::Gradients { train_weight } => (None, train_weight || weights.adapter.is_some()),
        Want::Predictions => (None, false),
    };
    let keep = trained && all_bytes <= options.keep_bytes;
    let directions =
        matches!(want, Want::Gradients { .. }) && options.entropy != Entropy::Gradients && (keep || !trained);
    let entropy = options.entropy != Entropy::No;
    let (mut logprobs, mut lses, mut means) = (Vec::new(), Vec::new(), Vec::new());
    let (mut of_hidden, mut kept) = (Vec::new(), None);
    // What is kept is kept in one piece, so that the weight's gradient is one product.
    for (from, count) in chunks(rows, if keep { all_bytes } else { options.chunk_bytes }, weights) {
        let part = hidden.f_narrow(0, from, count)?;
        let mut z = weights.logits(&part)?;
        let own = match want {
            Want::GradientsOf { by, .. } => {
                Some(by.f_narrow(0, from, count)?.f_to_kind(wide(z.kind()))?.f_contiguous()?)
            }
            _ => None,
        };
        let then = match &own {
            Some(own) => Logits::GradientBy(own),
            None if directions => Logits::Gradient,
            None => Logits::Keep,
        };
        let targets = targets.f_narrow(0, from, count)?;
        let found = fused::softmax(&mut z, &targets, 1.0 / options.temperature, entropy, then)?;
        logprobs.push(found.logprob);
        lses.push(found.lse);
        means.extend(found.mean);
        if let Some(total) = &mut total {
            of_hidden.push(total.add(weights, &z, &part)?);
        } else if directions {
            of_hidden.push(z.f_matmul(&weights.weight)?);
            if let (Some((a, b, scaling)), Some(own)) = (&weights.adapter, of_hidden.last_mut()) {
                let low = z.f_matmul(b)?.f_mul_scalar(*scaling)?;
                let _ = own.f_add_(&low.f_matmul(a)?)?;
            }
            if keep {
                kept = Some(z);
            }
        }
    }
    let kind = wide(hidden.kind());
    let lse = join(&lses, kind)?;
    let mean = if entropy { Some(join(&means, kind)?) } else { None };
    let entropy = mean.as_ref().map(|m| lse.f_sub(m)).transpose()?;
    let of_hidden = if of_hidden.is_empty() { hidden.f_zeros_like()? } else { Tensor::f_cat(&of_hidden, 0)? };
    let after = match total {
        Some(total) => {
            After::Gradients(HeadGradients { hidden: of_hidden, weight: total.weight, adapter: total.adapter })
        }
        None if directions => After::Directions { hidden: of_hidden, logits: kept },
        None => After::Sums { lse, mean },
    };
    Ok(HeadPass { predictions: Predictions { logprobs: join(&logprobs, kind)?, entropy }, after })
}

/// Gradients given those of the log-probabilities and, where the options say that there are some, of the entropies, each
/// (predictions). A pass for [`Want::GradientsOf`] has them already.
pub fn backward(
    pass: HeadPass,
    weights: &HeadWeights,
    hidden: &Tensor,
    targets: &Tensor,
    options: HeadOptions,
    gradient: (&Tensor, Option<&Tensor>),
    train_weight: bool,
) -> Result<HeadGradients, TrainError> {
    let _guard = tch::no_grad_guard();
    let (lse, mean) = match pass.after {
        After::Gradients(all) => return Ok(all),
        After::Directions { hidden: direction, logits } => {
            let own = gradient.0.f_to_kind(hidden.kind())?.f_unsqueeze(1)?;
            let mut total = Totals::new(weights, train_weight)?;
            if let Some(logits) = logits {
                total.add_scaled(weights, &logits, hidden, &own)?;
            }
            return Ok(HeadGradients { hidden: direction.f_mul(&own)?, weight: total.weight, adapter: total.adapter });
        }
        After::Sums { lse, mean } => (lse, mean),
    };
    let of_entropy = gradient.1.zip(mean.as_ref());
    let mut total = Totals::new(weights, train_weight)?;
    let mut d_hidden = Vec::new();
    for (from, count) in chunks(targets.size()[0], options.chunk_bytes, weights) {
        let part = |t: &Tensor| t.f_narrow(0, from, count);
        let rows = part(hidden)?;
        let mut z = weights.logits(&rows)?;
        let own = part(gradient.0)?.f_to_kind(wide(z.kind()))?.f_contiguous()?;
        let d = match of_entropy {
            None => {
                let scale = 1.0 / options.temperature;
                fused::softmax(&mut z, &part(targets)?, scale, false, Logits::GradientBy(&own))?;
                z
            }
            Some((of_entropy, mean)) => {
                let kind = z.kind();
                let own = own.f_unsqueeze(1)?;
                let mut z = z.f_to_kind(wide(kind))?.f_div_scalar(options.temperature)?;
                let p = z.f_sub(&part(&lse)?.f_unsqueeze(1)?)?.f_exp()?;
                let mut centred = z.f_sub_(&part(mean)?.f_unsqueeze(1)?)?;
                let factor = centred.f_mul_(&part(of_entropy)?.f_unsqueeze(1)?)?.f_add_(&own)?;
                let mut d = p.f_mul(&factor)?.f_neg_()?;
                let mut d = d.f_scatter_add_(1, &part(targets)?.f_unsqueeze(1)?, &own)?;
                d.f_div_scalar_(options.temperature)?.f_to_kind(kind)?
            }
        };
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
        let mut d_rows = d.f_matmul(&weights.weight)?;
        if let Some(total) = &mut self.weight {
            add_product(total, d, rows)?;
        }
        if let (Some((d_a, d_b)), Some((a, b, scaling))) = (&mut self.adapter, &weights.adapter) {
            let low = rows.f_linear(a, None::<Tensor>)?.f_mul_scalar(*scaling)?;
            add_product(d_b, d, &low)?;
            let d_low = d.f_matmul(b)?.f_mul_scalar(*scaling)?;
            add_product(d_a, &d_low, rows)?;
            let _ = d_rows.f_add_(&d_low.f_matmul(a)?)?;
        }
        Ok(d_rows)
    }

    /// Adds the layer's own gradients, each row of `d` times its number `own`, (rows, 1).
    fn add_scaled(&mut self, weights: &HeadWeights, d: &Tensor, rows: &Tensor, own: &Tensor) -> Result<(), TchError> {
        let scaled = rows.f_mul(own)?;
        if let Some(total) = &mut self.weight {
            add_product(total, d, &scaled)?;
        }
        if let (Some((d_a, d_b)), Some((a, b, scaling))) = (&mut self.adapter, &weights.adapter) {
            add_product(d_b, d, &scaled.f_linear(a, None::<Tensor>)?.f_mul_scalar(*scaling)?)?;
            add_product(d_a, &d.f_matmul(b)?.f_mul_scalar(*scaling)?, &scaled)?;
        }
        Ok(())
    }
}

/// `total += left^T right`.
fn add_product(total: &mut Tensor, left: &Tensor, right: &Tensor) -> Result<(), TchError> {
    let left = left.f_transpose(0, 1)?;
    if total.kind() == left.kind() {
        let _ = total.f_addmm_(&left, right)?;
    } else {
        let _ = total.f_add_(&left.f_matmul(right)?.f_to_kind(total.kind())?)?;
    }
    Ok(())
}
