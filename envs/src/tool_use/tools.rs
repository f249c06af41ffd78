//! The tools: what the model is told of them, and what they do with files. Running code is [`super::python`]'s.
//!
//! A mistake is an answer like any other: it says what was expected and what came.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use regex::RegexBuilder;
use serde_json::{Map, Value, json};

use super::files::{Files, plain};
use crate::params::nearest;

/// What an argument is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A text.
    Text,
    /// A whole number.
    Integer,
    /// True or false.
    Truth,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Text => "string",
            Self::Integer => "integer",
            Self::Truth => "boolean",
        }
    }
}

/// One parameter of a tool.
#[derive(Clone, Copy, Debug)]
pub struct Parameter {
    /// Its name.
    pub name: &'static str,
    /// What it is.
    pub kind: Kind,
    /// Whether it may be left out.
    pub optional: bool,
    /// What it says.
    pub doc: &'static str,
}

/// One tool.
#[derive(Clone, Copy, Debug)]
pub struct Tool {
    /// Its name.
    pub name: &'static str,
    /// What it does.
    pub doc: &'static str,
    /// Its parameters.
    pub parameters: &'static [Parameter],
}

const fn need(name: &'static str, doc: &'static str) -> Parameter {
    Parameter { name, kind: Kind::Text, optional: false, doc }
}

const fn may(name: &'static str, kind: Kind, doc: &'static str) -> Parameter {
    Parameter { name, kind, optional: true, doc }
}

/// Every tool.
pub const TOOLS: [Tool; 7] = [
    Tool {
        name: "list_files",
        doc: "Lists the files of the workspace with their sizes.",
        parameters: &[may("path", Kind::Text, "a folder; the whole workspace by default")],
    },
    Tool {
        name: "read_file",
        doc: "Shows a text file, or some of its lines.",
        parameters: &[
            need("path", "the file"),
            may("start_line", Kind::Integer, "the first line shown, from 1"),
            may("end_line", Kind::Integer, "the last line shown"),
        ],
    },
    Tool {
        name: "write_file",
        doc: "Writes a text file, in place of one of that name. Folders are made as needed.",
        parameters: &[need("path", "the file"), need("content", "all of its text")],
    },
    Tool {
        name: "edit_file",
        doc: "Replaces a piece of a text file. The piece must stand there exactly once.",
        parameters: &[
            need("path", "the file"),
            need("old", "the piece as it stands there, with its white space"),
            need("new", "what takes its place"),
            may("all", Kind::Truth, "replace it wherever it stands"),
        ],
    },
    Tool {
        name: "search_files",
        doc: "Shows the lines of text files that match a regular expression.",
        parameters: &[
            need("pattern", "the expression, in the syntax of RE2 and Rust"),
            may("path", Kind::Text, "a file or folder to search; the whole workspace by default"),
            may("ignore_case", Kind::Truth, "upper and lower case are the same"),
        ],
    },
    Tool {
        name: "run_python",
        doc: "Runs Python code, shows what it prints, and keeps the files that it leaves.",
        parameters: &[need("code", "the code")],
    },
    Tool { name: "finish", doc: "Ends the task with an answer.", parameters: &[need("answer", "the answer")] },
];

/// The schemas as OpenAI writes them.
pub fn schemas(offered: &[Tool]) -> Vec<Value> {
    let schema = |tool: &Tool| {
        let properties: Map<String, Value> = tool
            .parameters
            .iter()
            .map(|it| (it.name.to_owned(), json!({"type": it.kind.name(), "description": it.doc})))
            .collect();
        let required: Vec<&str> = tool.parameters.iter().filter(|it| !it.optional).map(|it| it.name).collect();
        json!({"type": "function", "function": {
            "name": tool.name,
            "description": tool.doc,
            "parameters": {"type": "object", "properties": properties, "required": required},
        }})
    };
    offered.iter().map(schema).collect()
}

