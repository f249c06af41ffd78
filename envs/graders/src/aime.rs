//! The `Answer:` format of DAPO's mathematics data, and its normaliser.
//!
//! [`Reading::Whole`] reads the whole response and is what the `aime` environment uses by default; [`Reading::Tail`] is
//! skyrl-gym's, faults included: it sees the last 300 characters only.

use std::sync::LazyLock;

use regex::Regex;

use crate::math;

/// What a response without an `Answer:` is taken to have answered.
pub const INVALID: &str = "[INVALID]";

/// Characters at the end of a response that skyrl-gym reads.
const TAIL: usize = 300;
/// Characters at its end where its strict variant looks for a box.
const BOX_TAIL: usize = 100;

/// How much of a response is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reading {
    /// All of it.
    Whole,
    /// Its last 300 characters.
    Tail,
}

static ANSWER: LazyLock<Regex> = LazyLock::new(|| {
    // A constant pattern, compiled by every test of this module.
    Regex::new(r"(?i)Answer\s*:\s*([^\n<]+)").unwrap()
});

/// `**Answer**: 5` too.
static EMPHASISED: LazyLock<Regex> = LazyLock::new(|| {
    // A constant pattern, compiled by every test of this module.
    Regex::new(r"(?i)Answer\s*(?:\*\*?|__?)?\s*:\s*([^\n<]+)").unwrap()
});

/// What the last `Answer:` of a response announces, as it is written.
pub fn stated(response: &str, reading: Reading) -> Option<&str> {
    let text = match reading {
        Reading::Whole => response,
        Reading::Tail => tail(response, TAIL),
    };
    let pattern = match reading {
        Reading::Whole => &EMPHASISED,
        Reading::Tail => &ANSWER,
    };
    pattern.captures_iter(text).last().and_then(|found| found.get(1)).map(|answer| answer.as_str())
}

/// Whether a response is right as skyrl-gym's `aime` sees it, and what it was taken to have answered.
pub fn skyrl(response: &str, truth: &str) -> (bool, String) {
    let answer = normalised(stated(response, Reading::Tail).unwrap_or(INVALID));
    (answer == normalised(truth), answer)
}

/// skyrl-gym's strict variant: the last closed `\boxed{}` of the last 100 characters, compared as text.
pub fn strict_box(response: &str, truth: &str) -> (bool, Option<String>) {
    let text = tail(response, BOX_TAIL);
    let answer = text.rfind(r"\boxed{").and_then(|at| {
        let mut depth = 0_i32;
        let rest = &text[at..];
        rest.char_indices().find_map(|(offset, c)| {
            depth += i32::from(c == '{') - i32::from(c == '}');
            (c == '}' && depth == 0).then(|| rest[r"\boxed{".len()..offset].to_owned())
        })
    });
    (answer.as_deref() == Some(truth), answer)
}

/// Whether an announced answer is the truth, by its meaning: the normaliser makes one text of `1,2,3` and 123. A sign of
/// percent or degrees counts only where the truth has it.
pub fn equal(answer: &str, truth: &math::Truth) -> math::Verdict {
    let answer = answer.trim().trim_matches('*').trim();
    truth.check_signs(math::last_boxed(answer).unwrap_or(answer))
}

fn tail(text: &str, characters: usize) -> &str {
    match text.char_indices().rev().nth(characters.saturating_sub(1)) {
        Some((at, _)) => &text[at..],
        None => text,
    }
}

const SUBSTITUTED: [(&str, &str); 10] = [
    ("an ", ""),
    ("a ", ""),
    (".$", "$"),
    ("\\$", ""),
    ("\\ ", ""),
    (" ", ""),
    ("mbox", "text"),
    (",\\text{and}", ","),
    ("\\text{and}", ","),
    ("\\text{m}", "\\text{}"),
];

const REMOVED: [&str; 41] = [
    "square",
    "ways",
    "integers",
    "dollars",
    "mph",
    "inches",
    "hours",
    "km",
    "units",
    "\\ldots",
    "sue",
    "points",
    "feet",
    "minutes",
    "digits",
    "cents",
    "degrees",
    "cm",
    "gm",
    "pounds",
    "meters",
    "meals",
    "edges",
    "students",
    "childrentickets",
    "multiples",
    "\\text{s}",
    "\\text{.}",
    "\\text{\ns}",
    "\\text{}^2",
    "\\text{}^3",
    "\\text{\n}",
    "\\text{}",
    "\\mathrm{th}",
    "^\\circ",
    "^{\\circ}",
    "\\;",
    ",\\!",
    "{,}",
    "\"",
    "\\dots",
];

/// DAPO's normaliser, step by step as published: what two answers are compared as.
pub fn normalised(answer: &str) -> String {
    static PATTERNS: LazyLock<[(Regex, &'static str); 7]> = LazyLock::new(|| {
        // Constant patterns, compiled by every test of this module.
        let pattern = |text: &str| Regex::new(text).unwrap();
        [
            (pattern(r"(.*?)(\$)(.*?)(\$)(.*)"), "$$${3}$$"),
            (pattern(r"(\\text\{)(.*?)(\})"), "${2}"),
            (pattern(r"(\\textbf\{)(.*?)(\})"), "${2}"),
            (pattern(r"(\\overline\{)(.*?)(\})"), "${2}"),
            (pattern(r"(\\boxed\{)(.*)(\})"), "${2}"),
            (pattern(r"(frac)([^{])(.)"), "frac{${2}}{${3}}"),
            (pattern(r"(sqrt)([^{])"), "sqrt{${2}}"),
        ]
    });
    let mut text = answer.rsplit('=').next().unwrap_or_default().to_owned();
    for (before, after) in SUBSTITUTED {
        text = text.replace(before, after);
    }
    for word in REMOVED {
        text = text.replace(word, "");
    }
    for (pattern, replacement) in PATTERNS.iter() {
        text = pattern.replace_all(&text, *replacement).into_owned();
    }
    text = text.replace('$', "");
    let digits = text.replace(',', "");
    if !digits.is_empty() && digits.chars().all(char::is_numeric) {
        text = digits;
    }
    text.trim().to_owned()
}
