//! Environments by id.
//!
//! [`EnvKind`] is what an author registers: parameters as a type, a description, and how a row becomes an episode.
//! [`Registry::prepare`] reads the parameters once, before anything is played; [`Prepared::make`] then makes one
//! environment per rollout.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::env::{Env, EnvError, Metrics};
use crate::row::EnvRow;
use crate::{metrics, params, python_env};

/// What there is to know of an environment before it is played.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct EnvSpec {
    /// Its id.
    pub id: String,
    /// One sentence.
    pub summary: String,
    /// Its parameters.
    pub params: Vec<ParamSpec>,
    /// The data columns it reads.
    pub columns: Vec<ColumnSpec>,
}

/// One parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct ParamSpec {
    /// Its name.
    pub name: &'static str,
    /// What it takes, for people: `text`, `one of ...`.
    pub kind: &'static str,
    /// What holds when it is left out.
    pub default: &'static str,
    /// What it does.
    pub doc: &'static str,
}

/// One column.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct ColumnSpec {
    /// Its name, with dots into objects.
    pub name: &'static str,
    /// Whether a row must have it.
    pub required: bool,
    /// What it holds.
    pub doc: &'static str,
}

/// A kind of environment, as its author describes it.
pub trait EnvKind: Send + Sync + 'static {
    /// Its parameters; derive `Deserialize` with `deny_unknown_fields`.
    type Params: DeserializeOwned + Send + Sync + 'static;

    /// Its id, parameters and columns.
    fn spec(&self) -> EnvSpec;

    /// What the type cannot say about its parameters; called once per [`Registry::prepare`].
    fn check(&self, _params: &Self::Params) -> Result<(), EnvError> {
        Ok(())
    }

    /// An environment for one episode of a row.
    fn make(&self, params: &Arc<Self::Params>, row: &EnvRow) -> Result<Box<dyn Env>, EnvError>;

    /// Summarises the metrics of many episodes.
    fn aggregate(&self, episodes: &[Metrics]) -> Metrics {
        metrics::mean(episodes)
    }

    /// Whether the episodes that are summarised are those of children too; else those of roots alone.
    fn pools_children(&self) -> bool {
        false
    }
}

/// [`EnvKind`] without its type.
trait AnyKind: Send + Sync {
    fn spec(&self) -> EnvSpec;
    fn prepare(self: Arc<Self>, params: &Map<String, Value>) -> Result<Arc<dyn Factory>, EnvError>;
    fn aggregate(&self, episodes: &[Metrics]) -> Metrics;
    fn pools_children(&self) -> bool;
}

/// A kind together with its parameters.
trait Factory: Send + Sync {
    fn make(&self, row: &EnvRow) -> Result<Box<dyn Env>, EnvError>;
}

struct WithParams<K: EnvKind> {
    kind: Arc<K>,
    params: Arc<K::Params>,
}

impl<K: EnvKind> Factory for WithParams<K> {
    fn make(&self, row: &EnvRow) -> Result<Box<dyn Env>, EnvError> {
        self.kind.make(&self.params, row)
    }
}

impl<K: EnvKind> AnyKind for K {
    fn spec(&self) -> EnvSpec {
        EnvKind::spec(self)
    }

    fn prepare(self: Arc<Self>, given: &Map<String, Value>) -> Result<Arc<dyn Factory>, EnvError> {
        let params: K::Params = params::read(&<K as EnvKind>::spec(&self).id, given)?;
        self.check(&params)?;
        Ok(Arc::new(WithParams { kind: self, params: Arc::new(params) }))
    }

    fn aggregate(&self, episodes: &[Metrics]) -> Metrics {
        EnvKind::aggregate(self, episodes)
    }

    fn pools_children(&self) -> bool {
        EnvKind::pools_children(self)
    }
}

/// An environment with its parameters read, ready to make one instance per rollout. Cheap to clone.
#[derive(Clone)]
pub struct Prepared {
    id: Arc<str>,
    kind: Arc<dyn AnyKind>,
    factory: Arc<dyn Factory>,
}

impl Prepared {
    /// The environment's id.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// What there is to know of it.
    pub fn spec(&self) -> EnvSpec {
        self.kind.spec()
    }

    /// An environment for one episode of a row (a root's, or [`EnvRow::child`]).
    pub fn make(&self, row: &EnvRow) -> Result<Box<dyn Env>, EnvError> {
        self.factory.make(row)
    }

    /// Summarises the metrics of many episodes, as the environment does it.
    pub fn aggregate(&self, episodes: &[Metrics]) -> Metrics {
        self.kind.aggregate(episodes)
    }

