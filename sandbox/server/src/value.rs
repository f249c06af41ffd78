//! Python values as JSON and back.
//!
//! JSON has no tuples, sets, bytes or non-text keys. Those become the nearest JSON: arrays for tuples and sets, an
//! object `{"bytes": base64}` for bytes, the key's `repr`-like text for keys, text for what JSON numbers cannot hold.

use std::collections::HashSet;

use base64::Engine as _;
use espalier_sandbox::Value;
use espalier_sandbox_protocol::codec::MAX_DEPTH;
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;
use serde_json::{Map, Number, Value as Json};

/// The nearest JSON.
pub fn to_json(value: &Value) -> Json {
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

/// The Python value that `json.loads` makes of a JSON text: integers keep all their digits. The error says what is wrong
/// with the text.
pub fn parse(json: &RawValue) -> Result<Value, String> {
    read(json.get(), 0)
}

/// An object's entries, in order.
pub(crate) struct Entries<'a>(pub(crate) Vec<(String, &'a RawValue)>);

impl<'de: 'a, 'a> Deserialize<'de> for Entries<'a> {
    fn deserialize<D: Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
        struct Collect;
        impl<'de> Visitor<'de> for Collect {
            type Value = Entries<'de>;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut entries = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    entries.push(entry);
                }
                Ok(Entries(entries))
            }
        }
        input.deserialize_map(Collect)
    }
}

fn read(text: &str, depth: usize) -> Result<Value, String> {
    if depth > MAX_DEPTH {
        return Err(format!("the value is nested deeper than {MAX_DEPTH} levels"));
    }
    let broken = |error: serde_json::Error| format!("expected JSON: {error}");
    Ok(match text.as_bytes().first() {
        Some(b'{') => {
            let Entries(entries) = serde_json::from_str(text).map_err(broken)?;
            let mut keys = HashSet::with_capacity(entries.len());
            if let Some((twice, _)) = entries.iter().find(|(key, _)| !keys.insert(key.as_str())) {
                return Err(format!("the key `{twice}` stands there twice"));
            }
            let entries = entries.into_iter().map(|(key, value)| Ok((Value::Str(key), read(value.get(), depth + 1)?)));
            Value::Dict(entries.collect::<Result<_, String>>()?)
        }
        Some(b'[') => {
            let items: Vec<&RawValue> = serde_json::from_str(text).map_err(broken)?;
            Value::List(items.into_iter().map(|item| read(item.get(), depth + 1)).collect::<Result<_, _>>()?)
        }
        Some(b'"') => Value::Str(serde_json::from_str(text).map_err(broken)?),
        Some(b'n') => Value::None,
        Some(b't') => Value::Bool(true),
        Some(b'f') => Value::Bool(false),
        _ if text.contains(['.', 'e', 'E']) => match text.parse::<f64>() {
            Ok(number) if number.is_finite() => Value::Float(number),
            _ => return Err(format!("`{text}` is beyond what a float holds; send it as a text")),
        },
        _ => text.parse().map_or_else(|_| Value::BigInt(text.to_owned()), Value::Int),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from_text(text: &str) -> Result<Value, String> {
        parse(serde_json::from_str(text).expect("JSON"))
    }

    #[test]
    fn what_json_holds_comes_back_as_it_was() {
        let text = r#"{"a":[1,-2,2.5,true,null],"b":{"c":"text"}}"#;
        assert_eq!(to_json(&from_text(text).unwrap()).to_string(), text);
    }

    #[test]
    fn integers_keep_all_their_digits() {
        let big = "123456789012345678901234567890";
        assert_eq!(from_text(&format!("[{big}, -1, 1e3]")).unwrap().repr(), format!("[{big}, -1, 1000.0]"));
    }

    #[test]
    fn a_number_beyond_floats_is_refused_and_named() {
        for text in ["1e999", "[0, {\"a\": -1.5e400}]"] {
            let error = from_text(text).unwrap_err();
            assert!(error.ends_with("is beyond what a float holds; send it as a text"), "{error}");
        }
        assert!(from_text("1e999").unwrap_err().starts_with("`1e999`"));
        assert_eq!(from_text("1e-999").unwrap(), Value::Float(0.0), "too small is nothing");
    }

    #[test]
    fn a_key_that_stands_twice_is_refused() {
        for text in [r#"{"a": 1, "a": 1}"#, r#"[{"b": {"a": 1, "\u0061": 2}}]"#] {
            assert_eq!(from_text(text).unwrap_err(), "the key `a` stands there twice", "{text}");
        }
        assert!(from_text(r#"{"a": {"a": 1}}"#).is_ok());
    }

    #[test]
    fn nesting_is_bounded() {
        assert!(from_text(&format!("{}1{}", "[".repeat(64), "]".repeat(64))).is_ok());
        let text = format!("{}1{}", "[".repeat(100_000), "]".repeat(100_000));
        assert!(serde_json::from_str(&text).map_or(true, |raw: &RawValue| parse(raw).is_err()));
    }

    #[test]
    fn what_json_lacks_becomes_the_nearest_thing() {
        let value = Value::Dict(vec![(Value::Int(1), Value::Tuple(vec![Value::Float(f64::INFINITY)]))]);
        assert_eq!(to_json(&value), serde_json::json!({"1": ["inf"]}));
    }
}
