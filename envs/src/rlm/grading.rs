//! The answer against the truth: a pure function on the host, over values that were copied out of the guest.

use espalier_datasets::error::kind;
use espalier_sandbox::{FinalAnswer, Value};
use serde::{Deserialize, Serialize};

use super::{literal, python};
use crate::graders::numeric;

/// How an answer is graded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RewardKind {
    /// The answer is the truth: texts as texts, numbers by value, lists and dicts item by item.
    Exact,
    /// The answer's text contains the truth (each item of a list); a number counts when it stands there as a number.
    Contains,
    /// The answer is one number, or announces it after `####`, and it has the truth's value.
    Numeric,
    /// Any answer that is not empty.
    NonEmpty,
}

impl RewardKind {
    /// The kind that `reward_spec.method` names, if it names one.
    pub fn from_method(method: &str) -> Option<Self> {
        serde_json::from_value(serde_json::Value::String(method.to_owned())).ok()
    }
}

/// What an author may loosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Leniency {
    /// The order of a list's items does not count.
    pub unordered: bool,
    /// Upper and lower case are the same.
    pub ignore_case: bool,
}

/// 1 when the answer is right and 0 when it is not; an error, with its reason, when the truth cannot be compared
/// with.
pub fn grade(
    kind: RewardKind,
    leniency: Leniency,
    answer: &FinalAnswer,
    truth: &serde_json::Value,
) -> Result<f64, String> {
    let right = match kind {
        RewardKind::NonEmpty => !answer.text.is_empty(),
        RewardKind::Exact => exact(answer, truth, leniency),
        RewardKind::Contains => contains(&answer.text, truth, leniency)?,
        RewardKind::Numeric => is_number(answer, truth)?,
    };
    Ok(f64::from(u8::from(right)))
}

/// Why a truth cannot be compared with in this way, whatever the answer.
pub fn check(kind: RewardKind, truth: &serde_json::Value) -> Result<(), String> {
    match (kind, truth) {
        (RewardKind::Numeric, truth) => number(truth).map(|_| ()),
        (RewardKind::Contains, serde_json::Value::Array(items)) if !items.is_empty() => {
            items.iter().try_for_each(|item| check(kind, item))
        }
        (RewardKind::Contains, truth) => contains("", truth, Leniency::default()).map(|_| ()),
        (RewardKind::Exact | RewardKind::NonEmpty, _) => Ok(()),
    }
}

fn exact(answer: &FinalAnswer, truth: &serde_json::Value, leniency: Leniency) -> bool {
    match truth {
        serde_json::Value::String(truth) => same_text(answer.text.trim(), truth.trim(), leniency.ignore_case),
        serde_json::Value::Number(truth) => {
            let truth = numeric::parse(&truth.to_string());
            !matches!(answer.value, Value::Bool(_))
                && matches!((numeric::parse(&answer.text), truth), (Some(given), Some(truth)) if numeric::equal(&given, &truth))
        }
        truth => {
            // An answer that is only text is read as Python would read it.
            let read = match &answer.value {
                Value::Str(text) => literal(text.trim()),
                Value::Opaque { .. } => literal(answer.text.trim()),
                _ => None,
            };
            let given = plain(read.as_ref().unwrap_or(&answer.value), leniency.ignore_case);
            let truth = plain(&python::from_json(truth.clone()), leniency.ignore_case);
            match (given, truth) {
                (Value::List(mut given), Value::List(mut truth))
                    if leniency.unordered || matches!(answer.value, Value::Set(_)) =>
                {
                    given.sort_by_cached_key(Value::repr);
                    truth.sort_by_cached_key(Value::repr);
                    given == truth
                }
                (given, truth) => given == truth,
            }
        }
    }
}

fn same_text(left: &str, right: &str, ignore_case: bool) -> bool {
    if ignore_case { left.to_lowercase() == right.to_lowercase() } else { left == right }
}

