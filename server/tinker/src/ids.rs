//! Names of sessions, models and samplers.
//!
//! The SDK computes a model's name from its session's and a number and never reads the server's, so the form is fixed:
//! `SESSION:train:N`. Samplers are named alike. No name holds a `/` or a dot, so none can lead out of a folder.

use std::fmt::{self, Write as _};
use std::str::FromStr;

use rand::TryRngCore as _;
use rand::rngs::OsRng;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use thiserror::Error;

/// Longest session name, bytes.
const LONGEST: usize = 64;

/// A name that is none.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("expected {expected}, got `{found}`")]
pub struct IdError {
    /// The form that it must have.
    pub expected: &'static str,
    /// What came, cut where it is long.
    pub found: String,
}

impl IdError {
    pub(crate) fn new(expected: &'static str, found: &str) -> Self {
        Self { expected, found: found.chars().take(100).collect() }
    }
}

/// A session: letters, digits, `-` and `_`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionId(String);

/// A model: `SESSION:train:N`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ModelId {
    /// Whose.
    pub session: SessionId,
    /// Which of its models, from 0.
    pub number: u32,
}

/// A sampling session: `SESSION:sample:N`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SamplerId {
    /// Whose.
    pub session: SessionId,
    /// Which of its samplers, from 0.
    pub number: u32,
}

impl SessionId {
    /// A new session's name, which nobody can guess.
    pub fn random() -> Result<Self, rand::rand_core::OsError> {
        let hex = random_hex()?;
        // The form of a UUID, which is what clients are used to.
        let parts = [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]];
        Ok(Self(parts.join("-")))
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// A new request's name, which nobody can guess.
pub(crate) fn request_id() -> Result<String, rand::rand_core::OsError> {
    Ok(format!("req-{}", random_hex()?))
}

/// 128 random bits.
fn random_hex() -> Result<String, rand::rand_core::OsError> {
    let mut bytes = [0; 16];
    OsRng.try_fill_bytes(&mut bytes)?;
    Ok(hex(&bytes))
}

/// Bytes as hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        let _ = write!(text, "{byte:02x}");
    }
    text
}

/// 64 hexadecimal digits as bytes.
pub(crate) fn unhex(text: &str) -> Option<[u8; 32]> {
    if text.len() != 64 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    let mut bytes = [0; 32];
    for (index, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(text.get(2 * index..2 * index + 2)?, 16).ok()?;
    }
    Some(bytes)
}

impl FromStr for SessionId {
    type Err = IdError;

    fn from_str(text: &str) -> Result<Self, IdError> {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
        if text.is_empty() || text.len() > LONGEST || !text.bytes().all(plain) {
            return Err(IdError::new("a session: 1 to 64 letters, digits, `-` and `_`", text));
        }
        Ok(Self(text.to_owned()))
    }
}

/// Splits `SESSION:WORD:N`. One name has one form: no sign and no zeros in front.
fn parse(text: &str, word: &str, expected: &'static str) -> Result<(SessionId, u32), IdError> {
    let wrong = || IdError::new(expected, text);
    let mut parts = text.split(':');
    let (Some(session), Some(middle), Some(digits), None) = (parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return Err(wrong());
    };
    let canonical = digits == "0" || !digits.starts_with('0');
    if middle != word || !canonical || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(wrong());
    }
    let number = digits.parse().map_err(|_| wrong())?;
    Ok((session.parse().map_err(|_| wrong())?, number))
}

impl FromStr for ModelId {
    type Err = IdError;

    fn from_str(text: &str) -> Result<Self, IdError> {
        let (session, number) = parse(text, "train", "a model: `SESSION:train:N`")?;
        Ok(Self { session, number })
    }
}

impl FromStr for SamplerId {
    type Err = IdError;

    fn from_str(text: &str) -> Result<Self, IdError> {
        let (session, number) = parse(text, "sample", "a sampling session: `SESSION:sample:N`")?;
        Ok(Self { session, number })
    }
}

impl fmt::Display for SessionId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

impl fmt::Display for ModelId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}:train:{}", self.session, self.number)
    }
}

impl fmt::Display for SamplerId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}:sample:{}", self.session, self.number)
    }
}

macro_rules! as_text {
    ($($name:ty),*) => {$(
        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = String::deserialize(deserializer)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }
    )*};
}

as_text!(SessionId, ModelId, SamplerId, crate::path::TinkerPath);
