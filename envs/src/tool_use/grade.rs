//! How a row says that its task is done.

use std::collections::BTreeMap;

use espalier_datasets::error::kind;
use serde_json::Value;

use super::files::{FileLimits, Files, plain};
use super::python;
use crate::computing::reading;
use crate::env::EnvError;
use crate::rlm::RewardKind;
use crate::rlm::grading::{Leniency, grade};
use crate::rlm::task::checked;
use crate::row::{EnvRow, text_answer};

/// How a row is graded.
#[derive(Clone, Debug, PartialEq)]
pub enum Check {
    /// The final answer against `reward_spec.ground_truth`.
    Answer(RewardKind, Value),
    /// Files of the workspace against these contents.
    Files(BTreeMap<String, String>),
    /// A script that the agent never sees.
    Python(String),
}

fn invalid(row: &EnvRow, env: &str, key: &str, reason: &str) -> EnvError {
    let reason = format!("{reason} in row `{}`", row.id);
    EnvError::Invalid { env: env.to_owned(), key: key.to_owned(), reason }
}

/// Reads texts by name.
fn texts(row: &EnvRow, env: &str, key: &str, value: &Value) -> Result<BTreeMap<String, String>, EnvError> {
    let Value::Object(entries) = value else {
        return Err(invalid(
            row,
            env,
            key,
            &format!("must be an object from file names to texts, got {}", kind(value)),
        ));
    };
    let mut out = BTreeMap::new();
    for (path, content) in entries {
        let Value::String(content) = content else {
            return Err(invalid(row, env, &format!("{key}.{path}"), &format!("must be a text, got {}", kind(content))));
        };
        let plain = plain(path).map_err(|reason| invalid(row, env, key, &format!("is wrong: {reason}")))?;
        out.insert(plain, content.clone());
    }
    Ok(out)
}

/// The files that a row starts with: `extra_info.files`.
pub fn start(row: &EnvRow, env: &str, limits: FileLimits) -> Result<Files, EnvError> {
    let mut files = Files::new(limits);
    let given = match row.extra_info.get("files") {
        None | Some(Value::Null) => return Ok(files),
        Some(Value::String(text)) => serde_json::from_str(text).unwrap_or_else(|_| Value::String(text.clone())),
        Some(value) => value.clone(),
    };
    for (path, content) in texts(row, env, "extra_info.files", &given)? {
        files
            .put(&path, content.into_bytes())
            .map_err(|reason| invalid(row, env, "extra_info.files", &format!("is wrong: {reason}")))?;
    }
    Ok(files)
}

/// How a row is graded: by `reward_spec.method`, `exact` where it names none.
pub fn check(row: &EnvRow, env: &str) -> Result<Check, EnvError> {
    let method = match row.reward_spec.get("method") {
        None | Some(Value::Null) => "exact",
        Some(Value::String(method)) => method.as_str(),
        Some(other) => {
            let reason = format!("must be a text, got {}", kind(other));
            return Err(invalid(row, env, "reward_spec.method", &reason));
        }
    };
    let needed = |key: &str| match row.reward_spec.get(key) {
        None | Some(Value::Null) => {
            Err(invalid(row, env, &format!("reward_spec.{key}"), &format!("is missing: `{method}` grades by it")))
        }
        Some(value) => Ok(value),
    };
    match method {
        "exact" | "numeric" | "contains" => {
            let kind = RewardKind::from_method(method).unwrap_or(RewardKind::Exact);
            checked(kind, row, env)?;
            Ok(Check::Answer(kind, row.truth(env)?.clone()))
        }
        "files" => {
            let files = texts(row, env, "reward_spec.files", needed("files")?)?;
            if files.is_empty() {
                return Err(invalid(row, env, "reward_spec.files", "must name at least one file"));
            }
            Ok(Check::Files(files))
        }
        "python" => match needed("check")? {
            Value::String(script) if !script.trim().is_empty() => Ok(Check::Python(script.clone())),
            other => {
                let reason = format!("must be the text of a script that defines check(), got {}", kind(other));
                Err(invalid(row, env, "reward_spec.check", &reason))
            }
        },
        other => {
            let known = ["exact", "numeric", "contains", "files", "python"];
            let hint = crate::params::hint(other, known.into_iter());
            Err(invalid(row, env, "reward_spec.method", &format!("names no method: `{other}`; {hint}")))
        }
    }
}

impl Check {
    /// Whether it looks at the workspace, so that there is something to grade also without an answer.
    pub fn looks_at_files(&self) -> bool {
        !matches!(self, Self::Answer(..))
    }

    /// The reward, and what there is to note.
    pub async fn grade(
        &self,
        answer: &str,
        files: &Files,
        limits: python::RunLimits,
        mark: &str,
    ) -> Result<(f64, Option<String>), String> {
        match self {
            Self::Answer(kind, truth) => {
                let (kind, truth, answer) = (*kind, truth.clone(), text_answer(answer));
                let reward = reading(answer.text.len(), move || grade(kind, Leniency::default(), &answer, &truth));
                Ok((reward.await?, None))
            }
            Self::Files(wanted) => {
                let wrong: Vec<&str> = wanted
                    .iter()
                    .filter(|(path, text)| !files.get(path).is_some_and(|given| same(given, text)))
                    .map(|(path, _)| path.as_str())
                    .collect();
                let note = (!wrong.is_empty()).then(|| format!("not as expected: {}", wrong.join(", ")));
                Ok((f64::from(u8::from(wrong.is_empty())), note))
            }
            Self::Python(script) => python::check(script, answer, files, limits, mark).await,
        }
    }
}

/// The same text, but for the ends of lines and white space at its own end.
fn same(given: &[u8], wanted: &str) -> bool {
    let Ok(given) = std::str::from_utf8(given) else { return false };
    given.trim_end().lines().eq(wanted.trim_end().lines())
}
