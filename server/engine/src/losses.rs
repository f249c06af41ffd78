//! Losses with Tinker's semantics: plain sums over tokens and examples, never a mean.
//!
//! With `l` the log-probability of a target under the model, `q` the sampler's (`logprobs`), `A` its advantage,
//! `r = exp(l - q)`, `sg` a value without gradient, and `w` the optional weight (1):
//!
//! | loss | `loss:sum` | numbers |
//! |---|---|---|
//! | `cross_entropy` | `-sum w l` | |
//! | `importance_sampling` | `-sum w r A` | |
//! | `ppo` | `-sum w min(r A, clamp(r, lo, hi) A)` (<https://arxiv.org/abs/1707.06347>, equation 7, bounds as ratios) | `lo` 0.8, `hi` 1.2 |
//! | `cispo` | `-sum w sg(clamp(r, lo, hi)) A l` (<https://arxiv.org/abs/2506.13585>, equation 4) | `lo` 0, `hi` 4 |
//! | `dro` | `-sum w (A l - beta / 2 (l - q)^2)` (<https://arxiv.org/abs/2405.19107>) | `beta` 0.05 |
//! | `gspo` | `-sum w min(s_t A, clamp(s_t, lo, hi) A)`, `s_t = s exp(l - sg(l))`, `s = exp(mean of sg(l) - q where sequence_ratio_mask)` (<https://arxiv.org/abs/2507.18071>, section 4.3) | `lo` 0.8, `hi` 1.2 |
//!
//! `lo` and `hi` are `clip_low_threshold` and `clip_high_threshold`, of the whole request or token by token. A token whose
//! advantage is 0 adds nothing to the four that multiply with it, whatever its ratio: where prompts are padded with zeros the
//! ratio means nothing.

use std::collections::BTreeMap;

use espalier_tinker::datum::Datum;
use espalier_tinker::proto::ConfigValue;
use espalier_tinker::tensor::{Numbers, Tensor as Given};
use tch::{Kind, TchError, Tensor};

/// What is wrong, with its place.
pub(crate) type Wrong = String;

/// A loss with its numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Loss {
    CrossEntropy,
    ImportanceSampling,
    Ppo { low: f64, high: f64 },
    Cispo { low: f64, high: f64 },
    Dro { beta: f64 },
    Gspo { low: f64, high: f64 },
}

const NAMES: [&str; 6] = ["cross_entropy", "importance_sampling", "ppo", "cispo", "dro", "gspo"];

impl Loss {
    /// The loss of that name, with the request's numbers.
    pub(crate) fn read(name: &str, config: &BTreeMap<String, ConfigValue>) -> Result<Self, Wrong> {
        let mut numbers = BTreeMap::new();
        for (key, value) in config {
            match value {
                ConfigValue::Number(number) => numbers.insert(key.as_str(), *number),
                ConfigValue::Text(text) => {
                    let shown: String = text.chars().take(64).collect();
                    return Err(format!("`loss_fn_config.{key}`: expected a number, got the text `{shown}`"));
                }
            };
        }
        let mut take = |key: &str, default: f64| numbers.remove(key).unwrap_or(default);
        let mut clip = |low: f64, high: f64| (take("clip_low_threshold", low), take("clip_high_threshold", high));
        let loss = match name {
            "cross_entropy" => Self::CrossEntropy,
            "importance_sampling" => Self::ImportanceSampling,
            "ppo" => {
                let (low, high) = clip(0.8, 1.2);
                Self::Ppo { low, high }
            }
            "cispo" => {
                let (low, high) = clip(0.0, 4.0);
                Self::Cispo { low, high }
            }
            "gspo" => {
                let (low, high) = clip(0.8, 1.2);
                Self::Gspo { low, high }
            }
            "dro" => Self::Dro { beta: take("beta", 0.05) },
            "stable_reinforce" => {
                return Err(
                    "`loss_fn`: `stable_reinforce` is not published and not served; `importance_sampling`, `cispo` \
                            or `gspo` take its place"
                        .to_owned(),
                );
            }
            other => {
                let shown: String = other.chars().take(64).collect();
                return Err(format!("`loss_fn`: expected one of {}, got `{shown}`", NAMES.join(", ")));
            }
        };
        if let Some(key) = numbers.keys().next() {
            let shown: String = key.chars().take(64).collect();
            return Err(format!("`loss_fn_config.{shown}`: `{name}` has no such number"));
        }
        loss.check()
    }

    fn check(self) -> Result<Self, Wrong> {
        match self {
            Self::Ppo { low, high } | Self::Cispo { low, high } | Self::Gspo { low, high }
                if !(0.0 <= low && low <= high) =>
            {
                Err(format!(
                    "`loss_fn_config`: expected 0 <= `clip_low_threshold` <= `clip_high_threshold`, got {low} and {high}"
                ))
            }
            Self::Dro { beta } if beta < 0.0 => {
                Err(format!("`loss_fn_config.beta`: expected a number from 0, got {beta}"))
            }
            fine => Ok(fine),
        }
    }

