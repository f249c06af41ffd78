//! Rotary position embeddings: which angles, and how a longer context stretches them.
//!
//! Frequencies and factors are those of `transformers`' `modeling_rope_utils`. Paper of the rotation:
//! <https://arxiv.org/abs/2104.09864>.

use std::f64::consts::PI;

use serde_json::{Map, Value};

use super::ConfigFile;
use crate::error::ModelError;

/// How rotary frequencies are scaled.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RopeScaling {
    /// Not at all.
    Default,
    /// Every wavelength is stretched alike (position interpolation, <https://arxiv.org/abs/2306.15595>).
    Linear {
        /// By how much.
        factor: f64,
    },
    /// Llama 3.1's smooth interpolation by wavelength.
    Llama3 {
        /// Long wavelengths are stretched by this.
        factor: f64,
        /// Wavelengths above `original / low` are stretched.
        low: f64,
        /// Wavelengths below `original / high` stay.
        high: f64,
        /// The context length before stretching.
        original: f64,
    },
    /// YaRN (<https://arxiv.org/abs/2309.00071>, section 3): a linear blend by dimension between frequencies that stay
    /// and frequencies that are stretched, and sharper attention.
    Yarn {
        /// Slow rotations are stretched by this.
        factor: f64,
        /// The context length before stretching.
        original: f64,
        /// Dimensions that turn at least this often within `original` tokens stay.
        beta_fast: f64,
        /// Dimensions that turn at most this often within `original` tokens are stretched.
        beta_slow: f64,
        /// What cosines and sines are multiplied by, so that scores grow by its square.
        attention_factor: f64,
        /// Whether the dimensions where the blend begins and ends are rounded outwards to whole ones.
        truncate: bool,
    },
}

impl RopeScaling {
    /// The angles' frequencies in radians per token, one for each of the `head_dim / 2` pairs of dimensions; pair i turns
    /// with theta^(-2i / `head_dim`) before scaling.
    pub fn frequencies(&self, theta: f64, head_dim: i64) -> Vec<f64> {
        let dim = head_dim as f64;
        let base = (0..head_dim / 2).map(|i| theta.powf(-2.0 * i as f64 / dim));
        match *self {
            Self::Default => base.collect(),
            Self::Linear { factor } => base.map(|f| f / factor).collect(),
            Self::Llama3 { factor, low, high, original } => base
                .map(|f| {
                    let wavelength = 2.0 * PI / f;
                    if wavelength < original / high {
                        f
                    } else if wavelength > original / low {
                        f / factor
                    } else {
                        let smooth = (original / wavelength - low) / (high - low);
                        (1.0 - smooth) * f / factor + smooth * f
                    }
                })
                .collect(),
            Self::Yarn { factor, original, beta_fast, beta_slow, truncate, .. } => {
                // The pair that turns `rotations` times within the original context.
                let pair = |rotations: f64| dim * (original / (rotations * 2.0 * PI)).ln() / (2.0 * theta.ln());
                let (mut from, mut to) = (pair(beta_fast), pair(beta_slow));
                if truncate {
                    (from, to) = (from.floor(), to.ceil());
                }
                (from, to) = (from.max(0.0), to.min(dim - 1.0));
                if from == to {
                    to += 0.001;
                }
                base.enumerate()
                    .map(|(i, f)| {
                        let stretched = ((i as f64 - from) / (to - from)).clamp(0.0, 1.0);
                        f / factor * stretched + f * (1.0 - stretched)
                    })
                    .collect()
            }
        }
    }

    /// What cosines and sines are multiplied by.
    pub fn attention_factor(&self) -> f64 {
        match *self {
            Self::Yarn { attention_factor, .. } => attention_factor,
            _ => 1.0,
        }
    }
}

/// The object that describes the rotation.
struct Parameters<'a> {
    file: &'a ConfigFile,
    key: &'static str,
    map: &'a Map<String, Value>,
}

