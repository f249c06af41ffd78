//! Python values as JSON and back.
//!
//! JSON has no tuples, sets, bytes or non-text keys. Those become the nearest JSON: arrays for tuples and sets, an
//! object `{"bytes": base64}` for bytes, the key's `repr`-like text for keys, text for what JSON numbers cannot hold.

use base64::Engine as _;
use espalier_sandbox::Value;
use serde_json::{Map, Number, Value as Json};

/// The nearest JSON.
pub(super) fn to_json(value: &Value) -> Json {
    match value {
        Value::None => Json::Null,
        Value::Bool(truth) => Json::Bool(*truth),
        Value::Int(number) => Json::Number((*number).into()),
        Value::BigInt(digits) => Json::String(digits.clone()),
        Value::Float(number) => {
            Number::from_f64(*number).map_or_else(|| Json::String(number.to_string()), Json::Number)
        }
        Value::Str(text) => Json::String(text.clone()),
        Value::Bytes(bytes) => {
            let text = base64::engine::general_purpose::STANDARD.encode(bytes);
            Json::Object(Map::from_iter([("bytes".to_owned(), Json::String(text))]))
        }
        Value::List(items) | Value::Tuple(items) | Value::Set(items) => {
            Json::Array(items.iter().map(to_json).collect())
        }
        Value::Dict(entries) => {
            Json::Object(entries.iter().map(|(key, value)| (key_text(key), to_json(value))).collect())
        }
        Value::Opaque { repr, .. } => Json::String(repr.clone()),
    }
}

fn key_text(key: &Value) -> String {
    match key {
        Value::Str(text) => text.clone(),
        other => to_json(other).to_string(),
    }
}

/// The Python value that `json.loads` would make.
pub(super) fn from_json(json: &Json) -> Value {
    match json {
        Json::Null => Value::None,
        Json::Bool(truth) => Value::Bool(*truth),
        Json::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(number), _) => Value::Int(number),
            (None, Some(number)) => Value::BigInt(number.to_string()),
            (None, None) => Value::Float(number.as_f64().unwrap_or(f64::NAN)),
        },
        Json::String(text) => Value::Str(text.clone()),
        Json::Array(items) => Value::List(items.iter().map(from_json).collect()),
        Json::Object(entries) => {
            Value::Dict(entries.iter().map(|(key, value)| (Value::Str(key.clone()), from_json(value))).collect())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_json_holds_comes_back_as_it_was() {
        let json = serde_json::json!({"a": [1, -2, 2.5, true, null], "b": {"c": "text"}});
        assert_eq!(to_json(&from_json(&json)), json);
    }

    #[test]
    fn what_json_lacks_becomes_the_nearest_thing() {
        let value = Value::Dict(vec![(Value::Int(1), Value::Tuple(vec![Value::Float(f64::INFINITY)]))]);
        assert_eq!(to_json(&value), serde_json::json!({"1": ["inf"]}));
    }
}
