//! Papers of a context, and the evidence of a row.

use std::borrow::Cow;

use espalier_datasets::error::kind;
use espalier_sandbox::Value;
use serde::Deserialize;
use serde_json::Value as Json;

use crate::env::EnvError;
use crate::row::EnvRow;

/// One paper of a context.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Paper<'a> {
    /// Its id; empty for a context that is one text.
    pub id: String,
    /// Its text.
    pub text: Cow<'a, str>,
}

/// The papers of a context: the entries of a dict, the items of a list, or the one text.
pub fn papers(context: &Value) -> Vec<Paper<'_>> {
    match context {
        Value::Dict(entries) => entries.iter().map(|(key, value)| paper(key.display(), value)).collect(),
        Value::List(items) | Value::Tuple(items) => {
            items.iter().enumerate().map(|(index, item)| paper(index.to_string(), item)).collect()
        }
        other => vec![paper(String::new(), other)],
    }
}

fn paper(id: String, value: &Value) -> Paper<'_> {
    let text = match value {
        Value::Str(text) => Cow::Borrowed(text.as_str()),
        other => Cow::Owned(other.display()),
    };
    Paper { id, text }
}

/// Which papers a child was given: those whose text it holds, or that hold its text.
pub fn handed(papers: &[Paper<'_>], given: &Value) -> Vec<usize> {
    let mut found = Vec::new();
    for part in self::papers(given) {
        let text = part.text.trim();
        if text.is_empty() {
            continue;
        }
        for (index, paper) in papers.iter().enumerate() {
            let same = paper.text.trim() == text;
            let within =
                !same && (paper.text.contains(text) || (!paper.text.is_empty() && text.contains(paper.text.trim())));
            if (same || within) && !found.contains(&index) {
                found.push(index);
            }
        }
    }
    found.sort_unstable();
    found
}

/// One passage of the truth.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Evidence {
    /// The paper that it was taken from.
    pub paper: String,
    /// The passage.
    pub text: String,
}

#[derive(Deserialize)]
struct Entry {
    #[serde(rename = "paperId", alias = "paper_id", default)]
    paper: Option<Json>,
    #[serde(default)]
    selections: Option<Vec<Selection>>,
}

#[derive(Deserialize)]
struct Selection {
    #[serde(default)]
    text: Option<String>,
}

/// `reward_spec.evidence`: a list of `{paperId, selections: [{text}]}`, or JSON text of one.
pub fn evidence(row: &EnvRow, env: &str) -> Result<Vec<Evidence>, EnvError> {
    let wrong = |reason: String| EnvError::Invalid {
        env: env.to_owned(),
        key: "reward_spec.evidence".to_owned(),
        reason: format!("{reason} in row `{}`", row.id),
    };
    let given = match row.reward_spec.get("evidence") {
        None | Some(Json::Null) => return Err(wrong("is missing: there is nothing to grade by".to_owned())),
        Some(Json::String(text)) => serde_json::from_str(text)
            .map_err(|error| wrong(format!("must be a list, or JSON text of one: {error}")))?,
        Some(value) => value.clone(),
    };
    if !given.is_array() {
        return Err(wrong(format!("must be a list, got {}", kind(&given))));
    }
    let entries: Vec<Entry> = serde_path_to_error::deserialize(given).map_err(|error| {
        let path = error.path().to_string();
        wrong(format!("must be a list of {{paperId, selections: [{{text}}]}}: at `{path}`: {}", error.into_inner()))
    })?;
    let mut out = Vec::new();
    for entry in entries {
        let paper = match entry.paper {
            None | Some(Json::Null) => String::new(),
            Some(Json::String(id)) => id,
            Some(other) => other.to_string(),
        };
        for text in entry.selections.into_iter().flatten().filter_map(|selection| selection.text) {
            if !text.trim().is_empty() {
                out.push(Evidence { paper: paper.clone(), text });
            }
        }
    }
    if out.is_empty() {
        return Err(wrong("holds no text: there is nothing to grade by".to_owned()));
    }
    Ok(out)
}
