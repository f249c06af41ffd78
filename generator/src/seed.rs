//! Seeds that follow from seeds: the same place in the same tree draws the same numbers in every run.

/// Mixes bytes into a seed (FNV-1a over the bytes, then the SplitMix64 finaliser), 63 bits of it, so that every reader
/// of JSON takes it for a whole number. Not cryptographic.
pub fn derive(seed: u64, label: &str) -> u64 {
    let mut hash = seed ^ 0xcbf2_9ce4_8422_2325;
    for byte in label.bytes() {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    }
    finalise(hash.wrapping_add(label.len() as u64))
}

/// The seed of the `index`-th thing under a seed.
pub fn nth(seed: u64, index: u64) -> u64 {
    finalise(seed.wrapping_add(0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(index.wrapping_add(1))))
}

fn finalise(mut z: u64) -> u64 {
    z = z.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (z ^ (z >> 31)) >> 1
}
