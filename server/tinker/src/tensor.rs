//! Numbers of the wire: packed little-endian bytes to checked tensors and back.

use thiserror::Error;

use crate::proto;

/// Most elements that a shape may stand for, sparse ones included.
const MOST: usize = 1 << 31;

/// What is wrong with a tensor.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("`{field}`: expected {expected}, got {found}")]
pub struct TensorError {
    /// Which part of it: `dense`, `shape`...
    pub field: &'static str,
    /// What it must be.
    pub expected: String,
    /// What it is.
    pub found: String,
}

/// Numbers of one type.
#[derive(Clone, Debug, PartialEq)]
pub enum Numbers {
    /// 32-bit floats.
    F32(Vec<f32>),
    /// 64-bit integers.
    I64(Vec<i64>),
}

impl Numbers {
    /// How many.
    pub fn len(&self) -> usize {
        match self {
            Self::F32(numbers) => numbers.len(),
            Self::I64(numbers) => numbers.len(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Where the numbers of a sparse matrix stand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sparsity {
    /// Where each row begins; one more than there are rows. Never falls, begins with 0, ends with the number of numbers.
    pub rows: Vec<usize>,
    /// The column of each number, below the width.
    pub columns: Vec<usize>,
}

/// A tensor whose parts fit together.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor {
    /// All numbers, last dimension fastest; with `sparsity` those that are not 0.
    pub numbers: Numbers,
    /// How many in each dimension; one or two dimensions.
    pub shape: Vec<usize>,
    /// Present where only some numbers are given.
    pub sparsity: Option<Sparsity>,
}

fn wrong(field: &'static str, expected: impl Into<String>, found: impl ToString) -> TensorError {
    TensorError { field, expected: expected.into(), found: found.to_string() }
}

impl Tensor {
    /// Reads a tensor of the wire. Never panics, whatever came.
    pub fn read(given: &proto::Tensor) -> Result<Self, TensorError> {
        let kind = proto::DType::try_from(given.dtype).unwrap_or(proto::DType::Unspecified);
        let shape = given
            .shape
            .iter()
            .map(|&size| usize::try_from(size).ok().filter(|size| *size <= MOST))
            .collect::<Option<Vec<_>>>()
            .ok_or_else(|| wrong("shape", format!("sizes from 0 to {MOST}"), format!("{:?}", given.shape)))?;
        match &given.data {
            None => Err(wrong("data", "`dense` or `sparse_csr`", "neither")),
            Some(proto::TensorData::Dense(bytes)) => {
                let numbers = read_numbers("dense", kind, bytes)?;
                // A tensor made by hand may lack its shape: it has one dimension then.
                let shape = if shape.is_empty() { vec![numbers.len()] } else { shape };
                let count = elements(&shape)?;
                if count != numbers.len() {
                    return Err(wrong("shape", format!("{} numbers in all", numbers.len()), format!("{shape:?}")));
                }
                Ok(Self { numbers, shape, sparsity: None })
            }
            Some(proto::TensorData::SparseCsr(sparse)) => Self::read_sparse(kind, shape, sparse),
        }
    }

    fn read_sparse(kind: proto::DType, shape: Vec<usize>, given: &proto::SparseCsr) -> Result<Self, TensorError> {
        let numbers = read_numbers("values", kind, &given.values)?;
        let [height, width] = *shape.as_slice() else {
            return Err(wrong("shape", "two dimensions, as the tensor is sparse", format!("{shape:?}")));
        };
        elements(&shape)?;
        let rows = indices("crow_indices", &given.crow_indices, numbers.len() + 1)?;
        let columns = indices("col_indices", &given.col_indices, width)?;
        if columns.len() != numbers.len() {
            return Err(wrong("col_indices", format!("{} of them", numbers.len()), columns.len()));
        }
        if rows.len() != height + 1 {
            return Err(wrong("crow_indices", format!("{} of them", height + 1), rows.len()));
        }
        if rows.first() != Some(&0) || rows.last() != Some(&numbers.len()) || !rows.is_sorted() {
            let expected = format!("numbers that begin with 0, never fall, and end with {}", numbers.len());
            return Err(wrong("crow_indices", expected, format!("{:?}", &rows[..rows.len().min(8)])));
        }
        Ok(Self { numbers, shape, sparsity: Some(Sparsity { rows, columns }) })
    }
}

fn elements(shape: &[usize]) -> Result<usize, TensorError> {
    if shape.len() > 2 {
        return Err(wrong("shape", "one or two dimensions", shape.len()));
    }
    let count = shape.iter().try_fold(1usize, |count, size| count.checked_mul(*size)).filter(|count| *count <= MOST);
    count.ok_or_else(|| wrong("shape", format!("at most {MOST} elements"), format!("{shape:?}")))
}

fn read_numbers(field: &'static str, kind: proto::DType, bytes: &[u8]) -> Result<Numbers, TensorError> {
    match kind {
        proto::DType::Float32 => Ok(Numbers::F32(floats(bytes).ok_or_else(|| ragged(field, 4, bytes))?)),
        proto::DType::Int64 => Ok(Numbers::I64(longs(bytes).ok_or_else(|| ragged(field, 8, bytes))?)),
        other => Err(wrong("dtype", "float32 (1) or int64 (2)", format!("{other:?} ({})", other as i32))),
    }
}

fn indices(field: &'static str, bytes: &[u8], bound: usize) -> Result<Vec<usize>, TensorError> {
    let numbers = longs(bytes).ok_or_else(|| ragged(field, 8, bytes))?;
    let index = |number: i64| usize::try_from(number).ok().filter(|index| *index < bound).ok_or(number);
    numbers
        .into_iter()
        .map(index)
        .collect::<Result<_, _>>()
        .map_err(|number| wrong(field, format!("numbers from 0, below {bound}"), number))
}

fn ragged(field: &'static str, width: usize, bytes: &[u8]) -> TensorError {
    wrong(field, format!("a multiple of {width} bytes"), bytes.len())
}

fn array<const N: usize>(bytes: &[u8]) -> [u8; N] {
    bytes.try_into().unwrap_or([0; N])
}

/// 32-bit floats; `None` where the bytes do not come out even.
pub fn floats(bytes: &[u8]) -> Option<Vec<f32>> {
    let even = bytes.len().is_multiple_of(4);
    even.then(|| bytes.chunks_exact(4).map(|four| f32::from_le_bytes(array(four))).collect())
}

/// 64-bit integers; `None` where the bytes do not come out even.
pub fn longs(bytes: &[u8]) -> Option<Vec<i64>> {
    let even = bytes.len().is_multiple_of(8);
    even.then(|| bytes.chunks_exact(8).map(|eight| i64::from_le_bytes(array(eight))).collect())
}

/// 32-bit tokens that are not negative.
pub fn tokens(bytes: &[u8]) -> Result<Vec<u32>, TensorError> {
    if !bytes.len().is_multiple_of(4) {
        return Err(ragged("tokens", 4, bytes));
    }
    let token = |four: &[u8]| {
        let number = i32::from_le_bytes(array(four));
        u32::try_from(number).map_err(|_| wrong("tokens", "numbers from 0", number))
    };
    bytes.chunks_exact(4).map(token).collect()
}

/// Packed 32-bit floats.
pub fn float_bytes(numbers: &[f32]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
}

/// Packed 64-bit integers.
pub fn long_bytes(numbers: impl IntoIterator<Item = i64>) -> Vec<u8> {
    numbers.into_iter().flat_map(i64::to_le_bytes).collect()
}

/// Packed 32-bit tokens. A token above 2^31 cannot be in any vocabulary; it would come out negative.
pub fn token_bytes(tokens: &[u32]) -> Vec<u8> {
    tokens.iter().flat_map(|token| token.to_le_bytes()).collect()
}
