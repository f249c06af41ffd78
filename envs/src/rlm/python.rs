//! Values as Python writes and reads them as JSON; `str(x)` and `repr(x)` are [`Value::display`] and [`Value::repr`].
//!
//! Depth is bounded by the codec that brought the value here; nothing recurses further than the value is deep.

use std::fmt::Write as _;

use espalier_sandbox::Value;

/// `len(str(value))`, without a copy of texts.
pub fn str_length(value: &Value) -> usize {
    match value {
        Value::Str(text) => text.chars().count(),
        other => other.repr().chars().count(),
    }
}

/// `json.dumps(value)`; what JSON has no form for is written as its `str` in quotes.
pub fn json(value: &Value) -> String {
    let mut out = String::new();
    write_json(value, &mut out);
    out
}

fn write_json(value: &Value, out: &mut String) {
    match value {
        Value::None => out.push_str("null"),
        Value::Bool(truth) => out.push_str(if *truth { "true" } else { "false" }),
        Value::Float(number) if number.is_nan() => out.push_str("NaN"),
        Value::Float(number) if number.is_infinite() => {
            out.push_str(if *number > 0.0 { "Infinity" } else { "-Infinity" });
        }
        Value::Int(_) | Value::BigInt(_) | Value::Float(_) => out.push_str(&value.repr()),
        Value::Str(text) => write_json_text(text, out),
        Value::List(items) | Value::Tuple(items) => {
            out.push('[');
            for (index, item) in items.iter().enumerate() {
                if index > 0 {
                    out.push_str(", ");
                }
                write_json(item, out);
            }
            out.push(']');
        }
        Value::Dict(entries) => {
            out.push('{');
            for (index, (key, value)) in entries.iter().enumerate() {
                if index > 0 {
                    out.push_str(", ");
                }
                write_json_text(&key.display(), out);
                out.push_str(": ");
                write_json(value, out);
            }
            out.push('}');
        }
        other => write_json_text(&other.repr(), out),
    }
}

/// Everything beyond ASCII is escaped, as `json.dumps` does unless told otherwise.
fn write_json_text(text: &str, out: &mut String) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            ' '..='~' => out.push(c),
            c => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    let _ = write!(out, "\\u{unit:04x}");
                }
            }
        }
    }
    out.push('"');
}

/// A JSON value as Python's `json.loads` gives it.
pub fn from_json(value: serde_json::Value) -> Value {
    match value {
        serde_json::Value::Null => Value::None,
        serde_json::Value::Bool(truth) => Value::Bool(truth),
        serde_json::Value::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(number), _) => Value::Int(number),
            (None, Some(number)) => Value::BigInt(number.to_string()),
            (None, None) => Value::Float(number.as_f64().unwrap_or(f64::NAN)),
        },
        serde_json::Value::String(text) => Value::Str(text),
        serde_json::Value::Array(items) => Value::List(items.into_iter().map(from_json).collect()),
        serde_json::Value::Object(entries) => {
            Value::Dict(entries.into_iter().map(|(key, value)| (Value::Str(key), from_json(value))).collect())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_is_written_as_json_dumps_writes_it() {
        let value = Value::Dict(vec![
            (Value::from("\u{e9}\u{1f600}"), Value::Tuple(vec![Value::Float(f64::NAN), Value::None])),
            (Value::Int(1), Value::from("a\"b")),
        ]);
        assert_eq!(json(&value), r#"{"\u00e9\ud83d\ude00": [NaN, null], "1": "a\"b"}"#);
    }
}
