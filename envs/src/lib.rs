//! Environments, graders and the environment registry.
//!
//! | module | what lives there |
//! |---|---|
//! | [`mod@env`] | [`env::Env`], what every environment implements, and what it is given |
//! | [`services`] | what an environment may ask of the rollout that plays it: sub-calls, children, budget |
//! | [`registry`] | environments by id, with typed parameters: [`make`], [`registry::EnvKind`] |
//! | [`row`] | [`row::EnvRow`], one row of a data set as environments read it |
//! | [`params`], [`metrics`] | reading parameters, summarising what episodes report |
//! | [`rlm`] | the recursive language model: Python in a persistent REPL |
//! | [`gsm8k`], [`long`] | mathematics in one turn; long contexts that the project generates |
//! | [`graders`] | pure functions from an answer and the truth to a verdict |
//! | [`stories`] | word problems that the project generates |
//! | [`builtin`] | the data sets that the project generates, by name |
//!
//! Invariants: an environment knows nothing of who plays it; graders never run in a state that the policy touched; a
//! failure is an [`env::EnvError`], never a silent reward of 0.

pub mod builtin;
pub mod env;
pub mod graders;
pub mod gsm8k;
pub mod long;
pub mod metrics;
pub mod params;
pub mod registry;
pub mod rlm;
pub mod row;
pub mod services;
pub mod stories;

use serde::{Deserialize, Serialize};

pub use env::{Action, Env, EnvContext, EnvError, History, Metrics, Step};
pub use registry::{ColumnSpec, EnvKind, EnvSpec, ParamSpec, Prepared, Registry, make};
pub use row::EnvRow;
pub use services::{ChildAnswer, ChildRequest, NoServices, Services, SubCallError, SubQuery};

/// Behaviour that published models and data sets assume, faults included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Compat {
    /// skyrl-gym's.
    Skyrl,
}
