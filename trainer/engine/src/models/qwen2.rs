//! Qwen2 and Qwen2.5: the Llama shape with biases on queries, keys and values.
//!
//! Paper: <https://arxiv.org/abs/2412.15115>. Weight names and configuration keys follow `transformers`'
//! `Qwen2ForCausalLM`.

use crate::config::{ConfigFile, DecoderConfig};
use crate::error::ModelError;

/// Reads a Qwen2 configuration.
pub fn config(file: &ConfigFile) -> Result<DecoderConfig, ModelError> {
    let shared = DecoderConfig::read(file)?;
    Ok(DecoderConfig { qkv_bias: true, ..shared })
}
