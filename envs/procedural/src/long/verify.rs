//! The answer found again: an independent scan of the text, which knows the question and nothing of how the text was
//! made.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::code;

/// The answer to a generated question, or why the text has none.
pub fn answer(question: &str, text: &str) -> Result<Value, String> {
    if question.contains("repository of Python modules") {
        return code::scan::answer(question, text);
    }
    if let Some((_, rest)) = question.split_once("two different users ") {
        return user_pairs(question.contains("How many pairs"), rest, text);
    }
    if let Some(rest) = question.strip_prefix("What are the codes of the ") {
        return codes(rest, text).map(|codes| json!(codes));
    }
    if let Some(rest) = question.strip_prefix("What is the sum of the codes of the ") {
        return codes(rest, text).map(|codes| json!(codes.iter().sum::<u64>()));
    }
    if let Some(rest) = question.strip_prefix("What is the code of the ") {
        return needle(rest.trim_end_matches('?'), text).map(|code| json!(code));
    }
    if let Some((_, rest)) = question.split_once("label [") {
        let label = rest.split(']').next().unwrap_or_default();
        return Ok(json!(text.lines().filter(|line| second_field(line) == Some(label)).count()));
    }
    if let Some(topic) = question.strip_prefix("How many lines are about ") {
        return topics(topic.trim_end_matches('?'), text).map(|count| json!(count));
    }
    if question.contains("share a ticket") {
        return pairs(text);
    }
    Err(format!("no generated question: `{question}`"))
}

/// The codes of `A, the B and the C?...`.
fn codes(subjects: &str, text: &str) -> Result<Vec<u64>, String> {
    let subjects = subjects.split('?').next().unwrap_or_default().replace(" and the ", ", the ");
    subjects.split(", the ").map(|subject| needle(subject, text)).collect()
}

fn needle(subject: &str, text: &str) -> Result<u64, String> {
    let pattern = format!(" {subject} is ");
    let mut found = text.split(pattern.as_str()).skip(1);
    let (Some(after), None) = (found.next(), found.next()) else {
        return Err(format!("the needle of `{subject}` does not occur exactly once"));
    };
    let digits: String = after.chars().take_while(char::is_ascii_digit).collect();
    digits.parse::<u64>().map_err(|error| format!("`{digits}`: {error}"))
}

/// The lines with a word of the topic.
fn topics(topic: &str, text: &str) -> Result<usize, String> {
    let Some((_, words)) = super::topics::TOPICS.iter().find(|(name, _)| *name == topic) else {
        return Err(format!("no topic `{topic}`"));
    };
    let about = |line: &&str| line.split([' ', '.']).any(|word| words.contains(&word));
    Ok(text.lines().filter(about).count())
}

/// The label of a line `12 [label] ...`.
fn second_field(line: &str) -> Option<&str> {
    line.split_whitespace().nth(1)?.strip_prefix('[')?.strip_suffix(']')
}

fn pairs(text: &str) -> Result<Value, String> {
    let mut lines_of: BTreeMap<&str, Vec<u64>> = BTreeMap::new();
    for line in text.lines() {
        let mut fields = line.split(" | ");
        let (Some(number), Some(ticket)) = (fields.next(), fields.next()) else {
            return Err(format!("a line without a ticket: `{line}`"));
        };
        let number = number.parse().map_err(|error| format!("`{number}`: {error}"))?;
        lines_of.entry(ticket).or_default().push(number);
    }
    let mut pairs: Vec<[u64; 2]> = Vec::new();
    for (ticket, lines) in lines_of {
        match lines[..] {
            [_] => {}
            [first, second] => pairs.push([first.min(second), first.max(second)]),
            _ => return Err(format!("`{ticket}` stands on {} lines", lines.len())),
        }
    }
    pairs.sort_unstable();
    Ok(json!(pairs))
}

fn user_pairs(counted: bool, property: &str, text: &str) -> Result<Value, String> {
    let mut labels_of: BTreeMap<u64, BTreeSet<&str>> = BTreeMap::new();
    for line in text.lines() {
        let mut fields = line.splitn(3, " | ").skip(1);
        let user = fields.next().and_then(|field| field.strip_prefix("user ")?.parse().ok());
        let label = fields.next().and_then(|field| field.strip_prefix('[')?.split(']').next());
        let (Some(user), Some(label)) = (user, label) else {
            return Err(format!("a line without a user and a label: `{line}`"));
        };
        labels_of.entry(user).or_default().insert(label);
    }
    let asked: Vec<&str> = property.split("labelled [").skip(1).filter_map(|rest| rest.split(']').next()).collect();
    let mut pairs: Vec<[u64; 2]> = Vec::new();
    for (left, ours) in &labels_of {
        for (right, theirs) in labels_of.range(left + 1..) {
            let together = match asked[..] {
                [one] => ours.contains(one) && theirs.contains(one),
                [one, other] => {
                    [(ours, theirs), (theirs, ours)].iter().any(|(a, b)| a.contains(one) && b.contains(other))
                }
                _ => ours.intersection(theirs).next().is_some(),
            };
            if together {
                pairs.push([*left, *right]);
            }
        }
    }
    Ok(if counted { json!(pairs.len()) } else { json!(pairs) })
}
