//! The local inference engine on libtorch: a model folder in, an [`InferenceEngine`](espalier_inference::InferenceEngine)
//! out.
//!
//! | module | what lives there |
//! |---|---|
//! | [`local`] | [`LocalEngine`]: options, checks, the queue, statistics |
//! | [`adapters`] | LoRA adapters: PEFT folders, tensors from a trainer |
//! | `policies` | which adapters requests can name; the way to the engine's thread |
//! | `worker`, `sequence` | the engine's thread: continuous batching, chunked prefill, preemption, stop conditions |
//! | [`kv`] | cache blocks: sharing, the prefix trees, eviction |
//! | [`sampling`] | drawing tokens; noise that depends on (seed, position) only |
//! | [`models`] | Llama, Qwen2, Qwen3 |
//! | [`config`], [`weights`] | `config.json` and safetensors, checked |
//! | [`gguf`], [`convert`] | a GGUF reader and a converter to the Hugging Face layout |
//! | [`fused`] | steps of a decoder that trains, with their gradients |
//! | [`shim`] | the C++ side: packed linear layers, adapters of many rows at once, fused steps, paged attention |
//! | [`openai_server`] | the engine behind an OpenAI-compatible HTTP API |
//! | [`bench`](mod@bench) | decoding speed, as figures |
//!
//! Many adapters answer in one batch ([`adapters`]): a request names one, or none for the base model. Their weights, and the
//! base model's, can be replaced while requests run ([`LocalEngine::update_adapter`], [`LocalEngine::update_base`]).
//!
//! Invariants: what a request samples does not depend on what else is in the batch, on evictions or on preemptions
//! (exactly as far as floating-point sums allow); keys and values that one state of weights computed are never reused under
//! another; every request ends, with a typed error or with what was sampled; memory
//! is bounded by `kv_cache_mb`, weights aside.

pub mod adapters;
pub mod bench;
pub mod config;
pub mod convert;
pub mod error;
pub mod fused;
pub mod gguf;
pub mod kv;
pub mod local;
pub mod models;
pub mod openai_server;
mod policies;
pub mod sampling;
mod sequence;
pub mod shim;
pub mod weights;
mod worker;

pub use adapters::{AdapterConfig, AdapterError, AdapterWeights};
pub use convert::{WeightType, convert_gguf};
pub use error::ModelError;
pub use local::{EngineOptions, EngineStats, LocalEngine, StreamEvent};
pub use models::decoder::Precision;
