//! Ids to text, whole or as they come.
//!
//! Byte-level vocabularies (GPT-2's and its descendants': SmolLM2, Qwen, Llama 3) map each token to bytes, which are
//! kept in one table: decoding is a copy, and a stream is exact. Others go through their decoder over a short window.
//!
//! Invariant: what a [`DecodeStream`] gives out, put together, is what [`Tokenizer::decode`] gives for byte-level
//! vocabularies; no piece ends inside a character.

use super::Tokenizer;
use crate::TokenId;

/// How a vocabulary's tokens become text.
pub(super) enum Decoding {
    ByteLevel(ByteTable),
    Generic,
}

/// The bytes of each token of a byte-level vocabulary.
pub(super) struct ByteTable {
    bytes: Vec<u8>,
    /// Token `i` is `bytes[ends[i - 1]..ends[i]]`.
    ends: Vec<u32>,
}

impl Decoding {
    pub(super) fn byte_level(tokenizer: &tokenizers::Tokenizer, size: usize) -> Self {
        let mut table = ByteTable { bytes: Vec::with_capacity(size * 6), ends: Vec::with_capacity(size) };
        for id in 0..size as u32 {
            if let Some(token) = tokenizer.id_to_token(id) {
                let start = table.bytes.len();
                for character in token.chars() {
                    if let Some(byte) = byte_of(character) {
                        table.bytes.push(byte);
                    } else {
                        // A token with a character outside the alphabet was added as it stands.
                        table.bytes.truncate(start);
                        table.bytes.extend_from_slice(token.as_bytes());
                        break;
                    }
                }
            }
            table.ends.push(table.bytes.len() as u32);
        }
        Self::ByteLevel(table)
    }
}

impl ByteTable {
    pub(super) fn bytes(&self, id: TokenId) -> &[u8] {
        let id = id as usize;
        let Some(&end) = self.ends.get(id) else { return &[] };
        let start = id.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.bytes[start as usize..end as usize]
    }
}

/// Whether a byte stands for itself in GPT-2's alphabet.
fn printable(byte: u8) -> bool {
    matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF)
}

/// The character that GPT-2's alphabet writes for a byte: itself where it is printable, else one from U+0100 on.
pub(super) fn character_of(byte: u8) -> char {
    if printable(byte) {
        return char::from(byte);
    }
    let before = (0..byte).filter(|&other| !printable(other)).count() as u32;
    char::from_u32(256 + before).unwrap_or(char::REPLACEMENT_CHARACTER)
}

fn byte_of(character: char) -> Option<u8> {
    let code = u32::from(character);
    match code {
        0..=255 => u8::try_from(code).ok().filter(|&byte| printable(byte)),
        256..=288 => Some(code as u8),
        289..=322 => Some((code - 289 + 127) as u8),
        323 => Some(0xAD),
        _ => None,
    }
}

/// How many tokens a window may hold back before what they decode to is given out as it is: a character has four bytes
/// at most, and each token at least one.
const HELD_TOKENS: usize = 4;

/// Decodes ids as they come.
pub struct DecodeStream {
    tokenizer: Tokenizer,
    skip_special: bool,
    /// Byte level: bytes not given out yet. Generic: unused.
    bytes: Vec<u8>,
    /// Generic: the ids of the window; `shown` is the text of the first `read` of them.
    window: Vec<TokenId>,
    read: usize,
    shown: String,
    piece: String,
}

impl DecodeStream {
    pub(super) fn new(tokenizer: Tokenizer, skip_special: bool) -> Self {
        Self {
            tokenizer,
            skip_special,
            bytes: Vec::new(),
            window: Vec::new(),
            read: 0,
            shown: String::new(),
            piece: String::new(),
        }
    }

    /// Takes one more id and gives the text that is now certain; empty while a character is incomplete.
    pub fn push(&mut self, id: TokenId) -> &str {
        self.piece.clear();
        if self.skip_special && self.tokenizer.is_special(id) {
            return &self.piece;
        }
        if let Decoding::ByteLevel(table) = self.tokenizer.decoding() {
            self.bytes.extend_from_slice(table.bytes(id));
            self.give_bytes(false);
        } else {
            self.window.push(id);
            self.give_window(false);
        }
        &self.piece
    }

    /// Gives what was held back; an incomplete character comes out as U+FFFD. The stream starts afresh.
    pub fn finish(&mut self) -> &str {
        self.piece.clear();
        self.give_bytes(true);
        self.give_window(true);
        self.window.clear();
        self.read = 0;
        self.shown.clear();
        &self.piece
    }

    fn give_bytes(&mut self, all: bool) {
        let mut done = 0;
        while done < self.bytes.len() {
            match std::str::from_utf8(&self.bytes[done..]) {
                Ok(text) => {
                    self.piece.push_str(text);
                    done = self.bytes.len();
                }
                Err(error) => {
                    let valid = done + error.valid_up_to();
                    self.piece.push_str(&String::from_utf8_lossy(&self.bytes[done..valid]));
                    match error.error_len() {
                        Some(bad) => {
                            self.piece.push(char::REPLACEMENT_CHARACTER);
                            done = valid + bad;
                        }
                        None if all => {
                            self.piece.push(char::REPLACEMENT_CHARACTER);
                            done = self.bytes.len();
                        }
                        None => {
                            done = valid;
                            break;
                        }
                    }
                }
            }
        }
        self.bytes.drain(..done);
    }

    fn give_window(&mut self, all: bool) {
        let held = self.window.len() - self.read;
        if held == 0 {
            return;
        }
        let text = self.tokenizer.text_of(&self.window, self.skip_special);
        let unfinished = text.ends_with(char::REPLACEMENT_CHARACTER) && held < HELD_TOKENS;
        if unfinished && !all {
            return;
        }
        // A decoder may rewrite the end of what it gave before (clean-up rules); then only what is new is added.
        let new = text.strip_prefix(self.shown.as_str()).or_else(|| text.get(self.shown.len()..)).unwrap_or_default();
        self.piece.push_str(new);
        // Keep what was just given as context: some decoders treat the first token apart.
        self.window.drain(..self.read);
        self.read = self.window.len();
        self.shown = self.tokenizer.text_of(&self.window, self.skip_special);
    }
}
