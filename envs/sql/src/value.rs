//! Typed results.

/// One value, in SQLite's five types.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// NULL
    Null,
    /// An integer.
    Integer(i64),
    /// A floating-point number; never NaN, which SQLite turns into NULL.
    Real(f64),
    /// A text. What is no UTF-8 in the database is replaced by U+FFFD.
    Text(String),
    /// Bytes.
    Blob(Vec<u8>),
}

impl Value {
    /// Bytes that the value holds, what holds it included.
    pub(crate) fn size(&self) -> usize {
        size_of::<Self>()
            + match self {
                Self::Text(text) => text.len(),
                Self::Blob(bytes) => bytes.len(),
                _ => 0,
            }
    }
}

/// One row, in the order of the columns.
pub type Row = Vec<Value>;

/// Rows that the query has and the table does not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LeftOut {
    /// The table is whole.
    #[default]
    None,
    /// So many.
    Exactly(u64),
    /// So many, and counting was given up.
    AtLeast(u64),
}

/// What a query gives.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Table {
    /// The columns' names, as SQLite gives them.
    pub columns: Vec<String>,
    /// The rows, in the query's order.
    pub rows: Vec<Row>,
    /// Rows beyond the limit.
    pub left_out: LeftOut,
}
