//! A bounded reader for GGUF files (versions 2 and 3, little-endian).
//!
//! The header (key-value pairs and tensor descriptions) is read and checked once; tensor data is read on demand.
//! Invariants: no length in the file is trusted before it has been compared with what is left of the file; every error
//! names the file and, where there is one, the offset. Format: <https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use half::{bf16, f16};
use thiserror::Error;

/// Most key-value pairs, and most tensors, that a file may have.
const MAX_ENTRIES: u64 = 1 << 16;
/// Longest key or tensor name.
const MAX_NAME: u64 = 1 << 10;
/// Most elements of an array in the header.
const MAX_ARRAY: u64 = 1 << 24;
/// Most elements of a tensor.
const MAX_TENSOR: u64 = 1 << 36;
/// Elements of a quantised block.
const BLOCK: usize = 32;

/// Why a GGUF file cannot be read.
#[derive(Debug, Error)]
pub enum GgufError {
    /// The file cannot be opened or read.
    #[error("cannot read `{}`: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The bytes are not GGUF.
    #[error("`{}` is not a sound GGUF file: at byte {offset}: expected {expected}, found {found}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// Where.
        offset: u64,
        /// What should stand there.
        expected: String,
        /// What does.
        found: String,
    },
    /// A key that is needed is missing.
    #[error("`{}` has no key `{key}`", path.display())]
    MissingKey {
        /// The file.
        path: PathBuf,
        /// The key.
        key: String,
    },
    /// A key has a value of another type or out of range.
    #[error("`{}`: key `{key}`: expected {expected}, found {found}", path.display())]
    BadKey {
        /// The file.
        path: PathBuf,
        /// The key.
        key: String,
        /// What was expected.
        expected: String,
        /// What was found.
        found: String,
    },
    /// A tensor is stored in a way that this reader does not know.
    #[error("`{}`: tensor `{tensor}` has type {kind}, which is not supported; use F32, F16, BF16, Q4_0, Q4_1 or Q8_0", path.display())]
    UnsupportedType {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// Its type, by name where it has one.
        kind: String,
    },
}

/// A value in the header. Integers of all widths are one case, so are both float widths.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// Any integer type.
    Int(i128),
    /// Either float type.
    Float(f64),
    /// A truth value.
    Bool(bool),
    /// Text.
    Text(String),
    /// An array of integers.
    Ints(Vec<i64>),
    /// An array of floats.
    Floats(Vec<f64>),
    /// An array of truth values.
    Bools(Vec<bool>),
    /// An array of texts.
    Texts(Vec<String>),
}

impl Value {
    fn kind(&self) -> &'static str {
        match self {
            Self::Int(_) => "an integer",
            Self::Float(_) => "a float",
            Self::Bool(_) => "a truth value",
            Self::Text(_) => "a text",
            Self::Ints(_) => "an array of integers",
            Self::Floats(_) => "an array of floats",
            Self::Bools(_) => "an array of truth values",
            Self::Texts(_) => "an array of texts",
        }
    }
}

/// How a tensor's elements are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TensorType {
    /// 32-bit floats.
    F32,
    /// 16-bit IEEE floats.
    F16,
    /// Brain floats.
    Bf16,
    /// Blocks of 32: a scale, 4-bit values from -8.
    Q4_0,
    /// Blocks of 32: a scale and a minimum, 4-bit values.
    Q4_1,
    /// Blocks of 32: a scale, 8-bit values.
    Q8_0,
}

impl TensorType {
    fn from_code(code: u32) -> Result<Self, String> {
        let name = match code {
            0 => return Ok(Self::F32),
            1 => return Ok(Self::F16),
            2 => return Ok(Self::Q4_0),
            3 => return Ok(Self::Q4_1),
            8 => return Ok(Self::Q8_0),
            30 => return Ok(Self::Bf16),
            6 => "Q5_0",
            7 => "Q5_1",
            9 => "Q8_1",
            10 => "Q2_K",
            11 => "Q3_K",
            12 => "Q4_K",
            13 => "Q5_K",
            14 => "Q6_K",
            15 => "Q8_K",
            _ => return Err(format!("number {code}")),
        };
        Err(name.to_owned())
    }

    /// Elements and bytes of one block.
    fn block(self) -> (usize, usize) {
        match self {
            Self::F32 => (1, 4),
            Self::F16 | Self::Bf16 => (1, 2),
            Self::Q4_0 => (BLOCK, 2 + BLOCK / 2),
            Self::Q4_1 => (BLOCK, 4 + BLOCK / 2),
            Self::Q8_0 => (BLOCK, 2 + BLOCK),
        }
    }
}

