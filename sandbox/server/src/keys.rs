//! Who may use the server.

use std::hint::black_box;

use thiserror::Error;

/// Shortest key, bytes: what is shorter can be guessed over a network.
const SHORTEST: usize = 16;

/// The keys that are accepted. The holder of one sees only the REPLs made with it.
#[derive(Clone, Default)]
pub struct Keys(Vec<String>);

/// Why a list of keys cannot be used. Says nothing of the keys themselves.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum KeyError {
    /// There is none.
    #[error("holds no key")]
    None,
    /// One can be guessed.
    #[error("key {number} has {length} bytes, expected at least {SHORTEST}")]
    Short {
        /// Which, from 1.
        number: usize,
        /// How long it is.
        length: usize,
    },
    /// One cannot stand in a header.
    #[error("key {number} holds a character that no HTTP header can carry; expected visible ASCII")]
    Unsendable {
        /// Which, from 1.
        number: usize,
    },
    /// Two are the same.
    #[error("key {number} is there twice")]
    Twice {
        /// Which, from 1.
        number: usize,
    },
}

impl Keys {
    /// Reads keys, separated by commas or blanks.
    pub fn parse(text: &str) -> Result<Self, KeyError> {
        let mut keys: Vec<String> = Vec::new();
        for key in text.split([',', ' ', '\t', '\r', '\n']).filter(|key| !key.is_empty()) {
            let number = keys.len() + 1;
            if key.len() < SHORTEST {
                return Err(KeyError::Short { number, length: key.len() });
            }
            if !key.bytes().all(|byte| byte.is_ascii_graphic()) {
                return Err(KeyError::Unsendable { number });
            }
            if keys.iter().any(|known| known == key) {
                return Err(KeyError::Twice { number });
            }
            keys.push(key.to_owned());
        }
        if keys.is_empty() { Err(KeyError::None) } else { Ok(Self(keys)) }
    }

    /// Whether anybody may use the server.
    pub fn is_open(&self) -> bool {
        self.0.is_empty()
    }

    /// Whose key this is, by number. Takes the same time for every key of that length, right or wrong.
    pub(crate) fn owner(&self, given: &str) -> Option<usize> {
        let mut owner = None;
        for (number, key) in self.0.iter().enumerate() {
            if same(key.as_bytes(), given.as_bytes()) {
                owner = Some(number);
            }
        }
        owner
    }
}

impl std::fmt::Debug for Keys {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "Keys({})", self.0.len())
    }
}

/// Whether both are the same, without a branch that depends on where they differ.
fn same(key: &[u8], given: &[u8]) -> bool {
    let mut difference = u8::from(key.len() != given.len());
    for (index, byte) in given.iter().enumerate() {
        // A key is never empty.
        difference = black_box(difference | (byte ^ key[index % key.len()]));
    }
    black_box(difference) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: &str = "0123456789abcdef-one";
    const TWO: &str = "0123456789abcdef-two";

    #[test]
    fn each_key_has_its_owner_and_nothing_else_has_one() {
        let keys = Keys::parse(&format!("{ONE}, {TWO}\n")).unwrap();
        assert_eq!((keys.owner(ONE), keys.owner(TWO)), (Some(0), Some(1)));
        for wrong in ["", "0123456789abcdef-on", "0123456789abcdef-onee", "0123456789abcdef-onf", &ONE.repeat(2)] {
            assert_eq!(keys.owner(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn keys_that_protect_nothing_are_refused_without_being_shown() {
        assert_eq!(Keys::parse(" ,\n").unwrap_err(), KeyError::None);
        let error = Keys::parse("secret").unwrap_err();
        assert_eq!(error, KeyError::Short { number: 1, length: 6 });
        assert!(!error.to_string().contains("secret"));
        assert_eq!(Keys::parse(&format!("{ONE} {ONE}")).unwrap_err(), KeyError::Twice { number: 2 });
        assert_eq!(Keys::parse("0123456789abcdef\u{e9}").unwrap_err(), KeyError::Unsendable { number: 1 });
        assert!(!format!("{:?}", Keys::parse(ONE).unwrap()).contains(ONE));
    }
}
