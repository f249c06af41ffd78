//! Numbers in text, compared by value.
//!
//! `1,234`, `$1234.00`, `1234.`, `1.234e3` and `1234 %` are one number. Values are decimals of any length compared
//! digit by digit, so nothing is lost to binary floating point.

use std::sync::LazyLock;

use regex::Regex;

use crate::math;
use crate::math::lex::{superscript, vulgar};
use crate::math::words;

/// A decimal number, or a fraction of two, as written in a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Number {
    value: Decimal,
    /// The denominator of `a/b`.
    over: Option<Decimal>,
    /// A percent sign follows.
    percent: bool,
}

/// Sign, digits without leading or trailing zeros, and where the decimal point stands: `0.digits * 10^exponent`.
/// Zero has no digits, exponent 0 and no sign, so that equal values are equal structures.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Decimal {
    negative: bool,
    digits: Vec<u8>,
    exponent: i64,
}

/// Largest power of ten that is read; what lies beyond is not a number that a grader should meet.
const MAX_EXPONENT: i64 = 400;

impl Decimal {
    fn new(negative: bool, whole: &str, fraction: &str, exponent: i64) -> Self {
        let digits: Vec<u8> = whole.bytes().chain(fraction.bytes()).filter(u8::is_ascii_digit).collect();
        let whole_len = whole.bytes().filter(u8::is_ascii_digit).count() as i64;
        let leading = digits.iter().take_while(|digit| **digit == b'0').count();
        let end = digits.iter().rposition(|digit| *digit != b'0').map_or(0, |last| last + 1);
        if leading >= end {
            return Self { negative: false, digits: Vec::new(), exponent: 0 };
        }
        Self { negative, digits: digits[leading..end].to_vec(), exponent: exponent + whole_len - leading as i64 }
    }

    /// The value divided by 100.
    fn hundredth(&self) -> Self {
        let mut value = self.clone();
        if !value.digits.is_empty() {
            value.exponent -= 2;
        }
        value
    }

    /// `mantissa * 10^scale` where it fits.
    fn parts(&self) -> Option<(i128, i64)> {
        if self.digits.len() > 18 {
            return None;
        }
        let mantissa =
            self.digits.iter().fold(0_i128, |value, digit| value * 10 + i128::from(digit.saturating_sub(b'0')));
        Some((if self.negative { -mantissa } else { mantissa }, self.exponent - self.digits.len() as i64))
    }

    /// The product, where both are short enough to multiply exactly.
    fn times(&self, other: &Self) -> Option<Self> {
        let (left, left_scale) = self.parts()?;
        let (right, right_scale) = other.parts()?;
        let product = left.checked_mul(right)?;
        let digits = product.unsigned_abs().to_string();
        Some(Self::new(product < 0, &digits, "", left_scale + right_scale))
    }
}

/// Every number of a text, in order.
pub fn numbers(text: &str) -> Vec<Number> {
    let mut found = Vec::new();
    let mut at = 0;
    while let Some((number, _, end)) = next_number(text, at) {
        found.push(number);
        at = end;
    }
    found
}

/// The first number at or after byte `from`: itself, where it starts and where it ends.
fn next_number(text: &str, from: usize) -> Option<(Number, usize, usize)> {
    let mut at = from;
    loop {
        let (value, start, mut end) = decimal_at(text, at)?;
        let Some(value) = value else {
            at = end;
            continue;
        };
        let mut over = None;
        let tail = text[end..].trim_start_matches(' ');
        if let Some(after) = tail.strip_prefix('/') {
            let slash = text.len() - after.len();
            if let Some((Some(below), below_start, below_end)) = decimal_at(text, slash)
                && text[slash..below_start].chars().all(|c| c == ' ')
                && !below.digits.is_empty()
            {
                over = Some(below);
                end = below_end;
            }
        }
        let tail = text[end..].trim_start_matches([' ', '\\']);
        let percent = tail.starts_with('%');
        return Some((Number { value, over, percent }, start, end));
    }
}

