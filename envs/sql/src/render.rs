//! A result as a bounded text: a header, one line per row, and what was left out.
//!
//! ```text
//! name | total
//! --- | ---
//! Ann | 3
//! (1 row)
//! ```

use std::fmt::Write;

use crate::value::{LeftOut, Table, Value};

/// How much is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shown {
    /// Rows.
    pub rows: usize,
    /// Characters of all rows together.
    pub chars: usize,
    /// Characters of one value.
    pub value: usize,
}

impl Default for Shown {
    fn default() -> Self {
        Self { rows: 50, chars: 4000, value: 200 }
    }
}

/// Renders a result. The text has at most `chars` characters, and what says how much was left out.
pub fn table(table: &Table, shown: Shown) -> String {
    if table.columns.is_empty() {
        return "(no result)".to_owned();
    }
    let mut out = String::new();
    let mut left = shown.chars;
    let header: Vec<String> = table.columns.iter().map(|name| cut(name, shown.value)).collect();
    let header = cut(&header.join(" | "), left);
    left = left.saturating_sub(header.chars().count());
    out.push_str(&header);
    out.push('\n');
    out.push_str(&vec!["---"; table.columns.len().min(100)].join(" | "));
    out.push('\n');
    let mut lines = 0;
    for row in table.rows.iter().take(shown.rows) {
        let values: Vec<String> = row.iter().map(|value| one(value, shown.value)).collect();
        let line = values.join(" | ");
        let length = line.chars().count() + 1;
        if length > left {
            // One row that is too long is shown in part, rather than nothing.
            if lines > 0 {
                break;
            }
            out.push_str(&cut(&line, left));
        } else {
            out.push_str(&line);
        }
        left = left.saturating_sub(length);
        out.push('\n');
        lines += 1;
    }
    let hidden = (table.rows.len() - lines) as u64;
    let (prefix, total) = match table.left_out {
        LeftOut::None => ("", hidden),
        LeftOut::Exactly(more) => ("", hidden + more),
        LeftOut::AtLeast(more) => ("at least ", hidden + more),
    };
    // Writing to a String cannot fail.
    let _ = if total == 0 {
        write!(out, "({lines} row{})", if lines == 1 { "" } else { "s" })
    } else {
        write!(out, "({prefix}{total} more row{} left out)", if total == 1 { "" } else { "s" })
    };
    out
}

fn one(value: &Value, most: usize) -> String {
    match value {
        Value::Null => "NULL".to_owned(),
        Value::Integer(integer) => integer.to_string(),
        Value::Real(real) => format!("{real:?}"),
        Value::Text(text) => {
            let mut escaped = String::new();
            for character in text.chars().take(most + 1) {
                match character {
                    '\n' => escaped.push_str("\\n"),
                    '\r' => escaped.push_str("\\r"),
                    '\t' => escaped.push_str("\\t"),
                    other => escaped.push(other),
                }
            }
            cut(&escaped, most)
        }
        Value::Blob(bytes) => {
            let mut hex = "x'".to_owned();
            for byte in bytes.iter().take(16) {
                let _ = write!(hex, "{byte:02x}");
            }
            if bytes.len() > 16 {
                let _ = write!(hex, "…' ({} bytes)", bytes.len());
            } else {
                hex.push('\'');
            }
            hex
        }
    }
}

fn cut(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text.to_owned(),
    }
}
