//! Reads `config.json` and `generation_config.json`, and refuses by name what the engine does not do.
//!
//! | module | what lives there |
//! |---|---|
//! | here | [`ConfigFile`], [`DecoderConfig`] |
//! | `rope` | [`RopeScaling`]: rotary frequencies |

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use crate::error::ModelError;

mod rope;

pub use rope::RopeScaling;

/// A parsed JSON object that knows its file, so that every complaint names file and key.
pub struct ConfigFile {
    path: PathBuf,
    values: Map<String, Value>,
}

impl ConfigFile {
    /// Reads a JSON object.
    pub fn read(path: &Path) -> Result<Self, ModelError> {
        let text =
            std::fs::read(path).map_err(|source| ModelError::Io { action: "read", path: path.to_owned(), source })?;
        let value =
            serde_json::from_slice(&text).map_err(|source| ModelError::Json { path: path.to_owned(), source })?;
        match value {
            Value::Object(values) => Ok(Self { path: path.to_owned(), values }),
            other => Err(ModelError::Config {
                path: path.to_owned(),
                key: "(whole file)".to_owned(),
                expected: "an object".to_owned(),
                found: shorten(&other),
            }),
        }
    }

    /// A key's value; `null` counts as absent.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.values.get(key).filter(|v| !v.is_null())
    }

    /// The error for a key.
    pub fn wrong(&self, key: &str, expected: impl Into<String>) -> ModelError {
        ModelError::Config {
            path: self.path.clone(),
            key: key.to_owned(),
            expected: expected.into(),
            found: self.get(key).map_or_else(|| "nothing".to_owned(), shorten),
        }
    }

    /// A required integer from `least` to `most`.
    pub fn integer(&self, key: &str, least: i64, most: i64) -> Result<i64, ModelError> {
        self.get(key)
            .and_then(Value::as_i64)
            .filter(|n| (least..=most).contains(n))
            .ok_or_else(|| self.wrong(key, format!("an integer from {least} to {most}")))
    }

    /// An optional integer.
    pub fn integer_or(&self, key: &str, least: i64, most: i64, default: i64) -> Result<i64, ModelError> {
        if self.get(key).is_none() { Ok(default) } else { self.integer(key, least, most) }
    }

    /// An optional positive float.
    pub fn positive_or(&self, key: &str, default: f64) -> Result<f64, ModelError> {
        match self.get(key) {
            None => Ok(default),
            Some(value) => {
                value.as_f64().filter(|x| x.is_finite() && *x > 0.0).ok_or_else(|| self.wrong(key, "a positive number"))
            }
        }
    }

    /// An optional truth value.
    pub fn flag(&self, key: &str, default: bool) -> Result<bool, ModelError> {
        match self.get(key) {
            None => Ok(default),
            Some(value) => value.as_bool().ok_or_else(|| self.wrong(key, "true or false")),
        }
    }

    /// Refuses any value but the ones given; an absent key passes.
    pub fn only(&self, key: &str, allowed: &[Value]) -> Result<(), ModelError> {
        match self.get(key) {
            Some(value) if !allowed.contains(value) => {
                let list: Vec<String> = allowed.iter().map(ToString::to_string).collect();
                Err(self.wrong(key, format!("{} (the engine does nothing else)", list.join(" or "))))
            }
            _ => Ok(()),
        }
    }
}

fn shorten(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(80) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text,
    }
}

/// What a decoder of the Llama shape is made of.
#[derive(Clone, Debug, PartialEq)]
pub struct DecoderConfig {
    /// Tokens in the vocabulary.
    pub vocab: i64,
    /// Width of the residual stream.
    pub hidden: i64,
    /// Width of the feed-forward layer.
    pub intermediate: i64,
    /// Layers.
    pub layers: i64,
    /// Query heads.
    pub heads: i64,
    /// Key and value heads.
    pub kv_heads: i64,
    /// Width of a head.
    pub head_dim: i64,
    /// Longest context.
    pub context: i64,
    /// Base of the rotary frequencies.
    pub rope_theta: f64,
    /// How they are scaled.
    pub rope_scaling: RopeScaling,
    /// Epsilon of the RMS norms.
    pub norm_eps: f64,
    /// Whether the output layer is the embedding.
    pub tied: bool,
    /// Whether queries, keys and values have a bias.
    pub qkv_bias: bool,
    /// Whether queries and keys have an RMS norm over each head.
    pub qk_norm: bool,
}