/// A tensor's description.
#[derive(Clone, Debug, PartialEq)]
pub struct TensorInfo {
    /// Its name.
    pub name: String,
    /// Its shape, outermost dimension first (GGUF writes the innermost first).
    pub shape: Vec<usize>,
    /// How its elements are stored.
    pub kind: TensorType,
    /// Where its data begins, from the start of the file.
    offset: u64,
}

impl TensorInfo {
    /// The number of elements.
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    fn byte_len(&self) -> usize {
        let (elements, bytes) = self.kind.block();
        self.elements() / elements * bytes
    }
}

/// An opened GGUF file.
#[derive(Debug)]
pub struct Gguf {
    path: PathBuf,
    file: File,
    values: BTreeMap<String, Value>,
    tensors: Vec<TensorInfo>,
}

impl Gguf {
    /// Opens a file, reads its header, and checks that every tensor's data lies inside the file.
    pub fn open(path: &Path) -> Result<Self, GgufError> {
        let io = |source| GgufError::Io { path: path.to_owned(), source };
        let file = File::open(path).map_err(io)?;
        let len = file.metadata().map_err(io)?.len();
        let mut cursor = Cursor { path, reader: BufReader::new(&file), at: 0, len };
        let magic = cursor.bytes::<4>()?;
        if &magic != b"GGUF" {
            return Err(cursor.malformed(0, "the magic `GGUF`", format!("{:?}", String::from_utf8_lossy(&magic))));
        }
        let version = cursor.u32()?;
        if !(2..=3).contains(&version) {
            return Err(cursor.malformed(4, "version 2 or 3, little-endian", format!("{version}")));
        }
        let tensor_count = cursor.count("a tensor count", MAX_ENTRIES)?;
        let value_count = cursor.count("a key count", MAX_ENTRIES)?;
        let mut values = BTreeMap::new();
        for _ in 0..value_count {
            let at = cursor.at;
            let key = cursor.text(MAX_NAME)?;
            let value = cursor.value()?;
            if values.insert(key.clone(), value).is_some() {
                return Err(cursor.malformed(at, "each key once", format!("`{key}` again")));
            }
        }
        let mut tensors: Vec<TensorInfo> = Vec::new();
        for _ in 0..tensor_count {
            tensors.push(cursor.tensor()?);
        }
        let alignment = match values.get("general.alignment") {
            None => 32,
            Some(Value::Int(n)) if (1..=1 << 20).contains(n) && n.count_ones() == 1 => *n as u64,
            Some(other) => {
                return Err(GgufError::BadKey {
                    path: path.to_owned(),
                    key: "general.alignment".to_owned(),
                    expected: "a power of two up to 1048576".to_owned(),
                    found: format!("{other:?}"),
                });
            }
        };
        let data = cursor.at.next_multiple_of(alignment);
        let mut names = std::collections::BTreeSet::new();
        for tensor in &mut tensors {
            let bytes = tensor.byte_len() as u64;
            let start = data.checked_add(tensor.offset);
            match start.and_then(|start| Some((start, start.checked_add(bytes)?))) {
                Some((start, end)) if end <= len => tensor.offset = start,
                _ => {
                    let expected =
                        format!("{bytes} bytes of tensor `{}` from byte {data} + {}", tensor.name, tensor.offset);
                    return Err(cursor.malformed(len, &expected, format!("the end of the file at byte {len}")));
                }
            }
            if !names.insert(tensor.name.clone()) {
                return Err(cursor.malformed(cursor.at, "each tensor once", format!("`{}` again", tensor.name)));
            }
        }
        Ok(Self { path: path.to_owned(), file, values, tensors })
    }