/// The next candidate: `None` inside when it is a lone point or out of range.
fn decimal_at(text: &str, from: usize) -> Option<(Option<Decimal>, usize, usize)> {
    let bytes = text.as_bytes();
    let first = from + bytes.get(from..)?.iter().position(|byte| byte.is_ascii_digit() || *byte == b'.')?;
    let (start, sign) = sign_before(text, from, first);
    let mut end = if bytes[first] == b'.' { first } else { whole_end(bytes, first) };
    let whole = &text[first..end];
    let mut fraction = "";
    // A point belongs to the number only when a digit follows; `42.` ends a sentence.
    if bytes.get(end) == Some(&b'.') {
        let length = digits(&bytes[end + 1..]);
        if length > 0 {
            fraction = &text[end + 1..=end + length];
            end += 1 + length;
        } else if whole.is_empty() {
            return Some((None, start, end + 1));
        }
    }
    let mut exponent = 0;
    if let Some((power, used)) = exponent_at(&text[end..]) {
        exponent = power;
        end += used;
    }
    if exponent.abs() > MAX_EXPONENT {
        return Some((None, start, end));
    }
    // `10-5` and `a-5` subtract; only a sign with nothing before it belongs to the number.
    let negative = sign.is_some_and(|(at, sign)| {
        sign != '+' && !text[..at].chars().next_back().is_some_and(|before| before.is_alphanumeric() || before == ')')
    });
    Some((Some(Decimal::new(negative, whole, fraction, exponent)), start, end))
}

fn digits(bytes: &[u8]) -> usize {
    bytes.iter().take_while(|byte| byte.is_ascii_digit()).count()
}

/// Separators of thousands that separate nothing else: those of LaTeX, and spaces that no keyboard has.
const SEPARATORS: [&str; 9] = ["{,}", "{,\\!}", ",\\!", "\\,", "\\!", "_", "\u{a0}", "\u{2009}", "\u{202f}"];

/// Where a number's digits before its point end: `1,234,567`, `12,34,567`, `1{,}234` and `1234` are whole, of `1,23` only
/// the 1.
fn whole_end(bytes: &[u8], first: usize) -> usize {
    let run = digits(&bytes[first..]);
    let mut end = first + run;
    if (1..=3).contains(&run) {
        let mut separated = end;
        while let Some(separator) =
            SEPARATORS.iter().find(|separator| bytes[separated..].starts_with(separator.as_bytes()))
            && digits(&bytes[separated + separator.len()..]) == 3
        {
            separated += separator.len() + 3;
        }
        if separated > end {
            return separated;
        }
    }
    let mut at = end;
    while (1..=3).contains(&run) && bytes.get(at) == Some(&b',') {
        let group = digits(&bytes[at + 1..]);
        if group >= 3 {
            end = at + 1 + group;
        }
        if !(2..=3).contains(&group) {
            break;
        }
        at += 1 + group;
    }
    end
}

/// Where a number with its sign and currency starts, and its first sign: `-5`, `-$5`, `$-5`, `- 5`.
fn sign_before(text: &str, from: usize, first: usize) -> (usize, Option<(usize, char)>) {
    let mut start = first;
    let mut sign = None;
    let before = |end: usize| text[from..end].chars().next_back();
    let is_sign = |c: char| matches!(c, '-' | '\u{2212}' | '+');
    if let Some(c) = before(start)
        && is_sign(c)
    {
        start -= c.len_utf8();
        sign = Some((start, c));
    }
    let without_space = |end: usize| before(end).filter(|c| c.is_whitespace()).map_or(end, |c| end - c.len_utf8());
    let spaced = without_space(start);
    if let Some(c) = before(spaced)
        && matches!(c, '$' | '\u{20ac}' | '\u{a3}' | '\u{a5}' | '\u{20b9}')
    {
        start = spaced - c.len_utf8();
        if before(start) == Some('\\') {
            start -= 1;
        }
    }
    let spaced = without_space(start);
    if let Some(c) = before(spaced)
        && is_sign(c)
    {
        start = spaced - c.len_utf8();
        sign = Some((start, c));
    }
    (start, sign)
}

