//! The decoder that Llama, Qwen2 and Qwen3 share, for inference on the CPU.
//!
//! A step takes rows of many sequences at once: the linear layers see one matrix of all rows, attention walks each
//! row's own sequence through the paged cache. Query, key and value weights are one matrix, so are gate and up.
//! Activations are 32-bit floats under both [`Precision`]s. Nothing here pads or masks. Rows of several adapters go
//! through one step: each linear layer is computed for all rows at once, then each adapter adds its own product to its
//! rows.

use std::ops::Range;
use std::path::Path;

use tch::{Device, Kind, Tensor};

use crate::adapters::{PackedAdapter, Site};
use crate::config::DecoderConfig;
use crate::error::ModelError;
use crate::shim::{self, AttentionShape, HalfLinear, KvPool, LoraLinear, LoraRows, Segment, ShimError};
use crate::weights::Weights;

use super::update::spot;

/// How matrix weights are kept. Activations, norms and the cache are 32-bit floats either way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Precision {
    /// 32 bits.
    F32,
    /// 16 bits: half the memory to read at every step, which is what decoding waits for. bf16 weights are kept as
    /// IEEE half, which holds every bf16 value between 8e-6 and 65504 exactly; a larger one is refused when it is read.
    #[default]
    Bf16,
}

impl Precision {
    /// The largest magnitude that a matrix weight may have.
    pub fn largest(self) -> f64 {
        match self {
            Self::F32 => f64::from(f32::MAX),
            Self::Bf16 => 65_504.0,
        }
    }
}

/// A linear layer, outputs first.
pub(super) enum Linear {
    Float(Tensor),
    Half(HalfLinear),
}

impl Linear {
    pub(super) fn new(weight: &Tensor, precision: Precision) -> Result<Self, ModelError> {
        Ok(match precision {
            Precision::F32 => Self::Float(weight.f_to_kind(Kind::Float)?.f_contiguous()?),
            Precision::Bf16 => Self::Half(HalfLinear::pack(weight)?),
        })
    }

    fn apply(&self, x: &Tensor) -> Result<Tensor, ShimError> {
        match self {
            Self::Float(weight) => Ok(x.f_linear(weight, None::<Tensor>)?),
            Self::Half(half) => half.apply(x),
        }
    }

    /// As [`Self::apply`], and what each adapter adds to its rows.
    fn apply_with<'a>(
        &self,
        x: &Tensor,
        adapters: impl Iterator<Item = (Option<&'a LoraLinear>, &'a Range<usize>)>,
    ) -> Result<Tensor, ShimError> {
        let mut y = self.apply(x)?;
        let groups: Vec<_> = adapters
            .filter(|(_, rows)| !rows.is_empty())
            .filter_map(|(lora, rows)| Some(LoraRows { lora: lora?, first_row: rows.start, rows: rows.len() }))
            .collect();
        if !groups.is_empty() {
            shim::lora(x, &mut y, &groups)?;
        }
        Ok(y)
    }
}

/// Rows of a step that one adapter changes.
pub(crate) struct AdapterRows<'a> {
    pub(crate) adapter: &'a PackedAdapter,
    /// Of the step's tokens.
    pub(crate) rows: Range<usize>,
    /// Of the rows whose logits are asked for.
    pub(crate) logit_rows: Range<usize>,
}

pub(super) struct Layer {
    pub(super) input_norm: Tensor,
    pub(super) qkv: Linear,
    pub(super) qkv_bias: Option<Tensor>,
    pub(super) q_norm: Option<Tensor>,
    pub(super) k_norm: Option<Tensor>,
    pub(super) output: Linear,
    pub(super) post_norm: Tensor,
    pub(super) gate_up: Linear,
    pub(super) down: Linear,
}

/// A loaded decoder.
pub struct Decoder {
    config: DecoderConfig,
    pub(super) embedding: Tensor,
    pub(super) layers: Vec<Layer>,
    pub(super) norm: Tensor,
    pub(super) head: Linear,
    cos: Tensor,
    sin: Tensor,
}

