//! What Python takes for equal: values and JSON texts in a form that equal values share.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use espalier_sandbox::Value;
use serde_json::value::RawValue;

/// Whether `left == right` in Python, for data: `1 == 1.0 == True`, lists item by item, dicts and sets without order.
/// NaN and what is no data are equal to nothing. Where `tuples_are_lists`, a tuple equals a list of the same items.
pub fn equal(left: &Value, right: &Value, tuples_are_lists: bool) -> bool {
    match (canonical(left, tuples_are_lists), canonical(right, tuples_are_lists)) {
        (Some(left), Some(right)) => left == right,
        _ => false,
    }
}

/// Most digits of a float, with its sign.
const MOST_DIGITS: usize = 310;

/// Whether a float is an integer that [`Value::Int`] does not hold.
fn is_large(number: f64) -> bool {
    number.is_finite() && number.abs() > 9_223_372_036_854_775_808.0
}

/// A text that two values share exactly if Python takes them for equal; `None` for what is equal to nothing.
pub fn canonical(value: &Value, tuples_are_lists: bool) -> Option<String> {
    let mut out = String::new();
    write(value, tuples_are_lists, &mut out)?;
    Some(out)
}

fn write(value: &Value, tuples_are_lists: bool, out: &mut String) -> Option<()> {
    // Writing to a text cannot fail.
    match value {
        Value::None => out.push('N'),
        Value::Bool(truth) => out.push_str(if *truth { "n1;" } else { "n0;" }),
        Value::Int(number) => {
            let _ = write!(out, "n{number};");
        }
        Value::BigInt(digits) => {
            // What a float can be is written as one.
            let float = digits.parse::<f64>().ok().filter(|number| is_large(*number) && digits.len() <= MOST_DIGITS);
            let _ = match float.filter(|number| format!("{number:.0}") == *digits) {
                Some(number) => write!(out, "g{:x};", number.to_bits()),
                None => write!(out, "n{digits};"),
            };
        }
        Value::Float(number) if number.is_nan() => return None,
        // Hundreds of digits for each float would make a value many times as large as its text.
        Value::Float(number) if is_large(*number) => {
            let _ = write!(out, "g{:x};", number.to_bits());
        }
        // Formatted without places a float's value is exact.
        Value::Float(number) if number.is_finite() && number.fract() == 0.0 => {
            let number = if *number == 0.0 { 0.0 } else { *number };
            let _ = write!(out, "n{number:.0};");
        }
        Value::Float(number) => {
            let _ = write!(out, "f{:x};", number.to_bits());
        }
        Value::Str(text) => {
            let _ = write!(out, "s{}:{text}", text.len());
        }
        Value::Bytes(bytes) => {
            let _ = write!(out, "b{bytes:?}");
        }
        Value::List(items) => many(if tuples_are_lists { 't' } else { 'l' }, items, tuples_are_lists, out)?,
        Value::Tuple(items) => many('t', items, tuples_are_lists, out)?,
        Value::Dict(entries) => {
            // A later entry of a key replaces an earlier one.
            let mut sorted = BTreeMap::new();
            for (key, value) in entries {
                sorted.insert(canonical(key, tuples_are_lists)?, canonical(value, tuples_are_lists)?);
            }
            out.push('d');
            for (key, value) in sorted {
                out.push_str(&key);
                out.push('=');
                out.push_str(&value);
            }
            out.push('.');
        }
        Value::Set(items) => {
            let mut sorted: Vec<String> =
                items.iter().map(|item| canonical(item, tuples_are_lists)).collect::<Option<_>>()?;
            sorted.sort_unstable();
            sorted.dedup();
            out.push('u');
            out.extend(sorted);
            out.push('.');
        }
        Value::Opaque { .. } => return None,
    }
    Some(())
}

fn many(mark: char, items: &[Value], tuples_are_lists: bool, out: &mut String) -> Option<()> {
    out.push(mark);
    for item in items {
        write(item, tuples_are_lists, out)?;
    }
    out.push('.');
    Some(())
}

/// What `json.loads` makes of a text, integers of any size included.
pub fn from_json_text(text: &str) -> Result<Value, String> {
    let raw: &RawValue = serde_json::from_str(text.trim()).map_err(|error| error.to_string())?;
    from_raw(raw)
}

