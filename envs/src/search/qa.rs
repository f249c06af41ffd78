//! Short answers compared as question answering does: SQuAD's normalisation (Rajpurkar et al., 2016), exact match,
//! containment and token F1, the best over all accepted answers.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use regex::Regex;
use serde::{Deserialize, Serialize};

/// How an answer is scored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Metric {
    /// 1 where the normalised answer is one of the accepted ones.
    #[default]
    Em,
    /// 1 where the normalised answer contains one of the accepted ones.
    SubEm,
    /// The harmonic mean of precision and recall over normalised words.
    F1,
}

static WORD: LazyLock<Regex> = LazyLock::new(|| {
    // A constant pattern, compiled by every test of this module. What Python's `\w` matches.
    Regex::new(r"[\p{L}\p{N}_]+").expect("a valid pattern")
});

/// Lower case, without ASCII punctuation, without the articles `a`, `an` and `the`, with single spaces: what SQuAD's and
/// Search-R1's scripts call a normalised answer, character by character as Python does it.
pub fn normalise(text: &str) -> String {
    let plain: String = text.to_lowercase().chars().filter(|character| !character.is_ascii_punctuation()).collect();
    let without = WORD.replace_all(&plain, |found: &regex::Captures<'_>| match &found[0] {
        "a" | "an" | "the" => " ".to_owned(),
        word => word.to_owned(),
    });
    without.split(space).filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" ")
}

/// What Python calls white space: Unicode's, and the four separators of ASCII.
pub(crate) fn space(character: char) -> bool {
    character.is_whitespace() || matches!(character, '\u{1c}'..='\u{1f}')
}

/// An accepted answer that is nothing but articles and punctuation ("The The", "!!!") is compared as it is written.
fn comparable(text: &str) -> String {
    let normalised = normalise(text);
    if normalised.is_empty() { text.trim().to_lowercase() } else { normalised }
}

/// The score of an answer, from 0 to 1.
pub fn score(metric: Metric, answer: &str, accepted: &[String]) -> f64 {
    let given = comparable(answer);
    let one = |truth: &String| {
        let truth = comparable(truth);
        if truth.is_empty() || given.is_empty() {
            return f64::from(u8::from(truth == given));
        }
        match metric {
            Metric::Em => f64::from(u8::from(truth == given)),
            Metric::SubEm => f64::from(u8::from(contains(&given, &truth))),
            Metric::F1 => f1(&given, &truth),
        }
    };
    accepted.iter().map(one).fold(0.0, f64::max)
}

/// Whether a text holds another as whole words: `art` is not in `party`. Where words are not told apart by spaces, as a
/// text.
fn contains(text: &str, part: &str) -> bool {
    if part.is_ascii() { format!(" {text} ").contains(&format!(" {part} ")) } else { text.contains(part) }
}

fn f1(given: &str, truth: &str) -> f64 {
    let mut left: BTreeMap<&str, usize> = BTreeMap::new();
    for word in truth.split(' ') {
        *left.entry(word).or_default() += 1;
    }
    let mut same = 0_usize;
    for word in given.split(' ') {
        if let Some(count) = left.get_mut(word).filter(|count| **count > 0) {
            *count -= 1;
            same += 1;
        }
    }
    let words = |text: &str| text.split(' ').count();
    2.0 * same as f64 / (words(given) + words(truth)) as f64
}

/// Search-R1's exact match, as skyrl-gym has it.
pub(super) fn original_em(answer: &str, accepted: &[String]) -> bool {
    let given = normalise(answer);
    accepted.iter().any(|truth| normalise(truth) == given)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn is(metric: Metric, answer: &str, accepted: &[&str]) -> f64 {
        let accepted: Vec<String> = accepted.iter().map(|&text| text.to_owned()).collect();
        score(metric, answer, &accepted)
    }

    #[test]
    fn what_normalising_takes_away() {
        for (text, expected) in [
            ("The  Eiffel-Tower!", "eiffeltower"),
            ("A man, an apple; the end", "man apple end"),
            ("theatre ant", "theatre ant"),
            ("“The Beatles”", "“ beatles”"),
            ("the_end a.b", "theend ab"),
            ("\u{1c}x\u{a0}y\u{3000}z", "x y z"),
            ("İstanbul", "i\u{307}stanbul"),
            ("a\u{301}", "\u{301}"),
            ("The", ""),
        ] {
            assert_eq!(normalise(text), expected, "{text}");
        }
    }

    #[test]
    fn the_best_accepted_answer_counts() {
        assert_eq!(is(Metric::Em, " the PARIS. ", &["Lyon", "Paris"]), 1.0);
        assert_eq!(is(Metric::Em, "Paris, France", &["Paris"]), 0.0);
        assert_eq!(is(Metric::SubEm, "It is Paris, France", &["Lyon", "paris"]), 1.0);
        assert_eq!(is(Metric::SubEm, "a party", &["art"]), 0.0, "whole words");
        assert_eq!(is(Metric::SubEm, "日本の東京です", &["東京"]), 1.0);
        assert_eq!(is(Metric::F1, "Barack Hussein Obama", &["Obama", "Barack Obama"]), 0.8);
        assert_eq!(is(Metric::F1, "Obama Obama", &["Obama"]), 2.0 / 3.0);
    }

    #[test]
    fn answers_of_articles_alone_do_not_match_everything() {
        for metric in [Metric::Em, Metric::SubEm, Metric::F1] {
            assert_eq!(is(metric, "", &["The The"]), 0.0, "{metric:?}");
            assert_eq!(is(metric, "Oasis", &["The The"]), 0.0, "{metric:?}");
            assert_eq!(is(metric, "the the", &["The The"]), 1.0, "{metric:?}");
            assert_eq!(is(metric, "", &["Paris"]), 0.0, "{metric:?}");
        }
    }

    proptest! {
        #[test]
        fn normalising_twice_is_normalising_once(text in "\\PC{0,60}") {
            let once = normalise(&text);
            prop_assert_eq!(normalise(&once), once.clone());
            let tidy = !once.starts_with(' ') && !once.ends_with(' ') && !once.contains("  ");
            prop_assert!(tidy, "{}", once);
        }

        #[test]
        fn scores_lie_between_0_and_1_and_agree(answer in "[a-c ,.]{0,12}", truth in "[a-c ,.]{0,12}") {
            let accepted = [truth.clone()];
            let [em, sub, f1] = [Metric::Em, Metric::SubEm, Metric::F1].map(|metric| score(metric, &answer, &accepted));
            for value in [em, sub, f1] {
                prop_assert!((0.0..=1.0).contains(&value));
            }
            prop_assert!(em <= sub && em <= f1);
            prop_assert_eq!(score(Metric::Em, &truth, &accepted), 1.0);
        }
    }
}
