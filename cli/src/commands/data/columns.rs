//! What columns hold: types, how many rows fill them, an example.

use std::collections::BTreeMap;
use std::collections::HashMap;

use espalier_datasets::error::kind;
use serde_json::{Map, Value, json};

/// Columns that are counted; a file of maps with a key of its own in every row has no end of them.
const MOST: usize = 200;
/// Characters of an example.
const EXAMPLE: usize = 60;

/// The columns of a source, in the order in which they come up. Those of objects have dots.
#[derive(Debug, Default)]
pub(super) struct Columns {
    columns: Vec<Column>,
    places: HashMap<String, usize>,
    /// Values of columns beyond [`MOST`].
    pub(super) beyond: u64,
}

/// One column.
#[derive(Debug)]
pub(super) struct Column {
    pub(super) name: String,
    /// Rows that fill it, by the type of the value.
    types: BTreeMap<&'static str, u64>,
    /// The first value.
    pub(super) example: String,
}

impl Columns {
    /// Counts a row's columns.
    pub(super) fn add(&mut self, record: &Map<String, Value>) {
        for (name, value) in record {
            match value {
                Value::Object(entries) if !entries.is_empty() => {
                    for (key, value) in entries {
                        self.value(&format!("{name}.{key}"), value);
                    }
                }
                value => self.value(name, value),
            }
        }
    }

    fn value(&mut self, name: &str, value: &Value) {
        if value.is_null() {
            return;
        }
        let place = match self.places.get(name) {
            Some(place) => *place,
            None if self.columns.len() == MOST => {
                self.beyond += 1;
                return;
            }
            None => {
                self.places.insert(name.to_owned(), self.columns.len());
                let example = example(value);
                self.columns.push(Column { name: name.to_owned(), types: BTreeMap::new(), example });
                self.columns.len() - 1
            }
        };
        *self.columns[place].types.entry(kind(value)).or_default() += 1;
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Column> {
        self.columns.iter()
    }
}

impl Column {
    /// Rows that fill it.
    pub(super) fn filled(&self) -> u64 {
        self.types.values().sum()
    }

    /// Its types: `text`, `list, text`.
    pub(super) fn kinds(&self) -> String {
        let plain = |kind: &&'static str| kind.trim_start_matches("an ").trim_start_matches("a ").to_owned();
        self.types.keys().map(plain).collect::<Vec<_>>().join(", ")
    }

    pub(super) fn to_json(&self) -> Value {
        json!({"name": self.name, "types": self.kinds(), "filled": self.filled(), "example": self.example})
    }
}

/// A value on one short line.
fn example(value: &Value) -> String {
    let text = match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let mut words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    if words.chars().count() > EXAMPLE {
        words = words.chars().take(EXAMPLE - 3).collect();
        words.push_str("...");
    }
    words
}
