//! HumanEval, MBPP and LiveCodeBench.

use std::io::Read as _;

use base64::Engine as _;
use serde_json::{Map, Value, json};

use super::record::{Mapped, Reading, Wrong};
use crate::error::kind;

/// Largest text of hidden tests, bytes.
const MAX_TESTS: u64 = 1 << 30;

/// HumanEval: the head of a function, and `check(candidate)` that asserts on it.
pub(crate) fn humaneval(reading: &Reading<'_>) -> Result<Mapped, Wrong> {
    let head = reading.text(&["prompt"])?;
    let entry_point = reading.text(&["entry_point"])?;
    let test = reading.text(&["test"])?;
    let columns = json!({
        "env_class": "code",
        "data_source": "humaneval",
        "test": test,
        "entry_point": entry_point,
        "code_prompt": head,
        "reward_spec": {"method": "humaneval", "ground_truth": test},
        "extra_info": {"index": reading.number, "solution": reading.get("canonical_solution")},
    });
    let mut mapped = Mapped::new(reading, columns, head).with("head", head);
    name_by(&mut mapped, reading, "task_id", "")?;
    Ok(mapped)
}

/// MBPP: a sentence, and assertions. The sanitised set says `prompt` and `test_imports`.
pub(crate) fn mbpp(reading: &Reading<'_>) -> Result<Mapped, Wrong> {
    let question = reading.text(&["text", "prompt"])?;
    let (column, tests) = reading.first(&["test_list"])?;
    let lines = tests.as_array().filter(|tests| !tests.is_empty() && tests.iter().all(Value::is_string));
    let Some(lines) = lines else {
        return Err(Wrong::new(column, format!("must be a list of texts with one at least, got {}", kind(tests))));
    };
    let setup = match reading.get("test_imports") {
        Some(Value::Array(imports)) => imports.iter().filter_map(Value::as_str).collect::<Vec<_>>().join("\n"),
        Some(other) => return Err(Wrong::new("test_imports", format!("must be a list, got {}", kind(other)))),
        None => reading.text_or_empty("test_setup_code")?.to_owned(),
    };
    let shown = lines.iter().filter_map(Value::as_str).collect::<Vec<_>>().join("\n");
    let columns = json!({
        "env_class": "code",
        "data_source": "mbpp",
        "test_list": tests,
        "test_setup_code": setup,
        "reward_spec": {"method": "mbpp", "ground_truth": shown},
        "extra_info": {"index": reading.number, "solution": reading.get("code")},
    });
    let mut mapped = Mapped::new(reading, columns, question)
        .with("tests", shown)
        .column("challenge_test_list", reading.get("challenge_test_list"));
    name_by(&mut mapped, reading, "task_id", "mbpp/")?;
    Ok(mapped)
}

/// LiveCodeBench, as published (`question_content`, `public_test_cases`, `private_test_cases`, `metadata`) or as its
/// preparation leaves it (`problem`, `tests`). The truth is a JSON text: a list of `input`, `output`, `testtype` and
/// `metadata`.
pub(crate) fn livecodebench(reading: &Reading<'_>) -> Result<Mapped, Wrong> {
    let question = reading.text(&["question_content", "problem"])?;
    let starter = reading.text_or_empty("starter_code")?;
    let metadata = match reading.get("metadata") {
        None => Map::new(),
        Some(_) => match reading.nested("metadata")? {
            Value::Object(metadata) => metadata,
            other => return Err(Wrong::new("metadata", format!("must be an object, got {}", kind(&other)))),
        },
    };
    let mut tests = if reading.get("tests").is_some() {
        list("tests", reading.nested("tests")?)?
    } else {
        let mut tests = list("public_test_cases", reading.nested("public_test_cases")?)?;
        if let Some(hidden) = reading.get("private_test_cases") {
            tests.extend(private_tests(hidden)?);
        }
        tests
    };
    for test in &mut tests {
        let Value::Object(test) = test else {
            return Err(Wrong::new("tests", format!("must be objects with `input` and `output`, got {}", kind(test))));
        };
        // The grader asks the first test which function there is to call.
        if !metadata.is_empty() && !test.contains_key("metadata") {
            test.insert("metadata".to_owned(), Value::Object(metadata.clone()));
        }
        test.entry("metadata").or_insert_with(|| json!({}));
        test.entry("testtype").or_insert_with(|| Value::from(if starter.is_empty() { "stdin" } else { "functional" }));
    }
    if tests.is_empty() {
        return Err(Wrong::new("public_test_cases", "holds no test: there is nothing to grade by"));
    }
    let columns = json!({
        "env_class": "lcb",
        "data_source": "livecodebench",
        "ability": "code",
        "reward_spec": {"method": "rule", "ground_truth": Value::Array(tests).to_string()},
        "extra_info": {"index": reading.number},
    });
    let mut mapped = Mapped::new(reading, columns, question).with("starter_code", starter);
    for name in ["platform", "difficulty", "contest_date", "question_title"] {
        if let Some(value) = reading.get(name) {
            mapped.columns["extra_info"][name] = value.clone();
        }
    }
    if reading.get("question_id").is_some() {
        name_by(&mut mapped, reading, "question_id", "")?;
    }
    Ok(mapped)
}

