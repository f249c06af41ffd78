//! Raw records of published sets as rows.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::error::kind;

/// What a file's records are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// Rows with a `prompt` column.
    #[default]
    Rows,
    /// GSM8K as published: `question`, and `answer` whose last line is `#### number`.
    Gsm8k,
}

impl Format {
    /// A record as a row's columns, or which column is wrong and why.
    pub(crate) fn apply(self, record: Map<String, Value>, number: u64) -> Result<Map<String, Value>, (String, String)> {
        match self {
            Self::Rows => Ok(record),
            Self::Gsm8k => gsm8k(&record, number),
        }
    }
}

/// The columns that skyrl-gym's preparation gives GSM8K. The prompt is the question alone: what the answer should
/// look like is the environment's business.
fn gsm8k(record: &Map<String, Value>, number: u64) -> Result<Map<String, Value>, (String, String)> {
    let text = |column: &str| match record.get(column) {
        Some(Value::String(text)) => Ok(text.clone()),
        other => Err((column.to_owned(), format!("must be a text, got {}", other.map_or("nothing", kind)))),
    };
    let question = text("question")?;
    let answer = text("answer")?;
    let truth = answer
        .rsplit_once("####")
        .map(|(_, truth)| truth.trim().replace(',', ""))
        .filter(|truth| !truth.is_empty())
        .ok_or_else(|| ("answer".to_owned(), "must end with a line `#### number`".to_owned()))?;
    let Value::Object(columns) = json!({
        "prompt": question,
        "env_class": "gsm8k",
        "data_source": "openai/gsm8k",
        "reward_spec": {"method": "numeric", "ground_truth": truth},
        "extra_info": {"index": number, "question": question, "answer": answer},
    }) else {
        return Err(("answer".to_owned(), "could not be read".to_owned()));
    };
    Ok(columns)
}
