//! The Tinker API as its official SDK (`tinker` 0.38.0 on PyPI) speaks it. `docs/tinker.md` says what is served.
//!
//! | module | what lives there |
//! |---|---|
//! | [`proto`] | the protobuf messages of the wire |
//! | [`tensor`], [`datum`] | training data: bytes of the wire to checked numbers |
//! | [`wire`] | JSON requests, read so that every complaint names its field |
//! | [`ids`], [`path`] | names of sessions, models, samplers and checkpoints |
//! | [`operation`] | what is asked of an engine, and what it answers; their stored form |
//! | [`backend`] | [`Backend`]: what an engine must do; [`ScriptedBackend`] for tests |
//! | [`store`] | the database: sessions, models, samplers, and the queue of requests with its order. All SQL is here |
//! | `payloads` | large requests and results, in files that are named by what they hold |
//! | `links` | signed links to files of checkpoints |
//! | `shelf` | who writes, reads and removes which checkpoint |
//! | `waiters` | who waits for which request |
//! | `worker` | executes requests in the order that the store gives |
//! | `housekeeping` | ends sessions that fell silent, forgets old results |
//! | `routes` | one function per path |
//! | [`keys`] | [`Keys`]: who may use the server |
//! | [`options`], [`server`], [`error`] | bounds; [`serve`]; refusals |
//!
//! Invariants:
//!
//! - The database is the queue. A request that was acknowledged is in it, and is executed once: its place
//!   `(model, seq_id)` or `(sampler, seq_id)` is unique, whatever the client sends again.
//! - One model does one thing at a time, in the order of its `seq_id`. A request that comes early waits; a request that was
//!   refused with a 4xx leaves its place used up, so that those after it go on.
//! - A result is kept for [`ServerOptions::keep_results`] and can be fetched any number of times.
//! - What belongs to one key does not exist for any other.

pub mod backend;
pub mod datum;
pub mod error;
mod housekeeping;
pub mod ids;
pub mod keys;
mod links;
pub mod operation;
pub mod options;
pub mod path;
mod payloads;
pub mod proto;
mod routes;
mod scripted;
pub mod server;
mod shelf;
pub mod store;
pub mod tensor;
mod waiters;
pub mod wire;
mod worker;

pub use backend::{Backend, BaseModel, Category, OperationError, Progress};
pub use error::ApiError;
pub use keys::{KeyError, Keys};
pub use operation::{Operation, Outcome};
pub use options::ServerOptions;
pub use scripted::ScriptedBackend;
pub use server::{ServeError, serve};
pub use store::{Store, StoreError};
