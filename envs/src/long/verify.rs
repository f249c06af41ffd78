//! The answer found again: an independent scan of the text, which knows the question and nothing of how the text was
//! made.

use std::collections::BTreeMap;

use serde_json::{Value, json};

/// The answer to a generated question, or why the text has none.
pub fn answer(question: &str, text: &str) -> Result<Value, String> {
    if let Some(rest) = question.strip_prefix("What is the code of the ") {
        return needle(rest.trim_end_matches('?'), text);
    }
    if let Some((_, rest)) = question.split_once("label [") {
        let label = rest.split(']').next().unwrap_or_default();
        return Ok(json!(text.lines().filter(|line| second_field(line) == Some(label)).count()));
    }
    if question.contains("share a ticket") {
        return pairs(text);
    }
    Err(format!("no generated question: `{question}`"))
}

fn needle(subject: &str, text: &str) -> Result<Value, String> {
    let pattern = format!(" {subject} is ");
    let mut found = text.split(pattern.as_str()).skip(1);
    let (Some(after), None) = (found.next(), found.next()) else {
        return Err(format!("the needle of `{subject}` does not occur exactly once"));
    };
    let digits: String = after.chars().take_while(char::is_ascii_digit).collect();
    digits.parse::<u64>().map(|code| json!(code)).map_err(|error| format!("`{digits}`: {error}"))
}

/// The label of a line `12 [label] ...`.
fn second_field(line: &str) -> Option<&str> {
    line.split_whitespace().nth(1)?.strip_prefix('[')?.strip_suffix(']')
}

fn pairs(text: &str) -> Result<Value, String> {
    let mut lines_of: BTreeMap<&str, Vec<u64>> = BTreeMap::new();
    for line in text.lines() {
        let mut fields = line.split(" | ");
        let (Some(number), Some(ticket)) = (fields.next(), fields.next()) else {
            return Err(format!("a line without a ticket: `{line}`"));
        };
        let number = number.parse().map_err(|error| format!("`{number}`: {error}"))?;
        lines_of.entry(ticket).or_default().push(number);
    }
    let mut pairs: Vec<[u64; 2]> = Vec::new();
    for (ticket, lines) in lines_of {
        match lines[..] {
            [_] => {}
            [first, second] => pairs.push([first.min(second), first.max(second)]),
            _ => return Err(format!("`{ticket}` stands on {} lines", lines.len())),
        }
    }
    pairs.sort_unstable();
    Ok(json!(pairs))
}
