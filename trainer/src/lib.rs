//! Trains policies: LoRA and full fine-tuning, by reinforcement learning and on examples.
//!
//! | module | what lives there |
//! |---|---|
//! | [`layout`] | units, slots and parts: which tensor lies where in a unit's flat buffers |
//! | [`lora`] | adapters: which modules, how they begin |
//! | [`decoder`] | one layer as a differentiable function over packed sequences |
//! | [`head`] | the output layer in chunks: log-probabilities, entropies, their gradients |
//! | [`packing`] | rows to micro-batches |
//! | [`model`] | the model in shards: forward, backward, gradients |
//! | [`update`] | one update of a policy from rows with advantages |
//! | [`critic`] | a decoder that says values, and learns them |
//! | [`optimizer`] | AdamW, schedules, clipping |
//! | [`adapter`](mod@adapter) | adapters that train beside others over one base |
//! | [`checkpoint`] | folders that lead to the same next step |
//! | [`peft`], [`export`] | adapters in PEFT's layout, models in Hugging Face's |
//! | [`bench`](mod@bench) | what training costs, as figures |
//! | `manifest` | what a folder holds, by size and hash |
//! | [`files`] | safetensors one tensor at a time, folders that appear whole |
//! | [`rl`], [`sft`] | the two loops |
//!
//! Invariants: sums over a batch do not depend on how it is divided into micro-batches or over processes, but for
//! rounding; with one process the shard is the whole and nothing is copied; nothing half-written has a final name.

pub mod adapter;
pub mod bench;
pub mod checkpoint;
pub mod critic;
pub mod decoder;
pub mod error;
pub mod export;
pub mod files;
pub mod head;
pub mod layout;
pub mod lora;
mod manifest;
pub mod model;
pub mod optimizer;
pub mod packing;
pub mod peft;
pub mod rl;
pub mod sft;
pub mod update;

pub use error::TrainError;
/// Types of tensors, for whoever writes models.
pub use tch::Kind;

pub use model::{ModelOptions, TrainModel, TrainPrecision};
