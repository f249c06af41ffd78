//! skyrl-gym's search tool, letter by letter: what it puts into the conversation, its error texts included.
//!
//! Two things cannot be the same: the request's random id in error texts, which is drawn from the rollout's seed here, and
//! the memory addresses that Python's connection errors print.

use std::fmt::Write as _;
use std::sync::LazyLock;

use espalier_retrieval::http::status_words;
use espalier_retrieval::{RetrievalError, SearchLimits, protocol};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use regex::Regex;
use serde_json::{Value, json};

use super::qa::space;
use super::tool::SearchTool;

/// The query of an action: between the first `<search>` and the `</search>` after it.
pub(crate) fn query(action: &str) -> Option<&str> {
    static QUERY: LazyLock<Regex> = LazyLock::new(|| {
        // A constant pattern, compiled by every test of this module.
        Regex::new("(?s)<search>(.*?)</search>").expect("a valid pattern")
    });
    QUERY.captures(action).and_then(|found| found.get(1)).map(|query| query.as_str())
}

/// Whether an action ends the episode.
pub(super) fn answers(action: &str) -> bool {
    action.contains("<answer>") && action.contains("</answer>")
}

/// The last answer of a whole conversation, observations included.
pub(super) fn answer(history: &str) -> Option<&str> {
    static ANSWER: LazyLock<Regex> = LazyLock::new(|| {
        // A constant pattern, compiled by every test of this module.
        Regex::new("(?s)<answer>(.*?)</answer>").expect("a valid pattern")
    });
    let last = ANSWER.captures_iter(history).last()?;
    last.get(1).map(|answer| answer.as_str().trim_matches(space))
}

/// What the tool returns, as `json.dumps` writes it: `{"result": TEXT}`. Whether the search failed comes along.
pub(crate) async fn call(
    tool: &SearchTool,
    query: &str,
    limits: &SearchLimits,
    seed: u64,
) -> Result<(String, bool), RetrievalError> {
    let query = query.trim_matches(space);
    let answer = match tool.server() {
        Some(server) => {
            let body = json!({"query": query, "topk": tool.topk(), "return_scores": true});
            match server.post(&body, limits).await {
                Ok(bytes) => serde_json::from_slice(&bytes).map_err(|error| not_json(&bytes, &error)),
                Err(error @ (RetrievalError::Deadline | RetrievalError::Cancelled)) => return Err(error),
                Err(error) => Err(failure(&error)),
            }
        }
        None => Ok(protocol::answer(vec![tool.find(query, limits).await?], true)),
    };
    let failed = answer.is_err();
    let text = match answer {
        Ok(answer) => processed(&answer),
        Err(error) => format!("Search error: [Search Request ID: {}] {error}", request_id(seed)),
    };
    Ok((format!("{{\"result\": {}}}", dumps(&text)), failed))
}

/// A version 4 UUID.
fn request_id(seed: u64) -> String {
    let bits: u128 = ChaCha8Rng::seed_from_u64(seed).random();
    let bits = (bits & !(0xf << 76 | 0x3 << 62)) | 0x4 << 76 | 0x2 << 62;
    let hex = format!("{bits:032x}");
    format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
}

/// An error as `requests` and the tool's own loop say it.
fn failure(error: &RetrievalError) -> String {
    match error {
        RetrievalError::Refused { url, status, .. } => {
            let side = if *status < 500 { "Client" } else { "Server" };
            format!("API Request Error: {status} {side} Error: {} for url: {url}", status_words(*status))
        }
        RetrievalError::Exhausted { tries, status: Some(status), .. } => {
            format!("API Request Error: Server Error ({status}) on attempt {tries}/{tries}")
        }
        RetrievalError::Exhausted { reason, .. } if reason.starts_with("no answer within") => {
            format!("Timeout Error: {reason}")
        }
        RetrievalError::Exhausted { reason, .. } => format!("Connection Error: {reason}"),
        other => format!("Unexpected Error: {other}"),
    }
}

/// What Python's decoder says of a body that is not JSON, where it stumbles over its first character; elsewhere the place
/// that it would name.
fn not_json(bytes: &[u8], error: &serde_json::Error) -> String {
    let text = String::from_utf8_lossy(bytes);
    let at = text.find(|character: char| !matches!(character, ' ' | '\t' | '\n' | '\r'));
    // The rest of an empty body is expected where it ends.
    let at = at.unwrap_or(0);
    let first = text[at..].chars().next();
    let begins = first.is_some_and(|first| matches!(first, '{' | '[' | '"' | '-' | '0'..='9' | 't' | 'f' | 'n'));
    if begins {
        return format!("API Request Error: Expecting value: line {} column {}", error.line(), error.column());
    }
    let line = text[..at].matches('\n').count() + 1;
    let column = at - text[..at].rfind('\n').map_or(0, |newline| newline + 1) + 1;
    format!("API Request Error: Expecting value: line {line} column {column} (char {at})")
}

