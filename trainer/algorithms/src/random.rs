//! Choices that follow from a seed and from what is chosen among, never from order or timing.

/// One step of SplitMix64 (Steele, Lea and Flood, 2014): mixes all bits of `value`.
pub(crate) fn mix(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A key for a thing, from a seed and what the thing is made of.
pub(crate) fn key(seed: u64, parts: &[u64]) -> u64 {
    parts.iter().fold(mix(seed), |state, &part| mix(state ^ part))
}

/// A stream of numbers whose position can be stored.
pub(crate) struct Stream<'a> {
    seed: u64,
    /// Numbers drawn so far.
    drawn: &'a mut u64,
}

impl<'a> Stream<'a> {
    pub(crate) fn new(seed: u64, drawn: &'a mut u64) -> Self {
        Self { seed, drawn }
    }

    /// A number below `bound`, which must not be 0. Its bias is below `bound / 2^64`.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        let value = key(self.seed, &[*self.drawn]);
        *self.drawn += 1;
        ((u128::from(value) * bound as u128) >> 64) as usize
    }
}
