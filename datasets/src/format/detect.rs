//! Which format a record looks like. Only what no other set looks like counts; the rest is nothing.

use serde_json::{Map, Value};

use super::Format;

pub(crate) fn format(record: &Map<String, Value>) -> Option<Format> {
    let has = |name: &str| record.get(name).is_some_and(|value| !value.is_null());
    let all = |names: &[&str]| names.iter().all(|name| has(name));
    let text = |name: &str| record.get(name).and_then(Value::as_str);
    let is = |name: &str, said: &str| text(name).is_some_and(|text| text.contains(said));

    if all(&["prompt", "entry_point", "test"]) && text("prompt").is_some() && !has("reward_spec") {
        return Some(Format::HumanEval);
    }
    if has("test_list") && has("code") && (has("text") || has("prompt")) && !has("reward_spec") {
        return Some(Format::Mbpp);
    }
    if all(&["question_content", "public_test_cases"]) {
        return Some(Format::LiveCodeBench);
    }
    if all(&["question", "papers", "evidence"]) {
        return Some(Format::MultiPaper);
    }
    if all(&["question", "db_id"]) {
        if text("SQL").is_some() {
            return Some(Format::Bird);
        }
        if text("query").is_some() {
            return Some(Format::Spider);
        }
        if text("sql").is_some() {
            return Some(Format::Text2Sql);
        }
    }
    if all(&["prompt", "db_id", "data"]) && (has("reward_spec") || has("reward_model")) {
        return Some(Format::Text2Sql);
    }
    if all(&["question", "golden_answers"]) {
        return Some(Format::NqHotpot);
    }
    if all(&["prompt", "reward_model"]) && is("data_source", "math_dapo") {
        return Some(Format::Dapo);
    }
    if has("prompt") {
        return Some(Format::Rows);
    }
    if has("question") && is("answer", "####") {
        return Some(Format::Gsm8k);
    }
    if has("problem") && is("solution", "\\boxed") && (has("level") || has("subject")) {
        return Some(Format::Math);
    }
    let aime = is("url", "AIME") || text("ID").is_some_and(|id| id.starts_with("20") && id.contains("-I"));
    if (has("problem") || has("Problem")) && (has("answer") || has("Answer")) && aime {
        return Some(Format::Aime);
    }
    None
}