/// What the tool makes of an answer.
fn processed(answer: &Value) -> String {
    if !truthy(answer) {
        return "Unknown API state (no response and no error message).".to_owned();
    }
    let lists = match answer {
        Value::Object(fields) => match fields.get("result") {
            Some(lists) if truthy(lists) => pretty(lists),
            _ => return "No search results found.".to_owned(),
        },
        other => Err(format!("'{}' object has no attribute 'get'", type_name(other))),
    };
    lists.unwrap_or_else(|error| format!("Error processing search results: {error}"))
}

fn pretty(lists: &Value) -> Result<String, String> {
    let lists = items(lists)?.iter().map(passages).collect::<Result<Vec<_>, _>>()?;
    Ok(lists.join("\n---\n"))
}

fn passages(list: &Value) -> Result<String, String> {
    let mut text = String::new();
    for (at, item) in items(list)?.iter().enumerate() {
        let contents = key(&key(item, "document")?, "contents")?;
        let Value::String(contents) = contents else {
            return Err(format!("'{}' object has no attribute 'strip'", type_name(&contents)));
        };
        let _ = writeln!(text, "Doc {}: {}", at + 1, contents.trim_matches(space));
    }
    Ok(text)
}

/// What Python iterates over.
fn items(value: &Value) -> Result<Vec<Value>, String> {
    match value {
        Value::Array(items) => Ok(items.clone()),
        Value::Object(fields) => Ok(fields.keys().map(|key| Value::String(key.clone())).collect()),
        Value::String(text) => Ok(text.chars().map(|character| Value::String(character.to_string())).collect()),
        other => Err(format!("'{}' object is not iterable", type_name(other))),
    }
}

/// `value[name]`
fn key(value: &Value, name: &str) -> Result<Value, String> {
    match value {
        Value::Object(fields) => fields.get(name).cloned().ok_or_else(|| format!("'{name}'")),
        Value::Array(_) => Err("list indices must be integers or slices, not str".to_owned()),
        Value::String(_) => Err("string indices must be integers, not 'str'".to_owned()),
        other => Err(format!("'{}' object is not subscriptable", type_name(other))),
    }
}

fn truthy(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::Bool(truth) => *truth,
        Value::Number(number) => number.as_f64() != Some(0.0),
        Value::String(text) => !text.is_empty(),
        Value::Array(items) => !items.is_empty(),
        Value::Object(fields) => !fields.is_empty(),
    }
}

fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "NoneType",
        Value::Bool(_) => "bool",
        Value::Number(number) if number.is_f64() => "float",
        Value::Number(_) => "int",
        Value::String(_) => "str",
        Value::Array(_) => "list",
        Value::Object(_) => "dict",
    }
}

/// A text as `json.dumps` writes it, ASCII only.
fn dumps(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
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
            ' '..='~' => out.push(character),
            other => {
                for unit in other.encode_utf16(&mut [0; 2]) {
                    let _ = write!(out, "\\u{unit:04x}");
                }
            }
        }
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_written_as_python_writes_them() {
        assert_eq!(
            dumps("a\"\\\n\r\t\u{8}\u{c}\u{1}\u{7f}é😀"),
            "\"a\\\"\\\\\\n\\r\\t\\b\\f\\u0001\\u007f\\u00e9\\ud83d\\ude00\""
        );
    }

    #[test]
    fn odd_answers_end_as_they_do_in_python() {
        for (answer, expected) in [
            (json!({}), "Unknown API state (no response and no error message)."),
            (json!([1]), "Error processing search results: 'list' object has no attribute 'get'"),
            (json!({"result": []}), "No search results found."),
            (json!({"error": 1}), "No search results found."),
            (json!({"result": [[]]}), ""),
            (json!({"result": [[], []]}), "\n---\n"),
            (json!({"result": 7}), "Error processing search results: 'int' object is not iterable"),
            (json!({"result": [[{}]]}), "Error processing search results: 'document'"),
            (json!({"result": [[{"document": {}}]]}), "Error processing search results: 'contents'"),
            (
                json!({"result": [[{"document": {"contents": null}}]]}),
                "Error processing search results: 'NoneType' object has no attribute 'strip'",
            ),
            (
                json!({"result": {"a": 1}}),
                "Error processing search results: string indices must be integers, not 'str'",
            ),
        ] {
            assert_eq!(processed(&answer), expected, "{answer}");
        }
    }

    #[test]
    fn a_request_id_looks_like_one() {
        let id = request_id(7);
        assert_eq!(id.len(), 36);
        assert_eq!(id, request_id(7));
        assert_eq!(&id[14..15], "4");
        assert!(matches!(&id[19..20], "8" | "9" | "a" | "b"), "{id}");
    }
}
