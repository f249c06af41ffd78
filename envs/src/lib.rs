//! Environments, graders and the environment registry.
//!
//! | module | what lives there |
//! |---|---|
//! | [`mod@env`] | [`env::Env`], what every environment implements, and what it is given |
//! | [`services`] | what an environment may ask of the rollout that plays it: sub-calls, children, budget |
//! | [`registry`] | environments by id, with typed parameters: [`make`], [`registry::EnvKind`] |
//! | [`row`] | [`row::EnvRow`], one row of a data set as environments read it |
//! | [`mod@grade`] | recorded responses graded as a rollout would be |
//! | [`computing`] | graders that compute, where a deadline or a cancellation can give up on them |
//! | [`params`], [`metrics`] | reading parameters, summarising what episodes report |
//! | [`rlm`] | the recursive language model: Python in a persistent REPL |
//! | [`gsm8k`], [`long`] | mathematics in one turn; long contexts that the project generates |
//! | [`graders`] | pure functions from an answer and the truth to a verdict |
//! | [`reasoning`] | short generated problems, graded by the verifier of their family |
//! | `thinking` | what a response says beside its thinking |
//! | [`stories`] | word problems that the project generates |
//! | [`builtin`] | the data sets that the project generates, by name |
//! | [`prompt_tokens`] | how long a data set's prompts are for a model |
//!
//! Invariants: an environment knows nothing of who plays it; graders never run in a state that the policy touched; a
//! failure is an [`env::EnvError`], never a silent reward of 0.

pub mod aime;
pub mod builtin;
pub mod code;
pub mod computing;
pub mod env;
pub mod evidence;
pub mod grade;
pub mod gsm8k;
pub mod gsm8k_multi_turn;
pub mod llm_judge;
pub mod long;
pub mod math;
pub mod metrics;
pub mod params;
pub mod prompt_tokens;
pub mod python_env;
pub mod reasoning;
pub mod registry;
pub mod rlm;
pub mod row;
pub mod search;
pub mod searchcode;
pub mod services;
pub mod stories;
pub mod text2sql;
mod thinking;
pub mod tool_use;

pub use espalier_graders as graders;

use serde::{Deserialize, Serialize};

pub use env::{Action, Env, EnvContext, EnvError, History, Metrics, Step};
pub use registry::{ColumnSpec, EnvKind, EnvSpec, ParamSpec, Prepared, Registry, make};
pub use row::EnvRow;
pub use services::{ChildAnswer, ChildRequest, JudgeRequest, NoServices, Services, SubCallError, SubQuery};

/// Behaviour that published models and data sets assume, faults included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Compat {
    /// skyrl-gym's.
    Skyrl,
}
