//! A persistent Python REPL for language models, in WebAssembly.
//!
//! | module | what lives there |
//! |---|---|
//! | [`options`] | [`ReplOptions`], how a REPL is set up |
//! | [`limits`] | [`Limits`], every one finite by default |
//! | [`execution`] | [`Execution`], what a block did and why it ended |
//! | [`host`] | [`HostCalls`], what a block may ask of the host |
//! | [`sandbox`] | [`Sandbox`]: the interpreter, loaded once per process |
//! | [`repl`] | [`Repl`] |
//! | [`error`] | [`SandboxError`] |
//! | `artifact`, `module_cache` | the shipped interpreter; its compiled code on disk |
//! | `memory` | linear memory: the shared image, dirty pages, checkpoints |
//! | `instance`, `imports`, `run` | a live guest, what it imports, one request's bookkeeping |
//! | `template` | guests that were set up already, for others to start from |
//! | `journal` | the way back: checkpoint and replay |
//! | `operation`, `job` | one operation on a REPL, as seen by who awaits it and as it runs on the pool |
//! | `pool`, `ticker`, `meter` | threads for guests, the tick, execution time |
//! | `names` | names that the host may give to tools, variables and exceptions |
//! | `output`, `snapshot` | captured output; a state as bytes |
//!
//! Invariants: the guest has no powers but [`HostCalls`]; limits are the host's and finite; a block that had to be
//! killed leaves the REPL as it was before the block; no block can break an empty next block.
//!
//! A REPL's future may be dropped at any moment. What it ran is dropped with it, on the pool, without running guest
//! code; the next operation on the REPL starts from the state before.

mod artifact;
pub mod error;
pub mod execution;
pub mod host;
mod imports;
mod instance;
mod job;
mod journal;
pub mod limits;
mod memory;
mod meter;
mod module_cache;
mod names;
mod operation;
pub mod options;
mod output;
mod pool;
pub mod repl;
mod run;
pub mod sandbox;
mod snapshot;
mod template;
mod ticker;

pub use error::{SandboxError, SnapshotError};
pub use espalier_sandbox_protocol::{FinalAnswer, HostCall, Value, VariableInfo, literal};
pub use execution::{Execution, Outcome, Output};
pub use host::{CallContext, CallError, HostCalls, NoHostCalls};
pub use limits::Limits;
pub use module_cache::ModuleOrigin;
pub use options::{Context, Policy, ReplOptions, Tool};
pub use repl::Repl;
pub use sandbox::{LoadOptions, LoadReport, Sandbox};
