//! `letter_counting`: how often a letter stands in a text, upper and lower case alike.

use serde::{Deserialize, Serialize};
use serde_json::json;

use super::{Draft, Generator, Level, Score};
use crate::answer::{Answer, integer};
use crate::draw::Draw;
use crate::long::filler;

pub(crate) struct LetterCounting;

/// What is asked.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Facts {
    text: String,
    letter: char,
}

impl Facts {
    fn count(&self) -> usize {
        self.text.chars().filter(|letter| letter.to_lowercase().eq(self.letter.to_lowercase())).count()
    }
}

impl Generator for LetterCounting {
    type Facts = Facts;

    fn generate(level: Level, draw: &mut Draw) -> Draft<Facts> {
        let size = level.of([20, 40, 80, 160, 320]);
        let mut text = filler::prose(size + 24, draw);
        // Cut where a word ends.
        text.truncate(text[..size].rfind(' ').unwrap_or(size));
        let present: Vec<char> = ('a'..='z').filter(|letter| text.to_lowercase().contains(*letter)).collect();
        let letter = if draw.below(10) == 0 { char::from(b'a' + draw.below(26) as u8) } else { *draw.pick(&present) };
        let facts = Facts { text, letter };
        Draft {
            question: format!(
                "How many times does the letter \"{letter}\" occur in the following text, upper and lower case \
                 alike?\n\n{}",
                facts.text
            ),
            answer: json!(facts.count()),
            facts,
        }
    }

    fn score(facts: &Facts, answer: Answer<'_>) -> Result<Score, String> {
        let given = answer.line().and_then(integer);
        Ok(Score::of(given.and_then(|count| usize::try_from(count).ok()) == Some(facts.count())))
    }
}
