//! `base_conversion`: a number in another base, 2 to 36.

use serde::{Deserialize, Serialize};
use serde_json::json;

use super::{Draft, Generator, Level, Score};
use crate::answer::Answer;
use crate::draw::Draw;

pub(crate) struct BaseConversion;

/// What is asked.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Facts {
    number: String,
    from: u32,
    to: u32,
}

/// The digits of a number in a base from 2 to 36.
fn digits(mut number: u64, base: u32) -> String {
    let mut digits = Vec::new();
    loop {
        digits.extend(char::from_digit((number % u64::from(base)) as u32, base));
        number /= u64::from(base);
        if number == 0 {
            return digits.into_iter().rev().collect();
        }
    }
}

/// The number that digits of a base write; digits may be grouped by spaces, commas or underscores, and the bases 2, 8
/// and 16 may have their prefix.
fn value(text: &str, base: u32) -> Option<u64> {
    let text: String = text.chars().filter(|letter| !matches!(letter, ' ' | ',' | '_')).collect();
    let text = text.to_ascii_lowercase();
    // `0b1` is a number of its own in base 16.
    let prefix = match base {
        2 => "0b",
        8 => "0o",
        16 => "0x",
        _ => "",
    };
    let digits = text.strip_prefix(prefix).unwrap_or(&text);
    // The standard parser takes a sign.
    if digits.starts_with(['+', '-']) {
        return None;
    }
    u64::from_str_radix(digits, base).ok()
}

fn named(base: u32) -> String {
    match base {
        2 => "binary".to_owned(),
        8 => "octal".to_owned(),
        10 => "decimal".to_owned(),
        16 => "hexadecimal".to_owned(),
        other => format!("base {other}"),
    }
}

impl Generator for BaseConversion {
    type Facts = Facts;

    fn generate(level: Level, draw: &mut Draw) -> Draft<Facts> {
        let number = draw.below(level.of([100, 1_000, 65_536, 10_000_000, 1_000_000_000_000])) as u64;
        let bases: Vec<u32> = match level.number() {
            1 | 2 => vec![2, 8, 10, 16],
            3 => (2..=16).collect(),
            _ => (2..=36).collect(),
        };
        let pair = draw.distinct(2, bases.len());
        let (mut from, mut to) = (bases[pair[0]], bases[pair[1]]);
        if draw.below(2) == 0 {
            (from, to) = (to, from);
        }
        let written = digits(number, from);
        let letters = if from > 10 || to > 10 { " Digits above 9 are the letters from a on." } else { "" };
        Draft {
            question: format!("Convert the {} number {written} to {}.{letters}", named(from), named(to)),
            answer: json!(digits(number, to)),
            facts: Facts { number: written, from, to },
        }
    }

    fn score(facts: &Facts, answer: Answer<'_>) -> Result<Score, String> {
        for (key, base) in [("from", facts.from), ("to", facts.to)] {
            if !(2..=36).contains(&base) {
                return Err(format!("`{key}` must be a base from 2 to 36, got {base}"));
            }
        }
        let truth = u64::from_str_radix(&facts.number, facts.from)
            .map_err(|error| format!("`number` must be in base {}, got `{}`: {error}", facts.from, facts.number))?;
        Ok(Score::of(answer.line().and_then(|line| value(line, facts.to)) == Some(truth)))
    }
}
