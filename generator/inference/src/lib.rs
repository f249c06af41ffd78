//! Messages, tokens, chat templates and inference engines.
//!
//! | module | what lives there |
//! |---|---|
//! | [`message`] | chat messages as OpenAI-compatible endpoints speak them |
//! | [`sampling`] | sampling parameters and stop reasons |
//! | [`engine`] | [`engine::InferenceEngine`], the one interface to whatever samples |
//! | [`tokenizer`] | a model's tokenizer: encoding that untrusted text cannot forge structure in, streaming decoding |
//! | [`template`] | a model's chat template, rendered as `transformers` does |
//! | [`conversation`] | a growing conversation as the tokens that were really sent and sampled |
//! | [`openai`] | OpenAI-compatible endpoints, OpenRouter, vLLM's token-level endpoint |
//! | `http` | JSON over HTTP with retries, bounds and deadlines |
//! | [`scripted`] | an engine that says what it is told to |
//!
//! Invariants: what an engine sampled is kept as ids from here to the loss ([`engine::Fidelity`] says whether it is
//! known); every request has a deadline and can be cancelled; every failure is an [`engine::EngineError`].

pub mod conversation;
pub mod engine;
mod http;
pub mod message;
pub mod openai;
pub mod sampling;
pub mod scripted;
pub mod template;
pub mod tokenizer;

pub use conversation::{Conversation, ConversationError, ConversationOptions, Extension, History};
pub use engine::{EngineError, EngineInfo, Fidelity, GenerateRequest, Generation, InferenceEngine, Prompt, Usage};
pub use message::{Message, Role, ToolCall};
pub use openai::{EndpointConfig, OpenAiEngine};
pub use sampling::{JsonSchema, SamplingParams, StopReason};
pub use scripted::{Reply, ScriptedEngine};
pub use template::{ChatTemplate, Rendered, TemplateError};
pub use tokenizer::{Tokenizer, TokenizerError};

/// A token's number in its tokenizer's vocabulary.
pub type TokenId = u32;
