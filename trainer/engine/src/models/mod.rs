//! Model families: one file each, weight paths as Hugging Face names them.
//!
//! | module | family |
//! |---|---|
//! | [`decoder`] | the shape they share: RMS norm, rotary attention with grouped heads, gated SiLU |
//! | `update` | new weights for a decoder that runs |
//! | [`llama`] | Llama 2 and 3, SmolLM and SmolLM2 |
//! | [`qwen2`] | Qwen2 and Qwen2.5: biases on queries, keys and values |
//! | [`qwen3`] | Qwen3: norms over each query and key head |

use std::path::Path;

use serde_json::Value;

use crate::config::{ConfigFile, DecoderConfig, eos_tokens};
use crate::error::ModelError;

pub mod decoder;
pub mod llama;
pub mod qwen2;
pub mod qwen3;
pub(crate) mod update;

/// What `config.json` and `generation_config.json` say of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelConfig {
    /// The decoder's shape.
    pub decoder: DecoderConfig,
    /// Tokens that end the model's turn.
    pub eos: Vec<u32>,
}

/// Reads a model folder's configuration; a family that the engine does not know is refused by name.
pub fn read_config(folder: &Path) -> Result<ModelConfig, ModelError> {
    let file = ConfigFile::read(&folder.join("config.json"))?;
    let decoder = match file.get("model_type").and_then(Value::as_str) {
        Some("llama") => llama::config(&file)?,
        Some("qwen2") => qwen2::config(&file)?,
        Some("qwen3") => qwen3::config(&file)?,
        _ => return Err(file.wrong("model_type", "`llama`, `qwen2` or `qwen3`")),
    };
    let eos = eos_tokens(folder, &file, decoder.vocab)?;
    Ok(ModelConfig { decoder, eos })
}