impl Parameters<'_> {
    fn wrong(&self, expected: impl Into<String>) -> ModelError {
        self.file.wrong(self.key, expected)
    }

    /// An optional value; `null` counts as absent.
    fn get(&self, name: &str) -> Option<&Value> {
        self.map.get(name).filter(|v| !v.is_null())
    }

    fn optional(&self, name: &str) -> Result<Option<f64>, ModelError> {
        let positive = |v: &Value| {
            v.as_f64()
                .filter(|x| x.is_finite() && *x > 0.0)
                .ok_or_else(|| self.wrong(format!("`{name}` to be a positive number")))
        };
        self.get(name).map(positive).transpose()
    }

    fn required(&self, name: &str) -> Result<f64, ModelError> {
        self.optional(name)?.ok_or_else(|| self.wrong(format!("a positive `{name}`")))
    }

    fn llama3(&self) -> Result<RopeScaling, ModelError> {
        let (low, high) = (self.required("low_freq_factor")?, self.required("high_freq_factor")?);
        if low >= high {
            return Err(self.wrong("`low_freq_factor` below `high_freq_factor`"));
        }
        let original = self.required("original_max_position_embeddings")?;
        Ok(RopeScaling::Llama3 { factor: self.required("factor")?, low, high, original })
    }

    fn yarn(&self, theta: f64) -> Result<RopeScaling, ModelError> {
        if theta <= 1.0 {
            return Err(self.wrong(format!("`rope_theta` above 1 with `yarn` (here {theta})")));
        }
        let factor = self.required("factor")?;
        let original = match self.optional("original_max_position_embeddings")? {
            Some(original) => original,
            None => self.file.integer("max_position_embeddings", 1, 1 << 24)? as f64,
        };
        let beta_fast = self.optional("beta_fast")?.unwrap_or(32.0);
        let beta_slow = self.optional("beta_slow")?.unwrap_or(1.0);
        if beta_fast < beta_slow {
            return Err(self.wrong("`beta_fast` of at least `beta_slow`"));
        }
        // Section 3.4 of the paper: sqrt(1 / t) = 0.1 ln(s) + 1; `mscale` weighs the logarithm.
        let sharper = |weight: f64| if factor <= 1.0 { 1.0 } else { 0.1 * weight * factor.ln() + 1.0 };
        let (mscale, all) = (self.optional("mscale")?, self.optional("mscale_all_dim")?);
        let attention_factor = match (self.optional("attention_factor")?, mscale, all) {
            (Some(given), _, _) => given,
            (None, Some(mscale), Some(all)) => sharper(mscale) / sharper(all),
            _ => sharper(1.0),
        };
        let truncate = match self.get("truncate") {
            None => true,
            Some(value) => value.as_bool().ok_or_else(|| self.wrong("`truncate` to be true or false"))?,
        };
        Ok(RopeScaling::Yarn { factor, original, beta_fast, beta_slow, attention_factor, truncate })
    }
}

/// `rope_theta` and `rope_scaling`, or both in `rope_parameters` as newer files have them.
pub(super) fn read(file: &ConfigFile) -> Result<(f64, RopeScaling), ModelError> {
    let outer = file.positive_or("rope_theta", 10000.0)?;
    let key = if file.get("rope_parameters").is_some() { "rope_parameters" } else { "rope_scaling" };
    let Some(value) = file.get(key) else { return Ok((outer, RopeScaling::Default)) };
    let Value::Object(map) = value else { return Err(file.wrong(key, "an object or null")) };
    let parameters = Parameters { file, key, map };
    let theta = parameters.optional("rope_theta")?.unwrap_or(outer);
    if parameters.optional("partial_rotary_factor")?.is_some_and(|part| part != 1.0) {
        return Err(parameters.wrong("`partial_rotary_factor` to be 1 (the engine does nothing else)"));
    }
    let scaling = match parameters.get("rope_type").or_else(|| parameters.get("type")).and_then(Value::as_str) {
        Some("default") => RopeScaling::Default,
        Some("linear") => RopeScaling::Linear { factor: parameters.required("factor")? },
        Some("llama3") => parameters.llama3()?,
        Some("yarn") => parameters.yarn(theta)?,
        _ => return Err(parameters.wrong("`rope_type` to be `default`, `linear`, `llama3` or `yarn`")),
    };
    Ok((theta, scaling))
}
