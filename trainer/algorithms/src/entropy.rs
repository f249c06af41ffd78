//! The entropy of the policy, and its place in the loss.

use tch::{Kind, Tensor};

use crate::metrics::{Metrics, Recorder};
use crate::tokens::{TokenError, check_column, compute_kind};

/// Entropy of each position's distribution, nats: `H = -sum_v p_v log p_v`.
///
/// `logits` is `[tokens, vocabulary]`, already divided by the temperature; the result is `[tokens]`. A logit of negative
/// infinity is a token that cannot be sampled, and adds nothing.
pub fn entropy_from_logits(logits: &Tensor) -> Tensor {
    let log_p = logits.log_softmax(-1, compute_kind(logits));
    let p = log_p.exp();
    // 0 * log 0 is 0; filling before the product keeps the gradient finite too.
    let log_p = log_p.masked_fill(&log_p.isneginf(), 0.0);
    -(p * log_p).sum_dim_intlist([-1_i64].as_slice(), false, None::<Kind>)
}

/// The entropy term: `sum over trainable tokens of scale * H`, to be taken off the loss times its coefficient.
///
/// All tensors are `[tokens]`; `scales` are those of the policy loss. The metric `policy_entropy` is the mean over
/// trainable tokens.
pub fn entropy_term(entropy: &Tensor, scales: &Tensor, mask: &Tensor) -> Result<(Tensor, Metrics), TokenError> {
    let (tokens, device) = (entropy.numel() as i64, entropy.device());
    for (column, tensor) in [("entropy", entropy), ("scales", scales), ("mask", mask)] {
        check_column(column, tensor, tokens, device)?;
    }
    let kind = compute_kind(entropy);
    let mask = mask.to_kind(Kind::Bool);
    let outside = mask.logical_not();
    let clean = entropy.to_kind(kind).masked_fill(&outside, 0.0);
    let term = (&clean * scales.detach().to_kind(kind).masked_fill(&outside, 0.0)).sum(kind);
    let mut recorder = Recorder::default();
    recorder.mean("policy_entropy", &clean, &mask);
    Ok((term, recorder.finish()?))
}
