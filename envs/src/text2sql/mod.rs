//! `text2sql`: questions answered by SQL over SQLite databases, in several turns.
//!
//! | module | what lives there |
//! |---|---|
//! | this one | parameters, columns, how a row becomes an episode |
//! | `episode` | the turns: one query each, until a solution or the turn limit |
//! | `protocol` | the tags in what the model says, and whether it kept to the format |
//! | `quoting` | what stands in SQL's quotes, where a tag is text |
//! | `grading` | whether the solution's result is the gold query's |
//! | `skyrl` | the texts of skyrl-gym's tool, for `compat = "skyrl"` |
//!
//! Invariants: only what the model itself said can score, never what a database holds; the database is never written
//! to; a gold query that fails is an error, not a reward; under `compat` rewards, ends and observations are
//! skyrl-gym's, and the two invariants about the model's own text and the gold query do not hold.

mod episode;
mod grading;
mod protocol;
mod quoting;
mod skyrl;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use espalier_datasets::error::kind;
use espalier_sql::locate::{self, Layout};
use espalier_sql::statement::Statement;
use espalier_sql::{Databases, OpenOptions};
use serde::Deserialize;
use serde_json::Value;

use crate::Compat;
use crate::env::{Env, EnvError};
use crate::params;
use crate::registry::{ColumnSpec, EnvKind, EnvSpec, ParamSpec};
use crate::row::EnvRow;

const ID: &str = "text2sql";

/// The parameters of `text2sql`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Params {
    /// The folder under which the databases lie.
    pub db_path: PathBuf,
    /// Seconds that a query of the model may take.
    pub query_timeout: f64,
    /// Seconds that the solution and the gold query may take, each.
    pub grade_timeout: f64,
    /// Rows of a result that are shown.
    pub shown_rows: usize,
    /// Characters of a result that are shown.
    pub shown_chars: usize,
    /// Nobody changes the databases while they are open.
    pub immutable: bool,
    /// Behave as another framework does.
    pub compat: Option<Compat>,
}

impl Default for Params {
    fn default() -> Self {
        Self {
            db_path: PathBuf::new(),
            query_timeout: 5.0,
            grade_timeout: 30.0,
            shown_rows: 50,
            shown_chars: 4000,
            immutable: false,
            compat: None,
        }
    }
}

impl Params {
    fn query_time(&self) -> Duration {
        Duration::from_secs_f64(self.query_timeout)
    }

    fn grade_time(&self) -> Duration {
        Duration::from_secs_f64(self.grade_timeout)
    }

    fn skyrl(&self) -> bool {
        self.compat == Some(Compat::Skyrl)
    }
}

/// The kind of environment that plays questions over databases. Its episodes share the open databases.
#[derive(Debug)]
pub struct Text2Sql {
    databases: Arc<Databases>,
    immutable: Arc<Databases>,
}

impl Text2Sql {
    /// With nothing open yet.
    pub fn new() -> Self {
        Self { databases: Arc::default(), immutable: Arc::new(Databases::new(OpenOptions { immutable: true })) }
    }
}

impl Default for Text2Sql {
    fn default() -> Self {
        Self::new()
    }
}

fn invalid(key: &str, reason: String) -> EnvError {
    EnvError::Invalid { env: ID.to_owned(), key: key.to_owned(), reason }
}

impl EnvKind for Text2Sql {
    type Params = Params;

    fn spec(&self) -> EnvSpec {
        let param = |name, kind, default, doc| ParamSpec { name, kind, default, doc };
        EnvSpec {
            id: ID.to_owned(),
            summary: "Questions over SQLite databases in several turns, graded by the result of the SQL.".to_owned(),
            params: vec![
                param("db_path", "a folder", "none, it must be given", "where the databases lie"),
                param("query_timeout", "seconds", "5", "the most that a query of the model may take"),
                param("grade_timeout", "seconds", "30", "the most that the solution and the gold query may take, each"),
                param("shown_rows", "a whole number", "50", "rows of a result that are shown; 50 under compat"),
                param(
                    "shown_chars",
                    "a whole number",
                    "4000",
                    "characters of a result that are shown; 9000 under compat",
                ),
                param("immutable", "true or false", "false", "nobody changes the databases while they are open"),
                param(
                    "compat",
                    "\"skyrl\"",
                    "none",
                    "behave as skyrl-gym does: sets of rows, tags in observations count, a gold query that fails is 0",
                ),
            ],
            columns: vec![
                ColumnSpec {
                    name: "prompt",
                    required: true,
                    doc: "the question; the format and the schema are added where it says nothing of `<solution>`",
                },
                ColumnSpec { name: "db_id", required: true, doc: "the database's name" },
                ColumnSpec {
                    name: "data",
                    required: false,
                    doc: "the layout of the folder: `synsql`, `spider`, `bird`, or `plain` (`{db_id}/{db_id}.sqlite` or `{db_id}.sqlite`); required under compat",
                },
                ColumnSpec {
                    name: "reward_spec.ground_truth",
                    required: true,
                    doc: "the gold query, or a list of queries of which any result is right",
                },
            ],
        }
    }

