//! New weights for a decoder that runs.
//!
//! A change is made where the weights are, checked and packed as far as it can be, and then put in place between two
//! steps ([`Decoder::apply_change`]): a matrix that the decoder keeps packed with others is replaced whole where all of
//! them came, and rebuilt from what is there where some did not.

use std::collections::BTreeMap;
use std::path::PathBuf;

use tch::{Device, Kind, Tensor};

use super::decoder::{Decoder, Layer, Linear, Precision};
use crate::config::DecoderConfig;
use crate::error::ModelError;
use crate::shim::{HalfLinear, ShimError};

/// A tensor that a decoder keeps, as it keeps it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Place {
    Embedding,
    Head,
    Norm,
    InputNorm(i64),
    PostNorm(i64),
    QueryNorm(i64),
    KeyNorm(i64),
    QueryKeyValue(i64),
    QueryKeyValueBias(i64),
    Output(i64),
    GateUp(i64),
    Down(i64),
}

/// Where a checkpoint's tensor goes.
pub(super) struct Spot {
    pub(super) place: Place,
    /// The first of its rows there.
    first: i64,
    shape: Vec<i64>,
}

impl Place {
    /// Rows of the whole tensor.
    fn rows(self, c: &DecoderConfig) -> i64 {
        match self {
            Self::Embedding | Self::Head => c.vocab,
            Self::Norm | Self::InputNorm(_) | Self::PostNorm(_) | Self::Output(_) | Self::Down(_) => c.hidden,
            Self::QueryNorm(_) | Self::KeyNorm(_) => c.head_dim,
            Self::QueryKeyValue(_) | Self::QueryKeyValueBias(_) => (c.heads + 2 * c.kv_heads) * c.head_dim,
            Self::GateUp(_) => 2 * c.intermediate,
        }
    }
}

/// Where a tensor of a checkpoint goes; nothing where the shape does not know the name.
pub(super) fn spot(name: &str, c: &DecoderConfig) -> Option<Spot> {
    let at = |place: Place, first: i64, shape: &[i64]| Some(Spot { place, first, shape: shape.to_vec() });
    match name {
        "model.embed_tokens.weight" => return at(Place::Embedding, 0, &[c.vocab, c.hidden]),
        "model.norm.weight" => return at(Place::Norm, 0, &[c.hidden]),
        "lm_head.weight" => return at(Place::Head, 0, &[c.vocab, c.hidden]),
        _ => {}
    }
    let (layer, part) = name.strip_prefix("model.layers.")?.split_once('.')?;
    let i = layer.parse::<i64>().ok().filter(|n| (0..c.layers).contains(n))?;
    let (q, kv) = (c.heads * c.head_dim, c.kv_heads * c.head_dim);
    match part {
        "self_attn.q_proj.weight" => at(Place::QueryKeyValue(i), 0, &[q, c.hidden]),
        "self_attn.k_proj.weight" => at(Place::QueryKeyValue(i), q, &[kv, c.hidden]),
        "self_attn.v_proj.weight" => at(Place::QueryKeyValue(i), q + kv, &[kv, c.hidden]),
        "self_attn.q_proj.bias" if c.qkv_bias => at(Place::QueryKeyValueBias(i), 0, &[q]),
        "self_attn.k_proj.bias" if c.qkv_bias => at(Place::QueryKeyValueBias(i), q, &[kv]),
        "self_attn.v_proj.bias" if c.qkv_bias => at(Place::QueryKeyValueBias(i), q + kv, &[kv]),
        "self_attn.q_norm.weight" if c.qk_norm => at(Place::QueryNorm(i), 0, &[c.head_dim]),
        "self_attn.k_norm.weight" if c.qk_norm => at(Place::KeyNorm(i), 0, &[c.head_dim]),
        "self_attn.o_proj.weight" => at(Place::Output(i), 0, &[c.hidden, q]),
        "mlp.gate_proj.weight" => at(Place::GateUp(i), 0, &[c.intermediate, c.hidden]),
        "mlp.up_proj.weight" => at(Place::GateUp(i), c.intermediate, &[c.intermediate, c.hidden]),
        "mlp.down_proj.weight" => at(Place::Down(i), 0, &[c.hidden, c.intermediate]),
        "input_layernorm.weight" => at(Place::InputNorm(i), 0, &[c.hidden]),
        "post_attention_layernorm.weight" => at(Place::PostNorm(i), 0, &[c.hidden]),
        _ => None,
    }
}

/// What a place gets.
enum New {
    Whole(Linear),
    /// First rows and what goes there: all of a vector, or of a matrix that is not packed here.
    Parts(BTreeMap<i64, Tensor>),
}

/// Checked weights on their way into a decoder.
pub(crate) struct BaseChange(BTreeMap<Place, New>);

