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

/// The families: `model_type` of `config.json`, the class in its `architectures`, the reader of its other keys.
const FAMILIES: [(&str, &str, Reader); 3] = [
    ("llama", "LlamaForCausalLM", llama::config),
    ("qwen2", "Qwen2ForCausalLM", qwen2::config),
    ("qwen3", "Qwen3ForCausalLM", qwen3::config),
];

type Reader = fn(&ConfigFile) -> Result<DecoderConfig, ModelError>;

/// Reads a model folder's configuration; a family that the engine does not know is refused by name.
pub fn read_config(folder: &Path) -> Result<ModelConfig, ModelError> {
    let adapter = folder.join("adapter_config.json");
    if adapter.exists() && !folder.join("config.json").exists() {
        return Err(ModelError::Config {
            path: adapter,
            key: "peft_type".to_owned(),
            expected: "a whole model (`espalier export --merge` writes one)".to_owned(),
            found: "an adapter".to_owned(),
        });
    }
    let file = ConfigFile::read(&folder.join("config.json"))?;
    let family = file.get("model_type").and_then(Value::as_str);
    let Some((_, class, read)) = FAMILIES.iter().find(|(name, ..)| Some(*name) == family) else {
        let known = FAMILIES.map(|(name, class, _)| format!("`{name}` ({class})")).join(", ");
        return Err(file.wrong("model_type", format!("one of the families that this engine knows: {known}")));
    };
    // A classifier or a reward model of a known family has another output layer.
    if let Some(classes) = file.get("architectures") {
        let same = |v: &Value| v.as_str().is_some_and(|name| name.eq_ignore_ascii_case(class));
        if !classes.as_array().is_some_and(|all| all.iter().any(same)) {
            return Err(file.wrong("architectures", format!("`{class}`")));
        }
    }
    let decoder = read(&file)?;
    let eos = eos_tokens(folder, &file, decoder.vocab)?;
    Ok(ModelConfig { decoder, eos })
}
