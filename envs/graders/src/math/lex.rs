//! A text in LaTeX, or in the plain notation that models write as often, as tokens.
//!
//! Thousands separators are resolved here: `1{,}234`, `1,\!234` and `1\,234` always, `1,234` and `1 234` only outside
//! brackets and only where the reader asks for it, since `(1,234)` is a pair.

use super::budget::{Budget, Stop};

/// One token and where it stands.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Token {
    pub(super) kind: Kind,
    pub(super) at: usize,
    /// White space, or a spacing command, stands before it.
    pub(super) spaced: bool,
}

/// What a token is.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Kind {
    /// Digits, at most one point, separators removed.
    Number(String),
    /// Digits and capitals with the base that is written below them.
    Numeral(String, String),
    /// A run of letters.
    Word(String),
    /// `\name`, without its backslash; a non-letter command is that character.
    Command(String),
    /// The content of `\text{}` and its like.
    Text(String),
    /// Any other character.
    Sign(char),
}

/// Commands whose argument is words, not mathematics.
const TEXT: [&str; 13] = [
    "text",
    "mbox",
    "textbf",
    "textit",
    "textrm",
    "textnormal",
    "textsf",
    "texttt",
    "mathrm",
    "operatorname",
    "mathsf",
    "hbox",
    "emph",
];

/// Commands that say how something looks.
const LAYOUT: [&str; 43] = [
    "left",
    "right",
    "big",
    "Big",
    "bigg",
    "Bigg",
    "bigl",
    "bigr",
    "Bigl",
    "Bigr",
    "biggl",
    "biggr",
    "Biggl",
    "Biggr",
    "middle",
    "displaystyle",
    "textstyle",
    "limits",
    "nolimits",
    "rm",
    "bf",
    "it",
    "mathbf",
    "mathit",
    "boldsymbol",
    "bold",
    "mathord",
    "underline",
    "tiny",
    "scriptsize",
    "footnotesize",
    "small",
    "normalsize",
    "large",
    "Large",
    "LARGE",
    "huge",
    "Huge",
    "scriptstyle",
    "therefore",
    "hline",
    "boxed",
    "fbox",
];

/// Commands whose first argument is not seen on paper.
const UNSEEN: [&str; 5] = ["phantom", "hphantom", "vphantom", "color", "textcolor"];

const SPACES: [&str; 9] = ["quad", "qquad", "enspace", "thinspace", ",", ";", ":", "!", " "];

struct Lexer<'a> {
    text: &'a str,
    at: usize,
    tokens: Vec<Token>,
    spaced: bool,
    brackets: u32,
    grouping: bool,
}

/// The tokens of a text. `grouping` reads `1,234` outside brackets as one number.
pub(super) fn tokens(text: &str, grouping: bool, budget: &mut Budget) -> Result<Vec<Token>, Stop> {
    if text.len() > budget.limits.length {
        return Err(Stop::Budget("characters"));
    }
    budget.spend(text.len() as u64)?;
    let mut lexer = Lexer { text, at: 0, tokens: Vec::new(), spaced: false, brackets: 0, grouping };
    while let Some(c) = lexer.rest().chars().next() {
        lexer.token(c);
    }
    Ok(lexer.tokens)
}

impl<'a> Lexer<'a> {
    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    fn push(&mut self, kind: Kind, length: usize) {
        self.tokens.push(Token { kind, at: self.at, spaced: self.spaced });
        self.spaced = false;
        self.at += length;
    }

    fn skip(&mut self, length: usize) {
        self.at += length;
        self.spaced = true;
    }

