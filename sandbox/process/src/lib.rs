//! Native programs behind walls: the process sandbox.
//!
//! Graders of code run what a language model wrote, natively: [`ProcessSandbox::run`] takes a [`Job`] (`python3` by
//! default), gives it a root view of its own, limits, and nothing else, and returns an [`Outcome`].
//!
//! | module | what lives there |
//! |---|---|
//! | [`config`] | [`ProcessConfig`], how a sandbox is set up; [`ProcessLimits`], every one finite |
//! | [`walls`] | [`Wall`], [`Walls`]: what stands between a job and the host, and why a wall is missing |
//! | [`job`] | [`Job`] and its [`Outcome`] |
//! | [`sandbox`] | [`ProcessSandbox`]: probed once, then one run per job |
//! | [`session`] | [`Session`]: a job that is talked to while it runs |
//! | [`workspace`] | [`Workspace`]: a folder that jobs may write, read by the host without following links |
//! | [`interpreter`] | where Python lives, asked once |
//! | [`error`] | [`ProcessError`] |
//! | `plan` | what happens between the first process of a job and its program, as a list of system calls |
//! | `program`, `init` | that list as an executable of its own; the few instructions that perform it |
//! | `filter`, `cgroup` | the system calls that are refused; memory and processes counted together |
//! | `spawn`, `capture`, `slots` | starting it, what it writes, how many run at once |
//!
//! # How a job starts
//!
//! A job's first process is created with `clone(CLONE_VM | CLONE_VFORK)` and its namespaces, whatever the size of
//! the process that hosts it. It executes a small file in memory at once: a page of instructions that performs system
//! calls from a list (`init`), and that list (`plan`). Everything that sets up the walls therefore happens in a
//! process with one thread that holds no memory of the host. That process stays as the first of its process
//! namespace, collects what is left behind and reports how the program ended; when it dies, all die.
//!
//! # Invariants
//!
//! - A program never runs with fewer walls than the configuration requires: what was probed is what is set up, and a
//!   step that fails ends the job before the program starts.
//! - When a run returns, or its future is dropped, every process of the job is dead or about to be killed by the
//!   kernel; nothing of it is waited for without a deadline.
//! - Captured output is bounded; counts of it are true.
//! - The host never follows a link that a job could have planted.

mod capture;
mod cgroup;
pub mod config;
pub mod error;
mod filter;
mod init;
pub mod interpreter;
pub mod job;
mod plan;
mod program;
pub mod sandbox;
pub mod session;
mod slots;
mod spawn;
pub mod walls;
pub mod workspace;

pub use capture::Captured;
pub use config::{ProcessConfig, ProcessLimits};
pub use error::ProcessError;
pub use job::{Job, Outcome, Program, Status};
pub use sandbox::ProcessSandbox;
pub use session::Session;
pub use walls::{Wall, WallState, Walls};
pub use workspace::Workspace;