/// A value in the one form that equal values share: tuples and sets are lists (a set's in order), whole floats are
/// integers, dicts are ordered by key.
fn plain(value: &Value, ignore_case: bool) -> Value {
    let items = |items: &[Value]| items.iter().map(|item| plain(item, ignore_case)).collect::<Vec<_>>();
    match value {
        Value::List(list) | Value::Tuple(list) => Value::List(items(list)),
        Value::Set(set) => {
            let mut sorted = items(set);
            sorted.sort_by_cached_key(Value::repr);
            Value::List(sorted)
        }
        Value::Dict(entries) => {
            let mut sorted: Vec<(Value, Value)> =
                entries.iter().map(|(key, value)| (plain(key, ignore_case), plain(value, ignore_case))).collect();
            sorted.sort_by_cached_key(|(key, _)| key.repr());
            Value::Dict(sorted)
        }
        // Beyond 2^53 a float is not one integer; it stays a float.
        Value::Float(number) if number.fract() == 0.0 && number.abs() < 9_007_199_254_740_992.0 => {
            Value::Int(*number as i64)
        }
        Value::Str(text) if ignore_case => Value::Str(text.to_lowercase()),
        other => other.clone(),
    }
}

fn contains(text: &str, truth: &serde_json::Value, leniency: Leniency) -> Result<bool, String> {
    match truth {
        serde_json::Value::String(truth) if truth.trim().is_empty() => {
            Err("an empty text is contained in every answer".to_owned())
        }
        serde_json::Value::String(truth) if leniency.ignore_case => {
            Ok(text.to_lowercase().contains(&truth.trim().to_lowercase()))
        }
        serde_json::Value::String(truth) => Ok(text.contains(truth.trim())),
        serde_json::Value::Number(number) => {
            let truth = numeric::parse(&number.to_string());
            Ok(truth.is_some_and(|truth| numeric::numbers(text).iter().any(|given| numeric::equal(given, &truth))))
        }
        serde_json::Value::Array(items) if !items.is_empty() => {
            for item in items {
                if !contains(text, item, leniency)? {
                    return Ok(false);
                }
            }
            Ok(true)
        }
        other => Err(format!("`contains` compares with a text, a number or a list of them, got {}", kind(other))),
    }
}

/// The number that a truth is.
fn number(truth: &serde_json::Value) -> Result<numeric::Number, String> {
    match truth {
        serde_json::Value::Number(number) => numeric::parse(&number.to_string()),
        // A worked solution as truth: its announced answer.
        serde_json::Value::String(text) => numeric::parse(text).or_else(|| numeric::worked_answer(text, false)),
        _ => None,
    }
    .ok_or_else(|| format!("`numeric` compares with a number, got `{truth}`"))
}

