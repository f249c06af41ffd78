//! An adapter as the engine runs it: for each place of the decoder that reads one input, the updates of all linear layers
//! that read it, in one pair of packed matrices.

use super::{AdapterError, AdapterWeights, Module, Target};
use crate::config::DecoderConfig;
use crate::models::decoder::Precision;
use crate::shim::{LoraLayer, LoraLinear};

/// A place of a layer where one input is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Site {
    /// Queries, keys and values.
    Attention,
    /// What attention gives, back to the residual stream.
    Output,
    /// Gate and up.
    FeedForward,
    /// Down, back to the residual stream.
    Down,
}

impl Site {
    const ALL: [Self; 4] = [Self::Attention, Self::Output, Self::FeedForward, Self::Down];

    /// The linear layers that read the input, in the order in which their outputs are packed.
    fn targets(self) -> &'static [Target] {
        match self {
            Self::Attention => &[Target::Query, Target::Key, Target::Value],
            Self::Output => &[Target::Output],
            Self::FeedForward => &[Target::Gate, Target::Up],
            Self::Down => &[Target::Down],
        }
    }
}

/// A packed adapter.
pub(crate) struct PackedAdapter {
    /// For each layer its sites, in the order of [`Site::ALL`]; nothing where the adapter does not reach.
    layers: Vec<[Option<LoraLinear>; 4]>,
    head: Option<LoraLinear>,
}

impl PackedAdapter {
    /// Packs an adapter for a model. Under [`Precision::Bf16`] its matrices are kept at 16 bits, as the model's are.
    pub(crate) fn new(
        weights: &AdapterWeights,
        model: &DecoderConfig,
        precision: Precision,
    ) -> Result<Self, AdapterError> {
        weights.check(model)?;
        let pack = |layer: i64, targets: &[Target]| {
            let (inputs, _) = targets[0].shape(model);
            let (mut parts, mut outputs) = (Vec::new(), 0);
            for target in targets {
                if let Some(pair) = weights.pair(Module { layer, target: *target }) {
                    parts.push(LoraLayer { a: &pair.a, b: &pair.b, scale: pair.scaling, first_output: outputs });
                }
                outputs += target.shape(model).1;
            }
            let half = precision == Precision::Bf16;
            if parts.is_empty() { Ok(None) } else { LoraLinear::pack(&parts, inputs, outputs, half).map(Some) }
        };
        let mut layers = Vec::new();
        for layer in 0..model.layers {
            let mut sites = [None, None, None, None];
            for (place, site) in sites.iter_mut().zip(Site::ALL) {
                *place = pack(layer, site.targets())?;
            }
            layers.push(sites);
        }
        Ok(Self { layers, head: pack(0, &[Target::Head])? })
    }

    /// What it adds at a site of a layer.
    pub(crate) fn site(&self, layer: usize, site: Site) -> Option<&LoraLinear> {
        self.layers.get(layer).and_then(|sites| sites[site as usize].as_ref())
    }

    /// What it adds to the output layer.
    pub(crate) fn head(&self) -> Option<&LoraLinear> {
        self.head.as_ref()
    }
}