    /// Which inputs it reads, and whether each must be there.
    fn inputs(self) -> &'static [(&'static str, bool)] {
        const CLIPPED: [(&str, bool); 5] = [
            ("logprobs", true),
            ("advantages", true),
            ("weights", false),
            ("clip_low_threshold", false),
            ("clip_high_threshold", false),
        ];
        match self {
            Self::CrossEntropy => &[("weights", false)],
            Self::ImportanceSampling | Self::Dro { .. } => {
                &[("logprobs", true), ("advantages", true), ("weights", false)]
            }
            Self::Ppo { .. } | Self::Cispo { .. } => &CLIPPED,
            Self::Gspo { .. } => &[
                ("logprobs", true),
                ("advantages", true),
                ("sequence_ratio_mask", true),
                ("weights", false),
                ("clip_low_threshold", false),
                ("clip_high_threshold", false),
            ],
        }
    }
}

/// An example as a loss reads it: tokens, what they are asked for, and a number of each column for each of these.
#[derive(Debug)]
pub(crate) struct Example {
    pub(crate) tokens: Vec<u32>,
    /// Index of a token, and its target.
    pub(crate) asked: Vec<(usize, u32)>,
    /// Targets of each token; 0 where targets have one dimension.
    pub(crate) width: usize,
    /// Where in the output each target's log-probability stands.
    places: Vec<usize>,
    columns: BTreeMap<&'static str, Vec<f32>>,
}

impl Example {
    /// Checks an example against a loss and a model: `index` is its place in the request.
    pub(crate) fn read(datum: &Datum, index: usize, loss: Loss, vocab: u32, context: u32) -> Result<Self, Wrong> {
        let wrong = |field: &str, reason: String| format!("`data[{index}].{field}`: {reason}");
        let mut tokens = Vec::new();
        for piece in &datum.input {
            match piece {
                espalier_tinker::datum::Piece::Tokens(more) => tokens.extend(more),
                _ => return Err(wrong("model_input", "expected text, got an image or audio".to_owned())),
            }
        }
        if tokens.len() > context as usize {
            return Err(wrong("model_input", format!("expected at most {context} tokens, got {}", tokens.len())));
        }
        if let Some(token) = tokens.iter().find(|token| **token >= vocab) {
            return Err(wrong("model_input", format!("expected tokens below {vocab}, got {token}")));
        }
        let targets = &datum.loss_inputs["target_tokens"];
        let width = targets.shape.get(1).copied().unwrap_or(0);
        if width > vocab as usize {
            let reason =
                format!("expected at most {vocab} targets of a token, as many as there are tokens, got {width}");
            return Err(wrong("loss_fn_inputs.target_tokens", reason));
        }
        if width > 0 && loss != Loss::CrossEntropy {
            let expected = "expected one dimension: only `cross_entropy` takes several targets of a token, got two";
            return Err(wrong("loss_fn_inputs.target_tokens", expected.to_owned()));
        }
        let wanted = loss.inputs();
        for name in datum.loss_inputs.keys() {
            if name != "target_tokens" && wanted.iter().all(|(known, _)| known != name) {
                return Err(wrong(&format!("loss_fn_inputs.{name}"), "this loss does not read it".to_owned()));
            }
        }
        let (mut asked, mut places) = (Vec::new(), Vec::new());
        let Numbers::I64(numbers) = &targets.numbers else {
            return Err(wrong("loss_fn_inputs.target_tokens", "expected int64".to_owned()));
        };
        for (place, at) in cells(targets).into_iter().zip(numbers) {
            let Some(target) = u32::try_from(*at).ok().filter(|target| *target < vocab) else {
                let reason = format!("expected tokens below {vocab}, got {at}");
                return Err(wrong("loss_fn_inputs.target_tokens", reason));
            };
            asked.push((place / width.max(1), target));
            places.push(place);
        }
        let mut columns = BTreeMap::new();
        for (name, needed) in wanted {
            match datum.loss_inputs.get(*name) {
                None if *needed => {
                    return Err(wrong(&format!("loss_fn_inputs.{name}"), "is missing: this loss reads it".to_owned()));
                }
                None => {}
                Some(given) => {
                    if given.shape != targets.shape {
                        let reason = format!(
                            "expected the shape of `target_tokens`, {:?}, got {:?}",
                            targets.shape, given.shape
                        );
                        return Err(wrong(&format!("loss_fn_inputs.{name}"), reason));
                    }
                    columns.insert(*name, column(given, &places));
                }
            }
        }
        Ok(Self { tokens, asked, width, places, columns })
    }

    /// How many numbers the client gets.
    pub(crate) fn places(&self) -> usize {
        self.tokens.len() * self.width.max(1)
    }

    /// Log-probabilities as the client gets them: one for each place of `target_tokens`, 0 where a sparse one names none.
    pub(crate) fn output(&self, logprobs: &[f32]) -> Vec<f32> {
        let mut all = vec![0.0; self.places()];
        for (place, logprob) in self.places.iter().zip(logprobs) {
            all[*place] = *logprob;
        }
        all
    }
}