    /// Whether the episodes that are summarised are those of children too.
    pub fn pools_children(&self) -> bool {
        self.kind.pools_children()
    }
}

impl std::fmt::Debug for Prepared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Prepared").field("id", &self.id).finish_non_exhaustive()
    }
}

/// Environments by id.
#[derive(Clone, Default)]
pub struct Registry {
    kinds: BTreeMap<String, Arc<dyn AnyKind>>,
}

static STANDARD: LazyLock<Registry> = LazyLock::new(Registry::standard);

impl Registry {
    /// An empty registry.
    pub fn new() -> Self {
        Self::default()
    }

    /// A registry of every environment in this crate.
    pub fn standard() -> Self {
        let mut registry = Self::new();
        let kinds: Vec<Arc<dyn AnyKind>> = vec![
            Arc::new(crate::aime::Aime),
            Arc::new(crate::code::lcb::Lcb),
            Arc::new(crate::code::program::Code),
            Arc::new(crate::evidence::EvidenceRlm::multi()),
            Arc::new(crate::evidence::EvidenceRlm::single()),
            Arc::new(crate::gsm8k::Gsm8k),
            Arc::new(crate::gsm8k_multi_turn::Gsm8kMultiTurn),
            Arc::new(crate::llm_judge::LlmJudge),
            Arc::new(crate::long::Long::default()),
            Arc::new(crate::math::Math),
            Arc::new(crate::rlm::Rlm::default()),
            Arc::new(crate::search::Search),
            Arc::new(crate::searchcode::SearchCode),
            Arc::new(crate::text2sql::Text2Sql::new()),
            Arc::new(crate::tool_use::ToolUse),
        ];
        let long = crate::long::kinds().map(|kind| Arc::new(kind) as Arc<dyn AnyKind>);
        let reasoning = crate::reasoning::kinds().map(|kind| Arc::new(kind) as Arc<dyn AnyKind>);
        for kind in kinds.into_iter().chain(long).chain(reasoning) {
            registry.kinds.insert(kind.spec().id, kind);
        }
        registry
    }

    /// Adds an environment. An id that is taken is refused.
    pub fn register<K: EnvKind>(&mut self, kind: K) -> Result<(), EnvError> {
        let id = EnvKind::spec(&kind).id;
        if self.kinds.contains_key(&id) {
            return Err(EnvError::Duplicate { id });
        }
        self.kinds.insert(id, Arc::new(kind));
        Ok(())
    }

    /// Removes an environment.
    pub fn deregister(&mut self, id: &str) -> Result<(), EnvError> {
        match self.kinds.remove(id) {
            Some(_) => Ok(()),
            None => Err(self.unknown(id)),
        }
    }

    /// Every id, in alphabetical order.
    pub fn ids(&self) -> impl Iterator<Item = &str> {
        self.kinds.keys().map(String::as_str)
    }

    /// What there is to know of an environment.
    pub fn spec(&self, id: &str) -> Result<EnvSpec, EnvError> {
        Ok(self.kind(id)?.spec())
    }

    /// Reads an environment's parameters.
    pub fn prepare(&self, id: &str, params: &Map<String, Value>) -> Result<Prepared, EnvError> {
        let kind = self.kind(id)?;
        let factory = Arc::clone(&kind).prepare(params)?;
        Ok(Prepared { id: id.into(), kind, factory })
    }

    /// An environment for one episode of a row.
    pub fn make(&self, id: &str, params: &Map<String, Value>, row: &EnvRow) -> Result<Box<dyn Env>, EnvError> {
        self.prepare(id, params)?.make(row)
    }

    fn kind(&self, id: &str) -> Result<Arc<dyn AnyKind>, EnvError> {
        match self.kinds.get(id) {
            Some(kind) => Ok(Arc::clone(kind)),
            None if id.starts_with(python_env::PREFIX) => Ok(Arc::new(python_env::PythonEnv::open(id)?)),
            None => Err(self.unknown(id)),
        }
    }

    fn unknown(&self, id: &str) -> EnvError {
        EnvError::Unknown { id: id.to_owned(), hint: params::hint(id, self.ids()) }
    }
}

/// An environment of this crate for one episode of a row.
///
/// ```
/// use espalier_envs::EnvRow;
///
/// let row = EnvRow::ask("What is 6 * 7?").with_truth("42");
/// let env = espalier_envs::make("gsm8k", &serde_json::Map::new(), &row)?;
/// # Ok::<(), espalier_envs::EnvError>(())
/// ```
pub fn make(id: &str, params: &Map<String, Value>, row: &EnvRow) -> Result<Box<dyn Env>, EnvError> {
    STANDARD.make(id, params, row)
}
