//! The form of a verdict: a JSON object of numbers within bounds and texts, read without any leniency.

use std::fmt::Write as _;
use std::sync::Arc;

use espalier_inference::JsonSchema;
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::{Map, Value, json};

use crate::thinking;

/// Longest text of a verdict, characters.
pub const LONGEST_TEXT: usize = 8000;

/// Longest answer of a judge that is read, bytes.
const LONGEST_ANSWER: usize = 256 << 10;

/// What a field holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldKind {
    /// A whole number within bounds, both included.
    Integer {
        /// The least.
        least: i64,
        /// The most.
        most: i64,
    },
    /// A text of at most [`LONGEST_TEXT`] characters.
    Text,
}

/// One field of a verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// Its name.
    pub name: &'static str,
    /// What it holds.
    pub kind: FieldKind,
    /// What it says, for the judge.
    pub doc: &'static str,
}

/// The form of a verdict. Every field must be there, and nothing else may.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Form {
    /// What a verdict is called.
    pub name: &'static str,
    /// Its fields, in the order in which the judge writes them: reasons before scores.
    pub fields: &'static [Field],
}

impl Form {
    /// The form as a JSON schema.
    pub fn schema(&self) -> Arc<JsonSchema> {
        let mut properties = Map::new();
        for field in self.fields {
            let schema = match field.kind {
                FieldKind::Integer { least, most } => {
                    json!({"type": "integer", "minimum": least, "maximum": most, "description": field.doc})
                }
                FieldKind::Text => json!({"type": "string", "description": field.doc}),
            };
            properties.insert(field.name.to_owned(), schema);
        }
        let required: Vec<&str> = self.fields.iter().map(|field| field.name).collect();
        let schema = json!({
            "type": "object",
            "properties": properties,
            "required": required,
            "additionalProperties": false,
        });
        Arc::new(JsonSchema { name: self.name.to_owned(), schema })
    }

    /// The form in words, for the prompt.
    pub fn words(&self) -> String {
        let mut text = String::from("Answer with one JSON object and nothing before or after it. Its fields:\n");
        for field in self.fields {
            let kind = match field.kind {
                FieldKind::Integer { least, most } => format!("a whole number from {least} to {most}"),
                FieldKind::Text => "a text".to_owned(),
            };
            let _ = writeln!(text, "- \"{}\": {kind}; {}", field.name, field.doc);
        }
        text.push_str("No other field, and none left out.");
        text
    }

    /// Reads a judge's answer; the error is what to tell the judge.
    pub fn read(&self, answer: &str) -> Result<Verdict, String> {
        let text = bare(answer)?;
        let Entries(entries) = serde_json::from_str(text).map_err(|error| {
            if error.is_data() {
                format!("one JSON object was expected: {error}")
            } else {
                format!("it is not valid JSON: {error}")
            }
        })?;
        let mut found = Map::new();
        for (name, value) in entries {
            let Some(field) = self.fields.iter().find(|field| field.name == name) else {
                let names: Vec<String> = self.fields.iter().map(|field| format!("`{}`", field.name)).collect();
                return Err(format!("`{name}` is no field of it; its fields are {}", names.join(", ")));
            };
            check(field, &value)?;
            if found.insert(name, value).is_some() {
                return Err(format!("`{}` is there twice", field.name));
            }
        }
        match self.fields.iter().find(|field| !found.contains_key(field.name)) {
            Some(missing) => Err(format!("`{}` is missing", missing.name)),
            None => Ok(Verdict(found)),
        }
    }
}

fn check(field: &Field, value: &Value) -> Result<(), String> {
    match field.kind {
        FieldKind::Integer { least, most } => match value.as_i64() {
            Some(number) if (least..=most).contains(&number) => Ok(()),
            _ => Err(format!("`{}` must be a whole number from {least} to {most}, got `{value}`", field.name)),
        },
        FieldKind::Text => match value.as_str() {
            Some(text) if text.chars().count() <= LONGEST_TEXT => Ok(()),
            Some(text) => {
                let count = text.chars().count();
                Err(format!("`{}` must be a text of at most {LONGEST_TEXT} characters, got {count}", field.name))
            }
            None => Err(format!("`{}` must be a text, got `{value}`", field.name)),
        },
    }
}

/// The answer without what models put around it: thinking before it, one fence around all of it.
fn bare(answer: &str) -> Result<&str, String> {
    if answer.len() > LONGEST_ANSWER {
        return Err(format!("it is {} bytes long; at most {LONGEST_ANSWER} are read", answer.len()));
    }
    // What begins as a verdict was not thought, whatever its texts quote.
    let begins = answer.trim_start().starts_with(['{', '`']);
    let text = if begins { answer } else { thinking::spoken(answer) }.trim();
    if text.is_empty() {
        return Err("it is empty".to_owned());
    }
    let Some(rest) = text.strip_prefix("```") else { return Ok(text) };
    let fenced = rest.strip_suffix("```").and_then(|rest| rest.split_once('\n'));
    match fenced {
        Some((word, inner)) if matches!(word.trim(), "" | "json") => Ok(inner.trim()),
        _ => Err("one JSON object was expected, without anything around it".to_owned()),
    }
}

/// A verdict that has its form.
#[derive(Clone, Debug, PartialEq)]
pub struct Verdict(Map<String, Value>);

impl Verdict {
    /// A number of the form.
    pub fn integer(&self, name: &str) -> Option<i64> {
        self.0.get(name)?.as_i64()
    }

    /// A text of the form.
    pub fn text(&self, name: &str) -> Option<&str> {
        self.0.get(name)?.as_str()
    }
}

/// The entries of an object as they stand there, names that come twice included.
struct Entries(Vec<(String, Value)>);

impl<'de> Deserialize<'de> for Entries {
    fn deserialize<D: Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
        struct Read;
        impl<'de> Visitor<'de> for Read {
            type Value = Entries;

            fn expecting(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                out.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Entries, A::Error> {
                let mut entries = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    entries.push(entry);
                }
                Ok(Entries(entries))
            }
        }
        input.deserialize_map(Read)
    }
}
