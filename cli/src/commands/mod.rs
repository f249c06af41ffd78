//! One module per subcommand.

pub(crate) mod bench;
pub(crate) mod data;
pub(crate) mod eval;
pub(crate) mod grade;
#[cfg(feature = "torch")]
pub(crate) mod model;
pub(crate) mod repl;
pub(crate) mod rollout;
pub(crate) mod serve;
#[cfg(feature = "torch")]
pub(crate) mod serve_openai;
pub(crate) mod serve_sandbox;
pub(crate) mod serve_search;
#[cfg(feature = "torch")]
pub(crate) mod serve_tinker;
#[cfg(feature = "torch")]
pub(crate) mod train;
pub(crate) mod trajectories;
