//! `basic_arithmetic`: an expression with precedence and parentheses. Every division on the way is exact.

use serde_json::json;

use super::chain_sum::Facts;
use super::{Draft, Generator, Level, Score};
use crate::answer::Answer;
use crate::draw::Draw;

pub(crate) struct BasicArithmetic;

/// Values on the way stay below this.
const LIMIT: i64 = 1_000_000_000;

/// An expression: its text, its value, and how tightly its outermost sign binds (1 sum, 2 product, 3 number).
struct Node {
    text: String,
    value: i64,
    binds: u8,
}

impl Node {
    fn number(value: i64) -> Self {
        Self { text: value.to_string(), value, binds: 3 }
    }

    /// The text as an operand of a sign.
    fn operand(&self, sign: char, right: bool) -> String {
        let needed = if matches!(sign, '+' | '-') { 1 } else { 2 };
        let tight = self.binds > needed || (self.binds == needed && !right);
        if tight { self.text.clone() } else { format!("({})", self.text) }
    }

    /// Both with a sign between them; none where a division is not exact or a value leaves the bounds.
    fn joined(left: &Self, sign: char, right: &Self) -> Option<Self> {
        let value = match sign {
            '+' => left.value + right.value,
            '-' => left.value - right.value,
            '*' => left.value.checked_mul(right.value)?,
            _ if right.value != 0 && left.value % right.value == 0 => left.value / right.value,
            _ => return None,
        };
        (value.abs() < LIMIT).then(|| Self {
            text: format!("{} {sign} {}", left.operand(sign, false), right.operand(sign, true)),
            value,
            binds: if matches!(sign, '+' | '-') { 1 } else { 2 },
        })
    }
}

fn build(numbers: usize, largest: i64, draw: &mut Draw) -> Node {
    if numbers <= 1 {
        return Node::number(draw.between(1, largest));
    }
    let split = 1 + draw.below(numbers - 1);
    let mut left = build(split, largest, draw);
    let mut right = build(numbers - split, largest, draw);
    let sign = *draw.pick(&['+', '-', '*', '/']);
    if sign == '/' {
        // A number on one side is chosen so that the division is exact.
        if left.binds == 3 && right.value != 0 && right.value.abs() <= largest {
            let most = (largest / right.value.abs()).max(1);
            left = Node::number(right.value.abs() * draw.between(1, most));
        } else if right.binds == 3 {
            let divisors: Vec<i64> = (2..=largest.min(99)).filter(|divisor| left.value % divisor == 0).collect();
            if !divisors.is_empty() {
                right = Node::number(*draw.pick(&divisors));
            }
        }
    }
    [sign, '*', '-'].into_iter().find_map(|sign| Node::joined(&left, sign, &right)).unwrap_or(left)
}

impl Generator for BasicArithmetic {
    type Facts = Facts;

    fn generate(level: Level, draw: &mut Draw) -> Draft<Facts> {
        let node = build(level.of([2, 3, 4, 6, 8]), level.of([9, 9, 99, 99, 999]), draw);
        Draft {
            question: format!("What is the value of {}?", node.text),
            answer: json!(node.value),
            facts: Facts { expression: node.text },
        }
    }

    fn score(facts: &Facts, answer: Answer<'_>) -> Result<Score, String> {
        facts.score(answer)
    }
}
