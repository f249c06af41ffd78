//! The tests of a LiveCodeBench row.

use espalier_datasets::error::kind;
use espalier_sandbox::Value as Data;
use serde_json::{Map, Value};

use super::equality;
use crate::env::EnvError;
use crate::row::EnvRow;

/// One test.
#[derive(Clone, Debug)]
pub(super) struct Case {
    pub(super) input: String,
    pub(super) expected: Expected,
}

/// What a test expects.
#[derive(Clone, Debug)]
pub(super) enum Expected {
    /// What the program writes.
    Output(String),
    /// What the function returns.
    Value(Data),
}

/// All tests of a row; the first one's type is every one's.
#[derive(Clone, Debug)]
pub(super) struct Cases {
    /// The function's name, or nothing where programs read and write.
    pub(super) function: Option<String>,
    pub(super) cases: Vec<Case>,
}

impl Cases {
    /// Reads `reward_spec.ground_truth`: a list of objects, or its JSON text. Where `strict`, every test must be of the
    /// first one's type, and of one that is known.
    pub(super) fn of(env: &str, row: &EnvRow, strict: bool) -> Result<Self, EnvError> {
        let invalid = |key: String, reason: String| EnvError::Invalid { env: env.to_owned(), key, reason };
        let key = "reward_spec.ground_truth";
        let truth = row.truth(env)?;
        let parsed;
        let list = match truth {
            Value::String(text) => {
                parsed = serde_json::from_str::<Value>(text)
                    .map_err(|error| invalid(key.to_owned(), format!("must be a JSON list: {error}")))?;
                &parsed
            }
            other => other,
        };
        let Value::Array(list) = list else {
            return Err(invalid(key.to_owned(), format!("must be a list of tests, got {}", kind(list))));
        };
        let Some(first) = list.first() else {
            return Err(invalid(key.to_owned(), format!("has no test in row `{}`", row.id)));
        };
        let function = if first.get("testtype").and_then(Value::as_str) == Some("functional") {
            let name = function_name(first)
                .ok_or_else(|| invalid(format!("{key}[0].metadata.func_name"), "must be a name".to_owned()))?;
            Some(name)
        } else {
            None
        };
        let mut cases = Vec::with_capacity(list.len());
        for (index, item) in list.iter().enumerate() {
            let text = |name: &str| match item.get(name) {
                Some(Value::String(text)) => Ok(text.clone()),
                other => {
                    let got = other.map_or("nothing", kind);
                    Err(invalid(format!("{key}[{index}].{name}"), format!("must be a text, got {got}")))
                }
            };
            if strict {
                let wanted = if function.is_some() { "functional" } else { "stdin" };
                let found = text("testtype")?;
                if found != wanted {
                    let reason = if index == 0 {
                        format!("must be \"functional\" or \"stdin\", got {found:?}")
                    } else {
                        format!("must be {wanted:?}, as the first test's, got {found:?}")
                    };
                    return Err(invalid(format!("{key}[{index}].testtype"), reason));
                }
            }
            let (input, output) = (text("input")?, text("output")?);
            let expected = if function.is_some() {
                let value = equality::from_json_text(&output).map_err(|error| {
                    invalid(format!("{key}[{index}].output"), format!("must be JSON for a function: {error}"))
                })?;
                Expected::Value(value)
            } else {
                Expected::Output(output)
            };
            cases.push(Case { input, expected });
        }
        Ok(Self { function, cases })
    }
}

/// `metadata.func_name`; some data sets carry the metadata as a JSON text.
fn function_name(test: &Value) -> Option<String> {
    let metadata = match test.get("metadata")? {
        Value::String(text) => serde_json::from_str::<Map<String, Value>>(text).ok()?,
        Value::Object(metadata) => metadata.clone(),
        _ => return None,
    };
    metadata.get("func_name")?.as_str().map(str::to_owned)
}
