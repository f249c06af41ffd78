//! The JSON files of a model folder, as Hugging Face lays them out.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::TokenizerError;
use crate::TokenId;

/// Names under which special tokens stand in `tokenizer_config.json` and `special_tokens_map.json`.
const NAMES: [&str; 7] = ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];

/// Largest file that is read: real tokenizers stay below 40 MB.
const LARGEST_FILE: u64 = 256 << 20;

/// An existing folder.
pub(crate) struct ModelFolder {
    dir: PathBuf,
}

impl ModelFolder {
    pub(crate) fn open(dir: &Path) -> Result<Self, TokenizerError> {
        if dir.is_dir() {
            return Ok(Self { dir: dir.to_owned() });
        }
        let reason = if dir.exists() {
            "is a file; a model folder with `tokenizer.json` was expected"
        } else {
            "does not exist; a model folder with `tokenizer.json` was expected"
        };
        Err(TokenizerError::Malformed { file: dir.to_owned(), reason: reason.to_owned() })
    }

    /// The folder's name, for messages.
    pub(crate) fn name(&self) -> String {
        let named = self.dir.file_name().map(|name| name.to_string_lossy().into_owned());
        named.unwrap_or_else(|| self.dir.display().to_string())
    }

    pub(crate) fn path(&self, file: &str) -> PathBuf {
        self.dir.join(file)
    }

    pub(crate) fn bytes(&self, file: &str) -> Result<Vec<u8>, TokenizerError> {
        let path = self.path(file);
        let read = |reason: String| TokenizerError::Read { file: path.clone(), reason };
        let size = std::fs::metadata(&path).map_err(|error| read(error.to_string()))?.len();
        if size > LARGEST_FILE {
            return Err(read(format!("it has {size} bytes, more than the {LARGEST_FILE} that are read")));
        }
        std::fs::read(&path).map_err(|error| read(error.to_string()))
    }

    /// A text file; `None` where there is none.
    pub(crate) fn text(&self, file: &str) -> Result<Option<String>, TokenizerError> {
        match std::fs::symlink_metadata(self.path(file)) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            _ => {}
        }
        let bytes = self.bytes(file)?;
        match String::from_utf8(bytes) {
            Ok(text) => Ok(Some(text)),
            Err(error) => Err(self.malformed(file, format!("is not UTF-8: {error}"))),
        }
    }

    /// A JSON object; an empty one where there is no such file.
    pub(crate) fn object(&self, file: &str) -> Result<serde_json::Map<String, Value>, TokenizerError> {
        let Some(text) = self.text(file)? else { return Ok(serde_json::Map::new()) };
        match serde_json::from_str(&text) {
            Ok(Value::Object(object)) => Ok(object),
            Ok(other) => Err(self.malformed(file, format!("holds {}; a JSON object was expected", kind(&other)))),
            Err(error) => Err(self.malformed(file, format!("is not JSON: {error}"))),
        }
    }

    pub(crate) fn malformed(&self, file: &str, reason: String) -> TokenizerError {
        TokenizerError::Malformed { file: self.path(file), reason }
    }

    /// Special tokens by name. `tokenizer_config.json` wins over `special_tokens_map.json`.
    pub(crate) fn special_tokens(&self) -> Result<BTreeMap<String, String>, TokenizerError> {
        let mut tokens = BTreeMap::new();
        for file in ["special_tokens_map.json", "tokenizer_config.json"] {
            let object = self.object(file)?;
            for name in NAMES {
                let text = match object.get(name) {
                    None | Some(Value::Null) => continue,
                    Some(Value::String(text)) => Some(text.as_str()),
                    Some(Value::Object(token)) => token.get("content").and_then(Value::as_str),
                    Some(_) => None,
                };
                let Some(text) = text else {
                    let reason = format!("has a `{name}` that is neither a text nor an object with `content`");
                    return Err(self.malformed(file, reason));
                };
                tokens.insert(name.to_owned(), text.to_owned());
            }
        }
        Ok(tokens)
    }

    /// `eos_token_id` of `generation_config.json`, else of `config.json`: a number or a list of them.
    pub(crate) fn eos_ids(&self) -> Result<Vec<TokenId>, TokenizerError> {
        for file in ["generation_config.json", "config.json"] {
            let object = self.object(file)?;
            let ids = match object.get("eos_token_id") {
                None | Some(Value::Null) => continue,
                Some(Value::Array(ids)) => ids.as_slice(),
                Some(id) => std::slice::from_ref(id),
            };
            let id = |id: &Value| id.as_u64().and_then(|id| TokenId::try_from(id).ok());
            return ids.iter().map(id).collect::<Option<Vec<_>>>().ok_or_else(|| {
                self.malformed(file, "has an `eos_token_id` that is neither a token id nor a list of them".to_owned())
            });
        }
        Ok(Vec::new())
    }
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}