/// An exponent such as `e-3` at the start of a text: its value and length.
fn exponent_at(text: &str) -> Option<(i64, usize)> {
    let after = text.strip_prefix(['e', 'E'])?;
    let sign = usize::from(after.starts_with(['-', '+']));
    let length = digits(&after.as_bytes()[sign..]);
    let word = after[sign + length..].starts_with(|c: char| c.is_alphanumeric() || c == '_');
    if length == 0 || length > 4 || word {
        return None;
    }
    after[..sign + length].parse().ok().map(|power| (power, 1 + sign + length))
}

/// The number that a whole text is: nothing but the number, its currency or percent sign, white space and one final
/// point.
pub fn parse(text: &str) -> Option<Number> {
    let trimmed = text.trim();
    let (number, start, end) = next_number(trimmed, 0)?;
    let rest = trimmed[end..].trim_start_matches([' ', '\\', '%', '$', '\u{20ac}']);
    (start == 0 && (rest.is_empty() || rest == ".")).then_some(number)
}

/// Whether two numbers have one value. A percentage equals the number it is written with and the fraction it means:
/// `50%` is `50` and `0.5`.
pub fn equal(left: &Number, right: &Number) -> bool {
    if same(left, right) {
        return true;
    }
    match (left.percent, right.percent) {
        (true, false) => same(&hundredth(left), right),
        (false, true) => same(left, &hundredth(right)),
        _ => false,
    }
}

fn hundredth(number: &Number) -> Number {
    Number { value: number.value.hundredth(), ..number.clone() }
}

fn same(left: &Number, right: &Number) -> bool {
    match (&left.over, &right.over) {
        (None, None) => left.value == right.value,
        (Some(below), None) => right.value.times(below).is_some_and(|product| product == left.value),
        (None, Some(below)) => left.value.times(below).is_some_and(|product| product == right.value),
        (Some(left_below), Some(right_below)) => {
            match (left.value.times(right_below), right.value.times(left_below)) {
                (Some(first), Some(second)) => first == second,
                // Too long to multiply: equal only when written alike.
                _ => left.value == right.value && left_below == right_below,
            }
        }
    }
}

/// The answer of a worked solution: what the last `####` announces, or, where `flexible` is set and nothing does, the
/// last number of the text. A line that states no one number (`18 or 19`, `18 + 2`, `not 18`) announces none.
pub fn worked_answer(text: &str, flexible: bool) -> Option<Number> {
    if let Some(announced) = announced(text) {
        let line = announced.trim_start().lines().next().unwrap_or_default();
        if line.contains(|c: char| c.is_ascii_digit()) {
            return stated(line);
        }
    }
    if flexible { numbers(text).pop() } else { None }
}

/// Longest line behind `####` that is read.
const LONGEST_LINE: usize = 2000;

/// Most calculations in a line.
const MOST_SIDES: usize = 8;

/// The number that a line states. `3 * 5 = 15` states 15, `5 * 3 = 15 = 18` nothing.
fn stated(line: &str) -> Option<Number> {
    let end = ["</", "<|"].iter().filter_map(|mark| line.find(mark)).min().unwrap_or(line.len());
    let line = &line[..end];
    if line.len() > LONGEST_LINE {
        return None;
    }
    let Some((before, last)) = line.rsplit_once('=').filter(|(_, last)| last.contains(|c: char| c.is_ascii_digit()))
    else {
        return alone(line);
    };
    if before.matches('=').count() >= MOST_SIDES {
        return None;
    }
    let number = alone(last)?;
    let truth = math::Truth::read(last).ok()?;
    // What starts with a letter is the name of the result.
    let calculated = |side: &&str| !side.is_empty() && !side.starts_with(char::is_alphabetic);
    let mut sides = before.split('=').map(|side| side.trim_start_matches(['*', '_', '`', ' ']).trim_end());
    sides.all(|side| !calculated(&side) || truth.check(side).equal).then_some(number)
}

/// The number of a text that says nothing else: around it there may be markup, a currency, and words that leave the value
/// as it is. Number words multiply it.
fn alone(text: &str) -> Option<Number> {
    let (mut number, start, mut end) = next_number(text, 0)?;
    if !names(&text[..start]) {
        return None;
    }
    if let Some((mixed, length)) = mixed(&number, &text[end..]) {
        number = mixed;
        end += length;
    }
    let rest = text[end..].trim_start_matches(['*', '_', '`', '$', '}', ' ', '\u{a0}']);
    let (factor, words) = words::multiplied(rest);
    if factor > 1 {
        number.value = number.value.times(&Decimal::new(false, &factor.to_string(), "", 0))?;
    }
    follows(words, &number).then_some(number)
}