    /// The file's path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// All tensors, in file order.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    /// A value of the header, if the key is there.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.values.get(key)
    }

    fn required(&self, key: &str) -> Result<&Value, GgufError> {
        self.get(key).ok_or_else(|| GgufError::MissingKey { path: self.path.clone(), key: key.to_owned() })
    }

    /// The error for a key whose value is not as expected.
    pub fn bad_key(&self, key: &str, expected: &str, found: impl Into<String>) -> GgufError {
        GgufError::BadKey {
            path: self.path.clone(),
            key: key.to_owned(),
            expected: expected.to_owned(),
            found: found.into(),
        }
    }

    /// A required unsigned integer.
    pub fn u32(&self, key: &str) -> Result<u32, GgufError> {
        match self.required(key)? {
            Value::Int(n) => {
                u32::try_from(*n).map_err(|_| self.bad_key(key, "an integer from 0 to 4294967295", n.to_string()))
            }
            other => Err(self.bad_key(key, "an integer", other.kind())),
        }
    }

    /// A required float.
    pub fn float(&self, key: &str) -> Result<f64, GgufError> {
        match self.required(key)? {
            Value::Float(x) => Ok(*x),
            other => Err(self.bad_key(key, "a float", other.kind())),
        }
    }

    /// A required text.
    pub fn text(&self, key: &str) -> Result<&str, GgufError> {
        match self.required(key)? {
            Value::Text(s) => Ok(s),
            other => Err(self.bad_key(key, "a text", other.kind())),
        }
    }

    /// A required array of texts.
    pub fn texts(&self, key: &str) -> Result<&[String], GgufError> {
        match self.required(key)? {
            Value::Texts(s) => Ok(s),
            other => Err(self.bad_key(key, "an array of texts", other.kind())),
        }
    }

    /// A required array of integers.
    pub fn ints(&self, key: &str) -> Result<&[i64], GgufError> {
        match self.required(key)? {
            Value::Ints(s) => Ok(s),
            other => Err(self.bad_key(key, "an array of integers", other.kind())),
        }
    }

    /// Reads a tensor and turns it into 32-bit floats, row-major in the order of `tensor.shape`.
    pub fn read_f32(&self, tensor: &TensorInfo) -> Result<Vec<f32>, GgufError> {
        let mut bytes = vec![0; tensor.byte_len()];
        self.file
            .read_exact_at(&mut bytes, tensor.offset)
            .map_err(|source| GgufError::Io { path: self.path.clone(), source })?;
        Ok(dequantize(tensor.kind, &bytes))
    }
}

/// Turns stored bytes into floats. Bytes beyond the last whole block are left out.
fn dequantize(kind: TensorType, bytes: &[u8]) -> Vec<f32> {
    let (block, size) = kind.block();
    let mut out = Vec::with_capacity(bytes.len() / size * block);
    let half = |b: &[u8]| f16::from_le_bytes([b[0], b[1]]).to_f32();
    for chunk in bytes.chunks_exact(size) {
        match kind {
            TensorType::F32 => out.push(f32::from_le_bytes([chunk[0], chunk[1], chunk[2], chunk[3]])),
            TensorType::F16 => out.push(half(chunk)),
            TensorType::Bf16 => out.push(bf16::from_le_bytes([chunk[0], chunk[1]]).to_f32()),
            // The low nibbles are the first half of the block, the high nibbles the second.
            TensorType::Q4_0 => {
                let scale = half(chunk);
                out.extend(chunk[2..].iter().map(|q| f32::from((q & 15) as i8 - 8) * scale));
                out.extend(chunk[2..].iter().map(|q| f32::from((q >> 4) as i8 - 8) * scale));
            }
            TensorType::Q4_1 => {
                let (scale, least) = (half(chunk), half(&chunk[2..]));
                out.extend(chunk[4..].iter().map(|q| f32::from(q & 15) * scale + least));
                out.extend(chunk[4..].iter().map(|q| f32::from(q >> 4) * scale + least));
            }
            TensorType::Q8_0 => {
                let scale = half(chunk);
                out.extend(chunk[2..].iter().map(|q| f32::from(*q as i8) * scale));
            }
        }
    }
    out
}

/// Reads the header front to back and knows where it is.
struct Cursor<'a> {
    path: &'a Path,
    reader: BufReader<&'a File>,
    at: u64,
    len: u64,
}

