//! Low-rank adapters: which linear layers get one, and how they begin.
//!
//! A linear layer `W` of shape (out, in) becomes `W + scaling * B A` with `A` of shape (rank, in), `B` of shape (out, rank)
//! and `scaling = alpha / rank` (LoRA, <https://arxiv.org/abs/2106.09685>, section 4.1), or `alpha / sqrt(rank)` with
//! `use_rslora` (<https://arxiv.org/abs/2312.03732>).

use espalier_engine::config::DecoderConfig;
use regex::Regex;
use serde::{Deserialize, Serialize};

use crate::error::TrainError;

/// The linear layers of a decoder layer, as Hugging Face names them.
pub const LAYER_TARGETS: [&str; 7] = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"];

/// Which modules get an adapter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum TargetModules {
    /// `all-linear` (every linear layer but the output layer), or a regular expression that a module's whole path must
    /// match, such as `model\.layers\.\d+\.self_attn\.(q|v)_proj`.
    Pattern(String),
    /// Module names (`q_proj`) or ends of paths (`self_attn.q_proj`).
    List(Vec<String>),
}

/// How `A` begins; `B` begins as zeros, so that an untrained adapter changes nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LoraInit {
    /// Uniform within `1 / sqrt(in)`, as PEFT and torch's linear layers.
    #[default]
    Kaiming,
    /// Normal with standard deviation `1 / rank`.
    Gaussian,
}

/// `policy.model.lora`. Rank 0 means full fine-tuning.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LoraConfig {
    /// Rank of the adapters.
    pub rank: i64,
    /// Numerator of the scaling.
    pub alpha: f64,
    /// Share of the adapter's inputs that is dropped at each training step.
    pub dropout: f64,
    /// Which modules.
    pub target_modules: TargetModules,
    /// Names or ends of paths that get none after all.
    pub exclude_modules: Vec<String>,
    /// How `A` begins.
    pub init_method: LoraInit,
    /// `alpha / sqrt(rank)` instead of `alpha / rank`.
    pub use_rslora: bool,
}

impl Default for LoraConfig {
    fn default() -> Self {
        Self {
            rank: 0,
            alpha: 16.0,
            dropout: 0.0,
            target_modules: TargetModules::Pattern("all-linear".to_owned()),
            exclude_modules: Vec::new(),
            init_method: LoraInit::Kaiming,
            use_rslora: false,
        }
    }
}

/// Modules of a decoder that have an adapter.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Targets {
    /// For each layer, in the order of [`LAYER_TARGETS`].
    pub layers: Vec<[bool; 7]>,
    /// The output layer.
    pub lm_head: bool,
}

impl Targets {
    /// Whether nothing has an adapter.
    pub fn is_empty(&self) -> bool {
        !self.lm_head && self.layers.iter().flatten().all(|on| !on)
    }
}

/// Path of a layer's linear module.
pub fn module_path(layer: usize, target: usize) -> String {
    let block = if target < 4 { "self_attn" } else { "mlp" };
    format!("model.layers.{layer}.{block}.{}", LAYER_TARGETS[target])
}

impl LoraConfig {
    /// What the adapter's product is multiplied with.
    pub fn scaling(&self) -> f64 {
        let rank = self.rank.max(1) as f64;
        if self.use_rslora { self.alpha / rank.sqrt() } else { self.alpha / rank }
    }

    /// Checks ranges.
    pub fn validate(&self, key: &str) -> Result<(), TrainError> {
        let wrong = |name: &str, expected: &str, found: String| {
            Err(TrainError::Config { key: format!("{key}.{name}"), expected: expected.to_owned(), found })
        };
        if !(0..=4096).contains(&self.rank) {
            return wrong("rank", "0 (full fine-tuning) to 4096", self.rank.to_string());
        }
        if !(self.alpha.is_finite() && self.alpha > 0.0) {
            return wrong("alpha", "a positive number", self.alpha.to_string());
        }
        if !(0.0..1.0).contains(&self.dropout) {
            return wrong("dropout", "at least 0, below 1", self.dropout.to_string());
        }
        Ok(())
    }

    /// Which modules of a decoder get an adapter. A name that fits none is refused, as is a choice that leaves none.
    pub fn targets(&self, config: &DecoderConfig, key: &str) -> Result<Targets, TrainError> {
        let wrong = |name: &str, found: String| TrainError::Config {
            key: format!("{key}.{name}"),
            expected: format!("`all-linear`, `lm_head`, a pattern or names among {}", LAYER_TARGETS.join(", ")),
            found,
        };
        let ends = |path: &str, name: &str| path == name || path.ends_with(&format!(".{name}"));
        let layers = config.layers as usize;
        let paths: Vec<Vec<String>> = (0..layers).map(|l| (0..7).map(|t| module_path(l, t)).collect()).collect();
        let exists = |name: &str| ends("lm_head", name) || paths.iter().flatten().any(|path| ends(path, name));
        let wanted: Box<dyn Fn(&str) -> bool> = match &self.target_modules {
            TargetModules::Pattern(all) if all == "all-linear" => Box::new(|path| path != "lm_head"),
            TargetModules::Pattern(pattern) => {
                let whole = Regex::new(&format!("^(?:{pattern})$"));
                let whole = whole.map_err(|e| wrong("target_modules", format!("`{pattern}`: {e}")))?;
                let name = pattern.clone();
                Box::new(move |path| whole.is_match(path) || ends(path, &name))
            }
            TargetModules::List(names) => {
                if let Some(name) = names.iter().find(|name| *name != "all-linear" && !exists(name)) {
                    return Err(wrong("target_modules", format!("`{name}`, which no module is called")));
                }
                let names = names.clone();
                Box::new(move |path| names.iter().any(|n| ends(path, n) || (n == "all-linear" && path != "lm_head")))
            }
        };
        if let Some(name) = self.exclude_modules.iter().find(|name| !exists(name)) {
            return Err(wrong("exclude_modules", format!("`{name}`, which no module is called")));
        }
        let chosen = |path: &str| wanted(path) && !self.exclude_modules.iter().any(|name| ends(path, name));
        let targets = Targets {
            layers: paths.iter().map(|layer| std::array::from_fn(|t| chosen(&layer[t]))).collect(),
            lm_head: chosen("lm_head"),
        };
        if targets.is_empty() {
            return Err(wrong("target_modules", "a choice that leaves no module".to_owned()));
        }
        Ok(targets)
    }
}
