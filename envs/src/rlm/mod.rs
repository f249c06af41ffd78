//! `rlm`: a recursive language model works on a context in a persistent Python REPL.
//!
//! | module | what lives there |
//! |---|---|
//! | [`env`](mod@env) | the episode: one block per turn, until an answer or the turn limit |
//! | [`config`] | [`Rlm`], the kind, and its parameters |
//! | [`task`] | [`RlmTask`], what an author changes: prompt, tools, reward |
//! | [`parse`] | code blocks and final answers in a response |
//! | [`prompts`] | what the model is told |
//! | [`metadata`] | what it is told of a context that it has not seen |
//! | [`observation`] | what it is shown of a block's end |
//! | [`calls`] | `llm_query`, `rlm_query` and their batched forms |
//! | [`grading`] | the answer against the truth |
//! | [`python`] | values as Python writes them |
//!
//! The default behaviour is right where the original's is not; [`crate::Compat::Skyrl`] is the original's: its block
//! and answer extraction, its observation, the prompt that stands for one turn only, its policy, the variables of a
//! block that raised discarded, answers as text.
//!
//! Invariants: the context, the reward and the budget are the host's; a grader sees the answer's typed value and
//! nothing else of the guest; a dead sandbox ends the episode with an error and is never shown as output.

pub mod calls;
pub mod config;
pub mod env;
pub mod grading;
pub mod metadata;
pub mod observation;
pub mod parse;
pub mod prompts;
pub mod python;
pub mod task;

pub use config::{Params, Rlm};
pub use grading::RewardKind;
pub use task::{Briefing, ChildOutcome, DefaultTask, Grade, Grading, RlmTask, RlmTool};

use espalier_sandbox::{FinalAnswer, Value};

/// An answer given as text: its value is what `ast.literal_eval` makes of it, else the text.
pub(crate) fn parsed_answer(text: &str) -> FinalAnswer {
    match literal(text) {
        Some(Value::Str(inner)) => FinalAnswer { text: inner.clone(), value: Value::Str(inner) },
        Some(value) => FinalAnswer { text: text.to_owned(), value },
        None => FinalAnswer { text: text.to_owned(), value: Value::Str(text.to_owned()) },
    }
}

/// What `ast.literal_eval` makes of a text.
pub(crate) fn literal(text: &str) -> Option<Value> {
    espalier_sandbox::literal::parse(text).ok()
}