    fn token(&mut self, c: char) {
        if c.is_whitespace() || c == '~' || c == '\u{200b}' {
            return self.skip(c.len_utf8());
        }
        if c == '\\' {
            return self.command();
        }
        if c.is_ascii_digit() || (c == '.' && self.rest()[1..].starts_with(|next: char| next.is_ascii_digit())) {
            return self.number();
        }
        if c.is_ascii_alphabetic() {
            let rest = self.rest();
            let run = rest.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(rest.len());
            if rest[..run].contains(|c: char| c.is_ascii_digit())
                && let Some((digits, base, length)) = numeral(rest)
            {
                return self.push(Kind::Numeral(digits, base), length);
            }
            let run = rest.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(rest.len());
            return self.push(Kind::Word(rest[..run].to_owned()), run);
        }
        let length = c.len_utf8();
        if superscript(c).is_some() {
            return self.superscripts();
        }
        if let Some((top, bottom)) = vulgar(c) {
            self.push(Kind::Command("frac".to_owned()), 0);
            for half in [top, bottom] {
                self.push(Kind::Sign('{'), 0);
                self.push(Kind::Number(half.to_string()), 0);
                self.push(Kind::Sign('}'), 0);
            }
            self.at += length;
            return;
        }
        if let Some(name) = unicode(c) {
            return match name.strip_prefix('\\') {
                Some(command) => self.push(Kind::Command(command.to_owned()), length),
                None => self.push(Kind::Sign(name.chars().next().unwrap_or(c)), length),
            };
        }
        match c {
            '(' | '[' => self.brackets += 1,
            // `]2, 5]` opens with it.
            ']' if self.brackets == 0 => self.brackets = 1,
            ')' | ']' => self.brackets = self.brackets.saturating_sub(1),
            '*' if self.rest().starts_with("**") => return self.push(Kind::Sign('^'), 2),
            '<' if self.rest().starts_with("<=") => return self.push(Kind::Command("le".to_owned()), 2),
            '>' if self.rest().starts_with(">=") => return self.push(Kind::Command("ge".to_owned()), 2),
            '!' if self.rest().starts_with("!=") => return self.push(Kind::Command("ne".to_owned()), 2),
            '=' if self.rest().starts_with("==") => return self.push(Kind::Sign('='), 2),
            _ => {}
        }
        self.push(Kind::Sign(c), length);
    }

    /// A run of raised digits is one exponent.
    fn superscripts(&mut self) {
        let rest = self.rest();
        let end = rest.find(|c| superscript(c).is_none()).unwrap_or(rest.len());
        let run: String = rest[..end].chars().filter_map(superscript).collect();
        self.push(Kind::Sign('^'), 0);
        self.push(Kind::Sign('{'), 0);
        for (index, part) in run.split('-').enumerate() {
            if index > 0 {
                self.push(Kind::Sign('-'), 0);
            }
            if !part.is_empty() {
                self.push(Kind::Number(part.to_owned()), 0);
            }
        }
        self.push(Kind::Sign('}'), 0);
        self.at += end;
    }

    fn command(&mut self) {
        let after = &self.rest()[1..];
        let letters = after.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(after.len());
        if letters == 0 {
            let Some(c) = after.chars().next() else { return self.skip(1) };
            let mut buffer = [0; 4];
            let name: &str = c.encode_utf8(&mut buffer);
            if SPACES.contains(&name) || c.is_whitespace() {
                return self.skip(1 + c.len_utf8());
            }
            match c {
                '{' => self.brackets += 1,
                '}' => self.brackets = self.brackets.saturating_sub(1),
                // Inline and display mathematics.
                '(' | ')' | '[' | ']' => return self.skip(2),
                _ => {}
            }
            return self.push(Kind::Command(name.to_owned()), 1 + c.len_utf8());
        }
        let name = &after[..letters];
        if LAYOUT.contains(&name) {
            self.at += 1 + letters;
            if matches!(name, "left" | "right" | "middle") && self.rest().trim_start().starts_with('.') {
                self.at += self.rest().find('.').map_or(0, |point| point + 1);
            }
            return;
        }
        if SPACES.contains(&name) {
            return self.skip(1 + letters);
        }
        if UNSEEN.contains(&name) {
            // What nobody sees says nothing, and a colour neither.
            let argument = after[letters..].trim_start();
            let length = braced(argument).map_or(0, |(_, length)| length);
            return self.skip(self.rest().len() - argument.len() + length);
        }
        let bracket = match name {
            "lbrace" => Some(Kind::Command("{".to_owned())),
            "rbrace" => Some(Kind::Command("}".to_owned())),
            "lbrack" => Some(Kind::Sign('[')),
            "rbrack" => Some(Kind::Sign(']')),
            _ => None,
        };
        if let Some(bracket) = bracket {
            let opens = name.starts_with('l');
            self.brackets = if opens { self.brackets + 1 } else { self.brackets.saturating_sub(1) };
            return self.push(bracket, 1 + letters);
        }
        if TEXT.contains(&name) {
            let argument = after[letters..].trim_start_matches(['*', ' ', '\n']);
            if let Some((inside, length)) = braced(argument) {
                let length = self.rest().len() - argument.len() + length;
                return self.push(Kind::Text(inside.replace('\n', " ")), length);
            }
        }
        self.push(Kind::Command(name.to_owned()), 1 + letters);
    }

