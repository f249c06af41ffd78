//! Qwen3 (dense): the Llama shape with an RMS norm over each query and key head.
//!
//! Paper: <https://arxiv.org/abs/2505.09388>. Weight names and configuration keys follow `transformers`'
//! `Qwen3ForCausalLM`.

use crate::config::{ConfigFile, DecoderConfig};
use crate::error::ModelError;

/// Reads a Qwen3 configuration.
pub fn config(file: &ConfigFile) -> Result<DecoderConfig, ModelError> {
    file.only("attention_bias", &[false.into()])?;
    // Qwen3's heads are 128 wide whatever the width of the residual stream.
    file.integer("head_dim", 16, 256)?;
    let shared = DecoderConfig::read(file)?;
    Ok(DecoderConfig { qk_norm: true, ..shared })
}
