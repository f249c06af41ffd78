//! Process groups: torch's own c10d from Rust.
//!
//! | module | what lives there |
//! |---|---|
//! | `group` | [`Group`]: the ranks of a job, their collectives, and [`Work`] that runs meanwhile |
//! | `objects` | bytes and JSON values between ranks |
//! | `rendezvous` | [`Rendezvous`]: where ranks meet, from the variables that `torchrun` or `srun` set |
//! | `launch` | [`spawn_local`]: N ranks on this machine, and [`LocalStore`] where they meet |
//! | `wire` | one collective, from the check that the ranks agree to the data |
//! | `error` | [`DistributedError`] |
//! | `ffi` | the C++ shim; the only `unsafe` |
//!
//! Invariants: a collective ends within its group's timeout on every rank, with its result or with an error that names the
//! rank, the call and what to do. No data moves before the ranks agree on what they do. After a broken connection the
//! group does nothing more.

mod error;
mod ffi;
mod group;
mod launch;
mod objects;
mod rendezvous;
mod wire;

pub use error::{DistributedError, Operation, VariableError};
pub use group::{Backend, Group, Reduction, Work};
pub use launch::{LaunchError, LocalStore, RankEnd, RankOutput, spawn_local};
pub use rendezvous::{DEFAULT_TIMEOUT, Rendezvous};
