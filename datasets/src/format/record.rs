//! Reading a record's columns.

use serde_json::{Map, Value};

use super::schema::Schemas;
use crate::error::kind;
use crate::template::listed;

/// A column that is wrong, and why.
#[derive(Debug)]
pub(crate) struct Wrong {
    pub(crate) column: String,
    pub(crate) reason: String,
}

impl Wrong {
    pub(crate) fn new(column: &str, reason: impl Into<String>) -> Self {
        Self { column: column.to_owned(), reason: reason.into() }
    }
}

/// One record, and what lies around it.
pub(crate) struct Reading<'a> {
    pub(crate) record: &'a Map<String, Value>,
    /// Its number over all files, from 0.
    pub(crate) number: u64,
    /// The schemas of the databases that its set is about.
    pub(crate) schemas: &'a Schemas,
    /// Whether the prompt shows a schema.
    pub(crate) shows_schema: bool,
}

/// A record that was read.
pub(crate) struct Mapped {
    /// The row's columns; without `prompt`, except in records that are rows already.
    pub(crate) columns: Map<String, Value>,
    /// Messages that the record carries and that are asked as they are.
    pub(crate) prompt: Option<Value>,
    /// What a template may name beside the record's own columns. `question` is always there.
    pub(crate) names: Map<String, Value>,
    /// Why the row is left out.
    pub(crate) left_out: Option<&'static str>,
}

impl Mapped {
    /// A record that is a row.
    pub(crate) fn as_it_is(columns: Map<String, Value>) -> Self {
        Self { columns, prompt: None, names: Map::new(), left_out: None }
    }

    /// Columns (an object) and a question.
    pub(crate) fn new(reading: &Reading<'_>, columns: Value, question: &str) -> Self {
        let mut columns = match columns {
            Value::Object(columns) => columns,
            _ => Map::new(),
        };
        if let Some(uid) = reading.record.get("uid") {
            columns.insert("uid".to_owned(), uid.clone());
        }
        let mut names = Map::new();
        names.insert("question".to_owned(), Value::from(question));
        Self { columns, prompt: None, names, left_out: None }
    }

    /// The same with a name for templates.
    pub(crate) fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.names.insert(name.to_owned(), value.into());
        self
    }

    /// The same with a column, unless there is nothing to put there.
    pub(crate) fn column(mut self, name: &str, value: Option<&Value>) -> Self {
        if let Some(value) = value.filter(|value| !value.is_null()) {
            self.columns.insert(name.to_owned(), value.clone());
        }
        self
    }
}

impl<'a> Reading<'a> {
    /// A column; null is nothing.
    pub(crate) fn get(&self, column: &str) -> Option<&'a Value> {
        self.record.get(column).filter(|value| !value.is_null())
    }

    /// The first of several columns that is there.
    pub(crate) fn first(&self, columns: &[&'static str]) -> Result<(&'static str, &'a Value), Wrong> {
        columns.iter().find_map(|column| Some((*column, self.get(column)?))).ok_or_else(|| {
            let others = match &columns[1..] {
                [] => String::new(),
                others => format!(" (or {})", listed(others.iter().copied())),
            };
            let has = listed(self.record.keys().map(String::as_str));
            let has = if has.is_empty() { "no column" } else { &has };
            Wrong::new(columns[0], format!("is missing{others}; the record has {has}"))
        })
    }

    /// The first of several columns that is there, which must be a text.
    pub(crate) fn text(&self, columns: &[&'static str]) -> Result<&'a str, Wrong> {
        let (column, value) = self.first(columns)?;
        value.as_str().ok_or_else(|| Wrong::new(column, format!("must be a text, got {}", kind(value))))
    }

    /// A text that may be missing.
    pub(crate) fn text_or_empty(&self, column: &str) -> Result<&'a str, Wrong> {
        match self.get(column) {
            None => Ok(""),
            Some(value) => {
                value.as_str().ok_or_else(|| Wrong::new(column, format!("must be a text, got {}", kind(value))))
            }
        }
    }

    /// A column that is a list or an object, or JSON text of one.
    pub(crate) fn nested(&self, column: &'static str) -> Result<Value, Wrong> {
        let (_, value) = self.first(&[column])?;
        match value {
            Value::String(text) => espalier_json::value(text.as_bytes())
                .map_err(|error| Wrong::new(column, format!("must be JSON of a list or an object: {error}"))),
            other => Ok(other.clone()),
        }
    }

    /// `reward_spec`, or `reward_model` where the set names it after another framework.
    pub(crate) fn reward(&self) -> Result<Option<&'a Map<String, Value>>, Wrong> {
        for column in ["reward_spec", "reward_model"] {
            if let Some(value) = self.get(column) {
                return match value {
                    Value::Object(reward) => Ok(Some(reward)),
                    other => Err(Wrong::new(column, format!("must be an object, got {}", kind(other)))),
                };
            }
        }
        Ok(None)
    }

    /// Messages under `prompt`, if the record has some.
    pub(crate) fn messages(&self) -> Option<&'a Value> {
        self.get("prompt").filter(|prompt| prompt.is_array())
    }
}

/// The text of the last user message.
pub(crate) fn asked(messages: &Value) -> &str {
    let of = |message: &Value| message.get("role").and_then(Value::as_str) == Some("user");
    let messages = messages.as_array().map(Vec::as_slice).unwrap_or_default();
    let last = messages.iter().rev().find(|message| of(message));
    last.and_then(|message| message.get("content")).and_then(Value::as_str).unwrap_or_default()
}
