//! Rows and sources of data for environments.
//!
//! | module | what lives there |
//! |---|---|
//! | [`row`] | [`row::Row`], a prompt and the columns that go with it |
//! | [`source`] | [`source::Source`], where rows come from: files or a generated set; limit, order, split |
//! | [`files`] | the rows of files, one after the other, with their places |
//! | [`error`] | [`error::DataError`], which names file, row and column |
//! | [`lines`], [`json`], [`table`], [`columnar`] | JSONL, JSON, CSV and Parquet |
//! | [`mod@format`] | raw records of published sets as rows; their prompts |
//! | [`length`], [`left_out`] | rows that are too long or there twice, and the account of them |
//! | [`order`] | seeded shuffle within bounded memory, stable splits |
//! | [`hub`] | the Hugging Face hub: its cache, and downloads into it |
//!
//! Invariants: rows are read one at a time, and memory is bounded by the largest row, the shuffle buffer and 8
//! bytes per id, not by the file; a wrong row is an error that names its place; rows that are left out on purpose are
//! counted and named; ids differ.

pub mod columnar;
pub mod error;
pub mod files;
pub mod format;
pub mod hub;
mod ids;
mod input;
pub mod json;
pub mod left_out;
pub mod length;
pub mod lines;
pub mod order;
pub mod row;
pub mod source;
pub mod table;
mod template;

pub use error::DataError;
pub use files::{Located, records};
pub use format::{FORMATS, Format, FormatSpec};
pub use left_out::LeftOut;
pub use length::TokenCounter;
pub use row::{Prompt, Row};
pub use source::{Builtins, DataFile, NoBuiltins, Opened, Rows, Source};
