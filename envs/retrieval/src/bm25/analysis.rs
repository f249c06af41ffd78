//! Texts to terms, for documents and queries alike.
//!
//! A term is a run of letters and digits, in lower case, without accents on Latin letters, and without an English
//! plural's ending (Harman's S stemmer: "How effective is suffixing?", 1991). Scripts that put no space between words
//! (Han, Kana) give one term per character and one per pair of neighbours, so that words are found inside runs.

use tantivy::tokenizer::{AsciiFoldingFilter, TextAnalyzer, Token, TokenStream, Tokenizer};

/// Longest term, bytes; a longer run is no word, and is left out.
const MAX_TERM_BYTES: usize = 128;

/// The name under which an index knows [`analyzer`].
pub(super) const NAME: &str = "espalier_terms_1";

/// What turns texts into terms.
pub(super) fn analyzer() -> TextAnalyzer {
    TextAnalyzer::builder(Words).filter(AsciiFoldingFilter).build()
}

/// Calls `each` with every term of a text, in order.
pub(super) fn terms(text: &str, mut each: impl FnMut(&str)) {
    let mut analyzer = analyzer();
    let mut stream = analyzer.token_stream(text);
    while stream.advance() {
        each(&stream.token().text);
    }
}

#[derive(Clone)]
struct Words;

struct WordStream<'a> {
    text: &'a str,
    /// Where the next character is.
    at: usize,
    /// The character without spaces around it that came last, and where it ended.
    neighbour: Option<(char, usize)>,
    /// A pair that is still to be given.
    pending: Option<String>,
    token: Token,
}

impl Tokenizer for Words {
    type TokenStream<'a> = WordStream<'a>;

    fn token_stream<'a>(&'a mut self, text: &'a str) -> WordStream<'a> {
        WordStream { text, at: 0, neighbour: None, pending: None, token: Token::default() }
    }
}

/// Han, Hiragana and Katakana.
fn unspaced(character: char) -> bool {
    matches!(character, '\u{3040}'..='\u{30ff}' | '\u{3400}'..='\u{4dbf}' | '\u{4e00}'..='\u{9fff}' | '\u{f900}'..='\u{faff}' | '\u{20000}'..='\u{3134f}')
}

/// A combining accent: part of the word it stands in.
fn combining(character: char) -> bool {
    matches!(character, '\u{300}'..='\u{36f}')
}

impl WordStream<'_> {
    fn set(&mut self, from: usize, to: usize) {
        self.token.position = self.token.position.wrapping_add(1);
        self.token.offset_from = from;
        self.token.offset_to = to;
    }
}

impl TokenStream for WordStream<'_> {
    fn advance(&mut self) -> bool {
        if let Some(pair) = self.pending.take() {
            self.set(self.at, self.at);
            self.token.text = pair;
            return true;
        }
        loop {
            let mut rest = self.text[self.at..].char_indices();
            let Some((_, first)) = rest.next() else { return false };
            let from = self.at;
            if !first.is_alphanumeric() {
                self.at += first.len_utf8();
                continue;
            }
            if unspaced(first) {
                self.at += first.len_utf8();
                self.pending = self
                    .neighbour
                    .filter(|(_, end)| *end == from)
                    .map(|(before, _)| String::from_iter([before, first]));
                self.neighbour = Some((first, self.at));
                self.set(from, self.at);
                self.token.text = first.to_string();
                return true;
            }
            let inside = |c: char| (c.is_alphanumeric() && !unspaced(c)) || combining(c);
            let end = rest.find(|(_, c)| !inside(*c)).map_or(self.text.len(), |(end, _)| from + end);
            self.at = end;
            let word = &self.text[from..end];
            if word.len() > MAX_TERM_BYTES {
                continue;
            }
            // Some accents count as letters: a run of nothing else is no word.
            let lower: String = word.to_lowercase().chars().filter(|c| !combining(*c)).collect();
            if lower.is_empty() {
                continue;
            }
            self.set(from, end);
            self.token.text = singular(lower);
            return true;
        }
    }

    fn token(&self) -> &Token {
        &self.token
    }

    fn token_mut(&mut self) -> &mut Token {
        &mut self.token
    }
}

/// An English plural without its ending; anything else as it is.
fn singular(mut word: String) -> String {
    let ends = |endings: &[&str]| endings.iter().any(|ending| word.ends_with(ending));
    if word.len() < 4 {
        return word;
    }
    if word.ends_with("ies") {
        if !ends(&["eies", "aies"]) {
            word.truncate(word.len() - 3);
            word.push('y');
        }
    } else if word.ends_with("es") {
        if !ends(&["aes", "ees", "oes"]) {
            word.truncate(word.len() - 1);
        }
    } else if word.ends_with('s') && !ends(&["us", "ss"]) {
        word.truncate(word.len() - 1);
    }
    word
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn of(text: &str) -> Vec<String> {
        let mut all = Vec::new();
        terms(text, |term| all.push(term.to_owned()));
        all
    }

    #[test]
    fn words_come_without_case_accents_and_plurals() {
        assert_eq!(of("The Cities' (cafés), ÉCOLE x2!"), ["the", "city", "cafe", "ecole", "x2"]);
        assert_eq!(of("cafe\u{301} class bus"), ["cafe", "class", "bus"]);
        assert_eq!(of("Straße ЁЖИК"), ["strasse", "ёжик"]);
        assert_eq!(of("\u{363}¡ \u{363} a\u{363}"), ["a"]);
        assert_eq!(of(" \u{0} \"():^~* "), Vec::<String>::new());
    }

    #[test]
    fn scripts_without_spaces_give_characters_and_pairs() {
        assert_eq!(of("東京 a都"), ["東", "京", "東京", "a", "都"]);
    }

    proptest! {
        #[test]
        fn any_text_gives_terms_that_are_short_and_not_empty(text in ".{0,200}") {
            for term in of(&text) {
                prop_assert!(!term.is_empty() && term.len() <= 4 * MAX_TERM_BYTES);
            }
        }
    }
}
