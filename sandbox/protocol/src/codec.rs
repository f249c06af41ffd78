//! Bytes <-> values and messages.
//!
//! Integers are little-endian and of fixed width; strings, bytes and sequences carry a 32-bit length first. A length
//! is checked against the bytes that remain before anything is allocated, and nesting is bounded by [`MAX_DEPTH`], so
//! hostile bytes cost no more than their own size.

use thiserror::Error;

use crate::Value;

/// Deepest nesting of a [`Value`] that crosses the seam.
pub const MAX_DEPTH: usize = 64;

/// Why bytes are not a message.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum DecodeError {
    /// The bytes end too early.
    #[error("expected {expected} more bytes at offset {offset}, {remaining} remain")]
    End {
        /// Where.
        offset: usize,
        /// How many bytes were needed.
        expected: usize,
        /// How many remain.
        remaining: usize,
    },
    /// An unknown variant.
    #[error("{tag} is no variant of {what}")]
    Tag {
        /// The type.
        what: &'static str,
        /// The byte that came.
        tag: u8,
    },
    /// Text that is not UTF-8.
    #[error("text at offset {offset} is not UTF-8")]
    Utf8 {
        /// Where.
        offset: usize,
    },
    /// Nesting beyond [`MAX_DEPTH`].
    #[error("nested deeper than {MAX_DEPTH} levels")]
    Depth,
    /// Bytes left over behind a complete message.
    #[error("{count} bytes left over")]
    Trailing {
        /// How many.
        count: usize,
    },
    /// Digits of a big integer that are none.
    #[error("a big integer must be decimal digits with an optional minus")]
    Digits,
}

/// Something that becomes bytes.
pub trait Encode {
    /// Appends this to `out`.
    fn encode(&self, out: &mut Encoder);

    /// This as bytes.
    fn to_bytes(&self) -> Vec<u8> {
        let mut out = Encoder::default();
        self.encode(&mut out);
        out.into_bytes()
    }
}

/// Something that is read from bytes.
pub trait Decode: Sized {
    /// Reads one from `input`.
    fn decode(input: &mut Decoder<'_>) -> Result<Self, DecodeError>;

    /// Reads one that must fill `bytes` exactly.
    fn from_bytes(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut input = Decoder::new(bytes);
        let value = Self::decode(&mut input)?;
        match input.remaining() {
            0 => Ok(value),
            count => Err(DecodeError::Trailing { count }),
        }
    }
}

/// Collects bytes.
#[derive(Debug, Default)]
pub struct Encoder {
    bytes: Vec<u8>,
}

impl Encoder {
    /// Appends one byte.
    pub fn byte(&mut self, byte: u8) {
        self.bytes.push(byte);
    }

    /// Appends bytes as they are.
    pub fn raw(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Appends a length. Panics beyond 4 GiB, which no guest can hold.
    pub fn length(&mut self, length: usize) {
        let length = u32::try_from(length).expect("a guest holds less than 4 GiB");
        self.raw(&length.to_le_bytes());
    }

    /// What was collected.
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }
}

/// Reads bytes.
#[derive(Debug)]
pub struct Decoder<'a> {
    bytes: &'a [u8],
    offset: usize,
    depth: usize,
}

impl<'a> Decoder<'a> {
    /// A reader at the start of `bytes`.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, offset: 0, depth: 0 }
    }

    /// Bytes not yet read.
    pub fn remaining(&self) -> usize {
        self.bytes.len() - self.offset
    }

    /// Reads one byte.
    pub fn byte(&mut self) -> Result<u8, DecodeError> {
        Ok(self.take(1)?[0])
    }

    /// Reads `count` bytes.
    pub fn take(&mut self, count: usize) -> Result<&'a [u8], DecodeError> {
        if count > self.remaining() {
            return Err(DecodeError::End { offset: self.offset, expected: count, remaining: self.remaining() });
        }
        let bytes = &self.bytes[self.offset..self.offset + count];
        self.offset += count;
        Ok(bytes)
    }

    /// Reads a length of items that take at least `item_bytes` each; refuses one that cannot fit in what remains.
    pub fn length(&mut self, item_bytes: usize) -> Result<usize, DecodeError> {
        let length = u32::decode(self)? as usize;
        let expected = length.saturating_mul(item_bytes);
        if expected > self.remaining() {
            return Err(DecodeError::End { offset: self.offset, expected, remaining: self.remaining() });
        }
        Ok(length)
    }

    fn nested<T>(&mut self, read: impl FnOnce(&mut Self) -> Result<T, DecodeError>) -> Result<T, DecodeError> {
        if self.depth == MAX_DEPTH {
            return Err(DecodeError::Depth);
        }
        self.depth += 1;
        let value = read(self);
        self.depth -= 1;
        value
    }
}

