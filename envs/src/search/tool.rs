//! The search tool: where it searches, opened once for all episodes, and what it shows of what it found.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use espalier_retrieval::corpus::Corpus;
use espalier_retrieval::{
    Bm25, Bm25Options, Hit, HttpOptions, HttpRetriever, QueryForm, RetrievalError, Retriever, SearchLimits,
};
use serde::Deserialize;
use tokio::sync::OnceCell;

use super::tags;
use crate::Compat;
use crate::env::{EnvContext, EnvError};
use crate::registry::ParamSpec;

/// Where a search goes when no parameter says.
pub(crate) const DEFAULT_URL: &str = "http://127.0.0.1:8000/retrieve";

/// Most documents that a search may ask for.
pub(crate) const MAX_TOPK: usize = 1000;

/// What happens to an episode whose search failed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnFailure {
    /// It ends as failed: an outage says nothing about the model, so nothing is rewarded or trained on.
    #[default]
    Fail,
    /// The model is told, and may search again or answer.
    Tell,
}

/// How queries are put to a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Form {
    /// `{"query": TEXT}`
    #[default]
    Single,
    /// `{"queries": [TEXT]}`
    List,
}

/// Where and how a search tool searches.
#[derive(Clone, Debug)]
pub(crate) struct Source<'a> {
    pub(crate) search_url: Option<&'a str>,
    pub(crate) corpus: Option<&'a Path>,
    pub(crate) query_form: Form,
    pub(crate) topk: usize,
    /// Seconds that one try may take.
    pub(crate) timeout: f64,
    pub(crate) tries: usize,
    pub(crate) compat: Option<Compat>,
}

/// The parameters that the environments with a search tool share.
pub(crate) fn param_specs() -> Vec<ParamSpec> {
    vec![
        ParamSpec {
            name: "search_url",
            kind: "address",
            default: "\"http://127.0.0.1:8000/retrieve\"",
            doc: "the retrieval server: Search-R1's protocol, as `espalier serve search` speaks it",
        },
        ParamSpec {
            name: "corpus",
            kind: "path",
            default: "none",
            doc: "search this folder of texts or JSONL file in this process instead of asking a server",
        },
        ParamSpec {
            name: "query_form",
            kind: "\"single\" or \"list\"",
            default: "\"single\"",
            doc: "how the server takes queries: `query`, or `queries` with a list as Search-R1's own server",
        },
        ParamSpec { name: "topk", kind: "number from 1", default: "3", doc: "documents per search" },
        ParamSpec { name: "timeout", kind: "seconds", default: "30", doc: "time of one try of a search" },
        ParamSpec { name: "tries", kind: "number from 1", default: "10", doc: "tries of a search, the first included" },
        ParamSpec {
            name: "on_failure",
            kind: "\"fail\" or \"tell\"",
            default: "\"fail\"",
            doc: "a search that failed after all tries ends the episode as failed, or is told to the model",
        },
        ParamSpec {
            name: "document_chars",
            kind: "number from 1",
            default: "4000",
            doc: "characters shown of each document",
        },
        ParamSpec {
            name: "log_requests",
            kind: "true or false",
            default: "false",
            doc: "accepted for skyrl-gym's configurations; `ESPALIER_LOG=espalier_retrieval=debug` logs requests",
        },
        ParamSpec { name: "max_turns", kind: "number from 1", default: "the rollout's", doc: "most turns" },
    ]
}

enum Backend {
    Http(HttpRetriever),
    Bm25(Bm25),
}

/// A search tool that is ready.
pub(crate) struct SearchTool {
    backend: Backend,
    topk: usize,
}

/// A search tool that is opened by the first episode that needs it.
#[derive(Default)]
pub(crate) struct Shared(OnceCell<Arc<SearchTool>>);

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Shared").field(&self.0.initialized()).finish()
    }
}

