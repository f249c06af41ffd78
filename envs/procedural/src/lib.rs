//! Problems that the project generates, with their verifiers.
//!
//! | module | what lives there |
//! |---|---|
//! | [`draw`] | seeded draws that are the same on every machine: the only source of chance |
//! | [`reasoning`] | twelve families of short problems by level, each with a verifier |
//! | [`mod@long`] | texts of an exact size with a question and its exact answer, and the scan that finds it again |
//! | [`stories`] | word problems of a few arithmetic steps |
//! | [`answer`] | what a response announces as its answer; numbers and lists in it |
//! | [`arithmetic`], [`rational`] | expressions over whole numbers, evaluated exactly |
//!
//! Invariants: the same seed and parameters give the same bytes on every machine; a verifier accepts every right
//! answer, works within fixed bounds whatever a model wrote, and never panics.

pub mod answer;
pub mod arithmetic;
pub mod draw;
pub mod long;
pub mod rational;
pub mod reasoning;
pub mod stories;
