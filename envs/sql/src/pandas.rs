//! A result as pandas 3 prints it: `DataFrame(rows).to_string(index=False)` with columns `0..n`.
//!
//! | values of a column | pandas' type | printed |
//! |---|---|---|
//! | integers | int64 | as they are |
//! | numbers, or integers and NULL | float64 | 6 decimals, trailing zeros cut for all alike; scientific where one is tiny or long |
//! | texts and NULL, at least one text | str | NULL as `NaN` |
//! | anything else | object | NULL as `None`, reals with 6 decimals and a leading space |
//!
//! Checked against pandas' own output in `tests/pandas.rs`.

use std::fmt::Write;

use crate::value::{Row, Value};

/// Decimals of a real number.
const DIGITS: usize = 6;

/// What skyrl-gym puts before a result that it cut.
pub const TRUNCATED: &str = "Truncated to 50 lines since returned response too long: ";

/// Characters from which skyrl-gym cuts a result, and the rows that it leaves.
const LONG: usize = 9000;
const HEAD: usize = 50;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Dtype {
    Int,
    Float,
    Str,
    Object,
}

fn dtype(rows: &[&Row], column: usize) -> Dtype {
    let (mut int, mut real, mut null, mut text, mut blob) = (false, false, false, false, false);
    for row in rows {
        match row[column] {
            Value::Null => null = true,
            Value::Integer(_) => int = true,
            Value::Real(_) => real = true,
            Value::Text(_) => text = true,
            Value::Blob(_) => blob = true,
        }
    }
    match (int || real, text, blob) {
        (true, false, false) if int && !real && !null => Dtype::Int,
        (true, false, false) => Dtype::Float,
        (false, true, false) => Dtype::Str,
        _ => Dtype::Object,
    }
}

/// The rows as skyrl-gym's tool shows them: cut to 50 where they have more than 9,000 characters.
pub fn observation(rows: &[&Row]) -> String {
    // No column is narrower than a character, and each has a space or a newline after it: a long result is not even
    // rendered.
    let least = rows.len() * rows.first().map_or(0, |row| 2 * row.len());
    if least <= LONG {
        let whole = to_string(rows, usize::MAX);
        if whole.chars().count() <= LONG {
            return whole;
        }
    }
    format!("{TRUNCATED}{}", to_string(rows, HEAD))
}

/// `DataFrame(rows).head(head).to_string(index=False)`; the types of the columns are those of all rows.
pub fn to_string(rows: &[&Row], head: usize) -> String {
    let width = rows.first().map_or(0, |row| row.len());
    let shown = &rows[..rows.len().min(head)];
    if width == 0 || shown.is_empty() {
        return "Empty DataFrame\nColumns: []\nIndex: []".to_owned();
    }
    let columns: Vec<(Vec<String>, usize)> = (0..width)
        .map(|column| {
            let dtype = dtype(rows, column);
            // The name of a column of numbers has room for a sign.
            let sign = if matches!(dtype, Dtype::Int | Dtype::Float) { " " } else { "" };
            let mut cells = vec![format!("{sign}{column}")];
            let values = shown.iter().map(|row| &row[column]);
            match dtype {
                Dtype::Int | Dtype::Str => cells.extend(values.map(plain)),
                Dtype::Float => cells.extend(floats(&values.map(float).collect::<Vec<_>>())),
                Dtype::Object => cells.extend(values.map(object)),
            }
            let widest = cells.iter().map(|cell| cell.chars().count()).max().unwrap_or(0);
            (cells, widest)
        })
        .collect();
    let mut out = String::new();
    for line in 0..=shown.len() {
        if line > 0 {
            out.push('\n');
        }
        for (index, (cells, widest)) in columns.iter().enumerate() {
            if index > 0 {
                out.push(' ');
            }
            let cell = &cells[line];
            out.extend(std::iter::repeat_n(' ', widest - cell.chars().count()));
            out.push_str(cell);
        }
    }
    out
}