macro_rules! codec_number {
    ($($kind:ty),*) => {$(
        impl Encode for $kind {
            fn encode(&self, out: &mut Encoder) { out.raw(&self.to_le_bytes()); }
        }
        impl Decode for $kind {
            fn decode(input: &mut Decoder<'_>) -> Result<Self, DecodeError> {
                let bytes = input.take(size_of::<$kind>())?;
                Ok(<$kind>::from_le_bytes(bytes.try_into().expect("took exactly this many")))
            }
        }
    )*};
}
codec_number!(u32, u64, i64, f64);

impl Encode for bool {
    fn encode(&self, out: &mut Encoder) {
        out.byte(u8::from(*self));
    }
}

impl Decode for bool {
    fn decode(input: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        match input.byte()? {
            0 => Ok(false),
            1 => Ok(true),
            tag => Err(DecodeError::Tag { what: "bool", tag }),
        }
    }
}

impl Encode for String {
    fn encode(&self, out: &mut Encoder) {
        out.length(self.len());
        out.raw(self.as_bytes());
    }
}

impl Decode for String {
    fn decode(input: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        let length = input.length(1)?;
        let offset = input.offset;
        let text = std::str::from_utf8(input.take(length)?).map_err(|_| DecodeError::Utf8 { offset })?;
        Ok(text.to_owned())
    }
}

impl<T: Encode> Encode for Vec<T> {
    fn encode(&self, out: &mut Encoder) {
        out.length(self.len());
        for item in self {
            item.encode(out);
        }
    }
}

impl<T: Decode> Decode for Vec<T> {
    fn decode(input: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        let length = input.length(1)?;
        // Items are larger in memory than on the wire: grow with what really comes.
        let mut items = Self::new();
        for _ in 0..length {
            items.push(T::decode(input)?);
        }
        Ok(items)
    }
}

impl<A: Encode, B: Encode> Encode for (A, B) {
    fn encode(&self, out: &mut Encoder) {
        self.0.encode(out);
        self.1.encode(out);
    }
}

impl<A: Decode, B: Decode> Decode for (A, B) {
    fn decode(input: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        Ok((A::decode(input)?, B::decode(input)?))
    }
}

impl<T: Encode> Encode for Option<T> {
    fn encode(&self, out: &mut Encoder) {
        match self {
            None => out.byte(0),
            Some(value) => {
                out.byte(1);
                value.encode(out);
            }
        }
    }
}

impl<T: Decode> Decode for Option<T> {
    fn decode(input: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        match input.byte()? {
            0 => Ok(None),
            1 => Ok(Some(T::decode(input)?)),
            tag => Err(DecodeError::Tag { what: "Option", tag }),
        }
    }
}

impl Encode for Value {
    fn encode(&self, out: &mut Encoder) {
        match self {
            Self::None => out.byte(0),
            Self::Bool(truth) => {
                out.byte(1);
                truth.encode(out);
            }
            Self::Int(number) => {
                out.byte(2);
                number.encode(out);
            }
            Self::BigInt(digits) => {
                out.byte(3);
                digits.encode(out);
            }
            Self::Float(number) => {
                out.byte(4);
                number.encode(out);
            }
            Self::Str(text) => {
                out.byte(5);
                text.encode(out);
            }
            Self::Bytes(bytes) => {
                out.byte(6);
                out.length(bytes.len());
                out.raw(bytes);
            }
            Self::List(items) => {
                out.byte(7);
                items.encode(out);
            }
            Self::Tuple(items) => {
                out.byte(8);
                items.encode(out);
            }
            Self::Dict(entries) => {
                out.byte(9);
                entries.encode(out);
            }
            Self::Set(items) => {
                out.byte(10);
                items.encode(out);
            }
            Self::Opaque { type_name, repr } => {
                out.byte(11);
                type_name.encode(out);
                repr.encode(out);
            }
        }
    }
}

impl Decode for Value {
    fn decode(input: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        Ok(match input.byte()? {
            0 => Self::None,
            1 => Self::Bool(bool::decode(input)?),
            2 => Self::Int(i64::decode(input)?),
            3 => {
                let digits = String::decode(input)?;
                let magnitude = digits.strip_prefix('-').unwrap_or(&digits);
                if magnitude.is_empty() || !magnitude.bytes().all(|byte| byte.is_ascii_digit()) {
                    return Err(DecodeError::Digits);
                }
                Self::BigInt(digits)
            }
            4 => Self::Float(f64::decode(input)?),
            5 => Self::Str(String::decode(input)?),
            6 => {
                let length = input.length(1)?;
                Self::Bytes(input.take(length)?.to_vec())
            }
            7 => Self::List(input.nested(Vec::decode)?),
            8 => Self::Tuple(input.nested(Vec::decode)?),
            9 => Self::Dict(input.nested(Vec::decode)?),
            10 => Self::Set(input.nested(Vec::decode)?),
            11 => Self::Opaque { type_name: String::decode(input)?, repr: String::decode(input)? },
            tag => return Err(DecodeError::Tag { what: "Value", tag }),
        })
    }
}
