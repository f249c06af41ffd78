//! `math`: the last `\boxed{}` against the truth, by mathematical equivalence.