impl DecoderConfig {
    /// Reads the keys that all families of this shape share.
    pub fn read(file: &ConfigFile) -> Result<Self, ModelError> {
        let hidden = file.integer("hidden_size", 1, 1 << 20)?;
        let heads = file.integer("num_attention_heads", 1, 1 << 12)?;
        let kv_heads = file.integer_or("num_key_value_heads", 1, 1 << 12, heads)?;
        if heads % kv_heads != 0 {
            return Err(file.wrong("num_key_value_heads", format!("a divisor of `num_attention_heads` = {heads}")));
        }
        if file.get("head_dim").is_none() && hidden % heads != 0 {
            return Err(
                file.wrong("num_attention_heads", format!("a divisor of `hidden_size` = {hidden}, or `head_dim`"))
            );
        }
        let head_dim = file.integer_or("head_dim", 16, 256, hidden / heads)?;
        if head_dim % 16 != 0 || !(16..=256).contains(&head_dim) {
            let key = if file.get("head_dim").is_some() { "head_dim" } else { "num_attention_heads" };
            return Err(file.wrong(key, format!("heads of a multiple of 16 up to 256 (here {head_dim})")));
        }
        file.only("hidden_act", &["silu".into()])?;
        file.only("partial_rotary_factor", &[1.into(), 1.0.into()])?;
        file.only("pretraining_tp", &[1.into()])?;
        file.only("mlp_bias", &[false.into()])?;
        if file.get("quantization_config").is_some() {
            return Err(file.wrong("quantization_config", "no quantisation"));
        }
        full_attention(file)?;
        let (rope_theta, rope_scaling) = rope::read(file)?;
        Ok(Self {
            vocab: file.integer("vocab_size", 1, 1 << 24)?,
            hidden,
            intermediate: file.integer("intermediate_size", 1, 1 << 20)?,
            layers: file.integer("num_hidden_layers", 1, 1 << 12)?,
            heads,
            kv_heads,
            head_dim,
            context: file.integer("max_position_embeddings", 1, 1 << 24)?,
            rope_theta,
            rope_scaling,
            norm_eps: file.positive_or("rms_norm_eps", 1e-6)?,
            tied: file.flag("tie_word_embeddings", false)?,
            qkv_bias: false,
            qk_norm: false,
        })
    }

    /// The angles' frequencies, one for each pair of a head's dimensions.
    pub fn rope_frequencies(&self) -> Vec<f64> {
        self.rope_scaling.frequencies(self.rope_theta, self.head_dim)
    }

    /// What the rotation's cosines and sines are multiplied by: 1 but for YaRN.
    pub fn rope_attention_factor(&self) -> f64 {
        self.rope_scaling.attention_factor()
    }
}

/// Refuses windows: here every layer attends to the whole context. A window's width alone is no window: files of Qwen2
/// carry one that `use_sliding_window: false` switches off.
fn full_attention(file: &ConfigFile) -> Result<(), ModelError> {
    if file.flag("use_sliding_window", false)? {
        return Err(file.wrong("use_sliding_window", "false: attention is over the whole context here"));
    }
    let Some(types) = file.get("layer_types") else { return Ok(()) };
    let Value::Array(types) = types else { return Err(file.wrong("layer_types", "a list or null")) };
    match types.iter().enumerate().find(|(_, kind)| **kind != "full_attention") {
        None => Ok(()),
        Some((layer, kind)) => Err(file.wrong(
            "layer_types",
            format!(
                "`full_attention` in every layer (attention is over the whole context here; layer {layer} has {kind})"
            ),
        )),
    }
}

/// The model's own end-of-turn tokens: `eos_token_id` of `generation_config.json`, else of `config.json`.
pub fn eos_tokens(folder: &Path, config: &ConfigFile, vocab: i64) -> Result<Vec<u32>, ModelError> {
    let path = folder.join("generation_config.json");
    let own;
    let file = if path.exists() {
        own = ConfigFile::read(&path)?;
        if own.get("eos_token_id").is_some() { &own } else { config }
    } else {
        config
    };
    let one = |v: &Value| v.as_i64().filter(|n| (0..vocab).contains(n)).map(|n| n as u32);
    let wrong = || file.wrong("eos_token_id", format!("token ids below {vocab}"));
    match file.get("eos_token_id") {
        None => Ok(Vec::new()),
        Some(Value::Array(all)) => all.iter().map(|v| one(v).ok_or_else(wrong)).collect(),
        Some(value) => Ok(vec![one(value).ok_or_else(wrong)?]),
    }
}
