//! The optimiser against torch's.

#[test]
fn placeholder() {}
