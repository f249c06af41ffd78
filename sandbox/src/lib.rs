//! A persistent Python REPL for language models, in WebAssembly.
//!
//! | module | what lives there |
//! |---|---|
//! | [`limits`] | [`Limits`], every one finite by default |
//! | [`execution`] | [`Execution`], what a block did and why it ended |
//! | [`host`] | [`HostCalls`], what a block may ask of the host |
//! | [`repl`] | [`Sandbox`] and [`Repl`] |
//!
//! Invariants: the guest has no powers but [`HostCalls`]; limits are the host's and finite; a block that had to be
//! killed leaves the REPL as it was before the block; no block can break an empty next block.

pub mod execution;
pub mod host;
pub mod limits;
pub mod repl;

pub use espalier_sandbox_protocol::{FinalAnswer, HostCall, Value, VariableInfo, literal};
pub use execution::{Execution, Outcome};
pub use host::{CallContext, CallError, HostCalls, NoHostCalls};
pub use limits::Limits;
pub use repl::{Context, Policy, Repl, ReplOptions, Sandbox, SandboxError, Tool};
