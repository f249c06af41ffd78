//! Codes in sentences among prose: one to find, or several.

use serde_json::{Value, json};

use super::{Made, filler};
use crate::draw::Draw;

const COLOURS: [&str; 12] = [
    "crimson",
    "turquoise",
    "ivory",
    "violet",
    "scarlet",
    "emerald",
    "golden",
    "indigo",
    "orange",
    "purple",
    "maroon",
    "teal",
];

const DOORS: [&str; 12] = [
    "vault",
    "elevator",
    "cabinet",
    "submarine",
    "freezer",
    "archive",
    "turbine",
    "hangar",
    "laboratory",
    "bunker",
    "locker",
    "airlock",
];

/// The sentence that holds a code.
fn code_sentence(subject: &str, code: i64) -> String {
    format!("The code of the {subject} is {code}.")
}

/// Subjects with codes, in random order, and a text of exactly `size` bytes that says each of them once.
fn planted(size: usize, count: usize, draw: &mut Draw) -> (Vec<(String, i64)>, String) {
    let subjects: Vec<String> = draw
        .distinct(count, COLOURS.len() * DOORS.len())
        .into_iter()
        .map(|number| format!("{} {}", COLOURS[number % COLOURS.len()], DOORS[number / COLOURS.len()]))
        .collect();
    let mut order: Vec<usize> = (0..subjects.len()).collect();
    draw.shuffle(&mut order);
    let mut codes: Vec<i64> = draw.distinct(count, 90_000).into_iter().map(|code| 10_000 + code as i64).collect();
    draw.shuffle(&mut codes);
    let facts: Vec<(String, i64)> =
        order.iter().zip(&codes).map(|(subject, code)| (subjects[*subject].clone(), *code)).collect();
    let mut sentences: Vec<String> = facts.iter().map(|(subject, code)| code_sentence(subject, *code)).collect();
    draw.shuffle(&mut sentences);

    // Every planted sentence takes a space too.
    let taken: usize = sentences.iter().map(|sentence| sentence.len() + 1).sum();
    let prose = filler::prose(size - taken, draw);
    let gaps: Vec<usize> = prose.match_indices(". ").map(|(at, _)| at + 2).chain([0]).collect();
    let mut text = String::with_capacity(size);
    let mut places: Vec<usize> = draw.distinct(sentences.len(), gaps.len()).into_iter().map(|gap| gaps[gap]).collect();
    places.resize(sentences.len(), 0);
    places.sort_unstable();
    let mut from = 0;
    for (place, sentence) in places.into_iter().zip(&sentences) {
        text.push_str(&prose[from..place]);
        text.push_str(sentence);
        text.push(' ');
        from = place;
    }
    text.push_str(&prose[from..]);
    (facts, text)
}

/// One code; `distractors` other sentences hold other codes.
pub(super) fn needle(size: usize, distractors: usize, draw: &mut Draw) -> Made {
    // A small text takes as many sentences as leave most of it to the prose.
    let (facts, text) = planted(size, 1 + distractors.min(size / 256), draw);
    let (subject, truth) = &facts[0];
    Made { text, question: format!("What is the code of the {subject}?"), truth: json!(truth), unordered: false }
}

/// `needles` codes, asked for as a list or as their sum.
pub(super) fn multi_needle(size: usize, needles: usize, distractors: usize, draw: &mut Draw) -> Made {
    let room = (size / 256).max(2);
    let needles = needles.clamp(2, room);
    let (facts, text) = planted(size, needles + distractors.min(room - needles), draw);
    let asked = &facts[..needles];
    let subjects: Vec<String> = asked.iter().map(|(subject, _)| format!("the {subject}")).collect();
    let listed = match subjects.split_last() {
        Some((last, rest)) => format!("{} and {last}", rest.join(", ")),
        None => String::new(),
    };
    let codes: Vec<i64> = asked.iter().map(|(_, code)| *code).collect();
    let (question, truth): (String, Value) = if draw.below(2) == 0 {
        (format!("What are the codes of {listed}? Answer with a list of the codes in this order."), json!(codes))
    } else {
        (format!("What is the sum of the codes of {listed}?"), json!(codes.iter().sum::<i64>()))
    };
    Made { text, question, truth, unordered: false }
}
