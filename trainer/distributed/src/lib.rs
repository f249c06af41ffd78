//! Process groups: torch's own c10d from Rust.
