//! Advantages, policy losses, reductions, KL and off-policy correction, as pure functions.