impl Cursor<'_> {
    fn malformed(&self, offset: u64, expected: &str, found: String) -> GgufError {
        GgufError::Malformed { path: self.path.to_owned(), offset, expected: expected.to_owned(), found }
    }

    fn fill(&mut self, buffer: &mut [u8]) -> Result<(), GgufError> {
        let left = self.len.saturating_sub(self.at);
        if buffer.len() as u64 > left {
            return Err(self.malformed(self.at, &format!("{} more bytes", buffer.len()), format!("{left} bytes")));
        }
        self.reader.read_exact(buffer).map_err(|source| GgufError::Io { path: self.path.to_owned(), source })?;
        self.at += buffer.len() as u64;
        Ok(())
    }

    fn bytes<const N: usize>(&mut self) -> Result<[u8; N], GgufError> {
        let mut buffer = [0; N];
        self.fill(&mut buffer)?;
        Ok(buffer)
    }

    fn u32(&mut self) -> Result<u32, GgufError> {
        Ok(u32::from_le_bytes(self.bytes()?))
    }

    fn u64(&mut self) -> Result<u64, GgufError> {
        Ok(u64::from_le_bytes(self.bytes()?))
    }

    fn count(&mut self, what: &str, most: u64) -> Result<u64, GgufError> {
        let (at, n) = (self.at, self.u64()?);
        if n > most {
            return Err(self.malformed(at, &format!("{what} up to {most}"), n.to_string()));
        }
        Ok(n)
    }

    fn text(&mut self, most: u64) -> Result<String, GgufError> {
        let at = self.at;
        let n = self.u64()?;
        let left = self.len - self.at;
        if n > most.min(left) {
            return Err(self.malformed(
                at,
                &format!("a text of at most {} bytes", most.min(left)),
                format!("{n} bytes"),
            ));
        }
        let mut buffer = vec![0; n as usize];
        self.fill(&mut buffer)?;
        String::from_utf8(buffer).map_err(|e| self.malformed(at, "UTF-8 text", e.utf8_error().to_string()))
    }

    fn scalar(&mut self, code: u32, at: u64) -> Result<Value, GgufError> {
        Ok(match code {
            0 => Value::Int(u8::from_le_bytes(self.bytes()?).into()),
            1 => Value::Int(i8::from_le_bytes(self.bytes()?).into()),
            2 => Value::Int(u16::from_le_bytes(self.bytes()?).into()),
            3 => Value::Int(i16::from_le_bytes(self.bytes()?).into()),
            4 => Value::Int(self.u32()?.into()),
            5 => Value::Int(i32::from_le_bytes(self.bytes()?).into()),
            6 => Value::Float(f32::from_le_bytes(self.bytes()?).into()),
            7 => match self.bytes::<1>()?[0] {
                0 => Value::Bool(false),
                1 => Value::Bool(true),
                other => return Err(self.malformed(self.at - 1, "0 or 1", other.to_string())),
            },
            8 => Value::Text(self.text(u64::MAX)?),
            10 => Value::Int(self.u64()?.into()),
            11 => Value::Int(i64::from_le_bytes(self.bytes()?).into()),
            12 => Value::Float(f64::from_le_bytes(self.bytes()?)),
            other => {
                return Err(self.malformed(at, "a value type from 0 to 12, no array in an array", other.to_string()));
            }
        })
    }

    fn value(&mut self) -> Result<Value, GgufError> {
        let at = self.at;
        let code = self.u32()?;
        if code != 9 {
            return self.scalar(code, at);
        }
        let at = self.at;
        let code = self.u32()?;
        let n = self.count("an array length", MAX_ARRAY.min(self.len))?;
        let mut array = match code {
            6 | 12 => Value::Floats(Vec::new()),
            7 => Value::Bools(Vec::new()),
            8 => Value::Texts(Vec::new()),
            _ => Value::Ints(Vec::new()),
        };
        for _ in 0..n {
            match (&mut array, self.scalar(code, at)?) {
                (Value::Ints(all), Value::Int(x)) => {
                    let at = self.at;
                    all.push(i64::try_from(x).map_err(|_| self.malformed(at, "a 63-bit integer", x.to_string()))?);
                }
                (Value::Floats(all), Value::Float(x)) => all.push(x),
                (Value::Bools(all), Value::Bool(x)) => all.push(x),
                (Value::Texts(all), Value::Text(x)) => all.push(x),
                (_, other) => return Err(self.malformed(at, "elements of one type", other.kind().to_owned())),
            }
        }
        Ok(array)
    }

    fn tensor(&mut self) -> Result<TensorInfo, GgufError> {
        let start = self.at;
        let name = self.text(MAX_NAME)?;
        let dims = self.u32()?;
        if !(1..=4).contains(&dims) {
            return Err(self.malformed(start, &format!("1 to 4 dimensions of tensor `{name}`"), dims.to_string()));
        }
        let mut shape = Vec::new();
        let mut elements = 1u64;
        for _ in 0..dims {
            let n = self.u64()?;
            elements = elements.checked_mul(n).filter(|e| (1..=MAX_TENSOR).contains(e)).ok_or_else(|| {
                self.malformed(
                    start,
                    &format!("tensor `{name}` to have 1 to {MAX_TENSOR} elements"),
                    format!("a dimension of {n}"),
                )
            })?;
            shape.push(n as usize);
        }
        let code = self.u32()?;
        let kind = TensorType::from_code(code).map_err(|kind| GgufError::UnsupportedType {
            path: self.path.to_owned(),
            tensor: name.clone(),
            kind,
        })?;
        let (block, _) = kind.block();
        if shape[0] % block != 0 {
            let expected = format!("rows of tensor `{name}` in blocks of {block}");
            return Err(self.malformed(start, &expected, format!("rows of {}", shape[0])));
        }
        shape.reverse();
        let offset = self.u64()?;
        Ok(TensorInfo { name, shape, kind, offset })
    }
}