fn float(value: &Value) -> Option<f64> {
    match value {
        Value::Integer(integer) => Some(*integer as f64),
        Value::Real(real) => Some(*real),
        _ => None,
    }
}

/// A value of an int64 or a str column.
fn plain(value: &Value) -> String {
    match value {
        Value::Integer(integer) => integer.to_string(),
        Value::Text(text) => escaped(text),
        _ => "NaN".to_owned(),
    }
}

/// A value of an object column.
fn object(value: &Value) -> String {
    match value {
        Value::Null => "None".to_owned(),
        Value::Integer(integer) => integer.to_string(),
        Value::Real(real) => {
            let sign = if real.is_sign_negative() { "" } else { " " };
            let text = format!("{sign}{}", fixed(*real));
            let trimmed = text.trim_end_matches('0');
            if trimmed.ends_with('.') { format!("{trimmed}0") } else { trimmed.to_owned() }
        }
        Value::Text(text) => escaped(text),
        Value::Blob(bytes) => repr(bytes),
    }
}

fn escaped(text: &str) -> String {
    if text.contains(['\t', '\r', '\n']) {
        text.replace('\t', "\\t").replace('\r', "\\r").replace('\n', "\\n")
    } else {
        text.to_owned()
    }
}

fn fixed(real: f64) -> String {
    if real.is_infinite() { if real > 0.0 { "inf" } else { "-inf" }.to_owned() } else { format!("{real:.DIGITS$}") }
}

/// `{:.6e}` as Python writes it: at least two digits of exponent, always signed.
fn scientific(real: f64) -> String {
    if real.is_infinite() {
        return fixed(real);
    }
    let text = format!("{real:.DIGITS$e}");
    match text.split_once('e') {
        Some((mantissa, exponent)) => {
            let (sign, digits) = match exponent.strip_prefix('-') {
                Some(digits) => ('-', digits),
                None => ('+', exponent),
            };
            format!("{mantissa}e{sign}{digits:0>2}")
        }
        None => text,
    }
}

/// The values of a float64 column.
fn floats(values: &[Option<f64>]) -> Vec<String> {
    let write = |how: fn(f64) -> String| -> Vec<String> {
        values.iter().map(|value| value.map_or_else(|| "NaN".to_owned(), how)).collect()
    };
    let mut cells = write(fixed);
    // Zeros are cut from all numbers with decimals alike, until one of them ends otherwise.
    let decimals = |cell: &String| cell.contains('.');
    while cells.iter().any(decimals) && cells.iter().filter(|cell| decimals(cell)).all(|cell| cell.ends_with('0')) {
        for cell in cells.iter_mut().filter(|cell| decimals(cell)) {
            cell.pop();
        }
    }
    for cell in cells.iter_mut().filter(|cell| cell.ends_with('.')) {
        cell.push('0');
    }
    let longest = cells.iter().map(|cell| cell.chars().count()).max().unwrap_or(0);
    let sizes = || values.iter().flatten().map(|value| value.abs());
    let large = sizes().any(|size| size > 1e6);
    let small = sizes().any(|size| size > 0.0 && size < 1e-6);
    if small || (longest > DIGITS + 6 && large) { write(scientific) } else { cells }
}

/// `repr(bytes)`
fn repr(bytes: &[u8]) -> String {
    let quote = if bytes.contains(&b'\'') && !bytes.contains(&b'"') { '"' } else { '\'' };
    let mut out = format!("b{quote}");
    for &byte in bytes {
        match byte {
            b'\t' => out.push_str("\\t"),
            b'\n' => out.push_str("\\n"),
            b'\r' => out.push_str("\\r"),
            b'\\' => out.push_str("\\\\"),
            b' '..=b'~' => {
                if char::from(byte) == quote {
                    out.push('\\');
                }
                out.push(char::from(byte));
            }
            // Writing to a String cannot fail.
            _ => drop(write!(out, "\\x{byte:02x}")),
        }
    }
    out.push(quote);
    out
}