/// `1/2` or the sign for a half behind a whole number, as one number with it, and its length.
fn mixed(whole: &Number, tail: &str) -> Option<(Number, usize)> {
    if whole.over.is_some() || whole.percent {
        return None;
    }
    let spaces = tail.len() - tail.trim_start_matches(' ').len();
    let rest = &tail[spaces..];
    let (top, bottom, length) = match rest.chars().next().and_then(|c| Some((vulgar(c)?, c.len_utf8()))) {
        Some(((top, bottom), length)) => (i128::from(top), i128::from(bottom), length),
        None => {
            let top = digits(rest.as_bytes());
            let bottom = digits(rest.get(top..)?.strip_prefix('/')?.as_bytes());
            if spaces == 0 || !(1..=9).contains(&top) || !(1..=9).contains(&bottom) {
                return None;
            }
            let length = top + 1 + bottom;
            (rest[..top].parse().ok()?, rest[top + 1..length].parse().ok()?, length)
        }
    };
    let (value, scale) = whole.value.parts()?;
    if !(0..=9).contains(&scale) || top >= bottom {
        return None;
    }
    let value = value * 10_i128.pow(scale as u32);
    let sum = value.abs().checked_mul(bottom)?.checked_add(top)?;
    let decimal = |value: i128, negative| Decimal::new(negative, &value.to_string(), "", 0);
    let number = Number { value: decimal(sum, value < 0), over: Some(decimal(bottom, false)), percent: false };
    Some((number, spaces + length))
}

/// Words before a number that deny it, or make another of it.
const DENYING: [&str; 16] = [
    "not", "isn't", "never", "no", "or", "either", "than", "least", "most", "between", "minus", "negative", "half",
    "twice", "double", "sqrt",
];

/// Commands that leave what they stand at as it is.
const PLAIN: [&str; 16] = [
    "boxed",
    "fbox",
    "text",
    "textbf",
    "mathbf",
    "mathrm",
    "mbox",
    "left",
    "right",
    "quad",
    "approx",
    "therefore",
    "circ",
    "degree",
    "displaystyle",
    "large",
];

fn plain_commands(text: &str) -> bool {
    text.match_indices('\\').all(|(at, _)| {
        let name = &text[at + 1..];
        let name = &name[..name.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(name.len())];
        name.is_empty() || PLAIN.contains(&name)
    })
}

/// Signs that calculate or compare.
fn operates(c: char) -> bool {
    matches!(c, '+' | '<' | '>' | '=' | '^' | '|' | '\u{b1}' | '\u{d7}' | '\u{f7}' | '\u{b7}' | '\u{2200}'..='\u{2247}' | '\u{2249}'..='\u{22ff}')
}

/// Whether what stands before a number only names it.
fn names(text: &str) -> bool {
    let words = text.to_lowercase();
    let mut words = words.split(|c: char| !(c.is_alphabetic() || c == '\'')).filter(|word| !word.is_empty());
    plain_commands(text)
        && !text.contains(|c| operates(c) || matches!(c, '/' | '!'))
        && !words.any(|w| DENYING.contains(&w))
}

