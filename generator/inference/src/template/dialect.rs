//! What chat templates' dialect adds to Jinja, as Hugging Face's `transformers` defines it: `raise_exception`,
//! `strftime_now`, `tojson` without HTML escapes, `{% generation %}`, and Python's way to write values and Python's
//! string methods.

use std::fmt::Write as _;

use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Environment, Error, ErrorKind, State, Value};

/// 26 July 2024, noon.
pub(super) const DEFAULT_TIME: i64 = 1_721_995_200;

/// Where a template called `raise_exception`.
#[derive(Debug)]
struct Raised(String);

impl std::fmt::Display for Raised {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Raised {}

pub(super) fn install(environment: &mut Environment<'static>) {
    environment.add_function("raise_exception", |message: String| -> Result<Value, Error> {
        Err(Error::new(ErrorKind::InvalidOperation, message.clone()).with_source(Raised(message)))
    });
    environment.add_filter("tojson", to_json);
    environment.add_filter("string", |value: &Value| -> String { python_str(value) });
    // A Python string, dictionary or list has a length and can be indexed.
    environment.add_test("sequence", |value: &Value| {
        matches!(value.kind(), ValueKind::String | ValueKind::Seq | ValueKind::Map | ValueKind::Bytes)
    });
    environment.set_unknown_method_callback(methods);
    environment.set_formatter(|out, _, value| {
        if let Some(text) = value.as_str() {
            out.write_str(text)?;
        } else {
            out.write_str(&python_str(value))?;
        }
        Ok(())
    });
}

pub(super) fn set_time(environment: &mut Environment<'static>, unix_seconds: i64) {
    environment
        .add_function("strftime_now", move |format: &str| -> Result<String, Error> { strftime(format, unix_seconds) });
}

/// What `raise_exception` was called with, if that is why rendering failed.
pub(super) fn raised(error: &Error) -> Option<String> {
    let mut next: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = next {
        if let Some(raised) = error.downcast_ref::<Raised>() {
            return Some(raised.0.clone());
        }
        next = error.source();
    }
    None
}

fn methods(state: &State, value: &Value, method: &str, args: &[Value]) -> Result<Value, Error> {
    if let ("join", Some(separator), [list]) = (method, value.as_str(), args) {
        let pieces: Vec<String> = list.try_iter()?.map(|piece| python_str(&piece)).collect();
        return Ok(Value::from(pieces.join(separator)));
    }
    minijinja_contrib::pycompat::unknown_method_callback(state, value, method, args)
}

/// `{% generation %}` marks what the model says, for masks; here it is a block like any other. The whitespace control
/// of both tags is kept.
pub(super) fn without_generation_tags(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(at) = rest.find("{%") {
        let (before, tag) = rest.split_at(at);
        out.push_str(before);
        let Some(end) = tag.find("%}") else {
            rest = tag;
            break;
        };
        let inner = &tag[2..end];
        let word = inner.trim_matches(|c: char| c == '-' || c == '+' || c.is_whitespace());
        let new = match word {
            "generation" => Some("if true"),
            "endgeneration" => Some("endif"),
            _ => None,
        };
        if let Some(new) = new {
            let _ = write!(out, "{{%{}%}}", inner.replacen(word, new, 1));
        } else {
            out.push_str(&tag[..end + 2]);
        }
        rest = &tag[end + 2..];
    }
    out.push_str(rest);
    out
}

/// Python's `str()`.
fn python_str(value: &Value) -> String {
    if value.is_undefined() {
        return String::new();
    }
    if let Some(text) = value.as_str() {
        return text.to_owned();
    }
    let mut out = String::new();
    python_repr(&mut out, value);
    out
}

/// Python's `repr()`, for what templates hold.
fn python_repr(out: &mut String, value: &Value) {
    match value.kind() {
        ValueKind::None | ValueKind::Undefined => out.push_str("None"),
        ValueKind::Bool => out.push_str(if value.is_true() { "True" } else { "False" }),
        ValueKind::Number => number(out, value),
        ValueKind::String => quoted(out, value.as_str().unwrap_or_default()),
        ValueKind::Map => {
            out.push('{');
            for (index, (key, value)) in entries(value).into_iter().enumerate() {
                out.push_str(if index == 0 { "" } else { ", " });
                python_repr(out, &key);
                out.push_str(": ");
                python_repr(out, &value);
            }
            out.push('}');
        }
        ValueKind::Seq => {
            out.push('[');
            for (index, value) in value.try_iter().into_iter().flatten().enumerate() {
                out.push_str(if index == 0 { "" } else { ", " });
                python_repr(out, &value);
            }
            out.push(']');
        }
        _ => {
            let _ = write!(out, "{value}");
        }
    }
}

fn entries(value: &Value) -> Vec<(Value, Value)> {
    let keys = value.try_iter().into_iter().flatten();
    keys.map(|key| {
        let entry = value.get_item(&key).unwrap_or_default();
        (key, entry)
    })
    .collect()
}

/// Python quotes with `'`, unless the text holds one and no `"`.
fn quoted(out: &mut String, text: &str) {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(quote);
    for character in text.chars() {
        match character {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c == quote => {
                out.push('\\');
                out.push(c);
            }
            c if u32::from(c) < 0x20 || u32::from(c) == 0x7F => {
                let _ = write!(out, "\\x{:02x}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push(quote);
}

fn number(out: &mut String, value: &Value) {
    if value.is_integer() {
        let _ = write!(out, "{value}");
    } else {
        float(out, f64::try_from(value.clone()).unwrap_or(f64::NAN));
    }
}

/// The shortest digits that give the number back, laid out as Python does: an exponent below 1e-4 and from 1e16 on.
fn float(out: &mut String, number: f64) {
    if !number.is_finite() {
        let text = if number.is_nan() {
            "nan"
        } else if number > 0.0 {
            "inf"
        } else {
            "-inf"
        };
        out.push_str(text);
        return;
    }
    let scientific = format!("{number:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if number != 0.0 && !(-4..16).contains(&exponent) {
        let sign = if exponent < 0 { '-' } else { '+' };
        let _ = write!(out, "{digits}e{sign}{:02}", exponent.unsigned_abs());
    } else if number.fract() == 0.0 {
        let _ = write!(out, "{number:.1}");
    } else {
        let _ = write!(out, "{number}");
    }
}

/// How [`write_json`] lays things out.
struct Layout {
    ascii: bool,
    indent: Option<String>,
    item: String,
    key: String,
    sorted: bool,
}

/// `json.dumps(value, ensure_ascii=False)`, with its arguments: templates are trained on Python's spacing.
fn to_json(value: &Value, indent: Option<Value>, kwargs: Kwargs) -> Result<Value, Error> {
    let indent = match indent {
        Some(indent) => Some(indent),
        None => kwargs.get::<Option<Value>>("indent")?,
    };
    let indent = match indent {
        None => None,
        Some(value) if value.is_none() => None,
        Some(value) => Some(match value.as_str() {
            Some(text) => text.to_owned(),
            None => " ".repeat(usize::try_from(value)?.min(64)),
        }),
    };
    let separators = kwargs.get::<Option<Vec<String>>>("separators")?;
    let (item, key) = match separators.as_deref() {
        Some([item, key]) => (item.clone(), key.clone()),
        Some(_) => {
            return Err(Error::new(ErrorKind::InvalidOperation, "`separators` of `tojson` must be two texts"));
        }
        None => (if indent.is_some() { "," } else { ", " }.to_owned(), ": ".to_owned()),
    };
    let layout = Layout {
        ascii: kwargs.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false),
        indent,
        item,
        key,
        sorted: kwargs.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
    };
    kwargs.assert_all_used()?;
    let mut out = String::new();
    write_json(&mut out, value, &layout, 0)?;
    Ok(Value::from(out))
}

/// Deepest nesting that is written; JSON that came in by serde_json has 128 levels at most.
const DEEPEST: usize = 200;

fn write_json(out: &mut String, value: &Value, layout: &Layout, depth: usize) -> Result<(), Error> {
    if depth > DEEPEST {
        return Err(Error::new(ErrorKind::InvalidOperation, format!("a value nested deeper than {DEEPEST} levels")));
    }
    let new_line = |out: &mut String, depth: usize| {
        if let Some(indent) = &layout.indent {
            out.push('\n');
            out.push_str(&indent.repeat(depth));
        }
    };
    match value.kind() {
        ValueKind::None => out.push_str("null"),
        ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
        ValueKind::Number => {
            let start = out.len();
            number(out, value);
            let name = match &out[start..] {
                "nan" => "NaN",
                "inf" => "Infinity",
                "-inf" => "-Infinity",
                _ => return Ok(()),
            };
            out.truncate(start);
            out.push_str(name);
        }
        ValueKind::String => json_text(out, value.as_str().unwrap_or_default(), layout.ascii),
        ValueKind::Seq | ValueKind::Iterable => {
            out.push('[');
            let mut count = 0;
            for entry in value.try_iter()? {
                out.push_str(if count == 0 { "" } else { &layout.item });
                new_line(out, depth + 1);
                write_json(out, &entry, layout, depth + 1)?;
                count += 1;
            }
            if count > 0 {
                new_line(out, depth);
            }
            out.push(']');
        }
        ValueKind::Map => {
            let mut entries = entries(value);
            if layout.sorted {
                entries.sort_by(|a, b| a.0.cmp(&b.0));
            }
            out.push('{');
            for (index, (key, entry)) in entries.iter().enumerate() {
                out.push_str(if index == 0 { "" } else { &layout.item });
                new_line(out, depth + 1);
                if let Some(text) = key.as_str() {
                    json_text(out, text, layout.ascii);
                } else {
                    out.push('"');
                    write_json(out, key, layout, depth + 1)?;
                    out.push('"');
                }
                out.push_str(&layout.key);
                write_json(out, entry, layout, depth + 1)?;
            }
            if !entries.is_empty() {
                new_line(out, depth);
            }
            out.push('}');
        }
        kind => {
            let message = format!("`tojson` cannot write a value of kind {kind}");
            return Err(Error::new(ErrorKind::InvalidOperation, message));
        }
    }
    Ok(())
}

fn json_text(out: &mut String, text: &str, ascii: bool) {
    out.push('"');
    for character in text.chars() {
        match character {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            c if u32::from(c) < 0x20 => {
                let _ = write!(out, "\\u{:04x}", u32::from(c));
            }
            // Marks of special tokens in messages must come through as they are.
            c if !ascii || c.is_ascii() || ('\u{FDD0}'..='\u{FDEF}').contains(&c) => out.push(c),
            c => {
                let mut units = [0; 2];
                for unit in c.encode_utf16(&mut units) {
                    let _ = write!(out, "\\u{unit:04x}");
                }
            }
        }
    }
    out.push('"');
}

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const DAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];

/// Python's `strftime`, in UTC and English, for the directives that templates use.
fn strftime(format: &str, unix_seconds: i64) -> Result<String, Error> {
    let days = unix_seconds.div_euclid(86_400);
    let seconds = unix_seconds.rem_euclid(86_400);
    let (hour, minute, second) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    let (year, month, day) = civil(days);
    let day_of_year = days - days_from_civil(year, 1, 1) + 1;
    let weekday = DAYS[(days + 4).rem_euclid(7) as usize];
    let month_name = MONTHS[(month - 1) as usize];
    let mut out = String::new();
    let mut rest = format.chars();
    while let Some(character) = rest.next() {
        if character != '%' {
            out.push(character);
            continue;
        }
        let mut directive = rest.next();
        let padded = directive != Some('-');
        if !padded {
            directive = rest.next();
        }
        let mut digits = |number: i64| {
            let _ = if padded { write!(out, "{number:02}") } else { write!(out, "{number}") };
        };
        match directive {
            Some('d') => digits(day),
            Some('m') => digits(month),
            Some('y') => digits(year.rem_euclid(100)),
            Some('H') => digits(hour),
            Some('I') => digits((hour + 11) % 12 + 1),
            Some('M') => digits(minute),
            Some('S') => digits(second),
            Some('Y') => out.push_str(&year.to_string()),
            Some('j') if padded => {
                let _ = write!(out, "{day_of_year:03}");
            }
            Some('j') => out.push_str(&day_of_year.to_string()),
            Some('B') => out.push_str(month_name),
            Some('b') => out.push_str(&month_name[..3]),
            Some('A') => out.push_str(weekday),
            Some('a') => out.push_str(&weekday[..3]),
            Some('p') => out.push_str(if hour < 12 { "AM" } else { "PM" }),
            Some('F') => {
                let _ = write!(out, "{year}-{month:02}-{day:02}");
            }
            Some('T') => {
                let _ = write!(out, "{hour:02}:{minute:02}:{second:02}");
            }
            Some('Z') => out.push_str("UTC"),
            Some('z') => out.push_str("+0000"),
            Some('%') => out.push('%'),
            other => {
                let other = other.map(String::from).unwrap_or_default();
                let message = format!("`strftime_now` does not know `%{other}`");
                return Err(Error::new(ErrorKind::InvalidOperation, message));
            }
        }
    }
    Ok(out)
}

/// Days since 1970 of a date in the Gregorian calendar (years start in March, so that the leap day comes last).
pub(crate) fn days_from_civil(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year - 719_468
}

/// The date of a day since 1970.
fn civil(days: i64) -> (i64, i64, i64) {
    let shifted = days.saturating_add(719_468);
    let era = shifted.div_euclid(146_097);
    let day_of_era = shifted.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = (shifted_month + 2) % 12 + 1;
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    (year, month, day)
}
