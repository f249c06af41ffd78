//! Where each tensor of a unit lies, and a unit: in shards, and while it is whole.

use espalier_engine::config::DecoderConfig;
use tch::Tensor;

use crate::decoder::{Adapter, Linear};
use crate::error::TrainError;
use crate::layout::{Part, Place, UnitLayout};
use crate::lora::module_path;

pub(super) struct AdapterPlaces {
    pub(super) a: Place,
    pub(super) b: Vec<(usize, Place)>,
}

pub(super) struct LinearPlaces {
    pub(super) weight: Place,
    pub(super) bias: Option<Place>,
    pub(super) parts: Vec<i64>,
    pub(super) adapter: Option<AdapterPlaces>,
}

pub(super) struct LayerPlaces {
    pub(super) input_norm: Place,
    pub(super) qkv: LinearPlaces,
    pub(super) q_norm: Option<Place>,
    pub(super) k_norm: Option<Place>,
    pub(super) output: LinearPlaces,
    pub(super) post_norm: Place,
    pub(super) gate_up: LinearPlaces,
    pub(super) down: LinearPlaces,
}

pub(super) struct RootPlaces {
    pub(super) embedding: Place,
    pub(super) norm: Place,
    /// Absent where the embedding is the output layer.
    pub(super) head: Option<Place>,
    pub(super) adapter: Option<(Place, Place)>,
}

/// A unit's shards on this process.
pub(crate) struct Unit {
    pub(crate) layout: UnitLayout,
    pub(super) frozen: Tensor,
    /// Trained parameters.
    pub(crate) master: Tensor,
    /// The same in the type of computation, where that differs.
    pub(crate) compute: Option<Tensor>,
    /// Sum of gradients since the last step.
    pub(crate) gradient: Option<Tensor>,
}

/// A unit while it is whole.
pub(super) struct Gathered {
    pub(super) frozen: Tensor,
    /// One tensor for each trained slot.
    pub(super) leaves: Vec<Tensor>,
}

impl Gathered {
    pub(super) fn get(&self, layout: &UnitLayout, place: Place) -> Result<Tensor, TrainError> {
        Ok(match place {
            Place::Trained(i) => self.leaves[i].shallow_clone(),
            Place::Frozen(i) => {
                let slot = &layout.frozen.slots()[i];
                self.frozen.f_narrow(0, slot.offset, slot.numel())?.f_view(slot.shape().as_slice())?
            }
        })
    }

    pub(super) fn linear(&self, layout: &UnitLayout, places: &LinearPlaces, rank: i64) -> Result<Linear, TrainError> {
        let adapter = match &places.adapter {
            None => None,
            Some(adapter) => Some(Adapter {
                a: self.get(layout, adapter.a)?,
                b: adapter
                    .b
                    .iter()
                    .map(|(part, place)| Ok((*part, self.get(layout, *place)?)))
                    .collect::<Result<_, TrainError>>()?,
                rank,
            }),
        };
        Ok(Linear {
            weight: self.get(layout, places.weight)?,
            bias: places.bias.map(|place| self.get(layout, place)).transpose()?,
            parts: places.parts.clone(),
            adapter,
        })
    }
}

pub(super) fn layer_places(
    c: &DecoderConfig,
    index: usize,
    full: bool,
    rank: i64,
    chosen: [bool; 7],
    unit: &mut UnitLayout,
) -> LayerPlaces {
    let (q, kv) = (c.heads * c.head_dim, c.kv_heads * c.head_dim);
    let norm = |unit: &mut UnitLayout, name: &str, width: i64| {
        unit.push(full, vec![Part::new(format!("model.layers.{index}.{name}.weight"), &[width])])
    };
    let linear = |unit: &mut UnitLayout, targets: &[usize], outputs: &[i64], inputs: i64, bias: bool| {
        let parts = |suffix: &str, inputs: Option<i64>| -> Vec<Part> {
            let shaped = targets.iter().zip(outputs);
            shaped
                .map(|(t, out)| {
                    let shape: Vec<i64> = std::iter::once(*out).chain(inputs).collect();
                    Part::new(format!("{}.{suffix}", module_path(index, *t)), &shape)
                })
                .collect()
        };
        let weight = unit.push(full, parts("weight", Some(inputs)));
        let bias = bias.then(|| unit.push(full, parts("bias", None)));
        let adapted: Vec<usize> = (0..targets.len()).filter(|i| chosen[targets[*i]]).collect();
        let adapter = (!adapted.is_empty()).then(|| {
            let name = |i: usize, side: &str| format!("{}.lora_{side}.weight", module_path(index, targets[i]));
            let a = adapted.iter().map(|i| Part::new(name(*i, "A"), &[rank, inputs])).collect();
            let a = unit.push(true, a);
            let b = |i: usize| vec![Part::new(name(i, "B"), &[outputs[i], rank])];
            AdapterPlaces { a, b: adapted.iter().map(|i| (*i, unit.push(true, b(*i)))).collect() }
        });
        LinearPlaces { weight, bias, parts: outputs.to_vec(), adapter }
    };
    LayerPlaces {
        input_norm: norm(unit, "input_layernorm", c.hidden),
        qkv: linear(unit, &[0, 1, 2], &[q, kv, kv], c.hidden, c.qkv_bias),
        q_norm: c.qk_norm.then(|| norm(unit, "self_attn.q_norm", c.head_dim)),
        k_norm: c.qk_norm.then(|| norm(unit, "self_attn.k_norm", c.head_dim)),
        output: linear(unit, &[3], &[c.hidden], q, false),
        post_norm: norm(unit, "post_attention_layernorm", c.hidden),
        gate_up: linear(unit, &[4, 5], &[c.intermediate, c.intermediate], c.hidden, false),
        down: linear(unit, &[6], &[c.hidden], c.intermediate, false),
    }
}
