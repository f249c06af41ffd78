//! Spider, BIRD and SkyRL-SQL: questions that a query answers.

use serde_json::{Map, Value, json};

use super::record::{Mapped, Reading, Wrong, asked};
use crate::error::kind;

/// What `data` may say: which collection of databases a row's `db_id` is in.
const COLLECTIONS: [&str; 3] = ["synsql", "spider", "bird"];

/// Spider: `question`, `query`, `db_id`.
pub(crate) fn spider(reading: &Reading<'_>) -> Result<Mapped, Wrong> {
    question(reading, "spider", &["query"], "evidence")
}

/// BIRD: `question`, `SQL`, `db_id`, and `evidence` (knowledge that the question takes for granted).
pub(crate) fn bird(reading: &Reading<'_>) -> Result<Mapped, Wrong> {
    let mut mapped = question(reading, "bird", &["SQL", "query"], "evidence")?;
    for name in ["difficulty", "question_id"] {
        if let Some(value) = reading.get(name) {
            mapped.columns["extra_info"][name] = value.clone();
        }
    }
    Ok(mapped)
}

/// SkyRL-SQL: rows that have `db_id`, `data` and a truth already; or SynSQL's questions.
pub(crate) fn text2sql(reading: &Reading<'_>) -> Result<Mapped, Wrong> {
    let Some(messages) = reading.messages() else {
        let collection = match reading.get("data") {
            None => "synsql",
            Some(_) => collection(reading)?,
        };
        return question(reading, collection, &["sql", "SQL", "query"], "external_knowledge");
    };
    let Some(reward) = reading.reward()? else {
        return Err(Wrong::new("reward_spec", "is missing: it holds the gold query, as `ground_truth`"));
    };
    if !matches!(reward.get("ground_truth"), Some(Value::String(_))) {
        let got = reward.get("ground_truth").map_or("nothing", kind);
        return Err(Wrong::new("reward_spec.ground_truth", format!("must be the gold query, a text, got {got}")));
    }
    reading.text(&["db_id"])?;
    collection(reading)?;
    let mut columns: Map<String, Value> = reading.record.clone();
    columns.shift_remove("prompt");
    columns.shift_remove("reward_model");
    columns.insert("reward_spec".to_owned(), Value::Object(reward.clone()));
    if reading.get("env_class").is_none() {
        columns.insert("env_class".to_owned(), Value::from("text2sql"));
    }
    let mut mapped = Mapped::new(reading, Value::Object(columns), asked(messages));
    mapped.prompt = Some(messages.clone());
    Ok(mapped)
}

fn collection<'a>(reading: &Reading<'a>) -> Result<&'a str, Wrong> {
    let data = reading.text(&["data"])?;
    if COLLECTIONS.contains(&data) {
        return Ok(data);
    }
    Err(Wrong::new("data", format!("must be `synsql`, `spider` or `bird`, got `{data}`")))
}

fn question(
    reading: &Reading<'_>,
    data: &str,
    queries: &[&'static str],
    knowledge: &'static str,
) -> Result<Mapped, Wrong> {
    let question = reading.text(&["question"])?;
    let database = reading.text(&["db_id"])?;
    let query = reading.text(queries)?;
    // Where the prompt shows none, none has to be there.
    let schema = match reading.get("schema") {
        Some(_) => Some(reading.text(&["schema"])?),
        None if reading.shows_schema => Some(reading.schemas.get(database)?),
        None => None,
    };
    let columns = json!({
        "env_class": "text2sql",
        "data_source": data,
        "db_id": database,
        "data": data,
        "reward_spec": {"method": "rule", "ground_truth": query},
        "extra_info": {"index": reading.number, "question": question},
    });
    let mapped = Mapped::new(reading, columns, question).with("knowledge", reading.text_or_empty(knowledge)?);
    Ok(match schema {
        Some(schema) => mapped.with("schema", schema.trim_end()),
        None => mapped,
    })
}
