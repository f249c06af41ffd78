//! One row.

use std::path::Path;

use serde_json::{Map, Value};

use crate::error::{DataError, Place, kind};

/// A prompt and the columns that go with it.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// Names the row: its `uid` column, or its number over all files, from 0.
    pub id: String,
    /// The prompt.
    pub prompt: Prompt,
    /// The environment that the row asks for (`env_class`).
    pub env: Option<String>,
    /// Every other column.
    pub columns: Map<String, Value>,
}

/// A prompt as data sets carry it.
#[derive(Clone, Debug, PartialEq)]
pub enum Prompt {
    /// One user message.
    Text(String),
    /// Chat messages: each an object whose `role` is one of `system`, `user`, `assistant` and `tool`, and whose
    /// `content` is a text.
    Messages(Vec<Map<String, Value>>),
}

/// Who speaks in chat messages.
const ROLES: [&str; 4] = ["system", "user", "assistant", "tool"];

impl Row {
    /// The row as a record, which reads back as the same row: what `.jsonl` files hold.
    pub fn to_record(&self) -> Map<String, Value> {
        let mut record = Map::new();
        record.insert("uid".to_owned(), Value::String(self.id.clone()));
        let prompt = match &self.prompt {
            Prompt::Text(text) => Value::String(text.clone()),
            Prompt::Messages(messages) => Value::Array(messages.iter().cloned().map(Value::Object).collect()),
        };
        record.insert("prompt".to_owned(), prompt);
        if let Some(env) = &self.env {
            record.insert("env_class".to_owned(), Value::String(env.clone()));
        }
        record.extend(self.columns.iter().map(|(name, value)| (name.clone(), value.clone())));
        record
    }

    /// Reads a record. `number` names the row when it does not name itself.
    pub(crate) fn from_record(
        mut record: Map<String, Value>,
        number: u64,
        path: &Path,
        place: Place,
    ) -> Result<Self, DataError> {
        let wrong = |column: &str, reason: String| DataError::Column {
            path: path.to_owned(),
            place,
            column: column.to_owned(),
            reason,
        };
        let prompt = match record.shift_remove("prompt") {
            None => {
                let columns = record.keys().map(|key| format!("`{key}`")).collect::<Vec<_>>().join(", ");
                let columns = if columns.is_empty() { "no column" } else { &columns };
                return Err(wrong("prompt", format!("is missing; the row has {columns}")));
            }
            Some(Value::String(text)) => Prompt::Text(text),
            Some(Value::Array(messages)) if messages.is_empty() => {
                return Err(wrong("prompt", "holds no message".to_owned()));
            }
            Some(Value::Array(messages)) => {
                let mut read = Vec::with_capacity(messages.len());
                for (index, message) in messages.into_iter().enumerate() {
                    let Value::Object(message) = message else {
                        let reason = format!("must be an object with `role` and `content`, got {}", kind(&message));
                        return Err(wrong(&format!("prompt[{index}]"), reason));
                    };
                    for key in ["role", "content"] {
                        match message.get(key) {
                            Some(Value::String(_)) => {}
                            other => {
                                let got = other.map_or("nothing", kind);
                                let reason = format!("must be a text, got {got}");
                                return Err(wrong(&format!("prompt[{index}].{key}"), reason));
                            }
                        }
                    }
                    let role = message.get("role").and_then(Value::as_str).unwrap_or_default();
                    if !ROLES.contains(&role) {
                        let reason = format!("must be `system`, `user`, `assistant` or `tool`, got `{role}`");
                        return Err(wrong(&format!("prompt[{index}].role"), reason));
                    }
                    read.push(message);
                }
                Prompt::Messages(read)
            }
            Some(other) => {
                return Err(wrong("prompt", format!("must be a text or a list of messages, got {}", kind(&other))));
            }
        };
        let env = match record.shift_remove("env_class") {
            None | Some(Value::Null) => None,
            Some(Value::String(env)) => Some(env),
            Some(other) => return Err(wrong("env_class", format!("must be a text, got {}", kind(&other)))),
        };
        for column in ["reward_spec", "extra_info"] {
            match record.get(column) {
                None | Some(Value::Null | Value::Object(_)) => {}
                Some(other) => return Err(wrong(column, format!("must be an object, got {}", kind(other)))),
            }
        }
        let id = match record.get("uid") {
            Some(Value::String(uid)) => uid.clone(),
            Some(Value::Number(uid)) => uid.to_string(),
            None | Some(Value::Null) => number.to_string(),
            Some(other) => return Err(wrong("uid", format!("must be a text or a number, got {}", kind(other)))),
        };
        Ok(Self { id, prompt, env, columns: record })
    }
}
