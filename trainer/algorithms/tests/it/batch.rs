//! Batches of response tokens for the tests of losses.

use espalier_algorithms::losses::{LossInput, LossOutput, PolicyLoss, policy_loss};
use espalier_algorithms::tokens::TokenError;
use tch::Tensor;

/// Columns of a batch, in `f64`.
#[derive(Clone, Debug, Default)]
pub(crate) struct Batch {
    pub(crate) logprobs: Vec<f64>,
    pub(crate) old: Vec<f64>,
    pub(crate) rollout: Vec<f64>,
    pub(crate) advantages: Vec<f64>,
    pub(crate) scales: Vec<f64>,
    pub(crate) mask: Vec<bool>,
    pub(crate) offsets: Vec<i64>,
    pub(crate) correction: Option<Vec<f64>>,
    pub(crate) selection: Option<Vec<bool>>,
}

/// A loss with its gradient.
pub(crate) struct Result {
    pub(crate) output: LossOutput,
    pub(crate) loss: f64,
    pub(crate) gradient: Vec<f64>,
}

/// Numbers that follow from a seed.
pub(crate) struct Numbers(u64);

impl Numbers {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(2).wrapping_add(1))
    }

    /// Uniform in `[low, high)`.
    pub(crate) fn within(&mut self, low: f64, high: f64) -> f64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        low + (high - low) * ((self.0 >> 11) as f64 / (1_u64 << 53) as f64)
    }
}

impl Batch {
    /// Rows of these lengths, with ratios on both sides of every bound and about a fifth of the tokens masked.
    pub(crate) fn random(seed: u64, lengths: &[usize]) -> Self {
        let mut numbers = Numbers::new(seed);
        let mut batch = Self { offsets: vec![0], ..Self::default() };
        for &length in lengths {
            for _ in 0..length {
                let old = numbers.within(-3.0, -0.05);
                batch.old.push(old);
                batch.logprobs.push((old + numbers.within(-0.8, 0.8)).min(-0.01));
                batch.rollout.push((old + numbers.within(-0.3, 0.3)).min(-0.01));
                batch.advantages.push(numbers.within(-2.0, 2.0));
                batch.scales.push(numbers.within(0.01, 0.2));
                batch.mask.push(numbers.within(0.0, 1.0) > 0.2);
            }
            batch.offsets.push(batch.old.len() as i64);
        }
        batch
    }

    /// One row of one token.
    pub(crate) fn token(log_ratio: f64, advantage: f64) -> Self {
        Self {
            logprobs: vec![log_ratio - 3.0],
            old: vec![-3.0],
            rollout: vec![-3.0],
            advantages: vec![advantage],
            scales: vec![1.0],
            mask: vec![true],
            offsets: vec![0, 1],
            correction: None,
            selection: None,
        }
    }

    pub(crate) fn rows(&self) -> usize {
        self.offsets.len() - 1
    }

    /// The rows with these numbers, in this order.
    pub(crate) fn pick(&self, rows: &[usize]) -> Self {
        let tokens: Vec<usize> =
            rows.iter().flat_map(|&row| self.offsets[row] as usize..self.offsets[row + 1] as usize).collect();
        let of = |column: &[f64]| tokens.iter().map(|&token| column[token]).collect::<Vec<_>>();
        let mut offsets = vec![0];
        for &row in rows {
            offsets.push(offsets[offsets.len() - 1] + self.offsets[row + 1] - self.offsets[row]);
        }
        Self {
            logprobs: of(&self.logprobs),
            old: of(&self.old),
            rollout: of(&self.rollout),
            advantages: of(&self.advantages),
            scales: of(&self.scales),
            mask: tokens.iter().map(|&token| self.mask[token]).collect(),
            offsets,
            correction: self.correction.as_deref().map(of),
            selection: self.selection.as_ref().map(|flags| tokens.iter().map(|&token| flags[token]).collect()),
        }
    }

