//! `spell_backward`: a word from its end.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use serde::{Deserialize, Serialize};
use serde_json::json;

use super::{Draft, Generator, Level, Score};
use crate::answer::Answer;
use crate::draw::Draw;
use crate::long::filler;

pub(crate) struct SpellBackward;

/// What is asked.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Facts {
    word: String,
}

/// The words of the generated prose, each once.
static WORDS: LazyLock<Vec<&'static str>> =
    LazyLock::new(|| filler::words().collect::<BTreeSet<_>>().into_iter().collect());

const SYLLABLES: [&str; 24] = [
    "ba", "cor", "del", "fi", "gra", "hol", "jun", "ka", "lim", "mo", "nev", "os", "pri", "qua", "rel", "sto", "tam",
    "ul", "vor", "wy", "xen", "ya", "zi", "eth",
];

fn word(low: usize, high: usize, draw: &mut Draw) -> String {
    let real: Vec<&str> = WORDS.iter().copied().filter(|word| (low..=high).contains(&word.len())).collect();
    if real.len() >= 20 {
        return (*draw.pick(&real)).to_owned();
    }
    let length = low + draw.below(high - low + 1);
    let mut word = String::new();
    while word.len() < length {
        let syllable: &str = draw.pick::<&str>(&SYLLABLES);
        word.push_str(syllable);
    }
    word.truncate(length);
    word
}

/// A text's letters in lower case, without what spelling puts between them.
fn letters(text: &str) -> Vec<char> {
    text.chars().filter(|letter| !matches!(letter, ' ' | '-' | ',' | '.')).flat_map(char::to_lowercase).collect()
}

impl Generator for SpellBackward {
    type Facts = Facts;

    fn generate(level: Level, draw: &mut Draw) -> Draft<Facts> {
        let (low, high) = level.of([(3, 5), (6, 8), (9, 12), (13, 18), (19, 28)]);
        let word = word(low, high, draw);
        let answer: String = word.chars().rev().collect();
        Draft {
            question: format!("Spell the word \"{word}\" backward: its letters from the last to the first."),
            answer: json!(answer),
            facts: Facts { word },
        }
    }

    fn score(facts: &Facts, answer: Answer<'_>) -> Result<Score, String> {
        let mut truth = letters(&facts.word);
        truth.reverse();
        if truth.is_empty() {
            return Err("`word` must have a letter".to_owned());
        }
        let given = answer.line().map(letters).unwrap_or_default();
        let hits = truth.iter().zip(&given).filter(|(truth, given)| truth == given).count();
        // Letters too many are wrong letters.
        Ok(Score::share(hits, truth.len().max(given.len())))
    }
}
