//! Whether ids differ, in little memory.
//!
//! Numbers that rise by one (`0`, `1`, `2`... as Search-R1's corpora have them) are kept as ranges; of any other id a
//! hash is kept. A hash that was there before is a suspicion: whoever finds one looks the id up.

use std::collections::HashSet;
use std::hash::{BuildHasherDefault, DefaultHasher};

/// The ids so far.
#[derive(Debug, Default)]
pub(super) struct Ids {
    /// Numbers from the first to before the second, in the order in which they came.
    ranges: Vec<(u64, u64)>,
    /// Hashes of the others, with fixed keys: the same in every run.
    hashes: HashSet<u64>,
}

/// Ranges beyond which numbers are hashed as well, so that looking a number up stays cheap.
const MAX_RANGES: usize = 64;

impl Ids {
    /// Notes an id. `false` where it may have been there before.
    pub(super) fn insert(&mut self, id: &str) -> bool {
        // `01` is another id than `1`.
        let number = id.parse::<u64>().ok().filter(|number| *number < u64::MAX && number.to_string() == id);
        if let Some(number) = number {
            if self.ranges.iter().any(|(from, to)| (*from..*to).contains(&number)) {
                return false;
            }
            // A number in no range may still be among the hashes.
            if !self.hashes.contains(&hash(id)) {
                if let Some((_, to)) = self.ranges.last_mut().filter(|(_, to)| *to == number) {
                    *to += 1;
                    return true;
                }
                if self.ranges.len() < MAX_RANGES {
                    self.ranges.push((number, number + 1));
                    return true;
                }
            }
        }
        self.hashes.insert(hash(id))
    }
}

fn hash(id: &str) -> u64 {
    use std::hash::BuildHasher as _;
    BuildHasherDefault::<DefaultHasher>::default().hash_one(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_that_was_there_is_found_whatever_it_looks_like() {
        let mut ids = Ids::default();
        for id in ["0", "1", "2", "a", "01", "7", "", "18446744073709551615", "-1", "3"] {
            assert!(ids.insert(id), "{id:?} is new");
        }
        for id in ["0", "1", "2", "a", "01", "7", "", "18446744073709551615", "-1", "3"] {
            assert!(!ids.insert(id), "{id:?} was there");
        }
    }

    #[test]
    fn numbers_in_order_take_no_room_and_others_are_hashed() {
        let mut ids = Ids::default();
        assert!((0..10_000).all(|number: u64| ids.insert(&number.to_string())));
        assert!(ids.hashes.is_empty() && ids.ranges.len() == 1);
        assert!((20_000..30_000).step_by(2).all(|number: u64| ids.insert(&number.to_string())));
        assert!(ids.ranges.len() <= MAX_RANGES);
        assert!(
            (0..30_000).step_by(2).filter(|n| !(10_000..20_000).contains(n)).all(|n: u64| !ids.insert(&n.to_string()))
        );
    }
}
