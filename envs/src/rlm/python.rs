//! Values as Python writes them: `str(x)`, `repr(x)` and `json.dumps(x)`.
//!
//! Depth is bounded by the codec that brought the value here; nothing recurses further than the value is deep.

use std::fmt::Write as _;

use espalier_sandbox::Value;

/// `str(value)`
pub fn str_of(value: &Value) -> String {
    match value {
        Value::Str(text) => text.clone(),
        other => repr(other),
    }
}

/// `len(str(value))`, without a copy of texts.
pub fn str_length(value: &Value) -> usize {
    match value {
        Value::Str(text) => text.chars().count(),
        other => repr(other).chars().count(),
    }
}

/// `repr(value)`
pub fn repr(value: &Value) -> String {
    let mut out = String::new();
    write_repr(value, &mut out);
    out
}

fn write_repr(value: &Value, out: &mut String) {
    match value {
        Value::None => out.push_str("None"),
        Value::Bool(true) => out.push_str("True"),
        Value::Bool(false) => out.push_str("False"),
        Value::Int(number) => {
            let _ = write!(out, "{number}");
        }
        Value::BigInt(digits) => out.push_str(digits),
        Value::Float(number) => out.push_str(&float(*number)),
        Value::Str(text) => write_quoted(text, out),
        Value::Bytes(bytes) => {
            out.push_str("b'");
            for byte in bytes {
                match byte {
                    b'\\' | b'\'' => {
                        out.push('\\');
                        out.push(char::from(*byte));
                    }
                    b'\n' => out.push_str("\\n"),
                    b'\r' => out.push_str("\\r"),
                    b'\t' => out.push_str("\\t"),
                    0x20..=0x7e => out.push(char::from(*byte)),
                    _ => {
                        let _ = write!(out, "\\x{byte:02x}");
                    }
                }
            }
            out.push('\'');
        }
        Value::List(items) => write_items("[", items, "]", out),
        Value::Tuple(items) => write_items("(", items, if items.len() == 1 { ",)" } else { ")" }, out),
        Value::Set(items) if items.is_empty() => out.push_str("set()"),
        Value::Set(items) => write_items("{", items, "}", out),
        Value::Dict(entries) => {
            out.push('{');
            for (index, (key, value)) in entries.iter().enumerate() {
                if index > 0 {
                    out.push_str(", ");
                }
                write_repr(key, out);
                out.push_str(": ");
                write_repr(value, out);
            }
            out.push('}');
        }
        Value::Opaque { repr, .. } => out.push_str(repr),
    }
}

fn write_items(open: &str, items: &[Value], close: &str, out: &mut String) {
    out.push_str(open);
    for (index, item) in items.iter().enumerate() {
        if index > 0 {
            out.push_str(", ");
        }
        write_repr(item, out);
    }
    out.push_str(close);
}

fn write_quoted(text: &str, out: &mut String) {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(quote);
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c == quote => {
                out.push('\\');
                out.push(c);
            }
            c if c.is_control() && u32::from(c) < 0x100 => {
                let _ = write!(out, "\\x{:02x}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push(quote);
}

/// `repr` of a float: the shortest digits that read back, in exponent form below 1e-4 and from 1e16 on.
fn float(number: f64) -> String {
    if number.is_nan() {
        return "nan".to_owned();
    }
    if number.is_infinite() {
        return if number > 0.0 { "inf" } else { "-inf" }.to_owned();
    }
    let size = number.abs();
    if size != 0.0 && !(1e-4..1e16).contains(&size) {
        let text = format!("{number:e}");
        let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
        let (sign, digits) = exponent.strip_prefix('-').map_or(('+', exponent), |digits| ('-', digits));
        return format!("{mantissa}e{sign}{digits:0>2}");
    }
    format!("{number:?}")
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
        Value::Int(_) | Value::BigInt(_) | Value::Float(_) => write_repr(value, out),
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
                write_json_text(&str_of(key), out);
                out.push_str(": ");
                write_json(value, out);
            }
            out.push('}');
        }
        other => write_json_text(&repr(other), out),
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
    fn values_are_written_as_python_writes_them() {
        for (value, expected) in [
            (Value::Float(1.0), "1.0"),
            (Value::Float(-0.0), "-0.0"),
            (Value::Float(0.1), "0.1"),
            (Value::Float(1e16), "1e+16"),
            (Value::Float(1.5e-5), "1.5e-05"),
            (Value::Float(123456789012345.6), "123456789012345.6"),
            (Value::from("it's"), "\"it's\""),
            (Value::from("a\"'b\n\u{1}"), "'a\"\\'b\\n\\x01'"),
            (Value::Tuple(vec![Value::Int(1)]), "(1,)"),
            (Value::Tuple(vec![]), "()"),
            (Value::Set(vec![]), "set()"),
            (Value::Bytes(b"a'\xff".to_vec()), "b'a\\'\\xff'"),
            (
                Value::Dict(vec![(Value::from("k"), Value::List(vec![Value::None, Value::Bool(true)]))]),
                "{'k': [None, True]}",
            ),
        ] {
            assert_eq!(repr(&value), expected);
        }
    }

    #[test]
    fn json_is_written_as_json_dumps_writes_it() {
        let value = Value::Dict(vec![
            (Value::from("\u{e9}\u{1f600}"), Value::Tuple(vec![Value::Float(f64::NAN), Value::None])),
            (Value::Int(1), Value::from("a\"b")),
        ]);
        assert_eq!(json(&value), r#"{"\u00e9\ud83d\ude00": [NaN, null], "1": "a\"b"}"#);
    }
}