/// Whether what stands behind a number leaves it as it is: units, closing marks, the same number again.
fn follows(text: &str, number: &Number) -> bool {
    let changed = text.starts_with(['!', '^']) || text.starts_with(|c| superscript(c).is_some());
    let percents = text.matches('%').count();
    if changed || percents > 1 || !plain_commands(text) || words::alters(text) {
        return false;
    }
    let mut before = ' ';
    let mut power = false;
    for (at, c) in text.char_indices() {
        let next = text[at + c.len_utf8()..].chars().next().unwrap_or(' ');
        // `cm^2`, `m2`, `km/h`, `one-way`
        let fine = match c {
            '^' => before.is_alphabetic() || before == '}',
            '0'..='9' => power || before.is_alphabetic() || matches!(before, '^'),
            '/' => next.is_alphabetic() || next == '\\',
            '{' if before == '^' => true,
            c => !operates(c) && vulgar(c).is_none(),
        };
        if !fine && !c.is_ascii_digit() {
            return false;
        }
        power = fine && (c.is_ascii_digit() || c == '{' && before == '^');
        if !fine {
            // A number of its own must be this one.
            return next_number(text, at).is_some_and(|(other, _, end)| {
                !text[..at].ends_with(',') && same(&other, number) && follows(&text[end..], number)
            });
        }
        before = c;
    }
    let variable = |word: &&str| matches!(*word, "x" | "y" | "z" | "n" | "M" | "B" | "K");
    !text.split(|c: char| !c.is_alphabetic()).next().is_some_and(|word| variable(&word))
}

/// What follows the last `####`. Answers stand at the end, so the search starts there.
fn announced(text: &str) -> Option<&str> {
    let bytes = text.as_bytes();
    let mut end = bytes.len();
    while let Some(at) = bytes[..end].iter().rposition(|byte| *byte == b'#') {
        if at >= 3 && bytes[at - 3..at] == *b"###" {
            return Some(&text[at + 1..]);
        }
        end = at;
    }
    None
}

