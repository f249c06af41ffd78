//! Expressions over whole numbers with `+ - * /` and parentheses: read, and evaluated exactly.
//!
//! Text comes from models, so its length, its nesting and every number on the way are bounded.

use crate::rational::Rational;

/// Longest expression, bytes.
pub const MAX_LENGTH: usize = 4096;
/// Deepest nesting of parentheses and signs.
pub const MAX_DEPTH: usize = 100;
/// Most digits of a number.
const MAX_DIGITS: usize = 30;

/// An expression that has a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Evaluated {
    /// Its value.
    pub value: Rational,
    /// The numbers that it is written with, in order, without signs.
    pub numbers: Vec<i128>,
}

/// The value of an expression; none where it is malformed, divides by 0, or leaves the bounds.
///
/// Signs before a number or a parenthesis are allowed; `×`, `·`, `÷`, `−` are read as `*`, `*`, `/`, `-`; `[]` are
/// read as parentheses. Powers, `//`, decimals and products without a sign are refused.
pub fn evaluate(text: &str) -> Option<Evaluated> {
    if text.len() > MAX_LENGTH {
        return None;
    }
    let text: Vec<u8> = text
        .chars()
        .map(|letter| match letter {
            '×' | '·' | '⋅' | '∗' => b'*',
            '÷' | '∕' => b'/',
            '−' | '–' => b'-',
            '[' => b'(',
            ']' => b')',
            other if other.is_whitespace() => b' ',
            other => u8::try_from(other).ok().filter(u8::is_ascii).unwrap_or(b'?'),
        })
        .collect();
    let mut parser = Parser { text: &text, at: 0, numbers: Vec::new() };
    let value = parser.sum(0)?;
    parser.skip_spaces();
    (parser.at == text.len()).then_some(Evaluated { value, numbers: parser.numbers })
}

struct Parser<'a> {
    text: &'a [u8],
    at: usize,
    numbers: Vec<i128>,
}

impl Parser<'_> {
    fn skip_spaces(&mut self) {
        while self.text.get(self.at) == Some(&b' ') {
            self.at += 1;
        }
    }

    /// The next sign, if it is one of these.
    fn take(&mut self, signs: &[u8]) -> Option<u8> {
        self.skip_spaces();
        let sign = *self.text.get(self.at).filter(|sign| signs.contains(sign))?;
        self.at += 1;
        Some(sign)
    }

    fn sum(&mut self, depth: usize) -> Option<Rational> {
        let mut value = self.product(depth)?;
        while let Some(sign) = self.take(b"+-") {
            let right = self.product(depth)?;
            value = if sign == b'+' { value.checked_add(right)? } else { value.checked_sub(right)? };
        }
        Some(value)
    }

    fn product(&mut self, depth: usize) -> Option<Rational> {
        let mut value = self.factor(depth)?;
        while let Some(sign) = self.take(b"*/") {
            let right = self.factor(depth)?;
            value = if sign == b'*' { value.checked_mul(right)? } else { value.checked_div(right)? };
        }
        Some(value)
    }

    fn factor(&mut self, depth: usize) -> Option<Rational> {
        if depth > MAX_DEPTH {
            return None;
        }
        match self.take(b"+-(") {
            Some(b'-') => return self.factor(depth + 1)?.negated(),
            Some(b'+') => return self.factor(depth + 1),
            Some(_) => {
                let value = self.sum(depth + 1)?;
                self.take(b")")?;
                return Some(value);
            }
            None => {}
        }
        let digits = self.text[self.at..].iter().take_while(|digit| digit.is_ascii_digit()).count();
        if !(1..=MAX_DIGITS).contains(&digits) {
            return None;
        }
        let number = self.text[self.at..self.at + digits]
            .iter()
            .fold(0_i128, |number, digit| number * 10 + i128::from(digit - b'0'));
        self.at += digits;
        self.numbers.push(number);
        Some(Rational::whole(number))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn whole(text: &str) -> Option<i128> {
        evaluate(text)?.value.to_whole()
    }

    #[test]
    fn precedence_and_signs_are_those_of_arithmetic() {
        for (text, value) in [
            ("1 + 2 * 3", 7),
            ("(1+2)*3", 9),
            ("10 - 4 - 3", 3),
            ("100 / 5 / 2", 10),
            ("2 * -3", -6),
            ("-(4 - 6) * 5", 10),
            ("3 - -5", 8),
            ("8 / (3 - 8 / 3)", 24),
            ("[2 + 3] × 4 ÷ 2 − 1", 9),
        ] {
            assert_eq!(whole(text), Some(value), "{text}");
        }
        assert_eq!(evaluate("(7 + 7) - 3").unwrap().numbers, [7, 7, 3]);
    }

    #[test]
    fn what_is_no_expression_has_no_value() {
        for text in
            ["", "1 2", "2 ** 3", "7 // 2", "1.5", "(1", "1)", "3 +", "1 / 0", "2(3)", "x", "1 / (2 - 2)", "1e3"]
        {
            assert_eq!(evaluate(text), None, "{text}");
        }
        assert_eq!(evaluate(&format!("{}1{}", "(".repeat(200), ")".repeat(200))), None);
        assert_eq!(evaluate(&"9".repeat(31)), None);
        assert_eq!(evaluate(&format!("1{}", " + 1".repeat(2000))), None);
        assert_eq!(evaluate(&vec!["999999999"; 20].join(" * ")), None);
    }

    proptest! {
        #[test]
        fn any_text_is_read_without_a_panic(text in "[-+*/() 0-9\\[\\]×x.]{0,60}") {
            let _ = evaluate(&text);
        }

        #[test]
        fn sums_and_products_agree_with_machine_arithmetic(a in -999_i64..999, b in -999_i64..999, c in 1_i64..999) {
            prop_assert_eq!(whole(&format!("{a} + {b} * {c}")), Some(i128::from(a + b * c)));
            prop_assert_eq!(whole(&format!("({a} - {b}) * {c} / {c}")), Some(i128::from(a - b)));
        }
    }
}
