//! `chain_sum`: a chain of additions and subtractions.

use serde::{Deserialize, Serialize};
use serde_json::json;

use super::{Draft, Generator, Level, Score};
use crate::answer::{Answer, integer};
use crate::arithmetic::evaluate;
use crate::draw::Draw;

pub(crate) struct ChainSum;

/// What is asked.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Facts {
    pub(super) expression: String,
}

impl Facts {
    /// Whether a line is the expression's value.
    pub(super) fn score(&self, answer: Answer<'_>) -> Result<Score, String> {
        let value = evaluate(&self.expression)
            .ok_or_else(|| format!("`expression` must be one that has a value, got `{}`", self.expression))?
            .value
            .to_whole();
        let given = answer.line().and_then(integer);
        Ok(Score::of(given.is_some() && given.map(i128::from) == value))
    }
}

impl Generator for ChainSum {
    type Facts = Facts;

    fn generate(level: Level, draw: &mut Draw) -> Draft<Facts> {
        let (low, high) = level.of([(2, 3), (3, 4), (4, 6), (6, 9), (9, 12)]);
        let terms = draw.between(low, high);
        let digits = level.of([1, 2, 4, 6, 9]);
        let mut expression = String::new();
        let mut sum = 0;
        for term in 0..terms {
            // Every length is as likely as another: short numbers among long ones.
            let length = draw.between((digits + 1) / 2, digits) as u32;
            let number = draw.between(if length == 1 { 0 } else { 10_i64.pow(length - 1) }, 10_i64.pow(length) - 1);
            let minus = term > 0 && draw.below(2) == 1;
            if term > 0 {
                expression.push_str(if minus { " - " } else { " + " });
            }
            expression.push_str(&number.to_string());
            sum += if minus { -number } else { number };
        }
        Draft { question: format!("What is {expression}?"), answer: json!(sum), facts: Facts { expression } }
    }

    fn score(facts: &Facts, answer: Answer<'_>) -> Result<Score, String> {
        facts.score(answer)
    }
}
