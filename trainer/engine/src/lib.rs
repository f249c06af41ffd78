//! The local inference engine on libtorch.

pub mod config;
pub mod error;
pub mod gguf;
pub mod models;
pub mod shim;
pub mod weights;
