//! What a job writes: the beginning and the end are kept, everything is counted.

use std::borrow::Cow;
use std::collections::VecDeque;

/// Captured output of one stream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Captured {
    /// Its beginning.
    pub head: Vec<u8>,
    /// Its end, where something between was dropped.
    pub tail: Vec<u8>,
    /// Bytes that were written, kept or not.
    pub bytes: u64,
}

impl Captured {
    /// Whether everything was kept.
    pub fn is_whole(&self) -> bool {
        self.bytes == (self.head.len() + self.tail.len()) as u64
    }

    /// As text: what is no UTF-8 is replaced, and a line says how much is missing.
    pub fn text(&self) -> String {
        let text = |bytes: &[u8]| match String::from_utf8_lossy(bytes) {
            Cow::Borrowed(text) => text.to_owned(),
            Cow::Owned(text) => text,
        };
        if self.is_whole() {
            let mut whole = self.head.clone();
            whole.extend_from_slice(&self.tail);
            return text(&whole);
        }
        let missing = self.bytes - (self.head.len() + self.tail.len()) as u64;
        format!("{}\n... {missing} bytes left out ...\n{}", text(&self.head), text(&self.tail))
    }
}

/// Takes output in and keeps a bounded part of it.
#[derive(Debug)]
pub(crate) struct Capture {
    head: Vec<u8>,
    tail: VecDeque<u8>,
    head_limit: usize,
    tail_limit: usize,
    bytes: u64,
}

impl Capture {
    pub(crate) fn new(limit: usize) -> Self {
        let tail_limit = limit / 2;
        Self { head: Vec::new(), tail: VecDeque::new(), head_limit: limit - tail_limit, tail_limit, bytes: 0 }
    }

    pub(crate) fn push(&mut self, mut chunk: &[u8]) {
        self.bytes += chunk.len() as u64;
        let room = self.head_limit - self.head.len();
        if room > 0 {
            let (kept, rest) = chunk.split_at(room.min(chunk.len()));
            self.head.extend_from_slice(kept);
            chunk = rest;
        }
        let chunk = &chunk[chunk.len().saturating_sub(self.tail_limit)..];
        let over = (self.tail.len() + chunk.len()).saturating_sub(self.tail_limit);
        self.tail.drain(..over);
        self.tail.extend(chunk);
    }

    pub(crate) fn finish(self) -> Captured {
        Captured { head: self.head, tail: self.tail.into(), bytes: self.bytes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn capture(limit: usize, chunks: &[&[u8]]) -> Captured {
        let mut capture = Capture::new(limit);
        for chunk in chunks {
            capture.push(chunk);
        }
        capture.finish()
    }

    #[test]
    fn short_output_is_whole() {
        let captured = capture(10, &[b"hello", b" you"]);
        assert!(captured.is_whole());
        assert_eq!(captured.text(), "hello you");
    }

    #[test]
    fn long_output_keeps_its_beginning_and_its_end() {
        let captured = capture(8, &[b"abcdef", b"ghijklmnop", b"qr"]);
        assert_eq!((captured.head.as_slice(), captured.tail.as_slice()), (&b"abcd"[..], &b"opqr"[..]));
        assert_eq!(captured.bytes, 18);
        assert_eq!(captured.text(), "abcd\n... 10 bytes left out ...\nopqr");
    }

    #[test]
    fn a_character_across_the_two_parts_is_kept() {
        assert_eq!(capture(4, &["aaé".as_bytes()]).text(), "aaé");
        assert_eq!(capture(4, &["aéé".as_bytes()]).bytes, 5);
        assert_eq!(capture(6, &["aéé".as_bytes()]).text(), "aéé");
    }

    #[test]
    fn nothing_is_kept_under_a_limit_of_nothing() {
        let captured = capture(0, &[b"abc"]);
        assert_eq!((captured.head.len(), captured.tail.len(), captured.bytes), (0, 0, 3));
    }
}
