//! What a response announces as its answer, and the numbers and lists in it.
//!
//! Lenient in presentation (spaces, emphasis, code fences, quotes, `\boxed`), strict in content: nothing is searched
//! for among other words, so that a response cannot list guesses.

/// Longest answer that is read, bytes. A longer one is no answer.
pub const MAX_LENGTH: usize = 16 * 1024;

/// The part of a response that is its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer<'a> {
    text: &'a str,
    announced: bool,
}

impl<'a> Answer<'a> {
    /// What follows the last `Answer:`; without one, the whole response.
    pub fn find(response: &'a str) -> Self {
        let announced = response.rmatch_indices(':').find_map(|(at, _)| {
            let before = response[..at].trim_end_matches(['*', '_', ' ']);
            let start = before.len().checked_sub("answer".len())?;
            let word = before.get(start..)?;
            word.eq_ignore_ascii_case("answer").then(|| &response[at + 1..])
        });
        let text = announced.unwrap_or(response).trim();
        Self { text: if text.len() > MAX_LENGTH { "" } else { text }, announced: announced.is_some() }
    }

    /// Whether there is anything to grade.
    pub fn is_empty(self) -> bool {
        self.lines().next().is_none()
    }

    /// The lines that hold something, code fences left out.
    pub fn lines(self) -> impl Iterator<Item = &'a str> {
        self.text.lines().map(bare).filter(|line| !line.is_empty() && !line.starts_with("```"))
    }

    /// An answer of one line: the first after `Answer:`. A response that announces nothing is an answer where it has
    /// no other line.
    pub fn line(self) -> Option<&'a str> {
        let mut lines = self.lines();
        let line = lines.next()?;
        (self.announced || lines.next().is_none()).then_some(line)
    }
}

/// A text without what only presents it.
fn bare(text: &str) -> &str {
    let mut text = text.trim();
    loop {
        let shorter = text.trim_start_matches("**").trim_end_matches("**");
        let shorter = shorter.strip_suffix('.').unwrap_or(shorter).trim();
        let shorter = [("\\boxed{", "}"), ("\\(", "\\)"), ("\\text{", "}"), ("$", "$"), ("\"", "\"")]
            .into_iter()
            .find_map(|(open, close)| shorter.strip_prefix(open)?.strip_suffix(close))
            // A fence of code is a line of its own.
            .or_else(|| shorter.strip_prefix('`')?.strip_suffix('`').filter(|inner| !inner.starts_with('`')))
            .unwrap_or(shorter)
            .trim();
        if shorter.len() == text.len() {
            return text;
        }
        text = shorter;
    }
}

/// A decimal number: `mantissa / 10^scale`, with the smallest scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decimal {
    mantissa: i128,
    scale: u32,
}

impl Decimal {
    /// The number, where it is whole.
    pub fn to_whole(self) -> Option<i128> {
        (self.scale == 0).then_some(self.mantissa)
    }
}

impl PartialOrd for Decimal {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Decimal {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        // At most 15 digits before the point and 15 after it: a common scale fits.
        let at = |number: &Self, scale: u32| number.mantissa * 10_i128.pow(scale - number.scale);
        let scale = self.scale.max(other.scale);
        at(self, scale).cmp(&at(other, scale))
    }
}

/// Most digits on each side of the point.
const MAX_DIGITS: usize = 15;

