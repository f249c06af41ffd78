//! The tokens of a statement: enough of SQLite's grammar to count statements, nesting and selects before SQLite sees
//! the text, and to find the `ORDER BY` that orders the result.
//!
//! Nothing here decides what is safe: SQLite reads the text by itself, under the authoriser.

use std::ops::Range;

/// What a token is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A name or a keyword.
    Word,
    /// A name in quotes: `"a"`, `` `a` ``, `[a]`.
    Quoted,
    /// A text: `'a'`.
    Text,
    /// A number.
    Number,
    /// Anything else: one character.
    Sign,
}

/// One token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Token {
    /// What it is.
    pub kind: Kind,
    /// Where it stands, in bytes.
    pub at: Range<usize>,
    /// In how many open parentheses it stands.
    pub depth: usize,
}

/// A text as tokens, white space and comments left out.
#[derive(Clone, Debug)]
pub struct Statement<'a> {
    sql: &'a str,
    tokens: Vec<Token>,
    /// Most parentheses open at once.
    pub nesting: usize,
    /// How often `SELECT` comes.
    pub selects: usize,
    /// Whether anything but semicolons follows a semicolon.
    pub several: bool,
    /// Where the first statement ends, in bytes.
    pub end: usize,
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'$' || byte >= 0x80
}

impl<'a> Statement<'a> {
    /// Reads a text; every text has tokens, valid SQL or not. Leading semicolons and everything from the first
    /// semicolon that ends a statement are left out of the tokens.
    pub fn read(sql: &'a str) -> Self {
        let mut statement = Self { sql, tokens: Vec::new(), nesting: 0, selects: 0, several: false, end: sql.len() };
        let bytes = sql.as_bytes();
        let (mut at, mut depth, mut ended) = (0, 0_usize, false);
        while at < bytes.len() {
            let start = at;
            let byte = bytes[at];
            if byte.is_ascii_whitespace() || byte == 0x0b {
                at += 1;
                continue;
            }
            if byte == b'-' && bytes.get(at + 1) == Some(&b'-') {
                at = find(bytes, at, |rest| rest[0] == b'\n');
                continue;
            }
            if byte == b'/' && bytes.get(at + 1) == Some(&b'*') {
                at = (find(bytes, at + 2, |rest| rest.starts_with(b"*/")) + 2).min(bytes.len());
                continue;
            }
            let kind = match byte {
                b'\'' | b'"' | b'`' => {
                    at = close(bytes, at, byte);
                    if byte == b'\'' { Kind::Text } else { Kind::Quoted }
                }
                b'[' => {
                    at = (find(bytes, at, |rest| rest[0] == b']') + 1).min(bytes.len());
                    Kind::Quoted
                }
                b'0'..=b'9' => {
                    at = find(bytes, at, |rest| !is_word(rest[0]) && rest[0] != b'.');
                    Kind::Number
                }
                _ if is_word(byte) => {
                    at = find(bytes, at, |rest| !is_word(rest[0]));
                    Kind::Word
                }
                _ => {
                    at += 1;
                    Kind::Sign
                }
            };
            if byte == b';' {
                if !ended && !statement.tokens.is_empty() {
                    ended = true;
                    statement.end = start;
                }
                continue;
            }
            if ended {
                statement.several = true;
                break;
            }
            if byte == b')' {
                depth = depth.saturating_sub(1);
            }
            if kind == Kind::Word && sql[start..at].eq_ignore_ascii_case("select") {
                statement.selects += 1;
            }
            statement.tokens.push(Token { kind, at: start..at, depth });
            if byte == b'(' {
                depth += 1;
                statement.nesting = statement.nesting.max(depth);
            }
        }
        statement
    }

    /// Its tokens.
    pub fn tokens(&self) -> &[Token] {
        &self.tokens
    }

    /// A token's text.
    pub fn text(&self, token: &Token) -> &'a str {
        &self.sql[token.at.clone()]
    }

    /// Whether there is no token at all.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// Whether a token is this keyword.
    pub fn is(&self, token: &Token, keyword: &str) -> bool {
        token.kind == Kind::Word && self.text(token).eq_ignore_ascii_case(keyword)
    }

    /// The first word in upper case: `SELECT`, `WITH`, `DELETE`.
    pub fn keyword(&self) -> String {
        match self.tokens.iter().find(|token| token.kind == Kind::Word) {
            Some(word) => self.text(word).to_ascii_uppercase(),
            None => String::new(),
        }
    }

    /// Whether it begins as a query does: `SELECT`, `WITH` or `VALUES`.
    pub fn is_query(&self) -> bool {
        matches!(self.tokens.first(), Some(first) if ["select", "with", "values"].iter().any(|word| self.is(first, word)))
    }
}

/// The first place from `at` where `ends` holds of what follows; the end, where there is none.
fn find(bytes: &[u8], at: usize, ends: impl Fn(&[u8]) -> bool) -> usize {
    (at..bytes.len()).find(|&at| ends(&bytes[at..])).unwrap_or(bytes.len())
}

/// Where a quoted text ends that begins at `at`; the quote is doubled inside it.
fn close(bytes: &[u8], mut at: usize, quote: u8) -> usize {
    loop {
        at = find(bytes, at + 1, |rest| rest[0] == quote);
        if at >= bytes.len() {
            return bytes.len();
        }
        if bytes.get(at + 1) != Some(&quote) {
            return at + 1;
        }
        at += 1;
    }
}