impl Decoder {
    /// Loads the weights of a folder. Tensors that the shape does not know are refused, as they would change the
    /// model's results.
    pub fn load(folder: &Path, config: &DecoderConfig, precision: Precision) -> Result<Self, ModelError> {
        let _guard = tch::no_grad_guard();
        let weights = Weights::open(folder, precision)?;
        let c = config;
        let (q, kv) = (c.heads * c.head_dim, c.kv_heads * c.head_dim);
        let mut used = 0;
        let mut float = |name: &str, shape: &[i64]| {
            used += 1;
            weights.float(name, shape)
        };
        let mut layers = Vec::new();
        for i in 0..c.layers {
            let at = |rest: &str| format!("model.layers.{i}.{rest}.weight");
            let qkv = [
                float(&at("self_attn.q_proj"), &[q, c.hidden])?,
                float(&at("self_attn.k_proj"), &[kv, c.hidden])?,
                float(&at("self_attn.v_proj"), &[kv, c.hidden])?,
            ];
            let gate_up = [
                float(&at("mlp.gate_proj"), &[c.intermediate, c.hidden])?,
                float(&at("mlp.up_proj"), &[c.intermediate, c.hidden])?,
            ];
            let bias = |part: &str| format!("model.layers.{i}.self_attn.{part}_proj.bias");
            let qkv_bias = if c.qkv_bias {
                let parts = [float(&bias("q"), &[q])?, float(&bias("k"), &[kv])?, float(&bias("v"), &[kv])?];
                Some(Tensor::f_cat(&parts, 0)?)
            } else {
                None
            };
            let mut head_norm = |name| if c.qk_norm { float(&at(name), &[c.head_dim]).map(Some) } else { Ok(None) };
            layers.push(Layer {
                q_norm: head_norm("self_attn.q_norm")?,
                k_norm: head_norm("self_attn.k_norm")?,
                input_norm: float(&at("input_layernorm"), &[c.hidden])?,
                qkv: Linear::new(&Tensor::f_cat(&qkv, 0)?, precision)?,
                qkv_bias,
                output: Linear::new(&float(&at("self_attn.o_proj"), &[c.hidden, q])?, precision)?,
                post_norm: float(&at("post_attention_layernorm"), &[c.hidden])?,
                gate_up: Linear::new(&Tensor::f_cat(&gate_up, 0)?, precision)?,
                down: Linear::new(&float(&at("mlp.down_proj"), &[c.hidden, c.intermediate])?, precision)?,
            });
        }
        let norm = float("model.norm.weight", &[c.hidden])?;
        let name = "model.embed_tokens.weight";
        used += 1;
        let embedding = weights.get(name, &[c.vocab, c.hidden])?;
        // A tied model may repeat the embedding as `lm_head`; an untied one must have it.
        let head = if c.tied {
            used += usize::from(weights.has("lm_head.weight"));
            Linear::new(&embedding, precision)?
        } else {
            used += 1;
            Linear::new(&weights.get("lm_head.weight", &[c.vocab, c.hidden])?, precision)?
        };
        let surplus = |n: &&str| spot(n, c).is_none() && !n.ends_with("rotary_emb.inv_freq");
        if let Some(name) = weights.names().find(surplus) {
            return Err(ModelError::Config {
                path: folder.join("config.json"),
                key: "architectures".to_owned(),
                expected: format!("a family of which this engine knows all {used} tensors"),
                found: format!("an unknown tensor `{name}` in the weights"),
            });
        }
        let (cos, sin) = rotation(c)?;
        Ok(Self { config: c.clone(), embedding, layers, norm, head, cos, sin })
    }

    /// The decoder's shape.
    pub fn config(&self) -> &DecoderConfig {
        &self.config
    }

    /// An empty cache for this decoder.
    pub fn new_pool(&self) -> Result<KvPool, ShimError> {
        KvPool::new(self.config.layers, self.config.kv_heads, self.config.head_dim)
    }