impl Source<'_> {
    /// Refuses what cannot be, before anything is played.
    pub(crate) fn check(&self, env: &str) -> Result<(), EnvError> {
        let invalid =
            |key: &str, reason: String| EnvError::Invalid { env: env.to_owned(), key: key.to_owned(), reason };
        if !(1..=MAX_TOPK).contains(&self.topk) {
            return Err(invalid("topk", format!("must be a whole number from 1 to {MAX_TOPK}, got {}", self.topk)));
        }
        if !(self.timeout > 0.0 && self.timeout <= 86_400.0) {
            return Err(invalid("timeout", format!("must be seconds above 0, up to a day, got {}", self.timeout)));
        }
        if !(1..=1000).contains(&self.tries) {
            return Err(invalid("tries", format!("must be a whole number from 1 to 1000, got {}", self.tries)));
        }
        match (self.search_url, self.corpus) {
            (Some(_), Some(_)) => {
                Err(invalid("corpus", "and `search_url` exclude each other: a search goes to one of them".to_owned()))
            }
            (None, Some(path)) => Corpus::open(path).map(|_| ()).map_err(|error| EnvError::Unusable {
                env: env.to_owned(),
                key: "corpus".to_owned(),
                reason: format!("cannot be used: {error}"),
            }),
            (_, None) => self.server().map(|_| ()).map_err(|error| match error {
                RetrievalError::Option { key, reason } => invalid(&key, reason),
                other => invalid("search_url", format!("cannot be used: {other}")),
            }),
        }
    }

    fn server(&self) -> Result<HttpRetriever, RetrievalError> {
        let mut options = HttpOptions {
            form: match self.query_form {
                Form::Single => QueryForm::Single,
                Form::List => QueryForm::List,
            },
            tries: self.tries,
            try_timeout: Duration::from_secs_f64(self.timeout),
            ..HttpOptions::default()
        };
        if self.compat.is_some() {
            options.retried = vec![500, 502, 503, 504];
        }
        HttpRetriever::new(self.search_url.unwrap_or(DEFAULT_URL), options)
    }

    /// The tool, opened now where no episode has yet. A large corpus that is not indexed takes its time the first time.
    pub(crate) async fn open(
        &self,
        env: &str,
        shared: &Shared,
        context: &EnvContext,
    ) -> Result<Arc<SearchTool>, EnvError> {
        let failed = |reason: String| EnvError::Failed { env: env.to_owned(), reason };
        let opening = shared.0.get_or_try_init(async || {
            let backend = match self.corpus {
                Some(path) => {
                    let corpus: PathBuf = path.to_owned();
                    let opened =
                        tokio::task::spawn_blocking(move || Bm25::open(&corpus, &Bm25Options::default())).await;
                    let opened = opened.map_err(|error| failed(format!("indexing ended early: {error}")))?;
                    let opened = opened.map_err(|error| failed(error.to_string()))?;
                    for sentence in opened.left_out().sentences() {
                        tracing::warn!("`{}`: {sentence}", path.display());
                    }
                    Backend::Bm25(opened)
                }
                None => Backend::Http(self.server().map_err(|error| failed(error.to_string()))?),
            };
            Ok(Arc::new(SearchTool { backend, topk: self.topk }))
        });
        tokio::select! {
            biased;
            () = context.cancel.cancelled() => Err(failed("the rollout was cancelled".to_owned())),
            () = tokio::time::sleep_until(context.deadline) => {
                Err(failed("the rollout's time was over before the corpus was indexed".to_owned()))
            }
            opened = opening => opened.cloned(),
        }
    }
}

impl SearchTool {
    /// What fits a query best.
    pub(crate) async fn find(&self, query: &str, limits: &SearchLimits) -> Result<Vec<Hit>, RetrievalError> {
        match &self.backend {
            Backend::Http(server) => server.search(query, self.topk, limits).await,
            Backend::Bm25(corpus) => corpus.search(query, self.topk, limits).await,
        }
    }

    /// The server, unless the search goes to a corpus in this process.
    pub(super) fn server(&self) -> Option<&HttpRetriever> {
        match &self.backend {
            Backend::Http(server) => Some(server),
            Backend::Bm25(_) => None,
        }
    }

    pub(super) fn topk(&self) -> usize {
        self.topk
    }
}

/// When a search of a rollout must end.
pub(crate) fn limits(context: &EnvContext) -> SearchLimits {
    SearchLimits { deadline: context.deadline, cancel: context.cancel.clone() }
}

/// Documents as the model reads them, one paragraph each; what they say cannot pass for a tag of the protocol.
pub(crate) fn show(hits: &[Hit], document_chars: usize) -> String {
    if hits.is_empty() {
        return "Nothing was found.".to_owned();
    }
    let mut text = String::new();
    for (at, hit) in hits.iter().enumerate() {
        if at > 0 {
            text.push('\n');
        }
        let contents = tags::neutral(hit.contents.trim());
        // Where the contents begin with the title it need not be said twice.
        let title = hit.title.as_deref().map(str::trim).filter(|title| !title.is_empty());
        let title = title.filter(|title| !hit.contents.lines().next().is_some_and(|line| line.contains(title)));
        let _ = match title {
            Some(title) => write!(text, "Doc {} ({}): ", at + 1, tags::neutral(title)),
            None => write!(text, "Doc {}: ", at + 1),
        };
        match contents.char_indices().nth(document_chars) {
            Some((end, _)) => {
                let _ = write!(text, "{}… ({} more characters)", &contents[..end], contents[end..].chars().count());
            }
            None => text.push_str(&contents),
        }
        text.push('\n');
    }
    text.truncate(text.trim_end().len());
    text
}
