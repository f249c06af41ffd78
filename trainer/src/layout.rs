//! Which tensors a unit of the model has and where each lies in the unit's flat buffers.
//!
//! A *unit* is what is gathered, used and dropped as one: a decoder layer, or the root (embedding, last norm, output
//! layer). Its tensors lie one behind the other in two flat buffers, one frozen and one trained, each padded so that it
//! divides into equal shards for every process. Tensors that are used as one matrix (query, key and value; gate and up)
//! are one [`Slot`] with several [`Part`]s, so that no step copies them together.

/// Shards are multiples of this many elements, which keeps every shard aligned.
const ALIGN: i64 = 64;

/// One named tensor inside a slot; parts are stacked along the first dimension.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// The tensor's name in files.
    pub name: String,
    /// Its shape.
    pub shape: Vec<i64>,
}

impl Part {
    /// A part.
    pub fn new(name: impl Into<String>, shape: &[i64]) -> Self {
        Self { name: name.into(), shape: shape.to_vec() }
    }

    /// Elements.
    pub fn numel(&self) -> i64 {
        self.shape.iter().product()
    }
}

/// One tensor as the model uses it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slot {
    /// What it is made of, in order. All parts agree in all dimensions but the first.
    pub parts: Vec<Part>,
    /// Where it begins in the flat buffer, in elements.
    pub offset: i64,
}

impl Slot {
    /// Shape of the stacked parts.
    pub fn shape(&self) -> Vec<i64> {
        let mut shape = self.parts[0].shape.clone();
        shape[0] = self.parts.iter().map(|p| p.shape[0]).sum();
        shape
    }

    /// Elements.
    pub fn numel(&self) -> i64 {
        self.parts.iter().map(Part::numel).sum()
    }
}

/// The slots of one flat buffer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Flat {
    slots: Vec<Slot>,
    used: i64,
}

impl Flat {
    /// Adds a slot behind the others and says its index.
    pub fn push(&mut self, parts: Vec<Part>) -> usize {
        let slot = Slot { parts, offset: self.used };
        self.used += slot.numel();
        self.slots.push(slot);
        self.slots.len() - 1
    }

    /// The slots, in order.
    pub fn slots(&self) -> &[Slot] {
        &self.slots
    }

    /// Elements without padding.
    pub fn numel(&self) -> i64 {
        self.used
    }

    /// Elements of each of `world` shards.
    pub fn shard_len(&self, world: i64) -> i64 {
        (self.used + world * ALIGN - 1) / (world * ALIGN) * ALIGN
    }

    /// Every part with its place in the flat buffer, in order.
    pub fn parts(&self) -> impl Iterator<Item = (i64, &Part)> {
        self.slots.iter().flat_map(|slot| {
            let mut at = slot.offset;
            slot.parts.iter().map(move |part| {
                let here = at;
                at += part.numel();
                (here, part)
            })
        })
    }
}

/// Where a slot lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In the frozen buffer.
    Frozen(usize),
    /// In the trained buffer.
    Trained(usize),
}

/// The two buffers of a unit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UnitLayout {
    /// Never changes.
    pub frozen: Flat,
    /// Gets gradients.
    pub trained: Flat,
}

impl UnitLayout {
    /// Adds a slot to one of the buffers.
    pub fn push(&mut self, trained: bool, parts: Vec<Part>) -> Place {
        if trained { Place::Trained(self.trained.push(parts)) } else { Place::Frozen(self.frozen.push(parts)) }
    }
}
