//! The sandbox over HTTP: REPLs for programs in other processes and on other machines. `docs/sandbox-http.md` is its
//! reference.
//!
//! | module | what lives there |
//! |---|---|
//! | [`options`] | [`ServerOptions`], every bound finite by default |
//! | [`keys`] | [`Keys`]: who may use it, and whose REPLs are whose |
//! | [`server`] | [`serve`]: from a listener to the end of the last request |
//! | [`wire`] | what requests hold and answers look like: the names of `espalier repl --json` |
//! | [`value`] | Python values as JSON and back |
//! | [`error`] | [`ApiError`]: every refusal as JSON with a type |
//! | `routes` | one function per path |
//! | `session`, `sessions` | one REPL and what it is doing; all of them, and the reaper |
//! | `ledger` | how many REPLs and how much memory are promised |
//!
//! Invariants: a REPL belongs to one key, and to any other it does not exist; a REPL does one thing at a time, and says
//! what it is doing to whoever asks for another; no block depends on a connection, so a client that goes away loses
//! nothing and keeps nothing: a REPL that nobody asked anything for [`ServerOptions::idle_timeout`] is closed, whatever
//! it is doing; every wait has a deadline; connections and bodies are bounded by `espalier-serving`.

pub mod error;
pub mod keys;
mod ledger;
pub mod options;
mod routes;
pub mod server;
mod session;
mod sessions;
pub mod value;
pub mod wire;

pub use error::ApiError;
pub use keys::{KeyError, Keys};
pub use options::ServerOptions;
pub use server::{Closed, ServeError, serve};
