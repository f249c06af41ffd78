//! The sandbox over HTTP.