    fn check(&self, params: &Params) -> Result<(), EnvError> {
        if params.db_path.as_os_str().is_empty() {
            return Err(invalid("db_path", "is missing: name the folder under which the databases lie".to_owned()));
        }
        if !params.db_path.is_dir() {
            return Err(EnvError::Unusable {
                env: ID.to_owned(),
                key: "db_path".to_owned(),
                reason: format!("must be a folder, `{}` is none", params.db_path.display()),
            });
        }
        for (key, seconds) in [("query_timeout", params.query_timeout), ("grade_timeout", params.grade_timeout)] {
            if !(seconds > 0.0 && seconds <= 86_400.0) {
                return Err(invalid(key, format!("must be more than 0 and at most 86400 seconds, got {seconds}")));
            }
        }
        for (key, count) in [("shown_rows", params.shown_rows), ("shown_chars", params.shown_chars)] {
            if count == 0 || count > 1_000_000 {
                return Err(invalid(key, format!("must be from 1 to 1000000, got {count}")));
            }
        }
        Ok(())
    }

    fn make(&self, params: &Arc<Params>, row: &EnvRow) -> Result<Box<dyn Env>, EnvError> {
        let path = find(params, row)?;
        let databases = if params.immutable { &self.immutable } else { &self.databases };
        let database = databases
            .open(&path)
            .map_err(|error| EnvError::Failed { env: ID.to_owned(), reason: error.to_string() })?;
        let gold = if row.graded { gold(params, row)? } else { Vec::new() };
        Ok(Box::new(episode::Episode::new(Arc::clone(params), database, row.id.clone(), gold)))
    }
}

/// The row's database.
fn find(params: &Params, row: &EnvRow) -> Result<PathBuf, EnvError> {
    let column = |key: &str| match row.columns.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.as_str())),
        Some(other) => Err(invalid(key, format!("must be a text, got {} in row `{}`", kind(other), row.id))),
    };
    let missing = |key: &str| invalid(key, format!("is missing in row `{}`", row.id));
    let id = column("db_id")?.ok_or_else(|| missing("db_id"))?;
    let layout = match column("data")? {
        None if params.skyrl() => return Err(missing("data")),
        None => Layout::Plain,
        Some(name) => Layout::named(name).ok_or_else(|| {
            let hint = params::hint(name, Layout::NAMES.into_iter());
            invalid("data", format!("names no layout of databases, got `{name}` in row `{}`; {hint}", row.id))
        })?,
    };
    locate::find(Path::new(&params.db_path), layout, id)
        .map_err(|error| invalid("db_id", format!("of row `{}`: {error}", row.id)))
}

/// The row's gold queries.
fn gold(params: &Params, row: &EnvRow) -> Result<Vec<String>, EnvError> {
    let wrong = |what: &str| {
        invalid(
            "reward_spec.ground_truth",
            format!("must be a query or a list of queries, got {what} in row `{}`", row.id),
        )
    };
    let queries = match row.truth(ID)? {
        Value::String(sql) => Ok(vec![sql.clone()]),
        Value::Array(list) if !params.skyrl() && !list.is_empty() => list
            .iter()
            .map(|one| one.as_str().map(str::to_owned).ok_or_else(|| wrong(&format!("a list with {}", kind(one)))))
            .collect(),
        other => Err(wrong(kind(other))),
    }?;
    if !params.skyrl() && queries.iter().any(|sql| Statement::read(sql).is_empty()) {
        return Err(wrong("an empty query"));
    }
    Ok(queries)
}
