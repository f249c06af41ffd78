//! Questions to search for (NQ, HotpotQA, as Search-R1 publishes them) and questions about several papers.

use serde_json::{Map, Value, json};

use super::record::{Mapped, Reading, Wrong};
use crate::error::kind;

/// Turns of a question about papers, where the record names none.
const PAPER_TURNS: u64 = 10;

/// The answers are `reward_model.ground_truth.target`, `golden_answers` or `answer`: a text or a list of texts.
pub(crate) fn nq_hotpot(reading: &Reading<'_>) -> Result<Mapped, Wrong> {
    let question = reading.text(&["question"])?;
    let reward = reading.reward()?;
    let told = reward.and_then(|reward| reward.get("ground_truth")).filter(|truth| !truth.is_null());
    let (column, target) = match told {
        Some(truth) => ("reward_model.ground_truth.target", truth.get("target").unwrap_or(truth)),
        None => reading.first(&["golden_answers", "answer"])?,
    };
    let answers: Vec<&str> = match target {
        Value::String(answer) => vec![answer],
        Value::Array(answers) => answers
            .iter()
            .map(|answer| {
                answer.as_str().ok_or_else(|| Wrong::new(column, format!("must be texts, got {}", kind(answer))))
            })
            .collect::<Result<_, _>>()?,
        other => return Err(Wrong::new(column, format!("must be a text or a list of texts, got {}", kind(other)))),
    };
    if answers.is_empty() || answers.iter().all(|answer| answer.trim().is_empty()) {
        return Err(Wrong::new(column, "holds no answer: there is nothing to grade by"));
    }
    let set = reading.text_or_empty("data_source")?;
    let source = match set {
        "" => "searchR1".to_owned(),
        set if set.starts_with("searchR1_") => set.to_owned(),
        set => format!("searchR1_{set}"),
    };
    let mut extra = match reading.get("extra_info") {
        Some(Value::Object(extra)) => extra.clone(),
        _ => Map::new(),
    };
    extra.entry("index").or_insert_with(|| Value::from(reading.number));
    extra.insert("question".to_owned(), Value::from(question));
    let columns = json!({
        "env_class": "search",
        "data_source": source,
        "ability": reading.get("ability").cloned().unwrap_or_else(|| Value::from("fact-reasoning")),
        "reward_spec": {"method": "rule", "ground_truth": {"target": answers}},
        "extra_info": extra,
    });
    let mut mapped = Mapped::new(reading, columns, question);
    mapped.prompt = reading.messages().cloned();
    Ok(mapped)
}

/// The context is a text of JSON, paper by id, as the environment's tools read it. Rows whose evidence holds no text are
/// left out.
pub(crate) fn multi_paper(reading: &Reading<'_>) -> Result<Mapped, Wrong> {
    let question = reading.text(&["question"])?;
    let Value::Array(papers) = reading.nested("papers")? else {
        return Err(Wrong::new("papers", "must be a list of papers"));
    };
    let Value::Array(evidence) = reading.nested("evidence")? else {
        return Err(Wrong::new("evidence", "must be a list with `paperId` and `selections`"));
    };
    let mut context = Map::new();
    for (index, paper) in papers.iter().enumerate() {
        let text = |name: &str| paper.get(name).and_then(Value::as_str).unwrap_or_default();
        let id = text("paperId");
        if id.is_empty() {
            return Err(Wrong::new(&format!("papers[{index}].paperId"), "is missing: evidence names papers by it"));
        }
        let abstract_block = match text("abstract") {
            "" => String::new(),
            words => format!("<abstract>\n{words}\n</abstract>\n"),
        };
        let paper = format!("### PAPER: {}\n{abstract_block}{}", text("title"), text("text"));
        context.insert(id.to_owned(), Value::from(paper));
    }
    if context.is_empty() {
        return Err(Wrong::new("papers", "holds no paper"));
    }
    let holds_text =
        |selection: &Value| selection.get("text").and_then(Value::as_str).is_some_and(|text| !text.trim().is_empty());
    let some = evidence.iter().any(|entry| {
        entry.get("selections").and_then(Value::as_array).is_some_and(|selections| selections.iter().any(holds_text))
    });
    let columns = json!({
        "env_class": "multipaper_evidence_rlm",
        "data_source": "multi_paper",
        "reward_spec": {"ground_truth": null, "evidence": evidence},
        "max_turns": reading.get("max_turns").cloned().unwrap_or_else(|| Value::from(PAPER_TURNS)),
        "question": question,
        "extra_info": {"index": reading.number, "context_text": Value::Object(context).to_string()},
    });
    let mut mapped = Mapped::new(reading, columns, question);
    mapped.left_out = (!some).then_some("its evidence holds no text");
    Ok(mapped)
}
