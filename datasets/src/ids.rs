//! Whether ids differ, in little memory: 8 bytes a row where rows name themselves, nothing where they are numbered.
//!
//! Of an id only a hash is kept. One that was there before is a suspicion; whoever finds one reads the files again up
//! to the first row that has the id ([`crate::files`]), so a collision of hashes costs time and never refuses a row.

use std::collections::HashSet;
use std::hash::{BuildHasher as _, BuildHasherDefault, DefaultHasher, Hasher};

/// The ids so far.
#[derive(Debug, Default)]
pub(crate) struct Ids {
    /// Hashes of ids that rows gave themselves.
    named: HashSet<u64, BuildHasherDefault<Same>>,
    /// Numbers that are the ids of rows without one, as ranges in order.
    numbered: Vec<(u64, u64)>,
}

impl Ids {
    /// Notes the id of row `number`. `false` where it may have been there before.
    pub(crate) fn insert(&mut self, id: &str, number: u64, named: bool) -> bool {
        if !named {
            match self.numbered.last_mut() {
                Some((_, end)) if *end == number => *end += 1,
                _ => self.numbered.push((number, number + 1)),
            }
            return self.named.is_empty() || !self.named.contains(&hash(id));
        }
        let number = id.parse::<u64>().ok().filter(|number| number.to_string() == id);
        self.named.insert(hash(id)) && !number.is_some_and(|number| self.is_numbered(number))
    }

    fn is_numbered(&self, number: u64) -> bool {
        let at = self.numbered.partition_point(|(start, _)| *start <= number);
        at > 0 && number < self.numbered[at - 1].1
    }
}

/// SipHash with fixed keys: the same in every run.
pub(crate) fn hash(text: &str) -> u64 {
    BuildHasherDefault::<DefaultHasher>::default().hash_one(text)
}

/// Takes a hash for what it is.
#[derive(Default)]
struct Same(u64);

impl Hasher for Same {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers_share_one_space() {
        let mut ids = Ids::default();
        assert!(ids.insert("0", 0, false) && ids.insert("1", 1, false) && ids.insert("a", 2, true));
        assert!(ids.insert("3", 3, false) && ids.insert("01", 4, true));
        assert_eq!(ids.numbered, [(0, 2), (3, 4)]);
        assert!(!ids.insert("a", 5, true) && !ids.insert("1", 6, true) && !ids.insert("3", 7, true));
        assert!(ids.insert("2", 8, true) && ids.insert("9", 9, true) && !ids.insert("9", 9, false));
    }
}
