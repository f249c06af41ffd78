//! Numbers as Python's `Decimal` reads them, compared by value.

/// A number of any length, in the one form that equal numbers share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decimal {
    /// `digits * 10^exponent`, without zeros at either end of the digits; zero has none.
    Finite {
        /// Below zero.
        negative: bool,
        /// Its digits.
        digits: String,
        /// The power of ten.
        exponent: i64,
    },
    /// Either infinity.
    Infinite {
        /// Below zero.
        negative: bool,
    },
    /// No number, equal to nothing.
    NotANumber,
}

/// Reads a text as `Decimal(text)` does; `None` where that raises.
pub fn parse(text: &str) -> Option<Decimal> {
    let text = text.trim().replace('_', "");
    let (negative, rest) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(&text)),
    };
    let lower = rest.to_ascii_lowercase();
    if matches!(lower.as_str(), "inf" | "infinity") {
        return Some(Decimal::Infinite { negative });
    }
    if let Some(payload) = lower.strip_prefix("snan").or_else(|| lower.strip_prefix("nan")) {
        return payload.bytes().all(|byte| byte.is_ascii_digit()).then_some(Decimal::NotANumber);
    }
    let (mantissa, exponent) = match lower.split_once('e') {
        Some((mantissa, exponent)) => {
            let number = exponent.strip_prefix(['+', '-']).unwrap_or(exponent);
            if number.is_empty() || !number.bytes().all(|byte| byte.is_ascii_digit()) {
                return None;
            }
            (mantissa, exponent.parse::<i64>().ok().filter(|exponent| exponent.abs() < 1 << 60)?)
        }
        None => (lower.as_str(), 0),
    };
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    if whole.len() + fraction.len() == 0 || !whole.bytes().chain(fraction.bytes()).all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let all = format!("{whole}{fraction}");
    let digits = all.trim_start_matches('0').trim_end_matches('0');
    if digits.is_empty() {
        return Some(Decimal::Finite { negative: false, digits: String::new(), exponent: 0 });
    }
    let zeros = all.len() - all.trim_end_matches('0').len();
    let exponent = exponent - fraction.len() as i64 + zeros as i64;
    Some(Decimal::Finite { negative, digits: digits.to_owned(), exponent })
}

/// Whether two lines are the same row of numbers: as many, each equal by value.
pub fn same_numbers(left: &str, right: &str) -> bool {
    let read = |line: &str| line.split_whitespace().map(parse).collect::<Option<Vec<_>>>();
    match (read(left), read(right)) {
        (Some(left), Some(right)) => left == right && !left.contains(&Decimal::NotANumber),
        _ => false,
    }
}

/// Whether two outputs agree as LiveCodeBench compares them: without blanks around the whole and around each line, as
/// many lines, each the same text or the same row of numbers.
#[expect(clippy::str_split_at_newline, reason = "`lines` takes a carriage return off and gives an empty text no line")]
pub fn same_output(given: &str, expected: &str) -> bool {
    let lines = |text: &str| text.trim().split('\n').map(|line| line.trim().to_owned()).collect::<Vec<_>>();
    let (given, expected) = (lines(given), lines(expected));
    given.len() == expected.len()
        && given.iter().zip(&expected).all(|(given, expected)| given == expected || same_numbers(given, expected))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_compared_by_value() {
        for (left, right) in
            [("1", "1.0"), ("0.10", ".1"), ("1e3", "1000"), ("-0", "0.00"), ("+5", "5"), ("1 2.50", "1.0  2.5")]
        {
            assert!(same_numbers(left, right), "{left} {right}");
        }
        let big = "1".repeat(100);
        assert!(same_numbers(&big, &format!("{big}.000")));
        for (left, right) in
            [("1", "2"), ("1", "-1"), ("1 2", "1"), ("nan", "nan"), ("x", "x"), ("1e", "1"), (".", "0")]
        {
            assert!(!same_numbers(left, right), "{left} {right}");
        }
        assert!(same_numbers("inf", "Infinity") && !same_numbers("inf", "-inf"));
    }

    #[test]
    fn outputs_are_compared_line_by_line() {
        assert!(same_output("  1 \nyes\n\n", "1.0\nyes"));
        assert!(!same_output("1\n\nyes", "1\nyes"));
        assert!(!same_output("Yes", "yes"));
        assert!(same_output("", "  \n"));
    }
}
