//! Environments, graders and the environment registry.
//!
//! | module | what lives there |
//! |---|---|
//! | [`env`] | [`env::Env`], what every environment implements, and what it is given |
//! | [`services`] | what an environment may ask of the rollout that plays it: sub-calls, children, budget |
//!
//! Invariants: an environment knows nothing of who plays it; graders never run in a state that the policy touched; a
//! failure is an [`env::EnvError`], never a silent reward of 0.

pub mod env;
pub mod services;

pub use env::{Action, Env, EnvContext, EnvError, History, Metrics, Step};
pub use services::{ChildAnswer, ChildRequest, NoServices, Services, SubCallError, SubQuery};