fn from_raw(raw: &RawValue) -> Result<Value, String> {
    let text = raw.get();
    let wrong = |error: serde_json::Error| error.to_string();
    match text.as_bytes().first() {
        Some(b'n') => Ok(Value::None),
        Some(b't') => Ok(Value::Bool(true)),
        Some(b'f') => Ok(Value::Bool(false)),
        Some(b'"') => serde_json::from_str(text).map(Value::Str).map_err(wrong),
        Some(b'[') => {
            let items: Vec<&RawValue> = serde_json::from_str(text).map_err(wrong)?;
            items.into_iter().map(from_raw).collect::<Result<_, _>>().map(Value::List)
        }
        Some(b'{') => {
            let entries: BTreeMap<String, &RawValue> = serde_json::from_str(text).map_err(wrong)?;
            let entries = entries.into_iter().map(|(key, value)| Ok((Value::Str(key), from_raw(value)?)));
            entries.collect::<Result<_, String>>().map(Value::Dict)
        }
        _ if text.contains(['.', 'e', 'E']) => text.parse().map(Value::Float).map_err(|_| format!("no number: {text}")),
        _ => Ok(match text.parse() {
            Ok(number) => Value::Int(number),
            Err(_) => Value::BigInt(text.to_owned()),
        }),
    }
}

#[cfg(test)]
mod tests {
    use espalier_sandbox::literal;

    use super::*;

    fn same(left: &str, right: &str, lenient: bool) -> bool {
        equal(&literal::parse(left).unwrap(), &literal::parse(right).unwrap(), lenient)
    }

    #[test]
    fn a_value_is_written_in_little_more_than_its_own_text() {
        let large = "1e308";
        let canonical = canonical(&Value::List(vec![literal::parse(large).unwrap(); 1000]), true).unwrap();
        assert!(canonical.len() < 20 * 1000, "{}", canonical.len());
        let exact = format!("{:.0}", 1e308);
        for (left, right, expected) in [
            (large, exact.as_str(), true),
            (large, &format!("{}1", &exact[..exact.len() - 1]), false),
            ("-1e300", &format!("-{:.0}", 1e300), true),
            ("9223372036854775808.0", "9223372036854775808", true),
            ("-9223372036854775808.0", "-9223372036854775808", true),
            ("18446744073709551616.0", "18446744073709551616", true),
            ("18446744073709551616.0", "18446744073709551617", false),
            ("1e309", "1e308", false),
        ] {
            assert_eq!(same(left, right, false), expected, "{left} and {right}");
        }
    }

    #[test]
    fn values_are_equal_as_python_takes_them() {
        for (left, right) in [
            ("1", "1.0"),
            ("True", "1"),
            ("0.0", "-0.0"),
            ("[1, True]", "[1.0, 1]"),
            ("{'a': 1, 'b': 2}", "{'b': 2.0, 'a': True}"),
            ("{1, 2}", "{2, 1}"),
            ("1e22", "10000000000000000000000"),
            ("(1, (2,))", "(1.0, (2,))"),
            ("1e999", "1e999"),
        ] {
            assert!(same(left, right, false), "{left} {right}");
        }
        for (left, right) in [
            ("1", "'1'"),
            ("[1]", "(1,)"),
            ("[1, 2]", "[2, 1]"),
            ("None", "False"),
            ("''", "[]"),
            ("{}", "[]"),
            ("9007199254740993", "9007199254740992.0"),
            ("b'a'", "'a'"),
            ("['a', 'b']", "['ab']"),
            ("[[1], 2]", "[[1, 2]]"),
            ("1e999", "-1e999"),
        ] {
            assert!(!same(left, right, false), "{left} {right}");
        }
        assert!(same("[(1, 2)]", "[[1, 2]]", true));
    }

    #[test]
    fn nothing_is_equal_to_what_only_looks_alike() {
        let opaque = Value::Opaque { type_name: "Any".to_owned(), repr: "1".to_owned() };
        assert!(!equal(&opaque, &opaque, true) && !equal(&Value::Float(f64::NAN), &Value::Float(f64::NAN), true));
    }

    #[test]
    fn json_keeps_integers_of_any_size() {
        let big = "123456789012345678901234567890";
        let read = from_json_text(&format!(" [{big}, 1.5, true, null, {{\"a\": \"\\u00e9\"}}] ")).unwrap();
        let written = format!("[{big}, 1.5, True, None, {{'a': 'é'}}]");
        assert!(equal(&read, &literal::parse(&written).unwrap(), false));
        assert!(from_json_text("[1,").is_err() && from_json_text("").is_err());
    }
}
