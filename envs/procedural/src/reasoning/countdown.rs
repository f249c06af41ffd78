//! `countdown`: an expression that uses every given number exactly once and hits a target. Every such expression is
//! right; it is evaluated exactly, with fractions on the way.

use serde::{Deserialize, Serialize};
use serde_json::json;

use super::{Draft, Generator, Level, Score};
use crate::answer::Answer;
use crate::arithmetic::evaluate;
use crate::draw::Draw;

pub(crate) struct Countdown;

/// What is asked.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Facts {
    numbers: Vec<i64>,
    target: i64,
}

/// Bounds under which no right answer can leave 128 bits: numerator and denominator of an expression that uses n
/// numbers up to m once each are at most 2^(n-1) m^n.
const MAX_NUMBERS: usize = 8;
const MAX_NUMBER: i64 = 10_000;

struct Node {
    text: String,
    value: i64,
}

/// Joins numbers at random until one is left.
fn tree(numbers: &[i64], draw: &mut Draw) -> Node {
    let mut nodes: Vec<Node> = numbers.iter().map(|value| Node { text: value.to_string(), value: *value }).collect();
    while nodes.len() > 1 {
        let left = nodes.swap_remove(draw.below(nodes.len()));
        let right = nodes.swap_remove(draw.below(nodes.len()));
        let (sign, value) = match draw.below(4) {
            0 => ('-', left.value - right.value),
            1 | 2 if left.value.abs() < 1000 && right.value.abs() < 1000 => ('*', left.value * right.value),
            3 if right.value != 0 && left.value % right.value == 0 => ('/', left.value / right.value),
            _ => ('+', left.value + right.value),
        };
        let text = if nodes.is_empty() {
            format!("{} {sign} {}", left.text, right.text)
        } else {
            format!("({} {sign} {})", left.text, right.text)
        };
        nodes.push(Node { text, value });
    }
    nodes.pop().unwrap_or(Node { text: String::new(), value: 0 })
}

impl Generator for Countdown {
    type Facts = Facts;

    fn generate(level: Level, draw: &mut Draw) -> Draft<Facts> {
        let count = level.of([3, 4, 4, 5, 6]);
        let largest = level.of([9, 25, 50, 100, 100]);
        let targets = level.of([(1, 50), (10, 100), (20, 200), (100, 500), (100, 999)]);
        let mut numbers: Vec<i64> = (0..count).map(|_| draw.between(1, largest)).collect();
        let mut node = tree(&numbers, draw);
        let fits = |node: &Node| (targets.0..=targets.1).contains(&node.value);
        for _ in 0..1000 {
            if fits(&node) && !numbers.contains(&node.value) {
                break;
            }
            numbers = (0..count).map(|_| draw.between(1, largest)).collect();
            node = tree(&numbers, draw);
        }
        let listed: Vec<String> = numbers.iter().map(i64::to_string).collect();
        Draft {
            question: format!(
                "Write an expression whose value is {}. It must use each of these numbers exactly once: {}. Allowed \
                 are + - * / and parentheses. Answer with the expression alone.",
                node.value,
                listed.join(", ")
            ),
            answer: json!(node.text),
            facts: Facts { target: node.value, numbers },
        }
    }

    fn score(facts: &Facts, answer: Answer<'_>) -> Result<Score, String> {
        if facts.numbers.is_empty() || facts.numbers.len() > MAX_NUMBERS {
            return Err(format!("`numbers` must be 1 to {MAX_NUMBERS}, got {}", facts.numbers.len()));
        }
        if let Some(number) = facts.numbers.iter().find(|number| !(0..=MAX_NUMBER).contains(*number)) {
            return Err(format!("`numbers` must be from 0 to {MAX_NUMBER}, got {number}"));
        }
        let Some(line) = answer.line() else { return Ok(Score::WRONG) };
        // `(1 + 2) * 3 = 9` says the same as its left side, where the right side is the target.
        let target = i128::from(facts.target);
        let expression = match line.split_once('=') {
            Some((left, right)) if crate::answer::integer(right).map(i128::from) == Some(target) => left,
            Some(_) => return Ok(Score::WRONG),
            None => line,
        };
        let Some(evaluated) = evaluate(expression) else { return Ok(Score::WRONG) };
        let mut used = evaluated.numbers;
        used.sort_unstable();
        let mut given: Vec<i128> = facts.numbers.iter().map(|number| i128::from(*number)).collect();
        given.sort_unstable();
        Ok(Score::of(used == given && evaluated.value.to_whole() == Some(target)))
    }
}