    /// Calls something with this batch as tensors; the log-probabilities are a leaf with a gradient.
    pub(crate) fn with_input<R>(&self, call: impl FnOnce(&LossInput<'_>) -> R) -> R {
        let logprobs = Tensor::from_slice(&self.logprobs).set_requires_grad(true);
        self.with_logprobs(&logprobs, call)
    }

    fn with_logprobs<R>(&self, logprobs: &Tensor, call: impl FnOnce(&LossInput<'_>) -> R) -> R {
        let correction = self.correction.as_deref().map(Tensor::from_slice);
        let selection = self.selection.as_deref().map(Tensor::from_slice);
        call(&LossInput {
            logprobs,
            old_logprobs: Some(&Tensor::from_slice(&self.old)),
            rollout_logprobs: Some(&Tensor::from_slice(&self.rollout)),
            advantages: Some(&Tensor::from_slice(&self.advantages)),
            scales: &Tensor::from_slice(&self.scales),
            mask: &Tensor::from_slice(&self.mask),
            row_offsets: &self.offsets,
            correction: correction.as_ref(),
            selection: selection.as_ref(),
        })
    }

    pub(crate) fn try_run(&self, loss: &dyn PolicyLoss) -> std::result::Result<Result, TokenError> {
        let logprobs = Tensor::from_slice(&self.logprobs).set_requires_grad(true);
        let output = self.with_logprobs(&logprobs, |input| policy_loss(loss, input))?;
        output.loss.backward();
        let value = output.loss.double_value(&[]);
        Ok(Result { loss: value, gradient: numbers(&logprobs.grad()), output })
    }

    pub(crate) fn run(&self, loss: &dyn PolicyLoss) -> Result {
        self.try_run(loss).unwrap()
    }
}

/// A tensor's numbers.
pub(crate) fn numbers(tensor: &Tensor) -> Vec<f64> {
    Vec::try_from(tensor.to_kind(tch::Kind::Double)).unwrap()
}

/// Fails where two lists differ by more than `tolerance`.
#[track_caller]
pub(crate) fn assert_close(found: &[f64], expected: &[f64], tolerance: f64) {
    assert_eq!(found.len(), expected.len(), "{found:?} against {expected:?}");
    for (index, (a, b)) in found.iter().zip(expected).enumerate() {
        assert!(
            (a - b).abs() <= tolerance * (1.0 + b.abs()),
            "entry {index}: {a}, expected {b}\n{found:?}\n{expected:?}"
        );
    }
}

/// The built-in losses, by the names and settings that they have in a configuration.
pub(crate) fn built_in_losses() -> Vec<(String, Box<dyn PolicyLoss>)> {
    let configs = [
        r#"{"policy_loss_type": "regular"}"#,
        r#"{"policy_loss_type": "dual_clip", "clip_ratio_c": 1.5}"#,
        r#"{"policy_loss_type": "gspo", "eps_clip_low": 0.05, "eps_clip_high": 0.08}"#,
        r#"{"policy_loss_type": "sapo"}"#,
        r#"{"policy_loss_type": "cispo", "cispo": {"cispo_eps_clip_low": 0.3, "cispo_eps_clip_high": 0.4}}"#,
        r#"{"policy_loss_type": "cispo", "cispo": {"cispo_eps_clip_high": 0.4, "anchor": "rollout"}}"#,
        r#"{"policy_loss_type": "rollout_is"}"#,
        r#"{"policy_loss_type": "dppo", "dppo": {"delta_low": 0.05, "delta_high": 0.1}}"#,
        r#"{"policy_loss_type": "dppo", "dppo": {"dppo_type": "binary_kl", "delta_low": 0.01, "delta_high": 0.03}}"#,
        r#"{"policy_loss_type": "clip_cov", "clip_cov": {"clip_ratio": 0.1, "clip_cov_lb": 0.1, "clip_cov_ub": 2.0}}"#,
        r#"{"policy_loss_type": "kl_cov"}"#,
        r#"{"policy_loss_type": "cross_entropy"}"#,
        r#"{"policy_loss_type": "importance_sampling"}"#,
    ];
    let make = |text: &str| {
        let config = serde_json::from_str(text).unwrap();
        (text.to_owned(), espalier_algorithms::losses::built_in(&config, 7).unwrap())
    };
    configs.into_iter().map(make).collect()
}
