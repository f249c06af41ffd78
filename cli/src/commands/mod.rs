//! One module per subcommand.

pub(crate) mod bench;
pub(crate) mod data;
pub(crate) mod eval;
#[cfg(feature = "torch")]
pub(crate) mod model;
pub(crate) mod repl;
pub(crate) mod rollout;
#[cfg(feature = "torch")]
pub(crate) mod serve;
pub(crate) mod trajectories;
