//! Llama 2 and 3, SmolLM and SmolLM2.
//!
//! Papers: <https://arxiv.org/abs/2302.13971>, <https://arxiv.org/abs/2407.21783>. Weight names and configuration keys
//! follow `transformers`' `LlamaForCausalLM`.

use crate::config::{ConfigFile, DecoderConfig};
use crate::error::ModelError;

/// Reads a Llama configuration.
pub fn config(file: &ConfigFile) -> Result<DecoderConfig, ModelError> {
    file.only("attention_bias", &[false.into()])?;
    if file.get("sliding_window").is_some() {
        return Err(file.wrong("sliding_window", "null: attention is over the whole context"));
    }
    DecoderConfig::read(file)
}
