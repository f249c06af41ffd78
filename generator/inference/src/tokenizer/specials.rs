//! Where special tokens stand in a text, and which of them count.
//!
//! A rendered conversation carries *breaks*: byte positions inside (or at the start of) special tokens that came from
//! messages. An occurrence `[start, end)` counts if no break lies in it. Special tokens are matched as they are written,
//! before normalisation, so that no other text turns into one.

use crate::TokenId;

/// One special token.
pub(crate) struct Special {
    pub(crate) id: TokenId,
    pub(crate) text: String,
    /// Stands alone: no letter, digit or underscore touches it.
    pub(crate) single_word: bool,
    /// Swallows the whitespace before it.
    pub(crate) lstrip: bool,
    /// Swallows the whitespace after it.
    pub(crate) rstrip: bool,
}

/// A special token's place in a text, swallowed whitespace included.
pub(crate) struct Found {
    pub(crate) id: TokenId,
    pub(crate) start: usize,
    pub(crate) end: usize,
}

/// All special tokens of a vocabulary.
pub(crate) struct Specials {
    /// Longest first, so that the first match at a place is the longest.
    tokens: Vec<Special>,
    ids: Vec<TokenId>,
    starts: [bool; 256],
}

impl Specials {
    pub(crate) fn new(mut tokens: Vec<Special>) -> Self {
        tokens.sort_by(|a, b| b.text.len().cmp(&a.text.len()).then(a.id.cmp(&b.id)));
        let mut ids: Vec<_> = tokens.iter().map(|token| token.id).collect();
        ids.sort_unstable();
        let mut starts = [false; 256];
        for token in &tokens {
            if let Some(&first) = token.text.as_bytes().first() {
                starts[usize::from(first)] = true;
            }
        }
        Self { tokens, ids, starts }
    }

    pub(crate) fn has_id(&self, id: TokenId) -> bool {
        self.ids.binary_search(&id).is_ok()
    }

    fn at(&self, text: &str, position: usize) -> Option<&Special> {
        let rest = text.as_bytes().get(position..)?;
        if !self.starts[usize::from(*rest.first()?)] {
            return None;
        }
        self.tokens.iter().find(|token| rest.starts_with(token.text.as_bytes()))
    }

    /// Positions where a special token starts; overlapping ones included.
    pub(crate) fn starts(&self, text: &str) -> Vec<usize> {
        (0..text.len()).filter(|&position| self.at(text, position).is_some()).collect()
    }

    /// Special tokens that count, leftmost longest, in order. `breaks` is sorted.
    pub(crate) fn live(&self, text: &str, breaks: &[usize]) -> Vec<Found> {
        let mut found = Vec::new();
        let mut done = 0;
        let mut position = 0;
        while position < text.len() {
            let broken = |token: &Special| {
                let next = breaks.partition_point(|&at| at < position);
                breaks.get(next).is_some_and(|&at| at < position + token.text.len())
            };
            let stands = |token: &Special| !token.single_word || alone(text, position, position + token.text.len());
            let Some(token) = self.at(text, position).filter(|token| !broken(token) && stands(token)) else {
                position += 1;
                continue;
            };
            let (mut start, mut end) = (position, position + token.text.len());
            if token.lstrip {
                start = done + text[done..start].trim_end().len();
            }
            if token.rstrip {
                end = text.len() - text[end..].trim_start().len();
            }
            found.push(Found { id: token.id, start, end });
            done = end;
            position = end;
        }
        found
    }
}

/// Whether no word touches `text[start..end]`.
fn alone(text: &str, start: usize, end: usize) -> bool {
    let word = |character: char| character.is_alphanumeric() || character == '_';
    !text[..start].ends_with(word) && !text[end..].starts_with(word)
}
