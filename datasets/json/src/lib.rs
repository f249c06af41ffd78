//! JSON as data sets hold it, read strictly: an object in which a key stands twice is refused.
//!
//! RFC 8259 (section 4) leaves open what such an object means, and readers differ: most keep the last value, some the
//! first. In a row of data it is a mistake that would otherwise change a question or its truth in silence.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::{Error, Map, Number, Value};

/// Reads one value. No object in it, at any depth, may hold a key twice.
pub fn value(text: &[u8]) -> Result<Value, Error> {
    whole(text, Strict { object: false })
}

/// Reads one object in the same way.
pub fn object(text: &[u8]) -> Result<Map<String, Value>, Error> {
    match whole(text, Strict { object: true })? {
        Value::Object(entries) => Ok(entries),
        // The seed takes nothing but a map.
        _ => Err(Error::custom("expected a map")),
    }
}

/// Reads one line of a file, which must be one object; otherwise what is there instead, for a message that begins with
/// `got:` and names the line itself.
pub fn line(text: &[u8]) -> Result<Map<String, Value>, String> {
    // Without its end the line is one, and columns are counted in it.
    let other = match value(text.trim_ascii_end()) {
        Ok(Value::Object(entries)) => return Ok(entries),
        Ok(Value::Array(_)) => "a list",
        Ok(Value::String(_)) => "a text",
        Ok(Value::Number(_)) => "a number",
        Ok(Value::Bool(_)) => "true or false",
        Ok(Value::Null) => "null",
        Err(error) => {
            let text = error.to_string();
            let message = text.rsplit_once(" at line ").map_or(text.as_str(), |(message, _)| message);
            // A line that ends within an object is often the first of many.
            let hint = if error.is_eof() { "; an object must end on the line on which it begins" } else { "" };
            return Err(format!("{message} (character {}){hint}", error.column()));
        }
    };
    Err(other.to_owned())
}

/// A value, and nothing but white space behind it.
fn whole(text: &[u8], seed: Strict) -> Result<Value, Error> {
    let mut input = serde_json::Deserializer::from_slice(text);
    let value = seed.deserialize(&mut input)?;
    input.end()?;
    Ok(value)
}

/// Builds values; refuses what stands twice.
#[derive(Clone, Copy)]
struct Strict {
    /// Nothing but an object will do.
    object: bool,
}

const INNER: Strict = Strict { object: false };

impl<'de> DeserializeSeed<'de> for Strict {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, input: D) -> Result<Value, D::Error> {
        if self.object { input.deserialize_map(Entries) } else { input.deserialize_any(Any) }
    }
}

/// Takes an object.
struct Entries;

impl<'de> Visitor<'de> for Entries {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a map")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut entries = Map::new();
        while let Some(key) = map.next_key::<String>()? {
            if entries.contains_key(&key) {
                return Err(A::Error::custom(format!("the key `{key}` stands there twice")));
            }
            let value = map.next_value_seed(INNER)?;
            entries.insert(key, value);
        }
        Ok(Value::Object(entries))
    }
}

/// Takes any value.
struct Any;

impl<'de> Visitor<'de> for Any {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any valid JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, truth: bool) -> Result<Value, E> {
        Ok(Value::Bool(truth))
    }

    fn visit_i64<E>(self, number: i64) -> Result<Value, E> {
        Ok(Value::Number(number.into()))
    }

    fn visit_u64<E>(self, number: u64) -> Result<Value, E> {
        Ok(Value::Number(number.into()))
    }

    fn visit_f64<E>(self, number: f64) -> Result<Value, E> {
        Ok(Number::from_f64(number).map_or(Value::Null, Value::Number))
    }

    fn visit_str<E>(self, text: &str) -> Result<Value, E> {
        Ok(Value::String(text.to_owned()))
    }

    fn visit_string<E>(self, text: String) -> Result<Value, E> {
        Ok(Value::String(text))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut sequence: A) -> Result<Value, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = sequence.next_element_seed(INNER)? {
            items.push(item);
        }
        Ok(Value::Array(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Value, A::Error> {
        Entries.visit_map(map)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stands_once_is_what_serde_json_reads() {
        for text in [
            r#" {"b": [1, -2, 2.5, 1e3, true, null, "\u00e9\n", {}], "a": {"b": {"c": []}}, "": 0} "#,
            "[]",
            "18446744073709551615",
            "-9223372036854775808",
            "123456789012345678901234567890",
            "\"x\"",
        ] {
            let expected: Value = serde_json::from_str(text).unwrap();
            assert_eq!(value(text.as_bytes()).unwrap(), expected, "{text}");
            assert_eq!(value(text.as_bytes()).unwrap().to_string(), expected.to_string(), "the order of keys");
        }
    }

    #[test]
    fn a_key_that_stands_twice_is_refused_at_any_depth() {
        for text in [
            r#"{"a": 1, "a": 1}"#,
            r#"{"x": [{"b": {"a": 1, "c": 2, "a": 3}}]}"#,
            r#"{"a": 1, "\u0061": 2}"#,
            r#"{"a": {}, "a": {}}"#,
        ] {
            let error = object(text.as_bytes()).unwrap_err();
            assert!(error.to_string().starts_with("the key `a` stands there twice at line 1 column "), "{error}");
            assert!(value(text.as_bytes()).is_err());
        }
        assert!(object(br#"{"a": {"a": [{"a": 1}, {"a": 1}]}}"#).is_ok(), "the same key in different objects");
    }

    #[test]
    fn a_line_that_is_no_object_is_told_by_what_it_is() {
        for (text, said) in [
            ("[1]", "a list"),
            ("\"x\"\n", "a text"),
            ("7", "a number"),
            ("true", "true or false"),
            ("null", "null"),
            (
                "{\"a\": 1\n",
                "EOF while parsing an object (character 7); an object must end on the line on which it begins",
            ),
            ("{\"a\": 1, \"a\": 2}", "the key `a` stands there twice (character 12)"),
            ("{} {}", "trailing characters (character 4)"),
        ] {
            assert_eq!(line(text.as_bytes()).unwrap_err(), said, "{text}");
        }
        assert_eq!(line(b"{\"a\": 1}\n").unwrap(), object(b"{\"a\": 1}").unwrap());
    }

    #[test]
    fn errors_are_those_of_serde_json() {
        for text in ["", "{", "[1]", "{\"a\": }", "{} {}", "nul", "{\"a\": 1,}", "\"x\""] {
            let expected = serde_json::from_str::<Map<String, Value>>(text).unwrap_err();
            assert_eq!(object(text.as_bytes()).unwrap_err().to_string(), expected.to_string(), "{text}");
        }
        // Nesting is bounded as it is there.
        let deep = format!("{}{}", "[".repeat(200), "]".repeat(200));
        assert!(value(deep.as_bytes()).unwrap_err().to_string().starts_with("recursion limit exceeded"));
    }
}
