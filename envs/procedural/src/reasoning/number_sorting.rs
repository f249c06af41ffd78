//! `number_sorting`: decimal numbers in ascending or descending order, compared by value.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{Draft, Generator, Level, Score};
use crate::answer::{Answer, Decimal, decimal, items};
use crate::draw::Draw;

pub(crate) struct NumberSorting;

/// What is asked.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Facts {
    numbers: Vec<String>,
    direction: Direction,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Direction {
    Ascending,
    Descending,
}

/// A number of so many hundredths, thousandths...
fn shown(mantissa: i64, decimals: u32) -> String {
    if decimals == 0 {
        return mantissa.to_string();
    }
    let unit = 10_u64.pow(decimals);
    let sign = if mantissa < 0 { "-" } else { "" };
    let size = mantissa.unsigned_abs();
    format!("{sign}{}.{:0width$}", size / unit, size % unit, width = decimals as usize)
}

/// The number as JSON: whole where it is whole.
fn as_json(text: &str) -> Value {
    match text.parse::<f64>() {
        Ok(number) if number.fract() == 0.0 => json!(number as i64),
        Ok(number) => json!(number),
        Err(_) => json!(text),
    }
}

/// The list that an answer gives, on one line: its first line; the lines up to a `]` where that one opens a `[`; the
/// lines of one number each where that one is such a line. A response that announces nothing is an answer where it has
/// no other line than these.
pub fn written(answer: Answer<'_>) -> Option<String> {
    let lines: Vec<&str> = answer.lines().collect();
    let first = lines.first()?;
    let number = |line: &&str| decimal(line.trim_end_matches([',', ' '])).is_some();
    let (used, list) = if first.starts_with('[') && !first.ends_with(']') {
        let used = lines.iter().position(|line| line.ends_with(']')).map_or(lines.len(), |last| last + 1);
        (used, lines[..used].join(" "))
    } else if lines.iter().take(2).filter(|line| number(line)).count() == 2 {
        let column: Vec<&str> = lines
            .iter()
            .copied()
            .take_while(|line| number(line))
            .map(|line| line.trim_end_matches([',', ' ']))
            .collect();
        (column.len(), column.join(", "))
    } else {
        (1, (*first).to_owned())
    };
    // `line` is none where other lines stand beside an answer that is not announced.
    (used == lines.len() || answer.line().is_some()).then_some(list)
}

impl Generator for NumberSorting {
    type Facts = Facts;

    fn generate(level: Level, draw: &mut Draw) -> Draft<Facts> {
        let (low, high) = level.of([(3, 4), (5, 7), (8, 12), (13, 20), (21, 40)]);
        let most = level.of([0, 0, 1, 2, 3]);
        let range = level.of([99, 999, 99, 99, 99]);
        let numbers: Vec<String> = (0..draw.between(low, high))
            .map(|_| {
                let decimals = draw.between(0, most) as u32;
                let largest = range * 10_i64.pow(decimals);
                shown(draw.between(-largest, largest), decimals)
            })
            .collect();
        let direction = if draw.below(2) == 0 { Direction::Ascending } else { Direction::Descending };
        let mut sorted: Vec<(Option<Decimal>, &String)> =
            numbers.iter().map(|number| (decimal(number), number)).collect();
        sorted.sort();
        if direction == Direction::Descending {
            sorted.reverse();
        }
        let word = if direction == Direction::Ascending { "ascending" } else { "descending" };
        Draft {
            question: format!(
                "Sort these numbers in {word} order: {}. Answer with a list such as [1, 2.5, 4].",
                numbers.join(", ")
            ),
            answer: sorted.iter().map(|(_, number)| as_json(number)).collect(),
            facts: Facts { numbers, direction },
        }
    }

    fn score(facts: &Facts, answer: Answer<'_>) -> Result<Score, String> {
        let mut truth = facts
            .numbers
            .iter()
            .map(|number| decimal(number).ok_or_else(|| format!("`numbers` holds `{number}`, which is none")))
            .collect::<Result<Vec<_>, _>>()?;
        if truth.is_empty() {
            return Err("`numbers` must not be empty".to_owned());
        }
        truth.sort_unstable();
        if facts.direction == Direction::Descending {
            truth.reverse();
        }
        let list = written(answer).unwrap_or_default();
        let given: Vec<Option<Decimal>> = items(&list).into_iter().map(decimal).collect();
        let hits = truth.iter().zip(&given).filter(|(truth, given)| Some(**truth) == **given).count();
        Ok(Score::share(hits, truth.len().max(given.len())))
    }
}
