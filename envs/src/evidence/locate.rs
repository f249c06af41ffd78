//! Where passages stand in a text, tolerant of how they were copied.
//!
//! A passage is looked for as it is, then by its letters and digits alone (case, whitespace, punctuation, hyphenation
//! and ligatures do not count), then with a few edits. Letters are looked for by seeds: pieces of `SEED` letters of a
//! passage, of which one must be intact, found by a rolling hash in one pass over the text for all passages together.
//!
//! Invariants: work grows with the text's length and the passages' length, not with their product; memory beyond the
//! text is bounded by [`SEGMENT`].

use std::collections::HashMap;
use std::ops::Range;

/// Letters of a seed. A passage with fewer is looked for without edits.
const SEED: usize = 8;

/// Most edits of a passage.
const MOST_EDITS: usize = 32;

/// A passage of more letters than this is looked for without edits.
const LONGEST_EDITED: usize = 4000;

/// Most places that are looked at for one passage with edits.
const MOST_PLACES: usize = 400;

/// Bytes of text whose letters are held at once.
pub const SEGMENT: usize = 8 << 20;

/// Most passages that are looked for, the same one counted once.
pub const MOST_PASSAGES: usize = 500;

/// Letters and digits of a text, and where they stand.
struct Letters {
    letters: Vec<char>,
    /// Byte offset of each letter's character, from the text's start.
    at: Vec<usize>,
    /// Byte offset just past it.
    past: Vec<usize>,
}

impl Letters {
    fn of(text: &str, offset: usize) -> Self {
        let mut found =
            Self { letters: Vec::with_capacity(text.len()), at: Vec::with_capacity(text.len()), past: Vec::new() };
        for (index, c) in text.char_indices() {
            let past = offset + index + c.len_utf8();
            let mut put = |letter: char| {
                found.letters.push(letter);
                found.at.push(offset + index);
                found.past.push(past);
            };
            if c.is_ascii() {
                if c.is_ascii_alphanumeric() {
                    put(c.to_ascii_lowercase());
                }
                continue;
            }
            // Ligatures of typeset papers.
            match c {
                '\u{fb00}' => "ff".chars().for_each(&mut put),
                '\u{fb01}' => "fi".chars().for_each(&mut put),
                '\u{fb02}' => "fl".chars().for_each(&mut put),
                '\u{fb03}' => "ffi".chars().for_each(&mut put),
                '\u{fb04}' => "ffl".chars().for_each(&mut put),
                c if c.is_alphanumeric() => c.to_lowercase().filter(|c| c.is_alphanumeric()).for_each(&mut put),
                _ => {}
            }
        }
        found
    }

    fn range(&self, letters: Range<usize>) -> Option<Range<usize>> {
        Some(*self.at.get(letters.start)?..*self.past.get(letters.end.checked_sub(1)?)?)
    }
}

/// Where each passage stands first, as bytes of the text; `None` where it does not. White space around a passage does
/// not count, repetitions are looked for once, and different passages beyond [`MOST_PASSAGES`] are not looked for.
pub fn locate(text: &str, passages: &[&str]) -> Vec<Option<Range<usize>>> {
    let (different, which) = distinct(passages.iter().copied());
    let found = first_places(text, &different);
    which.into_iter().map(|index| found[index].clone()).collect()
}

/// The different passages, trimmed and in the order in which they come first, and which of them each passage is.
pub fn distinct<'a>(passages: impl IntoIterator<Item = &'a str>) -> (Vec<&'a str>, Vec<usize>) {
    let mut different = Vec::new();
    let mut known: HashMap<&str, usize> = HashMap::new();
    let which = passages
        .into_iter()
        .map(|passage| {
            let passage = passage.trim();
            *known.entry(passage).or_insert_with(|| {
                different.push(passage);
                different.len() - 1
            })
        })
        .collect();
    (different, which)
}

fn first_places(text: &str, passages: &[&str]) -> Vec<Option<Range<usize>>> {
    let mut found: Vec<Option<Range<usize>>> = passages
        .iter()
        .take(MOST_PASSAGES)
        .map(|passage| {
            if passage.is_empty() {
                return None;
            }
            text.find(passage).map(|at| at..at + passage.len())
        })
        .collect();
    found.resize(passages.len(), None);
    let missing: Vec<(usize, Vec<char>)> = passages
        .iter()
        .take(MOST_PASSAGES)
        .enumerate()
        .filter(|(index, _)| found[*index].is_none())
        .map(|(index, passage)| (index, Letters::of(passage, 0).letters))
        .filter(|(_, letters)| !letters.is_empty())
        .collect();
    if missing.is_empty() {
        return found;
    }
    // A passage may lie across the end of a segment.
    let longest = missing.iter().map(|(_, letters)| letters.len()).max().unwrap_or_default();
    let overlap = (8 * (longest + MOST_EDITS)).min(SEGMENT / 2);
    let mut best: Vec<Option<(usize, Range<usize>)>> = vec![None; missing.len()];
    let mut start = 0;
    loop {
        let mut end = (start + SEGMENT).min(text.len());
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        let hay = Letters::of(&text[start..end], start);
        search(&hay, &missing, &mut best);
        if end == text.len() {
            break;
        }
        start = end - overlap;
        while !text.is_char_boundary(start) {
            start -= 1;
        }
    }
    for ((index, _), place) in missing.iter().zip(best) {
        found[*index] = place.map(|(_, range)| range);
    }
    found
}

/// Edits that a passage of so many letters may have.
fn edits(letters: usize) -> usize {
    if letters > LONGEST_EDITED { 0 } else { (letters / SEED).saturating_sub(1).min(MOST_EDITS) }
}

