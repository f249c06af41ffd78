//! `search`: questions answered with a search engine, in the protocol of Search-R1.
//!
//! | module | what lives there |
//! |---|---|
//! | `env` | the episode |
//! | [`tags`] | `<search>` and `<answer>` read out of a turn; kept out of documents |
//! | [`qa`] | answers normalised and compared: exact match, containment, F1 |
//! | `tool` | where searches go, and what is shown of what they find; also for `searchcode` |
//! | `original` | skyrl-gym's tool, letter by letter, for `compat = "skyrl"` |
//!
//! Invariants: a reward comes from the model's own text, never from a document; a document cannot pass for a tag; a
//! search that failed is no empty result.

mod env;
pub(crate) mod original;
pub mod qa;
pub mod tags;
pub(crate) mod tool;

use std::path::PathBuf;
use std::sync::Arc;

use espalier_datasets::error::kind;
use serde::Deserialize;
use serde_json::Value;

pub use self::tool::{Form, OnFailure};
use crate::Compat;
use crate::env::{Env, EnvError};
use crate::registry::{ColumnSpec, EnvKind, EnvSpec, ParamSpec};
use crate::row::EnvRow;

const ID: &str = "search";

/// Added to a prompt that does not speak of `<search>` itself.
pub const INSTRUCTION: &str = "Reason first, between <think> and </think>. Whenever you lack knowledge, search: write \
<search>what to look for</search> and end your turn there. What is found comes back between <information> and \
</information>; you may search as often as you have turns. As soon as you know the answer, give it alone and as short as \
it can be, like this: <answer>Paris</answer>";

/// The parameters of `search`.
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
    /// How answers are scored.
    pub metric: qa::Metric,
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
            metric: qa::Metric::Em,
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
}

/// The kind of environment that answers questions with a search engine.
#[derive(Clone, Copy, Debug)]
pub struct Search;

impl EnvKind for Search {
    type Params = Params;

    fn spec(&self) -> EnvSpec {
        let mut params = tool::param_specs();
        params.push(ParamSpec {
            name: "metric",
            kind: "\"em\", \"sub_em\" or \"f1\"",
            default: "\"em\"",
            doc: "how answers are scored: exact match, containment or F1 of words, after normalisation",
        });
        params.push(ParamSpec {
            name: "compat",
            kind: "\"skyrl\"",
            default: "none",
            doc: "skyrl-gym's behaviour: documents as JSON text, answers taken from the whole conversation",
        });
        EnvSpec {
            id: ID.to_owned(),
            summary: "Questions answered with a search engine, over several turns (Search-R1's protocol).".to_owned(),
            params,
            columns: vec![
                ColumnSpec { name: "prompt", required: true, doc: "the question" },
                ColumnSpec {
                    name: "reward_spec.ground_truth",
                    required: true,
                    doc: "the accepted answer or answers: `{\"target\": [TEXT, ...]}`, a text, or a list of texts",
                },
            ],
        }
    }

    fn check(&self, params: &Params) -> Result<(), EnvError> {
        params.source().check(ID)?;
        let invalid = |key: &str, reason: &str| {
            Err(EnvError::Invalid { env: ID.to_owned(), key: key.to_owned(), reason: reason.to_owned() })
        };
        if params.document_chars == 0 {
            return invalid("document_chars", "must be at least 1, got 0");
        }
        if params.max_turns == Some(0) {
            return invalid("max_turns", "must be at least 1, got 0");
        }
        if params.compat.is_some() && params.metric != qa::Metric::Em {
            return invalid("metric", "cannot be chosen with `compat = \"skyrl\"`, which is exact match");
        }
        Ok(())
    }

    fn make(&self, params: &Arc<Params>, row: &EnvRow) -> Result<Box<dyn Env>, EnvError> {
        let accepted = accepted(row)?;
        if params.compat.is_none() && accepted.iter().any(|text| text.trim().is_empty()) {
            return Err(EnvError::Invalid {
                env: ID.to_owned(),
                key: "reward_spec.ground_truth".to_owned(),
                reason: format!("must not accept an empty answer, got one in row `{}`", row.id),
            });
        }
        Ok(Box::new(env::Episode::new(params.clone(), accepted)))
    }
}

/// The accepted answers of a row.
fn accepted(row: &EnvRow) -> Result<Vec<String>, EnvError> {
    let truth = row.truth(ID)?;
    let (key, target) = match truth {
        Value::Object(fields) => ("reward_spec.ground_truth.target", fields.get("target").unwrap_or(&Value::Null)),
        other => ("reward_spec.ground_truth", other),
    };
    let invalid = |got: &str| EnvError::Invalid {
        env: ID.to_owned(),
        key: key.to_owned(),
        reason: format!("must be a text or a list of texts, got {got} in row `{}`", row.id),
    };
    let text = |value: &Value| match value {
        Value::String(text) => Ok(text.clone()),
        Value::Number(number) => Ok(number.to_string()),
        other => Err(invalid(kind(other))),
    };
    match target {
        Value::Array(items) if items.is_empty() => Err(invalid("an empty list")),
        Value::Array(items) => items.iter().map(text).collect(),
        other => Ok(vec![text(other)?]),
    }
}
