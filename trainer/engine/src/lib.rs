//! The local inference engine on libtorch: a model folder in, an [`InferenceEngine`](espalier_inference::InferenceEngine)
//! out.
//!
//! | module | what lives there |
//! |---|---|
//! | [`local`] | [`LocalEngine`]: options, checks, the queue, statistics |
//! | `worker`, `sequence` | the engine's thread: continuous batching, chunked prefill, preemption, stop conditions |
//! | [`kv`] | cache blocks: sharing, the prefix tree, eviction |
//! | [`sampling`] | drawing tokens; noise that depends on (seed, position) only |
//! | [`models`] | Llama, Qwen2, Qwen3 |
//! | [`config`], [`weights`] | `config.json` and safetensors, checked |
//! | [`gguf`], [`convert`] | a GGUF reader and a converter to the Hugging Face layout |
//! | [`shim`] | the C++ side: packed linear layers, fused steps, paged attention |
//! | [`openai_server`] | the engine behind an OpenAI-compatible HTTP API |
//! | [`bench`](mod@bench) | decoding speed, as figures |
//!
//! Invariants: what a request samples does not depend on what else is in the batch, on evictions or on preemptions
//! (exactly as far as floating-point sums allow); every request ends, with a typed error or with what was sampled; memory
//! is bounded by `kv_cache_mb`, weights aside.

pub mod bench;
pub mod config;
pub mod convert;
pub mod error;
pub mod gguf;
pub mod kv;
pub mod local;
pub mod models;
pub mod openai_server;
pub mod sampling;
mod sequence;
pub mod shim;
pub mod weights;
mod worker;

pub use convert::{WeightType, convert_gguf};
pub use error::ModelError;
pub use local::{EngineOptions, EngineStats, LocalEngine, StreamEvent};
pub use models::decoder::Precision;
