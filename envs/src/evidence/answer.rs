//! The passages of an answer.

use espalier_sandbox::{FinalAnswer, Value};

use crate::rlm::literal;

/// The passages of an answer, in order, without empty ones: the items of a list, the values of a dict (papers by id),
/// a text that Python would read as one of these, else what stands between blank lines.
pub fn passages(answer: &FinalAnswer) -> Vec<String> {
    let mut out = Vec::new();
    match &answer.value {
        Value::Str(_) | Value::Opaque { .. } => match literal(answer.text.trim()) {
            Some(Value::Str(text)) => push(text, &mut out),
            Some(value) => collect(&value, &mut out),
            None => {
                for text in paragraphs(&answer.text) {
                    push(text, &mut out);
                }
            }
        },
        value => collect(value, &mut out),
    }
    out
}

fn collect(value: &Value, out: &mut Vec<String>) {
    match value {
        Value::List(items) | Value::Tuple(items) | Value::Set(items) => {
            for item in items {
                collect(item, out);
            }
        }
        Value::Dict(entries) => {
            for (_, value) in entries {
                collect(value, out);
            }
        }
        Value::None => {}
        Value::Str(text) => push(text.clone(), out),
        other => push(other.display(), out),
    }
}

fn push(text: impl Into<String>, out: &mut Vec<String>) {
    let text = text.into();
    if !text.trim().is_empty() {
        out.push(text);
    }
}

/// What stands between blank lines.
fn paragraphs(text: &str) -> impl Iterator<Item = String> + '_ {
    let mut lines = text.lines().peekable();
    std::iter::from_fn(move || {
        while lines.next_if(|line| line.trim().is_empty()).is_some() {}
        lines.peek()?;
        let mut paragraph = Vec::new();
        while let Some(line) = lines.next_if(|line| !line.trim().is_empty()) {
            paragraph.push(line.trim_end());
        }
        Some(paragraph.join("\n"))
    })
}
