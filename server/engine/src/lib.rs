//! The Tinker API over engines: [`LocalBackend`] samples and trains on this machine, [`EngineBackend`] samples from any
//! [`InferenceEngine`](espalier_inference::InferenceEngine) that knows tokens.
//!
//! | module | what lives there |
//! |---|---|
//! | `sampling` | prompts and answers between the wire and an engine; [`EngineBackend`] |
//! | `losses` | losses with the wire's semantics |
//! | `learner` | the thread that trains: adapters, their operations, their checkpoints |
//! | `shelf` | where checkpoints lie |
//! | `samplers` | checkpoints that the engine samples from |
//! | `local` | [`LocalBackend`] |
//!
//! Each uses those above it. What is not served fails the request that asks for it, as its user's mistake and with a message
//! that says so: nothing is left out silently.
//!
//! Invariants: the tokens that go in and come out are those of the wire, nothing is decoded and encoded again; one model's
//! operations never touch another's weights, gradients or moments.

mod learner;
mod local;
mod losses;
mod samplers;
mod sampling;
mod shelf;

pub use learner::LearnerOptions;
pub use local::{LocalBackend, LocalOptions};
pub use sampling::{EngineBackend, UnfitEngine};
