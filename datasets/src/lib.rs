//! Rows and sources of data for environments.
//!
//! | module | what lives there |
//! |---|---|
//! | [`row`] | [`row::Row`], a prompt and the columns that go with it |
//! | [`source`] | [`source::Source`], where rows come from: files or a generated set; limit, order, split |
//! | [`error`] | [`error::DataError`], which names file, row and column |
//! | [`lines`], [`json`], [`table`], [`columnar`] | JSONL, JSON, CSV and Parquet |
//! | [`mod@format`] | raw records of published sets as rows |
//! | [`order`] | seeded shuffle within bounded memory, stable splits |
//!
//! Invariants: rows are read one at a time, and memory is bounded by the largest row, the shuffle buffer and the ids,
//! not by the file; a wrong row is an error that names its place, never a row that is silently left out; ids differ.

pub mod columnar;
pub mod error;
pub mod format;
pub mod json;
pub mod lines;
pub mod order;
pub mod row;
pub mod source;
pub mod table;

pub use error::DataError;
pub use format::Format;
pub use row::{Prompt, Row};
pub use source::{Builtins, NoBuiltins, Rows, Source};
