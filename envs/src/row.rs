//! One row of a data set, as environments read it.

use espalier_datasets::error::kind;
use espalier_datasets::{Prompt, Row};
use espalier_inference::Message;
use espalier_sandbox::{Context, FinalAnswer};
use serde_json::{Map, Value};

use crate::env::EnvError;
use crate::rlm::python;
use crate::services::ChildRequest;

/// One row: the columns that skyrl-gym's data sets carry, typed.
///
/// The context of a long-context row is encoded once, here; every sample and child of the row shares it.
#[derive(Clone, Debug)]
pub struct EnvRow {
    /// Names the row within its data set.
    pub id: String,
    /// The environment the row asks for (`env_class`).
    pub env: Option<String>,
    /// The prompt.
    pub prompt: Vec<Message>,
    /// `reward_spec`: how the answer is graded (`method`, `ground_truth` and what an environment adds).
    pub reward_spec: Map<String, Value>,
    /// `extra_info` without `context_text`, which is in [`EnvRow::context`].
    pub extra_info: Map<String, Value>,
    /// `extra_info.context_text`.
    pub context: Option<Context>,
    /// `max_turns`
    pub max_turns: Option<u32>,
    /// Every other column.
    pub columns: Map<String, Value>,
    /// Whether an answer is graded. A child of `rlm_query` has a question of its own and no truth to compare with.
    pub graded: bool,
}

impl EnvRow {
    /// A row of one user message, without anything to grade by.
    pub fn ask(prompt: impl Into<String>) -> Self {
        Self {
            id: "0".to_owned(),
            env: None,
            prompt: vec![Message::user(prompt)],
            reward_spec: Map::new(),
            extra_info: Map::new(),
            context: None,
            max_turns: None,
            columns: Map::new(),
            graded: true,
        }
    }

    /// The same row with a truth to grade by.
    #[must_use]
    pub fn with_truth(mut self, truth: impl Into<Value>) -> Self {
        self.reward_spec.insert("ground_truth".to_owned(), truth.into());
        self
    }

    /// The same row with a context.
    #[must_use]
    pub fn with_context(mut self, context: impl Into<espalier_sandbox::Value>) -> Self {
        self.context = Some(Context::new(context.into()));
        self
    }

    /// Reads a data set's row.
    pub fn from_row(row: Row) -> Result<Self, EnvError> {
        let invalid = |key: &str, reason: String| EnvError::Invalid {
            env: row.env.clone().unwrap_or_else(|| format!("row {}", row.id)),
            key: key.to_owned(),
            reason,
        };
        let mut columns = row.columns;
        let prompt = match row.prompt {
            Prompt::Text(text) => vec![Message::user(text)],
            Prompt::Messages(messages) => messages
                .into_iter()
                .enumerate()
                .map(|(index, message)| {
                    // What the policy would be asked must not be lost under another key; a model's own message may hold
                    // calls only.
                    if !message.contains_key("content") && message.get("role") != Some(&Value::from("assistant")) {
                        let keys: Vec<String> = message.keys().map(|key| format!("`{key}`")).collect();
                        let reason = format!("is missing: the text of the message; it has {}", keys.join(", "));
                        return Err(invalid(&format!("prompt[{index}].content"), reason));
                    }
                    serde_json::from_value(Value::Object(message))
                        .map_err(|error| invalid(&format!("prompt[{index}]"), format!("is no chat message: {error}")))
                })
                .collect::<Result<_, _>>()?,
        };
        let mut object = |key: &str| match columns.remove(key) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::Object(entries)) => Ok(Some(entries)),
            Some(other) => Err(invalid(key, format!("must be an object, got {}", kind(&other)))),
        };
        // Some data sets name the column after another framework.
        let reward_spec = match object("reward_spec")? {
            Some(spec) => spec,
            None => object("reward_model")?.unwrap_or_default(),
        };
        let mut extra_info = object("extra_info")?.unwrap_or_default();
        let context = match extra_info.remove("context_text") {
            None | Some(Value::Null) => None,
            Some(Value::String(text)) if text.is_empty() => None,
            Some(value) => Some(Context::new(context_value(value))),
        };
        let max_turns = match columns.remove("max_turns") {
            None | Some(Value::Null) => None,
            Some(value) => match value.as_u64().and_then(|turns| u32::try_from(turns).ok()) {
                Some(turns) if turns > 0 => Some(turns),
                _ => return Err(invalid("max_turns", format!("must be a whole number from 1, got `{value}`"))),
            },
        };
        Ok(Self {
            id: row.id,
            env: row.env,
            prompt,
            reward_spec,
            extra_info,
            context,
            max_turns,
            columns,
            graded: true,
        })
    }

    /// The row that a child of `rlm_query` plays: its question as the prompt, the context it was given (its question,
    /// where it was given none), and nothing to grade by.
    #[must_use]
    pub fn child(&self, request: &ChildRequest) -> Self {
        Self {
            id: self.id.clone(),
            env: self.env.clone(),
            prompt: vec![Message::user(request.prompt.clone())],
            reward_spec: self.reward_spec.clone(),
            extra_info: self.extra_info.clone(),
            context: request.context.clone(),
            max_turns: self.max_turns,
            columns: self.columns.clone(),
            graded: false,
        }
    }

    /// The prompt's texts, joined by newlines, roles left out.
    pub fn question(&self) -> String {
        question(&self.prompt)
    }

    /// `reward_spec.ground_truth`, or an error that says it is missing.
    pub fn truth(&self, env: &str) -> Result<&Value, EnvError> {
        match self.reward_spec.get("ground_truth") {
            None | Some(Value::Null) => Err(EnvError::Invalid {
                env: env.to_owned(),
                key: "reward_spec.ground_truth".to_owned(),
                reason: format!("is missing in row `{}`: there is nothing to grade by", self.id),
            }),
            Some(truth) => Ok(truth),
        }
    }
}

/// The non-empty texts of a prompt, joined by newlines.
pub(crate) fn question(prompt: &[Message]) -> String {
    let texts: Vec<&str> =
        prompt.iter().map(|message| message.content.as_str()).filter(|text| !text.is_empty()).collect();
    texts.join("\n")
}

/// A context as the REPL holds it. A text that is a JSON object becomes a dict; any other text stays a text.
pub(crate) fn context_value(value: Value) -> espalier_sandbox::Value {
    match value {
        Value::String(text) => context_from_text(text),
        other => python::from_json(other),
    }
}

/// A text that is a JSON object as a dict, any other text as it is.
pub(crate) fn context_from_text(text: String) -> espalier_sandbox::Value {
    if text.trim_start().starts_with('{')
        && let Ok(object) = serde_json::from_str::<Map<String, Value>>(&text)
    {
        return python::from_json(Value::Object(object));
    }
    espalier_sandbox::Value::Str(text)
}

/// An answer that is only text.
pub(crate) fn text_answer(text: impl Into<String>) -> FinalAnswer {
    let text = text.into();
    FinalAnswer { value: espalier_sandbox::Value::Str(text.clone()), text }
}
