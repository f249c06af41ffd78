//! Protocol Buffers' wire format, as much of it as event files and offline runs need.
//!
//! <https://protobuf.dev/programming-guides/encoding/>. [`Message`] writes fields in the order of its calls; in the
//! order of their numbers, the bytes are those of the reference implementation.

/// A message that is being written.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Message(Vec<u8>);

const VARINT: u8 = 0;
const FIXED_64: u8 = 1;
const BYTES: u8 = 2;
const FIXED_32: u8 = 5;

impl Message {
    /// An empty one.
    pub fn new() -> Self {
        Self::default()
    }

    /// `int64`, `int32`, `bool` or an enumeration; 0 is the default and left out.
    #[must_use]
    pub fn int(mut self, field: u32, value: i64) -> Self {
        if value != 0 {
            self.tag(field, VARINT);
            self.varint(value as u64);
        }
        self
    }

    /// `double`, 0 as well: where it has presence.
    #[must_use]
    pub fn double(mut self, field: u32, value: f64) -> Self {
        self.tag(field, FIXED_64);
        self.0.extend(value.to_le_bytes());
        self
    }

    /// `float`, 0 as well: where it has presence.
    #[must_use]
    pub fn float(mut self, field: u32, value: f32) -> Self {
        self.tag(field, FIXED_32);
        self.0.extend(value.to_le_bytes());
        self
    }

    /// `string`; an empty one is the default and left out.
    #[must_use]
    pub fn string(self, field: u32, value: &str) -> Self {
        if value.is_empty() { self } else { self.bytes(field, value.as_bytes()) }
    }

    /// `bytes`, or an item of a repeated `string`; empty ones as well.
    #[must_use]
    pub fn bytes(mut self, field: u32, value: &[u8]) -> Self {
        self.tag(field, BYTES);
        self.varint(value.len() as u64);
        self.0.extend_from_slice(value);
        self
    }

    /// A message, or an item of a repeated one.
    #[must_use]
    pub fn message(self, field: u32, value: &Self) -> Self {
        self.bytes(field, &value.0)
    }

    /// Its bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    fn tag(&mut self, field: u32, wire_type: u8) {
        self.varint(u64::from(field) << 3 | u64::from(wire_type));
    }

    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }
}

/// The value of a field that was read.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Field<'a> {
    /// `int64`, `int32`, `bool` or an enumeration.
    Int(i64),
    /// `double`.
    Double(f64),
    /// `float`.
    Float(f32),
    /// `bytes`, `string` or a message.
    Bytes(&'a [u8]),
}

/// Reads the fields of a message, in order, up to the first that is malformed.
#[derive(Debug, Clone)]
pub struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    /// Of these bytes.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// The bytes of the first field of this number.
    pub fn bytes(bytes: &'a [u8], number: u32) -> Option<&'a [u8]> {
        Self(bytes).find_map(|(field, value)| match value {
            Field::Bytes(inner) if field == number => Some(inner),
            _ => None,
        })
    }

    /// The first integer of this number.
    pub fn int(bytes: &'a [u8], number: u32) -> Option<i64> {
        Self(bytes).find_map(|(field, value)| match value {
            Field::Int(value) if field == number => Some(value),
            _ => None,
        })
    }

    fn varint(&mut self) -> Option<u64> {
        let mut value = 0_u64;
        for shift in (0..64).step_by(7) {
            let (byte, rest) = self.0.split_first()?;
            self.0 = rest;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }

    fn take(&mut self, length: u64) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(usize::try_from(length).ok()?)?;
        self.0 = rest;
        Some(taken)
    }
}

impl<'a> Fields<'a> {
    fn read(&mut self) -> Option<(u32, Field<'a>)> {
        let tag = self.varint()?;
        let field = u32::try_from(tag >> 3).ok()?;
        let value = match (tag & 7) as u8 {
            VARINT => Field::Int(self.varint()? as i64),
            FIXED_64 => Field::Double(f64::from_le_bytes(self.take(8)?.try_into().ok()?)),
            FIXED_32 => Field::Float(f32::from_le_bytes(self.take(4)?.try_into().ok()?)),
            BYTES => {
                let length = self.varint()?;
                Field::Bytes(self.take(length)?)
            }
            _ => return None,
        };
        Some((field, value))
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = (u32, Field<'a>);

    fn next(&mut self) -> Option<Self::Item> {
        let field = self.read();
        if field.is_none() {
            self.0 = &[];
        }
        field
    }
}