/// Looks for every passage that is not found without edits yet.
fn search(hay: &Letters, passages: &[(usize, Vec<char>)], best: &mut [Option<(usize, Range<usize>)>]) {
    // Seeds by their hash; short passages are one seed of their own length, by length.
    let mut seeds: HashMap<usize, HashMap<u64, Vec<(usize, usize)>>> = HashMap::new();
    for (number, (_, letters)) in passages.iter().enumerate() {
        if best[number].as_ref().is_some_and(|(distance, _)| *distance == 0) {
            continue;
        }
        let width = letters.len().min(SEED);
        for (piece, seed) in letters.chunks_exact(width).enumerate() {
            seeds.entry(width).or_default().entry(hash(seed)).or_default().push((number, piece * width));
        }
    }
    let mut looked = vec![0_usize; passages.len()];
    let mut widths: Vec<usize> = seeds.keys().copied().collect();
    widths.sort_unstable();
    for width in widths {
        let Some(table) = seeds.get(&width) else { continue };
        for (at, hash) in rolling(&hay.letters, width) {
            let Some(hits) = table.get(&hash) else { continue };
            for &(number, offset) in hits {
                let done = best[number].as_ref().is_some_and(|(distance, _)| *distance == 0);
                if done || looked[number] >= MOST_PLACES {
                    continue;
                }
                let letters = &passages[number].1;
                // The hash may lie; the letters do not.
                if letters[offset..offset + width] != hay.letters[at..at + width] {
                    continue;
                }
                if let Some((distance, range)) = compare(&hay.letters, letters, at, offset) {
                    let better = best[number].as_ref().is_none_or(|(before, _)| distance < *before);
                    if better && let Some(range) = hay.range(range) {
                        best[number] = Some((distance, range));
                    }
                }
                looked[number] += 1;
            }
        }
    }
}

const BASE: u64 = 0x0100_0000_01b3;

fn hash(letters: &[char]) -> u64 {
    letters.iter().fold(0, |sum: u64, c| sum.wrapping_mul(BASE).wrapping_add(u64::from(u32::from(*c))))
}

/// The hash of every window of so many letters, with where it begins.
fn rolling(letters: &[char], width: usize) -> impl Iterator<Item = (usize, u64)> + '_ {
    let lead = (0..width.saturating_sub(1)).fold(1_u64, |power, _| power.wrapping_mul(BASE));
    let mut sum = 0_u64;
    letters.iter().enumerate().filter_map(move |(index, c)| {
        if index >= width {
            let gone = u64::from(u32::from(letters[index - width]));
            sum = sum.wrapping_sub(gone.wrapping_mul(lead));
        }
        sum = sum.wrapping_mul(BASE).wrapping_add(u64::from(u32::from(*c)));
        (index + 1 >= width).then(|| (index + 1 - width, sum))
    })
}

/// How many edits lie between the passage and the text where a seed at `offset` of the passage stands at `at`, and what
/// of the text it is; `None` beyond the edits that it may have.
fn compare(hay: &[char], passage: &[char], at: usize, offset: usize) -> Option<(usize, Range<usize>)> {
    let length = passage.len();
    if let Some(start) = at.checked_sub(offset)
        && hay.get(start..start + length) == Some(passage)
    {
        return Some((0, start..start + length));
    }
    let most = edits(length);
    if most == 0 {
        return None;
    }
    banded(hay, passage, at, offset, most)
}

/// Edit distance with free ends in the text, within a band around the seed's diagonal.
fn banded(hay: &[char], passage: &[char], at: usize, offset: usize, most: usize) -> Option<(usize, Range<usize>)> {
    // Column `d` of row `i` is the text up to `from + i + d` against the passage's first `i` letters. `from` may lie
    // before the text; what is not there equals nothing.
    let from = at as i64 - offset as i64 - most as i64;
    let letter = |place: i64| usize::try_from(place).ok().and_then(|place| hay.get(place));
    let width = 2 * most + 1;
    let far = usize::MAX / 2;
    let mut row: Vec<(usize, i64)> = (0..width).map(|d| (0, from + d as i64)).collect();
    for (i, wanted) in passage.iter().enumerate() {
        let mut next = vec![(far, 0_i64); width];
        for d in 0..width {
            let given = letter(from + i as i64 + d as i64);
            let mut cell = (row[d].0 + usize::from(given != Some(wanted)), row[d].1);
            if let Some(left_out) = row.get(d + 1)
                && left_out.0 + 1 < cell.0
            {
                cell = (left_out.0 + 1, left_out.1);
            }
            if d > 0 && next[d - 1].0 + 1 < cell.0 {
                cell = (next[d - 1].0 + 1, next[d - 1].1);
            }
            next[d] = cell;
        }
        row = next;
        if row.iter().all(|cell| cell.0 > most) {
            return None;
        }
    }
    let (d, &(distance, start)) = row.iter().enumerate().min_by_key(|(d, cell)| (cell.0, d.abs_diff(most)))?;
    if distance > most {
        return None;
    }
    let start = usize::try_from(start.max(0)).ok()?;
    let end = usize::try_from((from + passage.len() as i64 + d as i64).max(0)).ok()?.min(hay.len());
    (start < end).then_some((distance, start..end))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repetitions_take_no_place_among_the_passages() {
        let mut passages = vec![" fox "; MOST_PASSAGES + 100];
        passages.push("dog");
        let found = locate("the fox and the dog", &passages);
        assert!(found[..MOST_PASSAGES + 100].iter().all(|place| *place == Some(4..7)));
        assert_eq!(found.last(), Some(&Some(16..19)));
        let many: Vec<String> = (0..MOST_PASSAGES).map(|n| format!("no{n}")).collect();
        let mut many: Vec<&str> = many.iter().map(String::as_str).collect();
        many.push("dog");
        assert_eq!(locate("the fox and the dog", &many).last(), Some(&None));
    }
}