fn is_number(answer: &FinalAnswer, truth: &serde_json::Value) -> Result<bool, String> {
    let truth = number(truth)?;
    if matches!(answer.value, Value::Bool(_)) {
        return Ok(false);
    }
    // One number among words (`42 apples`) is an answer; several are a guess.
    let given = numeric::parse(&answer.text).or_else(|| numeric::worked_answer(&answer.text, false)).or_else(|| {
        let mut all = numeric::numbers(&answer.text);
        if all.len() == 1 { all.pop() } else { None }
    });
    Ok(given.is_some_and(|given| numeric::equal(&given, &truth)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn typed(value: Value) -> FinalAnswer {
        FinalAnswer { text: value.display(), value }
    }

    fn score(kind: RewardKind, answer: Value, truth: serde_json::Value) -> f64 {
        grade(kind, Leniency::default(), &typed(answer), &truth).unwrap()
    }

    #[test]
    fn exact_compares_texts_numbers_and_lists_by_type() {
        use RewardKind::Exact;
        assert_eq!(score(Exact, Value::from(" Paris\n"), json!("Paris")), 1.0);
        assert_eq!(score(Exact, Value::from("paris"), json!("Paris")), 0.0);
        assert_eq!(score(Exact, Value::Int(42), json!("42")), 1.0);
        assert_eq!(score(Exact, Value::Float(42.0), json!(42)), 1.0);
        assert_eq!(score(Exact, Value::from("42"), json!(42)), 1.0);
        assert_eq!(score(Exact, Value::Bool(true), json!(1)), 0.0);
        assert_eq!(score(Exact, Value::from("[1, 2]"), json!([1, 2])), 1.0);
        assert_eq!(score(Exact, Value::Tuple(vec![Value::Int(1), Value::Float(2.0)]), json!([1, 2])), 1.0);
        assert_eq!(score(Exact, Value::List(vec![Value::Int(2), Value::Int(1)]), json!([1, 2])), 0.0);
        assert_eq!(score(Exact, Value::Set(vec![Value::Int(2), Value::Int(1)]), json!([1, 2])), 1.0);
        assert_eq!(score(Exact, Value::List(vec![Value::from("1")]), json!([1])), 0.0);
        assert_eq!(score(Exact, Value::from("{'a': (1,)}"), json!({"a": [1]})), 1.0);
    }

    #[test]
    fn leniency_is_asked_for() {
        let answer = typed(Value::List(vec![Value::from("B"), Value::from("a")]));
        let grade = |leniency| grade(RewardKind::Exact, leniency, &answer, &json!(["a", "b"])).unwrap();
        assert_eq!(grade(Leniency::default()), 0.0);
        assert_eq!(grade(Leniency { unordered: true, ignore_case: false }), 0.0);
        assert_eq!(grade(Leniency { unordered: true, ignore_case: true }), 1.0);
    }

    #[test]
    fn duplicates_count_in_an_unordered_list() {
        let answer = typed(Value::List(vec![Value::Int(1), Value::Int(1), Value::Int(2)]));
        let lenient = Leniency { unordered: true, ignore_case: false };
        assert_eq!(grade(RewardKind::Exact, lenient, &answer, &json!([1, 2])), Ok(0.0));
    }

    #[test]
    fn contains_looks_for_whole_numbers() {
        use RewardKind::Contains;
        assert_eq!(score(Contains, Value::from("about 1,42 or 42."), json!(42)), 1.0);
        assert_eq!(score(Contains, Value::from("142"), json!(42)), 0.0);
        assert_eq!(score(Contains, Value::from("red and blue"), json!(["blue", "red"])), 1.0);
        assert_eq!(score(Contains, Value::from("red"), json!(["blue", "red"])), 0.0);
        assert!(grade(Contains, Leniency::default(), &typed(Value::from("x")), &json!("")).is_err());
    }

    #[test]
    fn numeric_takes_one_number_and_no_guesses() {
        use RewardKind::Numeric;
        assert_eq!(score(Numeric, Value::from("$1,000.00"), json!("1000")), 1.0);
        assert_eq!(score(Numeric, Value::from("18 dollars"), json!(18)), 1.0);
        assert_eq!(score(Numeric, Value::from("17 or 18"), json!(18)), 0.0);
        assert_eq!(score(Numeric, Value::from("17, so #### 18"), json!(18)), 1.0);
        assert_eq!(score(Numeric, Value::Bool(true), json!(1)), 0.0);
        assert!(grade(Numeric, Leniency::default(), &typed(Value::Int(1)), &json!("one")).is_err());
    }

    #[test]
    fn an_answer_that_only_pretends_to_be_the_truth_is_wrong() {
        // A class whose `repr` or `__eq__` says whatever it likes crosses as an opaque value.
        let fake = FinalAnswer {
            text: "<Anything>".to_owned(),
            value: Value::Opaque { type_name: "Anything".to_owned(), repr: "[1, 2]".to_owned() },
        };
        assert_eq!(grade(RewardKind::Exact, Leniency::default(), &fake, &json!([1, 2])), Ok(0.0));
    }
}
