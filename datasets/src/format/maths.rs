//! GSM8K, MATH, AIME and DAPO-Math.

use serde_json::{Value, json};

use super::record::{Mapped, Reading, Wrong, asked};
use crate::error::kind;

/// GSM8K. The truth is the number behind the last `####`, without its commas.
pub(crate) fn gsm8k(reading: &Reading<'_>) -> Result<Mapped, Wrong> {
    let question = reading.text(&["question"])?;
    let answer = reading.text(&["answer"])?;
    let truth = answer
        .rsplit_once("####")
        .map(|(_, truth)| truth.trim().replace(',', ""))
        .filter(|truth| !truth.is_empty())
        .ok_or_else(|| Wrong::new("answer", "must end with a line `#### number`"))?;
    let columns = json!({
        "env_class": "gsm8k",
        "data_source": "openai/gsm8k",
        "reward_spec": {"method": "numeric", "ground_truth": truth},
        "extra_info": {"index": reading.number, "question": question, "answer": answer},
    });
    Ok(Mapped::new(reading, columns, question))
}

/// MATH. The truth is what the solution's last box holds, as it stands there.
pub(crate) fn math(reading: &Reading<'_>) -> Result<Mapped, Wrong> {
    let problem = reading.text(&["problem", "question"])?;
    let solution = reading.text_or_empty("solution")?;
    let truth = match (last_boxed(solution), reading.get("answer")) {
        (Some(boxed), _) => boxed.to_owned(),
        (None, Some(_)) => answer(reading, &["answer"])?,
        (None, None) => return Err(Wrong::new("solution", "must hold its answer in `\\boxed{...}`")),
    };
    let columns = json!({
        "env_class": "math",
        "data_source": "math",
        "reward_spec": {"method": "math", "ground_truth": truth},
        "extra_info": {"index": reading.number, "question": problem, "answer": solution},
    });
    let mut mapped = Mapped::new(reading, columns, problem);
    for (column, names) in [("level", &["level"][..]), ("subject", &["subject", "type"])] {
        if let Some(value) = names.iter().find_map(|name| reading.get(name)) {
            mapped.columns["extra_info"][column] = value.clone();
        }
    }
    Ok(mapped)
}

/// AIME, under the names that its mirrors use.
pub(crate) fn aime(reading: &Reading<'_>) -> Result<Mapped, Wrong> {
    let problem = reading.text(&["problem", "Problem", "question", "Question"])?;
    let truth = answer(reading, &["answer", "Answer"])?;
    let columns = json!({
        "env_class": "aime",
        "data_source": "aime",
        "reward_spec": {"method": "rule", "ground_truth": truth},
        "extra_info": {"index": reading.number, "question": problem},
    });
    let name = ["url", "ID", "id"].into_iter().find_map(|name| reading.get(name));
    let mut mapped = Mapped::new(reading, columns, problem);
    if let Some(name) = name {
        mapped.columns["extra_info"]["problem_id"] = name.clone();
    }
    Ok(mapped)
}

/// DAPO-Math: prompts as published, with their instruction.
pub(crate) fn dapo(reading: &Reading<'_>) -> Result<Mapped, Wrong> {
    let (column, prompt) = reading.first(&["prompt"])?;
    if !prompt.is_array() {
        return Err(Wrong::new(column, format!("must be a list of messages, got {}", kind(prompt))));
    }
    let Some(reward) = reading.reward()? else {
        return Err(Wrong::new("reward_model", "is missing: it holds the truth, as `ground_truth`"));
    };
    let truth = match reward.get("ground_truth") {
        Some(Value::String(truth)) => truth.clone(),
        Some(Value::Number(truth)) => truth.to_string(),
        other => {
            let got = other.map_or("nothing", kind);
            return Err(Wrong::new("reward_model.ground_truth", format!("must be a text or a number, got {got}")));
        }
    };
    let columns = json!({
        "env_class": "aime",
        "reward_spec": {"method": "rule", "ground_truth": truth},
        "extra_info": reading.get("extra_info").cloned().unwrap_or_else(|| json!({"index": reading.number})),
    });
    let mut mapped = Mapped::new(reading, columns, asked(prompt))
        .column("data_source", reading.get("data_source"))
        .column("ability", reading.get("ability"));
    mapped.prompt = Some(prompt.clone());
    Ok(mapped)
}

/// An answer that is a text or a number, as it stands.
fn answer(reading: &Reading<'_>, columns: &[&'static str]) -> Result<String, Wrong> {
    let (column, value) = reading.first(columns)?;
    match value {
        Value::String(text) if !text.trim().is_empty() => Ok(text.clone()),
        Value::Number(number) => Ok(number.to_string()),
        Value::String(_) => Err(Wrong::new(column, "is empty: there is nothing to grade by")),
        other => Err(Wrong::new(column, format!("must be a text or a number, got {}", kind(other)))),
    }
}

/// What the last `\boxed{...}` (or `\fbox{...}`) of a text holds: up to the brace that closes it, escaped braces left
/// aside. `\boxed 7` holds what stands before the next `$`.
pub fn last_boxed(text: &str) -> Option<&str> {
    let (at, length) =
        ["\\boxed", "\\fbox"].into_iter().find_map(|word| text.rfind(word).map(|at| (at, word.len())))?;
    let rest = &text[at + length..];
    let Some(inner) = rest.trim_start().strip_prefix('{') else {
        let bare = rest.split('$').next().unwrap_or_default().trim();
        return rest.starts_with(' ').then_some(bare).filter(|bare| !bare.is_empty());
    };
    let (mut depth, mut escaped) = (1_usize, false);
    for (index, byte) in inner.bytes().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'{' => depth += 1,
            b'}' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return Some(&inner[..index]);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::last_boxed;

    #[test]
    fn the_last_box_is_found() {
        for (text, boxed) in [
            (r"first \boxed{1}, then $\boxed{\frac{1}{2}}$.", Some(r"\frac{1}{2}")),
            (r"\boxed{\{1, 2\}}", Some(r"\{1, 2\}")),
            (r"\boxed{\left\{x\right.}", Some(r"\left\{x\right.")),
            (r"\boxed{a \\{b}}", Some(r"a \\{b}")),
            (r"$\boxed 7$ rows", Some("7")),
            (r"\fbox{no}", Some("no")),
            (r"\boxed{never closed", None),
            (r"\boxedly", None),
            ("no box", None),
        ] {
            assert_eq!(last_boxed(text), boxed, "{text}");
        }
    }
}
