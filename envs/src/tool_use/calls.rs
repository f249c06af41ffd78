//! Tool calls in a response: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, as Hermes and Qwen write them.
//!
//! The JSON is read first and the closing tag looked for behind it, so a file's content may hold the tags. OpenAI's nested
//! `function`, arguments as JSON text, `parameters` for `arguments`, a list of calls in one tag and a fence around the
//! JSON are taken as they are. Thinking holds no calls; a `</think>` in a call's JSON is text.

use serde_json::{Map, Value};

use crate::thinking;

/// Most calls of one response that are looked at.
pub const MOST_CALLS: usize = 32;

const OPEN: &str = "<tool_call>";
const CLOSE: &str = "</tool_call>";

/// One call.
#[derive(Clone, Debug, PartialEq)]
pub struct Call {
    /// The tool.
    pub name: String,
    /// Its arguments.
    pub arguments: Map<String, Value>,
}

/// The calls of a response in order; where one cannot be read stands what to tell the model.
pub fn read(response: &str) -> Vec<Result<Call, String>> {
    let mut rest = response;
    let mut calls = Vec::new();
    // Whether a thought was opened here; otherwise its beginning may be in the prompt.
    let mut thinks = false;
    while let Some((at, tag)) =
        [thinking::OPEN, thinking::CLOSE, OPEN].iter().filter_map(|tag| Some((rest.find(tag)?, *tag))).min()
    {
        rest = &rest[at + tag.len()..];
        if tag == thinking::OPEN {
            if let Some((_, behind)) = rest.split_once(thinking::CLOSE) {
                thinks = true;
                rest = behind;
            }
            continue;
        }
        if tag == thinking::CLOSE {
            if !thinks {
                calls.clear();
            }
            continue;
        }
        let (body, behind) = one(rest);
        if body.is_err()
            && !thinks
            && let Some(end) = rest[..rest.len() - behind.len()].find(thinking::CLOSE)
        {
            // A tag that a thought speaks of, with no call behind it.
            calls.clear();
            rest = &rest[end + thinking::CLOSE.len()..];
            continue;
        }
        rest = behind;
        match body {
            Ok(Value::Array(list)) => calls.extend(list.into_iter().map(call)),
            Ok(value) => calls.push(call(value)),
            Err(reason) => calls.push(Err(reason)),
        }
        if calls.len() > MOST_CALLS {
            calls.truncate(MOST_CALLS);
            calls.push(Err(format!("a response may hold {MOST_CALLS} calls; the rest was not looked at")));
            break;
        }
    }
    calls
}

/// The JSON behind an opening tag, and what follows its closing tag.
fn one(text: &str) -> (Result<Value, String>, &str) {
    let start = text.trim_start();
    // A fence around the JSON.
    let json = match start.strip_prefix("```") {
        Some(fenced) => fenced.strip_prefix("json").unwrap_or(fenced).trim_start(),
        None => start,
    };
    let mut values = serde_json::Deserializer::from_str(json).into_iter::<Value>();
    let (value, used) = match values.next() {
        Some(Ok(value)) => (Ok(value), values.byte_offset()),
        Some(Err(error)) => (Err(position(&error, json)), 0),
        None => (Err("it is empty; expected {\"name\": ..., \"arguments\": {...}}".to_owned()), 0),
    };
    let behind = &json[used..];
    let Ok(value) = value else {
        // Go on after the tag that closes it, as far as one can tell.
        return (value, behind.split_once(CLOSE).map_or("", |(_, behind)| behind));
    };
    let after = behind.trim_start().trim_start_matches("```").trim_start();
    if let Some(behind) = after.strip_prefix(CLOSE) {
        return (Ok(value), behind);
    }
    // The last call of a response may lack its tag.
    if after.is_empty() || after.starts_with(OPEN) {
        return (Ok(value), after);
    }
    let shown: String = after.chars().take(40).collect();
    let reason = format!("after the JSON of a call expected `{CLOSE}`, got `{shown}`");
    (Err(reason), behind.split_once(CLOSE).map_or("", |(_, behind)| behind))
}

/// Where the JSON goes wrong, in the call's own lines, with what stands there.
fn position(error: &serde_json::Error, json: &str) -> String {
    let (line, column) = (error.line(), error.column());
    let text = json.lines().nth(line.saturating_sub(1)).unwrap_or_default();
    // The column counts bytes.
    let mut at = column.saturating_sub(1).min(text.len());
    while !text.is_char_boundary(at) {
        at -= 1;
    }
    let before: String = text[..at].chars().rev().take(30).collect::<Vec<_>>().into_iter().rev().collect();
    let after: String = text[at..].chars().take(10).collect();
    let what = error.to_string();
    let what = what.split(" at line ").next().unwrap_or_default();
    format!(
        "the JSON of a call is not valid at line {line}, column {column}, after `{before}` and before `{after}`: {what}"
    )
}

fn call(value: Value) -> Result<Call, String> {
    let Value::Object(mut object) = value else {
        return Err(format!(
            "a call must be an object {{\"name\": ..., \"arguments\": {{...}}}}, got {}",
            short(&value)
        ));
    };
    if let Some(Value::Object(function)) = object.get("function") {
        object = function.clone();
    }
    let name = match object.get("name") {
        Some(Value::String(name)) => name.trim().to_owned(),
        Some(other) => return Err(format!("a call's `name` must be a text, got {}", short(other))),
        None => return Err("a call must have a `name`: the tool that is called".to_owned()),
    };
    let arguments = match object.get("arguments").or_else(|| object.get("parameters")) {
        None | Some(Value::Null) => Map::new(),
        Some(Value::Object(arguments)) => arguments.clone(),
        Some(Value::String(text)) => match serde_json::from_str(text) {
            Ok(Value::Object(arguments)) => arguments,
            Ok(other) => return Err(format!("`{name}`: `arguments` must be an object, got {}", short(&other))),
            Err(error) => return Err(format!("`{name}`: `arguments` as text: {}", position(&error, text))),
        },
        Some(other) => return Err(format!("`{name}`: `arguments` must be an object, got {}", short(other))),
    };
    Ok(Call { name, arguments })
}

fn short(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(60) {
        Some((at, _)) => format!("`{}...`", &text[..at]),
        None => format!("`{text}`"),
    }
}