fn list(column: &str, value: Value) -> Result<Vec<Value>, Wrong> {
    match value {
        Value::Array(items) => Ok(items),
        other => Err(Wrong::new(column, format!("must be a list of tests, got {}", kind(&other)))),
    }
}

/// The row's id from a column of the record, unless it has a `uid` already.
fn name_by(mapped: &mut Mapped, reading: &Reading<'_>, column: &'static str, prefix: &str) -> Result<(), Wrong> {
    let (_, name) = reading.first(&[column])?;
    let name = match name {
        Value::String(name) => name.clone(),
        Value::Number(name) => name.to_string(),
        other => return Err(Wrong::new(column, format!("must be a text or a number, got {}", kind(other)))),
    };
    mapped.columns.insert(column.to_owned(), Value::from(name.clone()));
    mapped.columns.entry("uid").or_insert_with(|| Value::from(format!("{prefix}{name}")));
    Ok(())
}

/// Hidden tests: a list, JSON text of one, or base64 of a zlib stream of a pickled JSON text.
fn private_tests(value: &Value) -> Result<Vec<Value>, Wrong> {
    const COLUMN: &str = "private_test_cases";
    let wrong = |reason: String| Wrong::new(COLUMN, reason);
    let text = match value {
        Value::Array(tests) => return Ok(tests.clone()),
        Value::String(text) => text.trim(),
        other => return Err(wrong(format!("must be a list or a text, got {}", kind(other)))),
    };
    if text.is_empty() {
        return Ok(Vec::new());
    }
    let parse =
        |text: &str| espalier_json::value(text.as_bytes()).map_err(|error| wrong(format!("is no JSON: {error}")));
    if text.starts_with('[') {
        return list(COLUMN, parse(text)?);
    }
    let packed = base64::engine::general_purpose::STANDARD
        .decode(text)
        .map_err(|error| wrong(format!("is neither JSON nor base64: {error}")))?;
    let mut bytes = Vec::new();
    flate2::read::ZlibDecoder::new(packed.as_slice())
        .take(MAX_TESTS + 1)
        .read_to_end(&mut bytes)
        .map_err(|error| wrong(format!("is no zlib stream: {error}")))?;
    if bytes.len() as u64 > MAX_TESTS {
        return Err(wrong(format!("unpacks to more than {MAX_TESTS} bytes")));
    }
    let text =
        pickled_text(&bytes).ok_or_else(|| wrong("must be a pickled text; it holds something else".to_owned()))?;
    list(COLUMN, parse(text)?)
}

/// The text that a pickle of one text holds (protocols 2 to 5): nothing is executed, everything else is refused.
fn pickled_text(bytes: &[u8]) -> Option<&str> {
    fn take<'a>(rest: &mut &'a [u8], count: usize) -> Option<&'a [u8]> {
        let (taken, left) = rest.split_at_checked(count)?;
        *rest = left;
        Some(taken)
    }
    fn length(rest: &mut &[u8], width: usize) -> Option<usize> {
        let bytes = take(rest, width)?;
        let value = bytes.iter().rev().fold(0_u64, |value, byte| value << 8 | u64::from(*byte));
        usize::try_from(value).ok()
    }
    let mut rest = bytes;
    let mut text = None;
    loop {
        match take(&mut rest, 1)?[0] {
            // PROTO, BINPUT
            0x80 | b'q' => drop(take(&mut rest, 1)?),
            // FRAME
            0x95 => drop(take(&mut rest, 8)?),
            // LONG_BINPUT
            b'r' => drop(take(&mut rest, 4)?),
            // MEMOIZE
            0x94 => {}
            opcode @ (0x8c | b'X' | 0x8d) if text.is_none() => {
                let width = match opcode {
                    0x8c => 1,
                    b'X' => 4,
                    _ => 8,
                };
                let length = length(&mut rest, width)?;
                text = Some(std::str::from_utf8(take(&mut rest, length)?).ok()?);
            }
            b'.' if rest.is_empty() => return text,
            _ => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_pickled_text_is_read_and_nothing_else() {
        // pickle.dumps("[1]") under protocols 2 and 4.
        assert_eq!(pickled_text(b"\x80\x02X\x03\x00\x00\x00[1]q\x00."), Some("[1]"));
        assert_eq!(pickled_text(b"\x80\x04\x95\x07\x00\x00\x00\x00\x00\x00\x00\x8c\x03[1]\x94."), Some("[1]"));
        // pickle.dumps(os.system)
        assert_eq!(pickled_text(b"\x80\x04\x8c\x05posix\x94\x8c\x06system\x94\x93\x94."), None);
        assert_eq!(pickled_text(b""), None);
        assert_eq!(pickled_text(b"\x80\x02X\xff\xff\xff\xff[1]."), None);
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let _ = pickled_text(&bytes);
        }
    }
}
