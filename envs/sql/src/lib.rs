//! SQL over SQLite as models write it: read-only, bounded; and the comparison of results.
//!
//! | module | what lives there |
//! |---|---|
//! | [`database`] | [`Databases`] and [`Database`]: read-only connections, pooled per file |
//! | [`query`] | one query within [`Limits`]: [`Database::query`], [`Request`] |
//! | [`statement`] | the tokens of a statement: how many there are, how deep, the top-level `ORDER BY` |
//! | `expansion` | how large a statement gets when its common table expressions are written out |
//! | [`value`] | typed results: [`Value`], [`Table`] |
//! | [`compare`] | whether two results are the same: [`compare::equal`], [`compare::same_set`] |
//! | [`order`] | which rows of an ordered result tie |
//! | [`render`] | a result as a bounded text |
//! | [`pandas`] | a result as pandas prints it, for `compat = "skyrl"` |
//! | [`locate`] | where a data set's databases lie |
//! | [`error`] | [`SqlError`] |
//!
//! Invariants:
//!
//! - **Nothing is written.** The file is opened read-only, the connection is `query_only`, an authoriser allows
//!   reading and nothing else, and a statement that SQLite does not call read-only is never stepped. Each of the four
//!   would do alone.
//! - **Everything is bounded.** Text, nesting, columns, rows, bytes, the size of one value, instructions and time; also
//!   while SQLite compiles. What a query leaves behind does not reach the next one on the same connection.
//! - **Nothing is copied.** A database of any size is read in place.

pub mod compare;
pub mod database;
pub mod error;
mod expansion;
mod guard;
pub mod locate;
pub mod order;
pub mod pandas;
pub mod query;
pub mod render;
pub mod statement;
pub mod value;

pub use database::{Database, Databases, OpenOptions};
pub use error::SqlError;
pub use query::{Limits, Overflow, Request, Writes};
pub use value::{LeftOut, Row, Table, Value};