    fn number(&mut self) {
        let rest = self.rest();
        if let Some((digits, base, length)) = numeral(rest) {
            return self.push(Kind::Numeral(digits, base), length);
        }
        let whole = digits(rest);
        let mut number = rest[..whole].to_owned();
        let mut length = whole;
        if (1..=3).contains(&whole) {
            while let Some((group, used)) = self.group(&rest[length..]) {
                number.push_str(group);
                length += used;
            }
        }
        let tail = &rest[length..];
        if let Some(after) = tail.strip_prefix('.') {
            let fraction = digits(after);
            // A final point ends the sentence.
            if fraction > 0 {
                number.push_str(&tail[..=fraction]);
                length += 1 + fraction;
            }
        }
        // `1.5e3`, never `2ex`.
        let tail = &rest[length..];
        if let Some(power) = tail.strip_prefix(['e', 'E']) {
            let sign = usize::from(power.starts_with(['+', '-']));
            let count = digits(&power[sign..]);
            let ends = !power[sign + count..].starts_with(|c: char| c.is_ascii_alphanumeric());
            if (1..=4).contains(&count)
                && ends
                && (sign == 1 || tail.starts_with('E') || number.contains('.') || count > 1)
            {
                number.push('e');
                number.push_str(&power[..sign + count]);
                length += 1 + sign + count;
            }
        }
        self.push(Kind::Number(number), length);
    }

    /// The next three digits of a number with separators, and how long they are with theirs.
    fn group(&self, tail: &'a str) -> Option<(&'a str, usize)> {
        let separators = ["{,}", r",\!", r"\,", r"\;", r"\:", r"{\,}", r"{,\!}", r"\ ", "~"];
        let explicit = separators.iter().find(|separator| tail.starts_with(**separator));
        let length = match explicit {
            Some(separator) => separator.len(),
            None if tail.starts_with([',', ' ']) && self.grouping && self.brackets == 0 => 1,
            None => return None,
        };
        let group = tail[length..].trim_start_matches(if length > 1 { ' ' } else { '\0' });
        // `1\ 23` multiplies, `111, \! 111` groups.
        let group = group.strip_prefix(r"\!").map_or(group, |rest| rest.trim_start_matches(' '));
        let skipped = tail.len() - group.len();
        (digits(group) == 3).then(|| (&group[..3], skipped + 3))
    }
}

fn digits(text: &str) -> usize {
    text.bytes().take_while(u8::is_ascii_digit).count()
}

/// The content of a braced text and its length with the braces.
fn braced(text: &str) -> Option<(&str, usize)> {
    let mut depth = 0_u32;
    for (at, c) in text.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => {
                depth = depth.checked_sub(1)?;
                if depth == 0 {
                    return Some((&text[1..at], at + 1));
                }
            }
            _ if depth == 0 => return None,
            _ => {}
        }
    }
    None
}

