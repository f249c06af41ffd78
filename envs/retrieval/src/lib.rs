//! Retrievers for search environments, and the server that speaks their protocol.
//!
//! | module | what lives there |
//! |---|---|
//! | [`retriever`] | [`Retriever`], what a search environment asks, and [`RetrievalError`], why nothing came |
//! | [`http`] | [`HttpRetriever`]: a retrieval server behind HTTP, with retries and deadlines |
//! | [`bm25`] | [`Bm25`]: full-text search in this process, over a folder or a JSONL corpus |
//! | [`corpus`] | documents read one by one from a folder or a JSONL file |
//! | [`protocol`] | requests and answers of Search-R1's `/retrieve`, as both sides read them |
//! | [`server`] | a retriever behind that protocol |
//!
//! Invariants: a search that failed is a [`RetrievalError`], never an empty list; every search ends by its deadline or
//! its cancellation; answers, queries and documents are bounded; the same corpus and query give the same hits in the
//! same order.

pub mod bm25;
pub mod corpus;
pub mod http;
pub mod protocol;
pub mod retriever;
pub mod server;

pub use bm25::{Bm25, Bm25Options};
pub use http::{HttpOptions, HttpRetriever, QueryForm};
pub use retriever::{Hit, RetrievalError, Retriever, SearchLimits};