/// The place of each number, counted through the rows.
fn cells(tensor: &Given) -> Vec<usize> {
    match &tensor.sparsity {
        None => (0..tensor.numbers.len()).collect(),
        Some(sparsity) => {
            let width = tensor.shape[1];
            let rows = sparsity.rows.windows(2).enumerate();
            rows.flat_map(|(row, ends)| {
                sparsity.columns[ends[0]..ends[1]].iter().map(move |column| row * width + column)
            })
            .collect()
        }
    }
}

/// The numbers of a tensor at some places; 0 where a sparse one has none.
fn column(tensor: &Given, places: &[usize]) -> Vec<f32> {
    let Numbers::F32(numbers) = &tensor.numbers else { return vec![0.0; places.len()] };
    let known: BTreeMap<usize, f32> = cells(tensor).into_iter().zip(numbers.iter().copied()).collect();
    places.iter().map(|place| known.get(place).copied().unwrap_or(0.0)).collect()
}

/// The columns of some examples, one behind the other as their predictions lie.
pub(crate) struct Columns<'a> {
    examples: Vec<&'a Example>,
}

impl<'a> Columns<'a> {
    pub(crate) fn new(examples: Vec<&'a Example>) -> Self {
        Self { examples }
    }

    /// One column, in the type of the log-probabilities. Where an example lacks it, `default`.
    fn get(&self, name: &str, default: f64, kind: Kind) -> Result<Tensor, TchError> {
        let mut all = Vec::new();
        for example in &self.examples {
            match example.columns.get(name) {
                Some(column) => all.extend(column.iter().map(|x| f64::from(*x))),
                None => all.resize(all.len() + example.asked.len(), default),
            }
        }
        Tensor::f_from_slice(&all)?.f_to_kind(kind)
    }

    /// The loss of log-probabilities (predictions): a scalar.
    pub(crate) fn loss(&self, loss: Loss, logprobs: &Tensor) -> Result<Tensor, TchError> {
        let kind = logprobs.kind();
        let column = |name: &str, default: f64| self.get(name, default, kind);
        let weights = column("weights", 1.0)?;
        let summed = |terms: Tensor| terms.f_mul(&weights)?.f_sum(None)?.f_neg();
        if loss == Loss::CrossEntropy {
            return summed(logprobs.shallow_clone());
        }
        let (sampled, advantages) = (column("logprobs", 0.0)?, column("advantages", 0.0)?);
        let difference = logprobs.f_sub(&sampled)?;
        if let Loss::Dro { beta } = loss {
            let pull = difference.f_square()?.f_mul_scalar(beta / 2.0)?;
            return summed(logprobs.f_mul(&advantages)?.f_sub(&pull)?);
        }
        // Where nothing is multiplied with it the ratio is 1, and has no gradient.
        let idle = advantages.f_eq(0.0)?;
        let ratio = |difference: &Tensor| difference.f_masked_fill(&idle, 0.0)?.f_exp();
        let clipped = |ratio: &Tensor, low: f64, high: f64| -> Result<Tensor, TchError> {
            let (low, high) = (column("clip_low_threshold", low)?, column("clip_high_threshold", high)?);
            ratio.f_maximum(&low)?.f_minimum(&high)
        };
        let surrogate = |ratio: Tensor, low: f64, high: f64| -> Result<Tensor, TchError> {
            let free = ratio.f_mul(&advantages)?;
            free.f_minimum(&clipped(&ratio, low, high)?.f_mul(&advantages)?)
        };
        match loss {
            Loss::CrossEntropy | Loss::Dro { .. } => unreachable!("done above"),
            Loss::ImportanceSampling => summed(ratio(&difference)?.f_mul(&advantages)?),
            Loss::Ppo { low, high } => summed(surrogate(ratio(&difference)?, low, high)?),
            Loss::Cispo { low, high } => {
                let factor = clipped(&ratio(&difference.f_detach()?)?, low, high)?.f_mul(&advantages)?;
                summed(factor.f_mul(logprobs)?)
            }
            Loss::Gspo { low, high } => {
                let sequence =
                    self.sequence_differences(&difference.f_detach()?, &column("sequence_ratio_mask", 0.0)?)?;
                let own = sequence.f_add(logprobs)?.f_sub(&logprobs.f_detach()?)?;
                summed(surrogate(ratio(&own)?, low, high)?)
            }
        }
    }

    /// For each token the mean of its example's differences where the mask is not 0; 0 where it is 0 everywhere.
    fn sequence_differences(&self, differences: &Tensor, mask: &Tensor) -> Result<Tensor, TchError> {
        let kind = differences.kind();
        let mask = mask.f_ne(0.0)?.f_to_kind(kind)?;
        let mut start = 0;
        let mut means = Vec::new();
        for example in &self.examples {
            let count = example.asked.len() as i64;
            let (difference, mask) = (differences.f_narrow(0, start, count)?, mask.f_narrow(0, start, count)?);
            // What the mask leaves out may be anything.
            let kept = difference.f_masked_fill(&mask.f_eq(0.0)?, 0.0)?;
            let total = mask.f_sum(None)?.f_clamp_min(1.0)?;
            means.push(kept.f_sum(None)?.f_div(&total)?.f_expand([count], false)?);
            start += count;
        }
        Tensor::f_cat(&means, 0)
    }
}
