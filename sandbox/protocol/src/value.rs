//! The typed data that crosses the seam.

/// A Python value that host and guest both understand.
///
/// What Python holds beyond these types crosses as [`Value::Opaque`]: its type and its `repr`, bounded in length.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// `None`
    None,
    /// `bool`
    Bool(bool),
    /// `int` that fits 64 bits.
    Int(i64),
    /// Any other `int`, in decimal digits with an optional leading minus.
    BigInt(String),
    /// `float`, NaN and infinities included.
    Float(f64),
    /// `str`. Lone surrogates do not cross; the sender replaces them with U+FFFD.
    Str(String),
    /// `bytes`
    Bytes(Vec<u8>),
    /// `list`
    List(Vec<Value>),
    /// `tuple`
    Tuple(Vec<Value>),
    /// `dict`, in insertion order.
    Dict(Vec<(Value, Value)>),
    /// `set` (and `frozenset`), in the sender's iteration order.
    Set(Vec<Value>),
    /// Anything else.
    Opaque {
        /// `type(x).__name__`
        type_name: String,
        /// `repr(x)`, cut at a bound the sender chooses.
        repr: String,
    },
}

impl Value {
    /// The Python name of this value's type: `str`, `int`, `dict`...
    pub fn type_name(&self) -> &str {
        match self {
            Self::None => "NoneType",
            Self::Bool(_) => "bool",
            Self::Int(_) | Self::BigInt(_) => "int",
            Self::Float(_) => "float",
            Self::Str(_) => "str",
            Self::Bytes(_) => "bytes",
            Self::List(_) => "list",
            Self::Tuple(_) => "tuple",
            Self::Dict(_) => "dict",
            Self::Set(_) => "set",
            Self::Opaque { type_name, .. } => type_name,
        }
    }

    /// The text of a `str` value.
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Self::Str(text) => Some(text),
            _ => None,
        }
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::Str(text.to_owned())
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Self::Str(text)
    }
}

impl From<i64> for Value {
    fn from(number: i64) -> Self {
        Self::Int(number)
    }
}

impl From<f64> for Value {
    fn from(number: f64) -> Self {
        Self::Float(number)
    }
}

impl From<bool> for Value {
    fn from(truth: bool) -> Self {
        Self::Bool(truth)
    }
}
