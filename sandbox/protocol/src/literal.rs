//! Python literals: what `ast.literal_eval` makes of a text.
//!
//! Text comes from models, so this is total: any text ends in a value or a [`LiteralError`], in time linear in its
//! length and at most [`MAX_DEPTH`] levels deep. Complex numbers, which no [`Value`] carries, are refused; everything
//! else that `ast.literal_eval` reads is read to the same value.

use std::collections::{HashMap, HashSet};
use std::fmt::Write as _;

use thiserror::Error;

use crate::codec::{Encode, MAX_DEPTH};
use crate::value::Value;

/// Why a text is no literal.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("no Python literal at byte {at}: {reason}")]
pub struct LiteralError {
    /// Where it went wrong.
    pub at: usize,
    /// What was expected there.
    pub reason: &'static str,
}

/// Most digits of an integer, as in CPython.
const MAX_DIGITS: usize = 4300;

/// Reads a whole text as one literal.
pub fn parse(text: &str) -> Result<Value, LiteralError> {
    let mut parser = Parser { text, bytes: text.as_bytes(), at: 0, depth: 0, brackets: 0 };
    parser.at = text.len() - text.trim_start_matches([' ', '\t']).len();
    parser.comments_and_blank_lines();
    let value = parser.top_level()?;
    parser.comments_and_blank_lines();
    if parser.at < text.len() {
        return Err(parser.error("the text goes on after the literal"));
    }
    Ok(value)
}

struct Parser<'a> {
    text: &'a str,
    bytes: &'a [u8],
    at: usize,
    depth: usize,
    /// Open brackets: inside of them a newline is white space.
    brackets: usize,
}