/// skyrl-gym's strict extraction, kept exactly: the *first* `#### ` answer with `,` and `$` deleted. It is compared as
/// text, so `42.` and `42.0` are not `42`.
pub fn strict_answer(text: &str) -> Option<String> {
    static STRICT: LazyLock<Regex> = LazyLock::new(|| {
        // A constant pattern, compiled by every test of this module.
        Regex::new(r"#### (\-?[0-9\.\,]+)").unwrap()
    });
    STRICT.captures(text).and_then(|found| found.get(1)).map(|answer| answer.as_str().replace([',', '$'], ""))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn matches(answer: &str, truth: &str) -> bool {
        equal(&parse(answer).unwrap(), &parse(truth).unwrap())
    }

    #[test]
    fn one_value_written_in_many_ways() {
        for (left, right) in [
            ("42", "42.0"),
            ("42.", "42"),
            ("1,234,567", "1234567"),
            ("$1,234.50", "1234.5"),
            ("-$5", "$-5"),
            ("\u{2212}3", "-3"),
            ("+7", "7"),
            ("007", "7"),
            ("1.5e3", "1500"),
            ("2e-2", "0.02"),
            (".5", "0.50"),
            ("-0", "0.00"),
            ("50%", "50"),
            ("50 %", "0.5"),
            ("50\\%", "50%"),
            ("3/4", "0.75"),
            ("6/8", "3/4"),
            ("12,34,567", "1234567"),
            ("123456789012345678901234567890", "123456789012345678901234567890.0"),
        ] {
            assert!(matches(left, right), "`{left}` is `{right}`");
            assert!(matches(right, left), "`{right}` is `{left}`");
        }
    }

    #[test]
    fn different_values_stay_different() {
        for (left, right) in [
            ("42", "43"),
            ("42", "-42"),
            ("4.2", "42"),
            ("1e3", "1e4"),
            ("3/4", "3"),
            ("5%", "0.5"),
            ("123456789012345678901234567890", "123456789012345678901234567891"),
        ] {
            assert!(!matches(left, right), "`{left}` is not `{right}`");
        }
    }

    #[test]
    fn a_text_that_is_more_than_a_number_is_not_one() {
        for text in ["", "forty", "42 apples", "4 2", ".", "-", "1,2", "1e99999", "0x10"] {
            assert_eq!(parse(text), None, "`{text}`");
        }
    }

    #[test]
    fn the_last_announced_answer_wins() {
        let answer = |text| worked_answer(text, false);
        assert_eq!(answer("#### 1\nno, wait\n#### 2"), parse("2"));
        assert_eq!(answer("so #### $1,200.00 dollars in all."), parse("1200"));
        assert_eq!(answer("####72"), parse("72"));
        assert_eq!(answer("#### **18**"), parse("18"));
        assert_eq!(answer("#### \\boxed{18}"), parse("18"));
        assert_eq!(answer("#### 3 * 5 = 15"), parse("15"));
        assert_eq!(answer("the answer is 15"), None);
        assert_eq!(worked_answer("I get 3, so the answer is 15.", true), parse("15"));
        assert_eq!(worked_answer("#### none", true), None);
    }

    #[test]
    fn what_is_announced_is_one_number() {
        let answer = |text: &str| worked_answer(&format!("so\n#### {text}"), false);
        let right = |text: &str, truth: &str| {
            answer(text).is_some_and(|answer| equal(&answer, &parse(truth).unwrap_or_else(|| panic!("{truth}"))))
        };
        for text in [
            "18 + 2",
            "18*2",
            "18^2",
            "18!",
            "18/1/2",
            "18 or 19",
            "18 19 20",
            "18..19",
            "18,5",
            "18:30",
            "18 thousand",
            "18 million",
            "18k",
            "18 dozen",
            "not 18",
            "less than 18",
            "18 1/2",
            "1=18",
            "5*3=15=18",
            "18 or so",
            "18 (or 20)",
            "18\u{b2}",
            "\\sqrt{18}",
            "\\frac{18}{2}",
            "18 \\cdot 2",
            "18 - 2",
            "-18",
            "2 < 18",
            "18x",
            "18 and a half",
            "18%%",
        ] {
            assert!(!right(text, "18"), "`{text}` does not say 18");
        }
        for text in [
            "18",
            "18.",
            "$18",
            "\\$18.00",
            "**18**",
            "\\boxed{18}",
            "$\\boxed{18}$ dollars",
            "18 dollars per day",
            "18 miles/hour",
            "18 km/h",
            "18 cm^2",
            "18 m2",
            "18%",
            "9*2=18",
            "9*2 = 18 eggs",
            "Total = 9*2 = 18",
            "x = 18",
            "The answer is 18.",
            "18 more apples than Bob",
            "18 (18 in all)",
            "18-year-old",
            "18</answer>",
            "18 <|im_end|>",
            "18 apples!",
        ] {
            assert!(right(text, "18"), "`{text}` says 18");
        }
        for (text, truth) in [
            ("1{,}234", "1234"),
            ("1\u{2009}234", "1234"),
            ("1\u{a0}234", "1234"),
            ("1_234", "1234"),
            ("1\\,234,", "1234"),
            ("18 1/2", "18.5"),
            ("18\u{bd}", "18.5"),
            ("-18 1/2", "-18.5"),
            ("5 thousand", "5000"),
            ("3 dozen eggs", "36"),
            ("1.5 million dollars", "1500000"),
            ("3/4", "0.75"),
        ] {
            assert!(right(text, truth), "`{text}` says {truth}");
        }
        assert_eq!(answer("1,23"), None);
        assert_eq!(worked_answer("it is 5\n#### 18 or 19", true), None);
    }

    #[test]
    fn subtraction_is_no_sign() {
        assert_eq!(numbers("10-5 and -5"), [parse("10"), parse("5"), parse("-5")].map(Option::unwrap));
    }

    #[test]
    fn strict_extraction_keeps_its_faults() {
        assert_eq!(strict_answer("#### 42."), Some("42.".to_owned()));
        assert_eq!(strict_answer("#### 1,000\n#### 7"), Some("1000".to_owned()));
        assert_eq!(strict_answer("####42"), None);
        assert_eq!(strict_answer("#### $42"), None);
    }

    proptest! {
        #[test]
        fn no_text_panics(text in ".{0,200}") {
            numbers(&text);
            parse(&text);
            worked_answer(&text, true);
        }

        #[test]
        fn number_like_noise_does_not_panic(text in "[-0-9.,eE/%$+# ]{0,60}") {
            numbers(&text);
            parse(&text);
        }

        #[test]
        fn integers_are_read_back(number in any::<i64>(), before in "[a-z ]{0,10} ", after in "( [a-z]{1,5})?") {
            let found = numbers(&format!("{before}{number}{after}"));
            prop_assert_eq!(found, vec![parse(&number.to_string()).unwrap()]);
        }
    }
}