/// Reads a number: a sign, digits with their thousands apart (`,`, space or `_`) or not, and a fraction.
pub fn decimal(text: &str) -> Option<Decimal> {
    let text = text.trim();
    let (negative, rest) = match text.strip_prefix(['-', '\u{2212}']) {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let rest = rest.trim_start();
    let (whole, fraction) = rest.split_once('.').unwrap_or((rest, ""));
    let groups: Vec<&str> = whole.split([',', ' ', '_']).collect();
    let digits = |text: &str| text.bytes().all(|digit| digit.is_ascii_digit());
    let grouped = groups.len() == 1
        || groups.iter().enumerate().all(
            |(index, group)| {
                if index == 0 { (1..=3).contains(&group.len()) } else { group.len() == 3 }
            },
        );
    if !grouped || !groups.iter().all(|group| digits(group)) || !digits(fraction) {
        return None;
    }
    let whole = groups.concat();
    let fraction = fraction.trim_end_matches('0');
    let significant = whole.trim_start_matches('0');
    if (whole.is_empty() && fraction.is_empty()) || significant.len() > MAX_DIGITS || fraction.len() > MAX_DIGITS {
        return None;
    }
    let magnitude =
        format!("{significant}{fraction}").bytes().fold(0_i128, |n, digit| n * 10 + i128::from(digit - b'0'));
    Some(Decimal { mantissa: if negative { -magnitude } else { magnitude }, scale: fraction.len() as u32 })
}

/// Reads a whole number; `12.0` is one.
pub fn integer(text: &str) -> Option<i64> {
    decimal(text)?.to_whole().and_then(|number| i64::try_from(number).ok())
}

/// The items of a list: `[a, b]`, `a, b` or `a b`; quotes around items are left out.
pub fn items(text: &str) -> Vec<&str> {
    let text = text.trim();
    let inner = [('[', ']'), ('(', ')'), ('{', '}')]
        .into_iter()
        .find_map(|(open, close)| text.strip_prefix(open)?.strip_suffix(close))
        .unwrap_or(text);
    let parts: Vec<&str> = if inner.contains(',') {
        inner.trim().trim_end_matches(',').split(',').collect()
    } else {
        inner.split_whitespace().collect()
    };
    parts.into_iter().map(|part| part.trim().trim_matches(['"', '\'']).trim()).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn line(response: &str) -> Option<&str> {
        Answer::find(response).line()
    }

    #[test]
    fn the_last_announcement_counts() {
        for response in [
            "42",
            "Answer: 42",
            "I think 7.\nAnswer: 7\nNo.\nAnswer: 42.",
            "**Answer:** 42",
            "**Answer**: 42",
            "Final answer: **42**",
            "ANSWER:\n\n42",
            "Answer:\n```\n42\n```",
            "Answer: `42`",
            "Answer: $\\boxed{42}$.",
            "Answer: 42\nI hope that helps.",
            "  \"42\"  ",
        ] {
            assert_eq!(line(response), Some("42"), "{response}");
        }
    }

    #[test]
    fn a_response_of_several_lines_must_announce() {
        assert_eq!(line("I think\n42"), None);
        assert_eq!(line(""), None);
        assert_eq!(line("Answer:"), None);
        assert_eq!(line(&format!("Answer: {}", "4".repeat(MAX_LENGTH + 1))), None);
    }

    #[test]
    fn numbers_are_read_by_value() {
        for (text, value) in [
            ("42", 42),
            ("+1,000", 1000),
            ("-7.00", -7),
            ("\u{2212}3", -3),
            ("1 234 567", 1_234_567),
            ("007", 7),
            ("0", 0),
        ] {
            assert_eq!(integer(text), Some(value), "{text}");
        }
        for text in ["", "-", "4 2", "1,23", "42 apples", "1.5", "0x10", "1e3", "--1", "9999999999999999", "1.2.3", "."]
        {
            assert_eq!(integer(text), None, "{text}");
        }
        assert!(decimal("-1.5") < decimal("-1.25") && decimal("0.30") == decimal(".3"));
    }

    #[test]
    fn lists_are_read_with_or_without_brackets() {
        for text in ["[1, 2, 3]", "1,2,3", "1 2 3", "['1', '2', '3']", "(1, 2, 3,)", "[\"1\", \"2\", \"3\"]"] {
            assert_eq!(items(text), ["1", "2", "3"], "{text}");
        }
        assert!(items("[]").is_empty());
    }

    proptest! {
        #[test]
        fn any_response_is_read_without_a_panic(response in "(?s).{0,200}") {
            let answer = Answer::find(&response);
            let _ = answer.line().map(|line| (integer(line), decimal(line), items(line).len()));
        }

        #[test]
        fn whole_numbers_go_round(number in -999_999_999_999_999_i64..=999_999_999_999_999, trail in 0_usize..4) {
            let mut text = number.to_string();
            if trail > 0 {
                text.push('.');
                text.push_str(&"0".repeat(trail));
            }
            prop_assert_eq!(integer(&text), Some(number));
        }

        #[test]
        fn order_is_that_of_the_numbers(a in -9999_i64..9999, b in -9999_i64..9999) {
            let text = |n: i64| format!("{}{}.{:02}", if n < 0 { "-" } else { "" }, n.abs() / 100, n.abs() % 100);
            prop_assert_eq!(decimal(&text(a)).cmp(&decimal(&text(b))), a.cmp(&b));
        }
    }
}
