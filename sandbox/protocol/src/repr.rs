//! Values as Python prints them.

use std::fmt::Write as _;

use crate::Value;

impl Value {
    /// `repr(value)` as Python prints it. NaN and the infinities print as `nan` and `inf`, which are no literals.
    pub fn repr(&self) -> String {
        let mut out = String::new();
        write_repr(self, &mut out);
        out
    }

    /// `str(value)` as Python prints it: a string is itself.
    pub fn display(&self) -> String {
        match self {
            Self::Str(text) => text.clone(),
            other => other.repr(),
        }
    }
}

fn write_items(items: &[Value], out: &mut String) {
    for (index, item) in items.iter().enumerate() {
        if index > 0 {
            out.push_str(", ");
        }
        write_repr(item, out);
    }
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
        Value::Float(number) => out.push_str(&float_repr(*number)),
        Value::Str(text) => write_text(text, out),
        Value::Bytes(bytes) => write_bytes(bytes, out),
        Value::List(items) => {
            out.push('[');
            write_items(items, out);
            out.push(']');
        }
        Value::Tuple(items) => {
            out.push('(');
            write_items(items, out);
            out.push_str(if items.len() == 1 { ",)" } else { ")" });
        }
        Value::Dict(entries) => {
            out.push('{');
            for (index, (key, item)) in entries.iter().enumerate() {
                if index > 0 {
                    out.push_str(", ");
                }
                write_repr(key, out);
                out.push_str(": ");
                write_repr(item, out);
            }
            out.push('}');
        }
        Value::Set(items) if items.is_empty() => out.push_str("set()"),
        Value::Set(items) => {
            out.push('{');
            write_items(items, out);
            out.push('}');
        }
        Value::Opaque { repr, .. } => out.push_str(repr),
    }
}

/// `repr` of a float: the shortest digits that read back, in scientific form from 1e16 and below 1e-4.
fn float_repr(number: f64) -> String {
    if number.is_nan() {
        return "nan".to_owned();
    }
    if number.is_infinite() {
        return if number > 0.0 { "inf".to_owned() } else { "-inf".to_owned() };
    }
    let scientific = format!("{number:e}");
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if number != 0.0 && !(-4..16).contains(&exponent) {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{mantissa}e{sign}{:02}", exponent.abs());
    }
    let plain = format!("{number}");
    if plain.contains('.') { plain } else { plain + ".0" }
}

/// Whether `repr` writes `char` as it is. Python asks Unicode's tables; here everything but controls, separators,
/// surrogates, private use and unassigned specials counts as printable.
fn is_printable(char: char) -> bool {
    !char.is_control()
        && (char == ' ' || !char.is_whitespace())
        && !matches!(char,
            '\u{ad}' | '\u{600}'..='\u{605}' | '\u{61c}' | '\u{6dd}' | '\u{70f}' | '\u{180e}' | '\u{200b}'..='\u{200f}'
            | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff0}'..='\u{fffb}'
            | '\u{e000}'..='\u{f8ff}' | '\u{fffe}' | '\u{ffff}' | '\u{e0000}'..='\u{10ffff}')
}

fn write_text(text: &str, out: &mut String) {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(quote);
    for char in text.chars() {
        match char {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            _ if char == quote => {
                out.push('\\');
                out.push(char);
            }
            _ if is_printable(char) => out.push(char),
            _ => {
                let code = u32::from(char);
                let _ = match code {
                    0..0x100 => write!(out, "\\x{code:02x}"),
                    0x100..0x1_0000 => write!(out, "\\u{code:04x}"),
                    _ => write!(out, "\\U{code:08x}"),
                };
            }
        }
    }
    out.push(quote);
}

fn write_bytes(bytes: &[u8], out: &mut String) {
    let quote = if bytes.contains(&b'\'') && !bytes.contains(&b'"') { b'"' } else { b'\'' };
    out.push('b');
    out.push(char::from(quote));
    for byte in bytes {
        match byte {
            b'\\' => out.push_str("\\\\"),
            b'\n' => out.push_str("\\n"),
            b'\r' => out.push_str("\\r"),
            b'\t' => out.push_str("\\t"),
            byte if *byte == quote => {
                out.push('\\');
                out.push(char::from(*byte));
            }
            b' '..=b'~' => out.push(char::from(*byte)),
            _ => {
                let _ = write!(out, "\\x{byte:02x}");
            }
        }
    }
    out.push(char::from(quote));
}
