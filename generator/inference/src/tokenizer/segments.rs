//! Ids of long pieces of text that come again: the same system prompt opens every rollout, the same task every sample
//! of a group, and encoding a kilobyte costs some hundred microseconds.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use crate::TokenId;

/// Shorter pieces are encoded afresh: looking them up would not be much faster.
const SHORTEST: usize = 256;

/// Longer pieces (whole contexts) seldom come again.
const LONGEST: usize = 64 << 10;

/// Bytes of text that are kept; beyond this all is forgotten and it begins again.
const BYTES: usize = 4 << 20;

/// The memory. Text maps to ids, apart for pieces at the beginning of a text where the vocabulary marks it.
#[derive(Default)]
pub(super) struct Segments(Mutex<Kept>);

#[derive(Default)]
struct Kept {
    ids: [HashMap<Box<str>, Box<[TokenId]>>; 2],
    bytes: usize,
}

impl Segments {
    /// Appends the ids of `text` if they are known.
    pub(super) fn append(&self, text: &str, marked: bool, ids: &mut Vec<TokenId>) -> bool {
        if !(SHORTEST..=LONGEST).contains(&text.len()) {
            return false;
        }
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let found = kept.ids[usize::from(marked)].get(text);
        if let Some(found) = found {
            ids.extend_from_slice(found);
        }
        found.is_some()
    }

    pub(super) fn keep(&self, text: &str, marked: bool, ids: &[TokenId]) {
        if !(SHORTEST..=LONGEST).contains(&text.len()) {
            return;
        }
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.bytes + text.len() > BYTES {
            *kept = Kept::default();
        }
        kept.bytes += text.len();
        kept.ids[usize::from(marked)].insert(text.into(), ids.into());
    }
}