impl Parser<'_> {
    fn error(&self, reason: &'static str) -> LiteralError {
        LiteralError { at: self.at, reason }
    }

    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    fn rest(&self) -> &str {
        self.text.get(self.at..).unwrap_or_default()
    }

    fn eat(&mut self, expected: u8) -> bool {
        let there = self.peek() == Some(expected);
        self.at += usize::from(there);
        there
    }

    /// White space within a line; within brackets newlines and comments too.
    fn space(&mut self) {
        loop {
            match self.peek() {
                Some(b' ' | b'\t' | b'\x0c') => self.at += 1,
                Some(b'\n' | b'\r') if self.brackets > 0 => self.at += 1,
                Some(b'#') if self.brackets > 0 => self.comment(),
                Some(b'\\') if self.rest().starts_with("\\\n") => self.at += 2,
                Some(b'\\') if self.rest().starts_with("\\\r\n") => self.at += 3,
                _ => return,
            }
        }
    }

    fn comment(&mut self) {
        while self.peek().is_some_and(|byte| byte != b'\n') {
            self.at += 1;
        }
    }

    fn comments_and_blank_lines(&mut self) {
        self.brackets += 1;
        self.space();
        self.brackets -= 1;
    }

    /// One literal, or a tuple without parentheses.
    fn top_level(&mut self) -> Result<Value, LiteralError> {
        let first = self.value()?;
        self.space();
        if self.peek() != Some(b',') {
            return Ok(first);
        }
        let mut items = vec![first];
        while self.eat(b',') {
            self.space();
            if matches!(self.peek(), None | Some(b'\n' | b'\r' | b'#')) {
                break;
            }
            items.push(self.value()?);
            self.space();
        }
        Ok(Value::Tuple(items))
    }

    fn value(&mut self) -> Result<Value, LiteralError> {
        self.space();
        match self.peek() {
            None => Err(self.error("a value was expected, the text ends")),
            Some(b'[' | b'(' | b'{') => {
                if self.depth >= MAX_DEPTH {
                    return Err(self.error("the literal is nested too deeply"));
                }
                self.depth += 1;
                self.brackets += 1;
                let value = self.container();
                self.depth -= 1;
                self.brackets -= 1;
                value
            }
            Some(b'+' | b'-') => self.signed(),
            Some(b'0'..=b'9' | b'.') => self.number(false),
            Some(b'"' | b'\'') => self.strings(),
            Some(byte) if byte.is_ascii_alphabetic() => self.word(),
            Some(_) => Err(self.error("a value was expected")),
        }
    }

    /// One sign and a number, which may stand in parentheses.
    fn signed(&mut self) -> Result<Value, LiteralError> {
        let negative = self.peek() == Some(b'-');
        self.at += 1;
        self.space();
        let mut open = 0;
        while self.eat(b'(') {
            open += 1;
            if self.depth + open > MAX_DEPTH {
                return Err(self.error("the literal is nested too deeply"));
            }
            self.brackets += 1;
            self.space();
        }
        let value = match self.peek() {
            Some(b'0'..=b'9' | b'.') => self.number(negative)?,
            _ => return Err(self.error("a number was expected after the sign")),
        };
        for _ in 0..open {
            self.space();
            if !self.eat(b')') {
                return Err(self.error("a closing parenthesis was expected after the number"));
            }
            self.brackets -= 1;
        }
        Ok(value)
    }

    fn container(&mut self) -> Result<Value, LiteralError> {
        let open = self.peek().unwrap_or_default();
        self.at += 1;
        self.space();
        match open {
            b'[' => Ok(Value::List(self.items(b']')?.0)),
            b'(' => {
                let (mut items, comma) = self.items(b')')?;
                // One value in parentheses without a comma is that value.
                if items.len() == 1 && !comma {
                    return items.pop().ok_or_else(|| self.error("a value was expected"));
                }
                Ok(Value::Tuple(items))
            }
            _ => self.braces(),
        }
    }

    /// Items up to a closing bracket, and whether a comma stood before it.
    fn items(&mut self, close: u8) -> Result<(Vec<Value>, bool), LiteralError> {
        let mut items = Vec::new();
        let mut comma = false;
        loop {
            self.space();
            if self.eat(close) {
                return Ok((items, comma));
            }
            if !items.is_empty() && !comma {
                return Err(self.error("a comma or the closing bracket was expected"));
            }
            items.push(self.value()?);
            self.space();
            comma = self.eat(b',');
        }
    }

    fn braces(&mut self) -> Result<Value, LiteralError> {
        if self.eat(b'}') {
            return Ok(Value::Dict(Vec::new()));
        }
        let first = self.value()?;
        self.space();
        if self.peek() != Some(b':') {
            // The first value is not read again: nesting would double the work at every level.
            let mut seen = HashSet::from([self.key(&first)?]);
            let mut items = vec![first];
            let comma = self.eat(b',');
            self.space();
            if !comma && self.peek() != Some(b'}') {
                return Err(self.error("a comma or the closing brace was expected"));
            }
            for item in self.items(b'}')?.0 {
                if seen.insert(self.key(&item)?) {
                    items.push(item);
                }
            }
            return Ok(Value::Set(items));
        }
        let mut places: HashMap<Vec<u8>, usize> = HashMap::new();
        let mut entries: Vec<(Value, Value)> = Vec::new();
        let mut key = first;
        loop {
            self.space();
            if !self.eat(b':') {
                return Err(self.error("a colon was expected after the key"));
            }
            let value = self.value()?;
            // A key that comes again keeps its place and takes the new value.
            let place = *places.entry(self.key(&key)?).or_insert(entries.len());
            match entries.get_mut(place) {
                Some(entry) => entry.1 = value,
                None => entries.push((key, value)),
            }
            self.space();
            let comma = self.eat(b',');
            self.space();
            if self.eat(b'}') {
                return Ok(Value::Dict(entries));
            }
            if !comma {
                return Err(self.error("a comma or the closing brace was expected"));
            }
            key = self.value()?;
        }
    }

    /// Bytes that equal keys share (`1`, `1.0` and `True` are one key).
    fn key(&self, value: &Value) -> Result<Vec<u8>, LiteralError> {
        fn plain(value: &Value) -> Option<Value> {
            Some(match value {
                Value::List(_) | Value::Dict(_) | Value::Set(_) => return None,
                Value::Bool(truth) => Value::Int(i64::from(*truth)),
                Value::Float(number) if number.fract() == 0.0 && number.abs() < 9.0e18 => Value::Int(*number as i64),
                Value::Tuple(items) => Value::Tuple(items.iter().map(plain).collect::<Option<_>>()?),
                other => other.clone(),
            })
        }
        plain(value).map(|plain| plain.to_bytes()).ok_or_else(|| self.error("a list, dict or set is no key"))
    }

    fn word(&mut self) -> Result<Value, LiteralError> {
        let length = self.rest().bytes().take_while(|byte| byte.is_ascii_alphanumeric() || *byte == b'_').count();
        let word = &self.text[self.at..self.at + length];
        if matches!(self.bytes.get(self.at + length), Some(b'"' | b'\'')) && length <= 2 {
            return self.strings();
        }
        let value = match word {
            "None" => Value::None,
            "True" => Value::Bool(true),
            "False" => Value::Bool(false),
            // The one call that is a literal: there is no other way to write an empty set.
            "set" => {
                self.at += length;
                self.space();
                let empty = self.eat(b'(') && {
                    self.space();
                    self.eat(b')')
                };
                return if empty { Ok(Value::Set(Vec::new())) } else { Err(self.error("a value was expected")) };
            }
            _ => return Err(self.error("a name is no literal")),
        };
        self.at += length;
        Ok(value)
    }

    fn number(&mut self, negative: bool) -> Result<Value, LiteralError> {
        let start = self.at;
        let radix = match self.rest().as_bytes() {
            [b'0', b'x' | b'X', ..] => 16,
            [b'0', b'o' | b'O', ..] => 8,
            [b'0', b'b' | b'B', ..] => 2,
            _ => 10,
        };
        let value = if radix == 10 { self.decimal(negative)? } else { self.prefixed(radix, negative)? };
        if self.peek().is_some_and(|byte| byte.is_ascii_alphanumeric() || byte == b'_' || byte >= 0x80) {
            self.at = start;
            return Err(self.error("a number was expected"));
        }
        Ok(value)
    }

    fn digits(&mut self, accept: impl Fn(u8) -> bool) -> String {
        let mut digits = String::new();
        while let Some(byte) = self.peek() {
            if accept(byte) {
                digits.push(char::from(byte));
            } else if byte == b'_' && !digits.is_empty() && self.bytes.get(self.at + 1).copied().is_some_and(&accept) {
                // An underscore may stand between two digits.
            } else {
                break;
            }
            self.at += 1;
        }
        digits
    }

    fn decimal(&mut self, negative: bool) -> Result<Value, LiteralError> {
        let whole = self.digits(|byte| byte.is_ascii_digit());
        let mut float = String::new();
        if self.eat(b'.') {
            let fraction = self.digits(|byte| byte.is_ascii_digit());
            if whole.is_empty() && fraction.is_empty() {
                return Err(self.error("a digit was expected"));
            }
            float = format!(
                "{}.{}",
                if whole.is_empty() { "0" } else { &whole },
                if fraction.is_empty() { "0" } else { &fraction }
            );
        }
        if matches!(self.peek(), Some(b'e' | b'E')) {
            self.at += 1;
            let sign = if self.eat(b'-') {
                "-"
            } else {
                self.eat(b'+');
                ""
            };
            let power = self.digits(|byte| byte.is_ascii_digit());
            if power.is_empty() {
                return Err(self.error("an exponent was expected"));
            }
            if float.is_empty() {
                float.clone_from(&whole);
            }
            float = format!("{float}e{sign}{power}");
        }
        if !float.is_empty() {
            let number: f64 = float.parse().map_err(|_| self.error("a number was expected"))?;
            return Ok(Value::Float(if negative { -number } else { number }));
        }
        if whole.len() > 1 && whole.starts_with('0') && whole.bytes().any(|byte| byte != b'0') {
            return Err(self.error("leading zeros are not allowed in an integer"));
        }
        self.integer(whole.trim_start_matches('0'), negative)
    }

    /// An integer from its decimal digits without leading zeros.
    fn integer(&self, digits: &str, negative: bool) -> Result<Value, LiteralError> {
        if digits.is_empty() {
            return Ok(Value::Int(0));
        }
        if digits.len() > MAX_DIGITS {
            return Err(self.error("an integer has too many digits"));
        }
        let text = if negative { format!("-{digits}") } else { digits.to_owned() };
        Ok(text.parse().map_or(Value::BigInt(text), Value::Int))
    }

    fn prefixed(&mut self, radix: u32, negative: bool) -> Result<Value, LiteralError> {
        self.at += 2;
        self.eat(b'_');
        let digits = self.digits(|byte| char::from(byte).is_digit(radix));
        if digits.is_empty() {
            return Err(self.error("a digit was expected"));
        }
        // Base 10^9, little end first; the bound keeps the quadratic conversion short.
        if digits.len() > MAX_DIGITS {
            return Err(self.error("an integer has too many digits"));
        }
        let mut limbs: Vec<u64> = Vec::new();
        for digit in digits.chars().filter_map(|digit| digit.to_digit(radix)) {
            let mut carry = u64::from(digit);
            for limb in &mut limbs {
                let next = *limb * u64::from(radix) + carry;
                *limb = next % 1_000_000_000;
                carry = next / 1_000_000_000;
            }
            if carry > 0 {
                limbs.push(carry);
            }
        }
        let decimal = limbs.iter().rev().fold(String::new(), |mut decimal, limb| {
            // Writing to a text does not fail.
            let _ = write!(decimal, "{limb:09}");
            decimal
        });
        self.integer(decimal.trim_start_matches('0'), negative)
    }

    /// One or more adjacent strings, all text or all bytes.
    fn strings(&mut self) -> Result<Value, LiteralError> {
        let mut text = String::new();
        let mut bytes = Vec::new();
        let mut kind = None;
        loop {
            let is_bytes = self.string(&mut text, &mut bytes)?;
            if kind.is_some_and(|kind| kind != is_bytes) {
                return Err(self.error("text and bytes do not mix"));
            }
            kind = Some(is_bytes);
            self.space();
            let prefix = self.rest().bytes().take(3).take_while(u8::is_ascii_alphabetic).count();
            if !matches!(self.bytes.get(self.at + prefix), Some(b'"' | b'\'')) {
                break;
            }
        }
        Ok(if kind == Some(true) { Value::Bytes(bytes) } else { Value::Str(text) })
    }

    /// One string, appended to `text` or `bytes`; answers whether it was bytes.
    fn string(&mut self, text: &mut String, bytes: &mut Vec<u8>) -> Result<bool, LiteralError> {
        let prefix = self.rest().bytes().take_while(u8::is_ascii_alphabetic).count();
        let (raw, is_bytes) = match self.rest()[..prefix].to_ascii_lowercase().as_str() {
            "" | "u" => (false, false),
            "r" => (true, false),
            "b" => (false, true),
            "rb" | "br" => (true, true),
            _ => return Err(self.error("a string with this prefix is no literal")),
        };
        self.at += prefix;
        let quote = match self.rest().as_bytes() {
            [first, second, third, ..] if first == second && second == third => 3,
            _ => 1,
        };
        let mark = self.peek().unwrap_or_default();
        self.at += quote;
        loop {
            let Some(c) = self.rest().chars().next() else {
                return Err(self.error("a string does not end"));
            };
            if self.rest().bytes().take(quote).filter(|byte| *byte == mark).count() == quote {
                self.at += quote;
                return Ok(is_bytes);
            }
            if quote == 1 && matches!(c, '\n' | '\r') {
                return Err(self.error("a string does not end on its line"));
            }
            if is_bytes && !c.is_ascii() {
                return Err(self.error("bytes hold only ASCII characters"));
            }
            if c == '\\' {
                self.escape(raw, is_bytes, text, bytes)?;
                continue;
            }
            self.at += c.len_utf8();
            if is_bytes { bytes.push(c as u8) } else { text.push(c) }
        }
    }

    fn escape(
        &mut self,
        raw: bool,
        is_bytes: bool,
        text: &mut String,
        bytes: &mut Vec<u8>,
    ) -> Result<(), LiteralError> {
        self.at += 1;
        let Some(c) = self.rest().chars().next() else {
            return Err(self.error("a string does not end"));
        };
        let mut put = |code: u32| {
            if is_bytes {
                bytes.push(code as u8);
            } else {
                // Lone surrogates have no place in a text.
                text.push(char::from_u32(code).unwrap_or('\u{fffd}'));
            }
        };
        if raw {
            put(u32::from('\\'));
            put(u32::from(c));
            self.at += c.len_utf8();
            return Ok(());
        }
        self.at += c.len_utf8();
        let width = match c {
            '\n' => return Ok(()),
            '\r' => {
                self.eat(b'\n');
                return Ok(());
            }
            'x' => 2,
            'u' if !is_bytes => 4,
            'U' if !is_bytes => 8,
            'N' if !is_bytes => return Err(self.error("named characters are not read")),
            '0'..='7' => {
                let mut code = c.to_digit(8).unwrap_or_default();
                for _ in 0..2 {
                    match self.peek() {
                        Some(digit @ b'0'..=b'7') => {
                            code = code * 8 + u32::from(digit - b'0');
                            self.at += 1;
                        }
                        _ => break,
                    }
                }
                put(code);
                return Ok(());
            }
            _ => {
                let plain = match c {
                    '\\' | '\'' | '"' => u32::from(c),
                    'a' => 7,
                    'b' => 8,
                    'f' => 12,
                    'n' => 10,
                    'r' => 13,
                    't' => 9,
                    'v' => 11,
                    // An unknown escape is kept with its backslash.
                    _ => {
                        put(u32::from('\\'));
                        if is_bytes && !c.is_ascii() {
                            return Err(self.error("bytes hold only ASCII characters"));
                        }
                        u32::from(c)
                    }
                };
                put(plain);
                return Ok(());
            }
        };
        let digits = self.rest().get(..width).filter(|digits| digits.bytes().all(|byte| byte.is_ascii_hexdigit()));
        let code = digits
            .and_then(|digits| u32::from_str_radix(digits, 16).ok())
            .filter(|code| *code <= 0x0010_ffff)
            .ok_or_else(|| self.error("hexadecimal digits were expected in an escape"))?;
        self.at += width;
        put(code);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(items: Vec<Value>) -> Value {
        Value::List(items)
    }

    #[test]
    fn literals_are_read_with_their_types() {
        let ints = |numbers: &[i64]| numbers.iter().copied().map(Value::Int).collect::<Vec<_>>();
        for (text, expected) in [
            ("3", Value::Int(3)),
            ("  -3", Value::Int(-3)),
            ("- 3", Value::Int(-3)),
            ("-(5)", Value::Int(-5)),
            ("+((1.5))", Value::Float(1.5)),
            ("-(5 # five\n)", Value::Int(-5)),
            ("((-(3)))", Value::Int(-3)),
            ("1_000", Value::Int(1000)),
            ("0x_ff", Value::Int(255)),
            ("-0b101", Value::Int(-5)),
            ("000", Value::Int(0)),
            ("9223372036854775808", Value::BigInt("9223372036854775808".to_owned())),
            ("-9223372036854775808", Value::Int(i64::MIN)),
            ("0xffffffffffffffffff", Value::BigInt("4722366482869645213695".to_owned())),
            ("1.5e3", Value::Float(1500.0)),
            (".5", Value::Float(0.5)),
            ("5.", Value::Float(5.0)),
            ("1e400", Value::Float(f64::INFINITY)),
            ("None", Value::None),
            ("True", Value::Bool(true)),
            ("'a' \"b\"", Value::from("ab")),
            ("'''a\nb'''", Value::from("a\nb")),
            (r"'\x41\u00e9\U0001F600\101\q\n'", Value::from("A\u{e9}\u{1f600}A\\q\n")),
            (r"r'\n'", Value::from("\\n")),
            (r"b'\xffa'", Value::Bytes(b"\xffa".to_vec())),
            ("[]", list(vec![])),
            ("['a','b']", list(vec![Value::from("a"), Value::from("b")])),
            ("[1,\n 2, # two\n]", list(ints(&[1, 2]))),
            ("()", Value::Tuple(vec![])),
            ("(1)", Value::Int(1)),
            ("(1,)", Value::Tuple(ints(&[1]))),
            ("1, 2", Value::Tuple(ints(&[1, 2]))),
            ("{}", Value::Dict(vec![])),
            ("set()", Value::Set(vec![])),
            ("{1, 1.0, 2}", Value::Set(ints(&[1, 2]))),
            ("{'a': [1], 'a': 2,}", Value::Dict(vec![(Value::from("a"), Value::Int(2))])),
            ("3  # three\n", Value::Int(3)),
        ] {
            assert_eq!(parse(text), Ok(expected), "`{text}`");
        }
    }

    #[test]
    fn everything_else_is_refused() {
        for text in [
            "",
            "abc",
            "a b",
            "1 2",
            "01",
            "1__0",
            "1_",
            "0x",
            "1+2",
            "1j",
            "f'x'",
            "'a",
            "'a\nb'",
            "[1 2]",
            "[1",
            "(,)",
            "{[]}",
            "{[]: 1}",
            "{1: 2, 3}",
            "print()",
            "set([1])",
            "-'a'",
            "--",
            "--3",
            "-(-3)",
            "-(3",
            "-(3,)",
            "-True",
            "'a' b'b'",
            r"'\x4'",
            "[,]",
            "1\n2",
            "nan",
            "b'\u{e9}'",
            "1\u{e9}",
        ] {
            assert!(parse(text).is_err(), "`{text}` gave {:?}", parse(text));
        }
    }

    #[test]
    fn depth_and_digits_are_bounded() {
        for open in ["[", "{(", "{", "{1:"] {
            assert!(parse(&open.repeat(100_000)).is_err(), "`{open}`");
            // Deep but within the bound, and wrong only at the end: still one pass.
            assert!(parse(&open.repeat(30)).is_err(), "`{open}`");
        }
        assert!(parse(&"9".repeat(5000)).is_err());
        assert!(parse(&format!("0x{}", "f".repeat(5000))).is_err());
    }
}