/// Arguments that fit their tool.
#[derive(Clone, Debug, Default)]
pub struct Arguments(BTreeMap<&'static str, Value>);

impl Arguments {
    /// A text.
    pub fn text(&self, name: &str) -> Option<&str> {
        self.0.get(name)?.as_str()
    }

    fn integer(&self, name: &str) -> Option<i64> {
        self.0.get(name)?.as_i64()
    }

    fn truth(&self, name: &str) -> bool {
        self.0.get(name).and_then(Value::as_bool).unwrap_or(false)
    }
}

/// The tool that a call means, and its arguments; or what to tell the model.
pub fn bind(offered: &[Tool], name: &str, given: &Map<String, Value>) -> Result<(Tool, Arguments), String> {
    let Some(tool) = offered.iter().find(|tool| tool.name == name) else {
        let names: Vec<&str> = offered.iter().map(|tool| tool.name).collect();
        let near = nearest(name, &names).map_or(String::new(), |near| format!(" did you mean `{near}`?"));
        return Err(format!("there is no tool `{}`;{near} the tools are {}", shown(name), names.join(", ")));
    };
    let mut bound = BTreeMap::new();
    for (key, value) in given {
        let Some(parameter) = tool.parameters.iter().find(|it| it.name == key) else {
            let names: Vec<&str> = tool.parameters.iter().map(|it| it.name).collect();
            let near = nearest(key, &names).map_or(String::new(), |near| format!(" did you mean `{near}`?"));
            return Err(format!("`{name}` has no parameter `{}`;{near} it takes {}", shown(key), names.join(", ")));
        };
        if value.is_null() && parameter.optional {
            continue;
        }
        let fits = match parameter.kind {
            Kind::Text => value.is_string(),
            Kind::Integer => value.is_i64() || value.is_u64(),
            Kind::Truth => value.is_boolean(),
        };
        // A final answer may be a number.
        let value = match value {
            Value::Number(_) | Value::Bool(_) | Value::Array(_) | Value::Object(_) if tool.name == "finish" => {
                Value::String(value.to_string())
            }
            value if fits => value.clone(),
            value => {
                return Err(format!(
                    "`{name}`: `{key}` must be {} {}, got `{}`",
                    if parameter.kind == Kind::Integer { "an" } else { "a" },
                    parameter.kind.name(),
                    shown(&value.to_string())
                ));
            }
        };
        bound.insert(parameter.name, value);
    }
    match tool.parameters.iter().find(|it| !it.optional && !bound.contains_key(it.name)) {
        Some(missing) => Err(format!("`{name}` needs `{}`: {}", missing.name, missing.doc)),
        None => Ok((*tool, Arguments(bound))),
    }
}

fn shown(text: &str) -> String {
    text.chars().take(60).collect()
}

/// Calls a tool that needs nothing but the files. The error is what the model is told.
pub fn call(tool: &str, arguments: &Arguments, files: &mut Files, most_chars: usize) -> Result<String, String> {
    match tool {
        "list_files" => list(files, arguments.text("path").unwrap_or_default()),
        "read_file" => read(files, arguments, most_chars),
        "write_file" => {
            let (path, content) =
                (arguments.text("path").unwrap_or_default(), arguments.text("content").unwrap_or_default());
            let path = plain(path)?;
            let new = files.get(&path).is_none();
            files.put(&path, content.as_bytes().to_vec())?;
            let lines = content.lines().count();
            Ok(format!("{} `{path}`: {lines} lines, {} bytes", if new { "made" } else { "replaced" }, content.len()))
        }
        "edit_file" => edit(files, arguments),
        "search_files" => search(files, arguments, most_chars),
        other => Err(format!("`{other}` cannot be called here")),
    }
}

/// A text file, by the name that a call gave.
fn text_of<'a>(files: &'a Files, given: &str) -> Result<(String, &'a str), String> {
    let path = plain(given)?;
    let Some(content) = files.get(&path) else {
        if files.is_folder(&path) {
            return Err(format!("`{path}` is a folder, not a file; list_files shows what is in it"));
        }
        let names: Vec<&str> = files.iter().map(|(name, _)| name).collect();
        let near = nearest(&path, &names).map_or(String::new(), |near| format!("; did you mean `{near}`?"));
        return Err(format!("there is no file `{path}`{near}"));
    };
    match std::str::from_utf8(content) {
        Ok(text) => Ok((path, text)),
        Err(_) => Err(format!("`{path}` is no text: {} bytes; look at it with run_python", content.len())),
    }
}

/// Most files that are listed.
const LISTED: usize = 400;

fn list(files: &Files, given: &str) -> Result<String, String> {
    let path = plain(given)?;
    if !path.is_empty() && files.get(&path).is_some() {
        return Err(format!("`{path}` is a file, not a folder"));
    }
    let mut text = String::new();
    let mut count = 0;
    for (name, content) in files.below(&path) {
        count += 1;
        if count <= LISTED {
            let _ = writeln!(text, "{name} ({} bytes)", content.len());
        }
    }
    if count > LISTED {
        let _ = writeln!(text, "... and {} more; list a folder", count - LISTED);
    }
    match count {
        0 if path.is_empty() => Ok("the workspace is empty".to_owned()),
        0 => Err(format!("there is no folder `{path}`")),
        _ => Ok(text.trim_end().to_owned()),
    }
}