    /// Bytes of one cache block of [`shim::BLOCK`] tokens.
    pub fn block_bytes(config: &DecoderConfig) -> u64 {
        (config.layers * 2 * config.kv_heads * config.head_dim) as u64 * shim::BLOCK as u64 * 4
    }

    /// One step over `tokens`, whose rows belong to `segments` in order, those of `adapters` in the order of their rows.
    /// Writes the cache and returns the logits of `logit_rows`, as floats of shape (rows, vocab).
    pub(crate) fn forward(
        &self,
        tokens: &[i64],
        segments: &[Segment<'_>],
        adapters: &[AdapterRows<'_>],
        logit_rows: &[i64],
        pool: &mut KvPool,
    ) -> Result<Tensor, ShimError> {
        let _guard = tch::no_grad_guard();
        let c = &self.config;
        let ids = Tensor::f_from_slice(tokens)?;
        let mut x = self.embedding.f_index_select(0, &ids)?.f_to_kind(Kind::Float)?;
        let mut pending: Option<Tensor> = None;
        for (i, layer) in self.layers.iter().enumerate() {
            let at = |site: Site| adapters.iter().map(move |a| (a.adapter.site(i, site), &a.rows));
            let h = shim::rms_norm(&x, pending.as_ref(), &layer.input_norm, c.norm_eps)?;
            let mut qkv = layer.qkv.apply_with(&h, at(Site::Attention))?;
            if let Some(bias) = &layer.qkv_bias {
                let _ = qkv.f_add_(bias)?;
            }
            let shape = AttentionShape {
                cos: &self.cos,
                sin: &self.sin,
                q_norm: layer.q_norm.as_ref(),
                k_norm: layer.k_norm.as_ref(),
                eps: c.norm_eps,
                layer: i as i64,
                query_heads: c.heads,
            };
            let attended = shim::attention(&qkv, shape, pool, segments, c.heads * c.head_dim)?;
            let attended = layer.output.apply_with(&attended, at(Site::Output))?;
            let h = shim::rms_norm(&x, Some(&attended), &layer.post_norm, c.norm_eps)?;
            let h = shim::silu_mul(&layer.gate_up.apply_with(&h, at(Site::FeedForward))?)?;
            pending = Some(layer.down.apply_with(&h, at(Site::Down))?);
        }
        if logit_rows.is_empty() {
            return Ok(Tensor::f_empty([0, c.vocab], (Kind::Float, Device::Cpu))?);
        }
        // Only the rows whose logits are asked for go through the output layer, the largest of all.
        if logit_rows.len() != tokens.len() {
            let rows = Tensor::f_from_slice(logit_rows)?;
            x = x.f_index_select(0, &rows)?;
            pending = pending.map(|p| p.f_index_select(0, &rows)).transpose()?;
        }
        let h = shim::rms_norm(&x, pending.as_ref(), &self.norm, c.norm_eps)?;
        self.head.apply_with(&h, adapters.iter().map(|a| (a.adapter.head(), &a.logit_rows)))
    }
}

/// Cosines and sines of all positions, (context, head_dim / 2), times the rotation's attention factor. Angles are
/// products of 32-bit floats, as in `transformers`.
fn rotation(config: &DecoderConfig) -> Result<(Tensor, Tensor), ModelError> {
    let frequencies: Vec<f32> = config.rope_frequencies().iter().map(|f| *f as f32).collect();
    let angles: Vec<f32> = (0..config.context).flat_map(|p| frequencies.iter().map(move |f| p as f32 * f)).collect();
    let factor = config.rope_attention_factor() as f32;
    let table = |f: fn(f32) -> f32| -> Result<Tensor, ModelError> {
        let values: Vec<f32> = angles.iter().map(|a| f(*a) * factor).collect();
        let table = Tensor::f_from_slice(&values)?.f_to_device(Device::Cpu)?;
        Ok(table.f_view([config.context, config.head_dim / 2])?)
    };
    Ok((table(f32::cos)?, table(f32::sin)?))
}
