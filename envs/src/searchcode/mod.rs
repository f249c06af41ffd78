//! `searchcode`: questions answered with two tools, a search engine and Python.
//!
//! | module | what lives there |
//! |---|---|
//! | `env` | the episode |
//! | [`calls`] | `<tool>` and `<solution>` read out of a turn |
//! | `python` | the Python tool: WebAssembly or a process behind walls |
//!
//! The search tool is that of [`crate::search`]. Every call of the Python tool is a program of its own: nothing is kept
//! between calls. Invariants: a reward comes from the model's own text; what a tool says cannot pass for a tag; a tool
//! that could not be run is no result.

pub mod calls;
mod env;
mod python;

use std::path::PathBuf;
use std::sync::Arc;

use espalier_datasets::error::kind;
use serde::Deserialize;
use serde_json::Value;

pub use self::python::Runtime;
use crate::Compat;
use crate::env::{Env, EnvError};
use crate::graders::numeric;
use crate::registry::{ColumnSpec, EnvKind, EnvSpec, ParamSpec};
use crate::row::EnvRow;
use crate::search::tool;
use crate::search::{Form, OnFailure};

const ID: &str = "searchcode";

/// Added to a prompt that does not speak of `<tool>` itself.
pub const INSTRUCTION: &str = "You have two tools, and may use one of them per turn. To search, write \
<tool><search>what to look for</search></tool>. To run a Python program, write \
<tool><python>print(6 * 7)</python></tool>; you see what it prints, and nothing is kept for the next program. End your \
turn after the tool. When you know the answer, write it like this: <solution>#### 42</solution>";

/// The parameters of `searchcode`.
#[derive(Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Params {
    /// The retrieval server.
    pub search_url: Option<String>,
    /// A corpus to search in this process instead.
    pub corpus: Option<PathBuf>,
    /// How the server takes queries.
    pub query_form: Form,
    /// Documents per search.
    pub topk: usize,
    /// Seconds that one try of a search may take.
    pub timeout: f64,
    /// Tries of a search, the first included.
    pub tries: usize,
    /// What happens when a search failed.
    pub on_failure: OnFailure,
    /// Characters shown of each document.
    pub document_chars: usize,
    /// Accepted for skyrl-gym's configurations.
    pub log_requests: bool,
    /// Most turns; the rollout's own limit holds too.
    pub max_turns: Option<u32>,
    /// What runs Python; under compat the process sandbox by default, otherwise WebAssembly.
    pub runtime: Option<Runtime>,
    /// Seconds that a program may take.
    pub python_timeout: f64,
    /// Characters shown of what a program wrote.
    pub output_chars: usize,
    /// Behave as another framework does.
    pub compat: Option<Compat>,
    #[serde(skip)]
    shared: tool::Shared,
}

impl Default for Params {
    fn default() -> Self {
        Self {
            search_url: None,
            corpus: None,
            query_form: Form::Single,
            topk: 3,
            timeout: 30.0,
            tries: 10,
            on_failure: OnFailure::Fail,
            document_chars: 4000,
            log_requests: false,
            max_turns: None,
            runtime: None,
            python_timeout: 10.0,
            output_chars: 10_000,
            compat: None,
            shared: tool::Shared::default(),
        }
    }
}

impl Params {
    fn source(&self) -> tool::Source<'_> {
        tool::Source {
            search_url: self.search_url.as_deref(),
            corpus: self.corpus.as_deref(),
            query_form: self.query_form,
            topk: self.topk,
            timeout: self.timeout,
            tries: self.tries,
            compat: self.compat,
        }
    }

    fn runtime(&self) -> Runtime {
        self.runtime.unwrap_or(if self.compat.is_some() { Runtime::Process } else { Runtime::Wasm })
    }
}

/// The kind of environment with a search engine and Python.
#[derive(Clone, Copy, Debug)]
pub struct SearchCode;

impl EnvKind for SearchCode {
    type Params = Params;

    fn spec(&self) -> EnvSpec {
        let mut params = tool::param_specs();
        params.extend([
            ParamSpec {
                name: "runtime",
                kind: "\"wasm\" or \"process\"",
                default: "\"wasm\"",
                doc: "what runs Python: the WebAssembly sandbox, or the machine's `python3` behind walls (the default \
                      under compat)",
            },
            ParamSpec { name: "python_timeout", kind: "seconds", default: "10", doc: "time of one program" },
            ParamSpec {
                name: "output_chars",
                kind: "number from 1",
                default: "10000",
                doc: "characters shown of what a program wrote",
            },
            ParamSpec {
                name: "compat",
                kind: "\"skyrl\"",
                default: "none",
                doc: "skyrl-gym's behaviour: its texts, any output on stderr a failure, the first `#### ` answer of the \
                      whole conversation",
            },
        ]);
        EnvSpec {
            id: ID.to_owned(),
            summary: "Questions answered with a search engine and Python as tools, over several turns.".to_owned(),
            params,
            columns: vec![
                ColumnSpec { name: "prompt", required: true, doc: "the question" },
                ColumnSpec {
                    name: "reward_spec.ground_truth",
                    required: true,
                    doc: "the answer: a number is compared by value, any other text as `search` compares it",
                },
            ],
        }
    }

    fn check(&self, params: &Params) -> Result<(), EnvError> {
        params.source().check(ID)?;
        let invalid =
            |key: &str, reason: String| Err(EnvError::Invalid { env: ID.to_owned(), key: key.to_owned(), reason });
        if !(params.python_timeout > 0.0 && params.python_timeout <= 3600.0) {
            return invalid(
                "python_timeout",
                format!("must be seconds above 0, up to an hour, got {}", params.python_timeout),
            );
        }
        for (key, value) in [("document_chars", params.document_chars), ("output_chars", params.output_chars)] {
            if value == 0 {
                return invalid(key, "must be at least 1, got 0".to_owned());
            }
        }
        if params.max_turns == Some(0) {
            return invalid("max_turns", "must be at least 1, got 0".to_owned());
        }
        Ok(())
    }

    fn make(&self, params: &Arc<Params>, row: &EnvRow) -> Result<Box<dyn Env>, EnvError> {
        let truth = match row.truth(ID)? {
            Value::String(text) if params.compat.is_some() => Truth::Original(Some(text.clone())),
            // Python's text is never equal to something else.
            _ if params.compat.is_some() => Truth::Original(None),
            Value::String(text) if text.trim().is_empty() => {
                return Err(EnvError::Invalid {
                    env: ID.to_owned(),
                    key: "reward_spec.ground_truth".to_owned(),
                    reason: format!("must be a number or a text, got an empty one in row `{}`", row.id),
                });
            }
            Value::String(text) => match numeric::parse(text.trim()) {
                Some(number) => Truth::Number(number),
                None => Truth::Text(text.clone()),
            },
            Value::Number(number) => match numeric::parse(&number.to_string()) {
                Some(number) => Truth::Number(number),
                None => Truth::Text(number.to_string()),
            },
            other => {
                return Err(EnvError::Invalid {
                    env: ID.to_owned(),
                    key: "reward_spec.ground_truth".to_owned(),
                    reason: format!("must be a number or a text, got {} in row `{}`", kind(other), row.id),
                });
            }
        };
        Ok(Box::new(env::Episode::new(params.clone(), truth)))
    }
}

/// What an answer is compared with.
#[derive(Clone, Debug)]
enum Truth {
    /// By value.
    Number(numeric::Number),
    /// Normalised.
    Text(String),
    /// As skyrl-gym does it, as text.
    Original(Option<String>),
}