fn read(files: &Files, arguments: &Arguments, most_chars: usize) -> Result<String, String> {
    let (path, text) = text_of(files, arguments.text("path").unwrap_or_default())?;
    let total = text.lines().count();
    if total == 0 {
        return Ok(format!("`{path}` is empty"));
    }
    let first = arguments.integer("start_line").unwrap_or(1);
    let last = arguments.integer("end_line").unwrap_or(i64::MAX);
    if first < 1 || last < first {
        return Err(format!("`start_line` must be from 1 and `end_line` not before it, got {first} and {last}"));
    }
    if first > total as i64 {
        return Err(format!("`{path}` has {total} lines; there is no line {first}"));
    }
    let (mut out, mut chars, mut shown) = (String::new(), 0, 0);
    for line in text.lines().skip(first as usize - 1).take((last - first).saturating_add(1).min(total as i64) as usize)
    {
        let length = line.chars().count() + 1;
        if chars + length > most_chars {
            if shown == 0 {
                out = line.chars().take(most_chars).collect();
                out.push('\n');
                let _ = write!(out, "... line {first} goes on; it has {} characters", length - 1);
                return Ok(out);
            }
            let _ = write!(out, "... cut after line {}; read on with start_line={}", first + shown - 1, first + shown);
            return Ok(out);
        }
        out.push_str(line);
        out.push('\n');
        chars += length;
        shown += 1;
    }
    let end = first + shown - 1;
    if first > 1 || end < total as i64 {
        let _ = write!(out, "... lines {first} to {end} of {total}");
    }
    Ok(out.trim_end_matches('\n').to_owned())
}

fn edit(files: &mut Files, arguments: &Arguments) -> Result<String, String> {
    let (path, text) = text_of(files, arguments.text("path").unwrap_or_default())?;
    let (old, new) = (arguments.text("old").unwrap_or_default(), arguments.text("new").unwrap_or_default());
    if old.is_empty() {
        return Err("`old` must not be empty; write_file writes a whole file".to_owned());
    }
    let count = text.matches(old).count();
    if count == 0 {
        let wanted = old.lines().find(|line| !line.trim().is_empty()).unwrap_or(old).trim();
        let near = text.lines().enumerate().find(|(_, line)| !wanted.is_empty() && line.contains(wanted));
        let hint = match near {
            Some((at, _)) => format!("; its first line stands in line {}, but not all of it follows", at + 1),
            None => "; read the file, and copy the piece with its white space".to_owned(),
        };
        return Err(format!("`old` does not stand in `{path}`{hint}"));
    }
    if count > 1 && !arguments.truth("all") {
        let more = "take more of what is around it, or set `all`";
        return Err(format!("`old` stands in `{path}` {count} times; {more}"));
    }
    // Size is known before it is made.
    let size = text.len() + count * new.len() - count * old.len();
    if size > LARGEST_EDIT {
        return Err(format!("`{path}` would be {size} bytes"));
    }
    let changed = text.replace(old, new);
    files.put(&path, changed.into_bytes())?;
    Ok(format!("replaced {count} in `{path}`"))
}

/// Bytes of a file that an edit may make before the workspace's own bounds are asked.
const LARGEST_EDIT: usize = 64 << 20;

/// Most matching lines that are shown.
const MATCHES: usize = 100;

fn search(files: &Files, arguments: &Arguments, most_chars: usize) -> Result<String, String> {
    let pattern = arguments.text("pattern").unwrap_or_default();
    let expression = RegexBuilder::new(pattern)
        .case_insensitive(arguments.truth("ignore_case"))
        .size_limit(1 << 20)
        .build()
        .map_err(|error| {
            let error = error.to_string();
            let reason = error.lines().last().unwrap_or_default().trim_start_matches("error: ");
            format!(
                "the pattern `{}` is no regular expression: {reason}; put `\\` before signs that stand for themselves",
                shown(pattern)
            )
        })?;
    let path = plain(arguments.text("path").unwrap_or_default())?;
    if !files.is_folder(&path) && files.get(&path).is_none() {
        return Err(format!("there is no file or folder `{path}`"));
    }
    let (mut out, mut count, mut chars) = (String::new(), 0, 0);
    let chosen = files.iter().filter(|(name, _)| {
        path.is_empty() || *name == path || name.strip_prefix(path.as_str()).is_some_and(|rest| rest.starts_with('/'))
    });
    for (name, content) in chosen {
        let Ok(text) = std::str::from_utf8(content) else { continue };
        for (at, line) in text.lines().enumerate() {
            if !expression.is_match(line) {
                continue;
            }
            count += 1;
            if count <= MATCHES && chars < most_chars {
                let line: String = line.chars().take(300).collect();
                let entry = format!("{name}:{}: {line}\n", at + 1);
                chars += entry.chars().count();
                out.push_str(&entry);
            }
        }
    }
    if count == 0 {
        return Ok(format!("no line matches `{}`", shown(pattern)));
    }
    let listed = out.lines().count();
    if listed < count {
        let _ = write!(out, "... and {} more lines", count - listed);
    }
    Ok(out.trim_end().to_owned())
}
