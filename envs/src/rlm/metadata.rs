//! What the model is told of a context that it has not seen: type, size, and the sizes of its parts.

use std::fmt::Write as _;

use espalier_sandbox::Value;

use super::python;

/// How many chunk lengths are listed; a longer list says how many are left out.
pub const LISTED: usize = 20;

/// The lengths, in characters, of a context's parts: one of a text, one per value of a dict, one per item of a list.
pub fn chunk_lengths(context: &Value) -> Vec<usize> {
    match context {
        Value::Dict(entries) => entries
            .iter()
            .map(|(_, value)| match value {
                Value::Str(text) => text.chars().count(),
                other => python::json(other).chars().count(),
            })
            .collect(),
        Value::List(items) | Value::Tuple(items) => items.iter().map(python::str_length).collect(),
        other => vec![python::str_length(other)],
    }
}

/// The sentence that describes a context. `listed` bounds the list; [`usize::MAX`] lists all.
pub fn sentence(context: &Value, listed: usize) -> String {
    let lengths = chunk_lengths(context);
    let total: usize = lengths.iter().sum();
    let mut list = String::from("[");
    for (index, length) in lengths.iter().take(listed).enumerate() {
        let _ = write!(list, "{}{length}", if index == 0 { "" } else { ", " });
    }
    if lengths.len() > listed {
        let _ = write!(list, ", ... {} more", lengths.len() - listed);
    }
    list.push(']');
    format!(
        "Your context is a {} with {total} total characters, and is broken up into chunks of char lengths: {list}.",
        context.type_name()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_one_chunk_counted_in_characters() {
        assert_eq!(
            sentence(&Value::from("h\u{e9}llo"), LISTED),
            "Your context is a str with 5 total characters, and is broken up into chunks of char lengths: [5]."
        );
    }

    #[test]
    fn dicts_count_their_values_and_lists_their_items() {
        let dict = Value::Dict(vec![
            (Value::from("a"), Value::from("four")),
            (Value::from("b"), Value::List(vec![Value::Int(1), Value::from("x")])),
        ]);
        assert_eq!(chunk_lengths(&dict), [4, "[1, \"x\"]".len()]);
        let list = Value::List(vec![Value::from("four"), Value::List(vec![Value::Int(1), Value::from("x")])]);
        assert_eq!(chunk_lengths(&list), [4, "[1, 'x']".len()]);
    }

    #[test]
    fn a_thousand_chunks_are_not_all_listed() {
        let list = Value::List(vec![Value::from("ab"); 1000]);
        let text = sentence(&list, LISTED);
        assert!(text.ends_with("2, 2, ... 980 more]."), "{text}");
        assert!(text.contains("2000 total characters"), "{text}");
        assert_eq!(sentence(&list, usize::MAX).matches("2,").count(), 999);
    }
}
