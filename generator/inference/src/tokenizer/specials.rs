//! Where special tokens stand in a text, and which of them count.
//!
//! A rendered conversation carries *breaks*: byte positions inside (or at the start of) special tokens that came from
//! messages. An occurrence `[start, end)` counts if no break lies in it.

use crate::TokenId;

/// One special token.
pub(crate) struct Special {
    pub(crate) id: TokenId,
    pub(crate) text: String,
    /// Matched after normalisation, so that other texts may turn into it.
    pub(crate) normalized: bool,
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
    may_hide: bool,
}

impl Specials {
    pub(crate) fn new(mut tokens: Vec<Special>, normalizes: bool) -> Self {
        tokens.sort_by(|a, b| b.text.len().cmp(&a.text.len()).then(a.id.cmp(&b.id)));
        let mut ids: Vec<_> = tokens.iter().map(|token| token.id).collect();
        ids.sort_unstable();
        let mut starts = [false; 256];
        for token in &tokens {
            if let Some(&first) = token.text.as_bytes().first() {
                starts[usize::from(first)] = true;
            }
        }
        let may_hide = normalizes && tokens.iter().any(|token| token.normalized);
        Self { tokens, ids, starts, may_hide }
    }

    /// Whether text that does not hold a special token literally may still be read as one.
    pub(crate) fn may_hide(&self) -> bool {
        self.may_hide
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
            let Some(token) = self.at(text, position).filter(|token| !broken(token)) else {
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