/// `152A_{11}`: digits, base, length. The digits must be digits of the base.
fn numeral(text: &str) -> Option<(String, String, usize)> {
    let length = text.find(|c: char| !(c.is_ascii_digit() || c.is_ascii_uppercase() || c == '.')).unwrap_or(text.len());
    let (written, after) = text.split_at(length);
    let after = after.strip_prefix('_')?;
    let (below, used) = braced(after).unwrap_or_else(|| {
        let used = digits(after);
        (&after[..used], used)
    });
    let base = base(below)?;
    let fits = written.chars().all(|c| c == '.' || c.to_digit(36).is_some_and(|digit| digit < base));
    (fits && written.contains(|c: char| c.is_ascii_digit()))
        .then(|| (written.to_owned(), base.to_string(), length + 1 + used))
}

/// Bases in words, at their places.
const NAMES: [&str; 17] = [
    "", "", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve", "thirteen",
    "fourteen", "fifteen", "sixteen",
];

/// A base as a number or a word.
pub(super) fn base(text: &str) -> Option<u32> {
    let words = text.trim_start_matches(r"\text").trim_matches(['{', '}', ' ']);
    let value = match words.parse::<u32>() {
        Ok(value) => value,
        Err(_) => NAMES.iter().position(|name| !name.is_empty() && *name == words)? as u32,
    };
    (2..=36).contains(&value).then_some(value)
}

/// The digit or sign that a raised one is.
pub(crate) fn superscript(c: char) -> Option<char> {
    Some(match c {
        '\u{b9}' => '1',
        '\u{b2}' => '2',
        '\u{b3}' => '3',
        '\u{207b}' => '-',
        '\u{2070}' | '\u{2074}'..='\u{2079}' => char::from_digit(u32::from(c) - 0x2070, 10)?,
        _ => return None,
    })
}

/// The fraction that one character is.
pub(crate) fn vulgar(c: char) -> Option<(u8, u8)> {
    Some(match c {
        '\u{bd}' => (1, 2),
        '\u{2153}' => (1, 3),
        '\u{2154}' => (2, 3),
        '\u{bc}' => (1, 4),
        '\u{be}' => (3, 4),
        '\u{2155}' => (1, 5),
        '\u{2156}' => (2, 5),
        '\u{2157}' => (3, 5),
        '\u{2158}' => (4, 5),
        '\u{2159}' => (1, 6),
        '\u{215a}' => (5, 6),
        '\u{215b}' => (1, 8),
        '\u{215c}' => (3, 8),
        '\u{215d}' => (5, 8),
        '\u{215e}' => (7, 8),
        _ => return None,
    })
}

/// What a character outside ASCII stands for.
fn unicode(c: char) -> Option<&'static str> {
    Some(match c {
        '\u{2212}' | '\u{2013}' | '\u{2014}' => "-",
        '\u{d7}' | '\u{22c5}' | '\u{b7}' | '\u{2217}' => "*",
        '\u{f7}' | '\u{2215}' | '\u{2044}' => "/",
        '\u{b1}' => r"\pm",
        '\u{3c0}' => r"\pi",
        '\u{221e}' => r"\infty",
        '\u{221a}' => r"\sqrt",
        '\u{b0}' => r"\degree",
        '\u{2264}' => r"\le",
        '\u{2265}' => r"\ge",
        '\u{2260}' => r"\ne",
        '\u{2208}' => r"\in",
        '\u{222a}' => r"\cup",
        '\u{2229}' => r"\cap",
        '\u{2205}' => r"\emptyset",
        '\u{211d}' => r"\reals",
        '\u{3b8}' => r"\theta",
        '\u{3b1}' => r"\alpha",
        '\u{3b2}' => r"\beta",
        '\u{ff0c}' => ",",
        '\u{ff08}' => "(",
        '\u{ff09}' => ")",
        '\u{2019}' => "'",
        _ => return None,
    })
}
