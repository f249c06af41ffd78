//! Captured output: the start and the end are kept, whatever a block prints.

use std::collections::VecDeque;

use crate::execution::Output;

/// Collects one stream.
#[derive(Debug)]
pub(crate) struct Capture {
    head: Vec<u8>,
    tail: VecDeque<u8>,
    head_limit: usize,
    tail_limit: usize,
    bytes: u64,
}

impl Capture {
    /// Keeps `limit` bytes, half of them from the start.
    pub(crate) fn new(limit: usize) -> Self {
        let head_limit = limit / 2;
        Self { head: Vec::new(), tail: VecDeque::new(), head_limit, tail_limit: limit - head_limit, bytes: 0 }
    }

    /// Takes what was written.
    pub(crate) fn write(&mut self, mut bytes: &[u8]) {
        self.bytes = self.bytes.saturating_add(bytes.len() as u64);
        let room = self.head_limit - self.head.len();
        if room > 0 {
            let (start, rest) = bytes.split_at(room.min(bytes.len()));
            self.head.extend_from_slice(start);
            bytes = rest;
        }
        if bytes.len() > self.tail_limit {
            bytes = &bytes[bytes.len() - self.tail_limit..];
        }
        let excess = (self.tail.len() + bytes.len()).saturating_sub(self.tail_limit);
        self.tail.drain(..excess);
        self.tail.extend(bytes);
    }

    /// The text: everything, or start, marker and end. Bytes that are not UTF-8 become U+FFFD.
    pub(crate) fn finish(self) -> Output {
        let kept = self.head.len() as u64 + self.tail.len() as u64;
        let mut bytes = self.head;
        let tail: Vec<u8> = self.tail.into();
        if kept == self.bytes {
            bytes.extend_from_slice(&tail);
            return Output { text: lossy(bytes), bytes: self.bytes };
        }
        // A character cut in two at either edge goes away whole.
        let cut = valid_prefix(&bytes);
        bytes.truncate(cut);
        let start = tail.iter().take(3).take_while(|byte| **byte & 0xC0 == 0x80).count();
        let missing = self.bytes - cut as u64 - (tail.len() - start) as u64;
        let text = format!("{}\n[... {missing} bytes not shown ...]\n{}", lossy(bytes), lossy(tail[start..].to_vec()));
        Output { text, bytes: self.bytes }
    }
}

fn lossy(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
}

/// Where the last character of `bytes` that is complete ends.
fn valid_prefix(bytes: &[u8]) -> usize {
    for back in 1..=3.min(bytes.len()) {
        let byte = bytes[bytes.len() - back];
        if byte & 0xC0 != 0x80 {
            let length = match byte {
                0xC0..=0xDF => 2,
                0xE0..=0xEF => 3,
                0xF0..=0xFF => 4,
                _ => 1,
            };
            return if length > back { bytes.len() - back } else { bytes.len() };
        }
    }
    bytes.len()
}

#[cfg(test)]
mod tests {
    use super::Capture;

    #[test]
    fn short_output_is_kept_whole() {
        let mut capture = Capture::new(10);
        capture.write(b"hello");
        capture.write(b"world");
        let output = capture.finish();
        assert_eq!((output.text.as_str(), output.bytes), ("helloworld", 10));
    }

    #[test]
    fn long_output_keeps_start_and_end_and_the_true_count() {
        let mut capture = Capture::new(8);
        for _ in 0..1000 {
            capture.write(b"ab");
        }
        capture.write(b"END!");
        let output = capture.finish();
        assert_eq!(output.text, "abab\n[... 1996 bytes not shown ...]\nEND!");
        assert_eq!(output.bytes, 2004);
    }

    #[test]
    fn characters_are_not_cut() {
        let mut capture = Capture::new(6);
        capture.write("aéüñbç".repeat(4).as_bytes());
        let output = capture.finish();
        assert!(!output.text.contains('\u{FFFD}'), "{}", output.text);
    }
}