impl BaseChange {
    /// Checks and copies tensors, named as in a checkpoint of this shape.
    pub(crate) fn new(
        config: &DecoderConfig,
        precision: Precision,
        tensors: impl IntoIterator<Item = (String, Tensor)>,
    ) -> Result<Self, ModelError> {
        let _guard = tch::no_grad_guard();
        let mut given: BTreeMap<Place, BTreeMap<i64, Tensor>> = BTreeMap::new();
        for (name, tensor) in tensors {
            let Some(spot) = spot(&name, config) else {
                return Err(ModelError::UnknownTensor { tensor: name });
            };
            let found = tensor.size();
            if found != spot.shape {
                return Err(ModelError::Shape { tensor: name, expected: spot.shape, found });
            }
            let kind = match tensor.f_kind()? {
                kind @ (Kind::Float | Kind::Half | Kind::BFloat16) => kind,
                other => return Err(ModelError::Dtype { tensor: name, found: format!("{other:?}") }),
            };
            let tensor = tensor.f_to_device(Device::Cpu)?.f_contiguous()?;
            // Only matrices are kept at 16 bits.
            let largest = if found.len() == 2 { precision.largest() } else { f64::from(f32::MAX) };
            let most = tensor.f_abs()?.f_max()?.f_double_value(&[])?;
            if most.is_nan() || most > largest {
                let path = PathBuf::from("(tensors in memory)");
                return Err(ModelError::Value { path, tensor: name, largest, found: most });
            }
            // The embedding is kept as it is stored. What the caller does to its tensors later changes nothing here.
            let kept = if spot.place == Place::Embedding { kind } else { Kind::Float };
            given.entry(spot.place).or_default().insert(spot.first, tensor.f_to_dtype(kept, false, true)?);
        }
        if config.tied {
            // A tied model's checkpoint may repeat the embedding as `lm_head`.
            match given.get(&Place::Embedding) {
                Some(embedding) => {
                    let head = embedding.iter().map(|(first, tensor)| (*first, tensor.shallow_clone())).collect();
                    given.insert(Place::Head, head);
                }
                None if given.contains_key(&Place::Head) => {
                    let (path, tensor) = (PathBuf::from("(tensors in memory)"), "model.embed_tokens.weight".to_owned());
                    return Err(ModelError::MissingTensor { path, tensor });
                }
                None => {}
            }
        }
        let mut all = BTreeMap::new();
        for (place, parts) in given {
            let rows: i64 = parts.values().map(|part| part.size()[0]).sum();
            let matrix = place != Place::Embedding && parts.values().all(|part| part.dim() == 2);
            let new = if matrix && rows == place.rows(config) {
                let parts: Vec<&Tensor> = parts.values().collect();
                New::Whole(Linear::new(&Tensor::f_cat(&parts, 0)?, precision)?)
            } else {
                New::Parts(parts)
            };
            all.insert(place, new);
        }
        Ok(Self(all))
    }
}

/// `whole` with some rows replaced.
fn with_rows(whole: &Tensor, parts: &BTreeMap<i64, Tensor>) -> Result<Tensor, ShimError> {
    let whole = whole.f_to_dtype(whole.f_kind()?, false, true)?;
    for (first, part) in parts {
        whole.f_narrow(0, *first, part.size()[0])?.f_copy_(part)?;
    }
    Ok(whole)
}

/// What a place holds.
enum Held<'a> {
    Matrix(&'a mut Linear),
    Vector(&'a mut Tensor),
}

impl Decoder {
    fn layer(&mut self, i: i64) -> Option<&mut Layer> {
        self.layers.get_mut(usize::try_from(i).ok()?)
    }

    fn held(&mut self, place: Place) -> Option<Held<'_>> {
        Some(match place {
            Place::Embedding => Held::Vector(&mut self.embedding),
            Place::Head => Held::Matrix(&mut self.head),
            Place::Norm => Held::Vector(&mut self.norm),
            Place::InputNorm(i) => Held::Vector(&mut self.layer(i)?.input_norm),
            Place::PostNorm(i) => Held::Vector(&mut self.layer(i)?.post_norm),
            Place::QueryNorm(i) => Held::Vector(self.layer(i)?.q_norm.as_mut()?),
            Place::KeyNorm(i) => Held::Vector(self.layer(i)?.k_norm.as_mut()?),
            Place::QueryKeyValue(i) => Held::Matrix(&mut self.layer(i)?.qkv),
            Place::QueryKeyValueBias(i) => Held::Vector(self.layer(i)?.qkv_bias.as_mut()?),
            Place::Output(i) => Held::Matrix(&mut self.layer(i)?.output),
            Place::GateUp(i) => Held::Matrix(&mut self.layer(i)?.gate_up),
            Place::Down(i) => Held::Matrix(&mut self.layer(i)?.down),
        })
    }

    /// Puts new weights in place: all of them, or, where memory is short, none.
    pub(crate) fn apply_change(&mut self, change: BaseChange) -> Result<(), ShimError> {
        let _guard = tch::no_grad_guard();
        let (mut matrices, mut vectors) = (Vec::new(), Vec::new());
        for (place, new) in change.0 {
            match (self.held(place), new) {
                (Some(Held::Matrix(_)), New::Whole(whole)) => matrices.push((place, whole)),
                (Some(Held::Matrix(Linear::Float(old))), New::Parts(parts)) => {
                    matrices.push((place, Linear::Float(with_rows(old, &parts)?)));
                }
                (Some(Held::Matrix(Linear::Half(old))), New::Parts(parts)) => {
                    let whole = with_rows(&old.unpack()?, &parts)?;
                    matrices.push((place, Linear::Half(HalfLinear::pack(&whole)?)));
                }
                (Some(Held::Vector(_)), New::Parts(mut parts)) if place == Place::Embedding => {
                    vectors.extend(parts.remove(&0).map(|whole| (place, whole)));
                }
                (Some(Held::Vector(old)), New::Parts(parts)) => vectors.push((place, with_rows(old, &parts)?)),
                (held, _) => {
                    let kept = if held.is_some() { "in another form" } else { "nowhere" };
                    return Err(ShimError(format!("the decoder keeps {place:?} {kept}")));
                }
            }
        }
        for (place, new) in matrices {
            if let Some(Held::Matrix(old)) = self.held(place) {
                *old = new;
            }
        }
        for (place, new) in vectors {
            if let Some(Held::Vector(old)) = self.held(place) {
                *old = new;
            }
        }
        Ok(())
    }
}
