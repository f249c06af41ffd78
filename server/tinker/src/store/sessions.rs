//! Sessions, and their ends.

use serde_json::{Map, Value};
use sqlx::sqlite::SqliteConnection;

use super::{Store, StoreError, now};
use crate::ids::SessionId;
use crate::wire::session::CreateSession;

/// Whether a session takes work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It does.
    Open,
    /// It ended.
    Ended,
    /// There is none of that name, for this owner.
    Unknown,
}

/// A session, for those who read.
#[derive(Clone, Debug, PartialEq)]
pub struct SessionInfo {
    /// Its models.
    pub models: Vec<String>,
    /// Its samplers.
    pub samplers: Vec<String>,
    /// What its creator wrote.
    pub user_metadata: Map<String, Value>,
    /// What its creator called it.
    pub display_name: Option<String>,
}

/// A session that ended, and its requests that were not finished.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    /// Which.
    pub session: SessionId,
    /// Requests that failed with it, with their lanes.
    pub requests: Vec<(String, String)>,
}

pub(super) async fn standing(
    connection: &mut SqliteConnection,
    owner: &str,
    session: &SessionId,
) -> Result<Standing, StoreError> {
    let found: Option<(String, Option<i64>)> =
        sqlx::query_as("SELECT owner, ended_at FROM sessions WHERE session_id = $1")
            .bind(session.as_str().to_owned())
            .fetch_optional(connection)
            .await?;
    Ok(match found {
        Some((found, ended)) if found == owner => {
            if ended.is_some() {
                Standing::Ended
            } else {
                Standing::Open
            }
        }
        _ => Standing::Unknown,
    })
}

/// Ends a session, unless it ended before; answers the requests that fail with it.
async fn end(
    connection: &mut SqliteConnection,
    session: &SessionId,
    reason: &str,
    at: i64,
) -> Result<Option<Ended>, StoreError> {
    let changed =
        sqlx::query("UPDATE sessions SET ended_at = $2, ended_reason = $3 WHERE session_id = $1 AND ended_at IS NULL")
            .bind(session.as_str().to_owned())
            .bind(at)
            .bind(reason.to_owned())
            .execute(&mut *connection)
            .await?;
    if changed.rows_affected() == 0 {
        return Ok(None);
    }
    let requests: Vec<(String, String)> = sqlx::query_as(
        "UPDATE requests SET state = 4, error = $2, category = 'user', finished_at = $3, payload = NULL, payload_file = NULL \
         WHERE session_id = $1 AND state IN (0, 1, 2) RETURNING request_id, lane",
    )
    .bind(session.as_str().to_owned())
    .bind(format!("the session ended ({reason}) before this was done"))
    .bind(at)
    .fetch_all(&mut *connection)
    .await?;
    super::checkpoints::end_session(connection, session.as_str()).await?;
    Ok(Some(Ended { session: session.clone(), requests }))
}

impl Store {
    /// A new session.
    pub async fn create_session(&self, owner: &str, request: &CreateSession) -> Result<SessionId, StoreError> {
        let session = SessionId::random()
            .map_err(|error| StoreError::Database(format!("the system gives no randomness: {error}")))?;
        let (id, owner, request) = (session.clone(), owner.to_owned(), request.clone());
        self.write(move |connection| {
            Box::pin(async move {
                let at = now();
                let metadata = Value::Object(request.user_metadata.unwrap_or_default()).to_string();
                sqlx::query(
                    "INSERT INTO sessions (session_id, owner, tags, user_metadata, display_name, project_id, sdk_version, \
                     created_at, last_heartbeat) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $8)",
                )
                .bind(id.to_string())
                .bind(owner)
                .bind(Value::from(request.tags).to_string())
                .bind(metadata)
                .bind(request.display_name)
                .bind(request.project_id)
                .bind(request.sdk_version)
                .bind(at)
                .execute(connection)
                .await?;
                Ok(())
            })
        })
        .await?;
        Ok(session)
    }

    /// Whether a session takes work.
    pub async fn standing(&self, owner: &str, session: &SessionId) -> Result<Standing, StoreError> {
        let mut reader = self.readers.acquire().await?;
        standing(&mut reader, owner, session).await
    }

    /// A sign of life.
    pub async fn heartbeat(&self, owner: &str, session: &SessionId) -> Result<Standing, StoreError> {
        let (owner, session) = (owner.to_owned(), session.clone());
        self.write(move |connection| {
            Box::pin(async move {
                let standing = standing(connection, &owner, &session).await?;
                if standing == Standing::Open {
                    sqlx::query("UPDATE sessions SET last_heartbeat = $2 WHERE session_id = $1")
                        .bind(session.to_string())
                        .bind(now())
                        .execute(connection)
                        .await?;
                }
                Ok(standing)
            })
        })
        .await
    }

    /// Ends a session. The first reason stays.
    pub async fn finish_session(
        &self,
        owner: &str,
        session: &SessionId,
        reason: &str,
    ) -> Result<(Standing, Option<Ended>), StoreError> {
        let (owner, session, reason) = (owner.to_owned(), session.clone(), reason.to_owned());
        let done = self
            .write(move |connection| {
                Box::pin(async move {
                    let found = standing(connection, &owner, &session).await?;
                    let ended =
                        if found == Standing::Open { end(connection, &session, &reason, now()).await? } else { None };
                    Ok((found, ended))
                })
            })
            .await?;
        self.count_ended(done.1.as_slice());
        Ok(done)
    }

    /// Ends sessions that gave no sign of life since then. Time in which this server did not run does not count.
    pub async fn reap_sessions(&self, silent_ms: i64, at: i64) -> Result<Vec<Ended>, StoreError> {
        let before = at - silent_ms;
        if before < self.opened_at {
            return Ok(Vec::new());
        }
        let ended = self
            .write(move |connection| {
                Box::pin(async move {
                    let silent: Vec<(String,)> = sqlx::query_as(
                        "SELECT session_id FROM sessions WHERE ended_at IS NULL AND last_heartbeat < $1 LIMIT 256",
                    )
                    .bind(before)
                    .fetch_all(&mut *connection)
                    .await?;
                    let mut all = Vec::new();
                    for (session,) in silent {
                        let session =
                            session.parse().map_err(|error| StoreError::Database(format!("a row: {error}")))?;
                        all.extend(end(connection, &session, "its client fell silent", at).await?);
                    }
                    Ok(all)
                })
            })
            .await?;
        self.count_ended(&ended);
        Ok(ended)
    }

    /// Names of an owner's sessions, newest first.
    pub async fn sessions(&self, owner: &str, limit: i64, offset: i64) -> Result<Vec<String>, StoreError> {
        let found: Vec<(String,)> = sqlx::query_as(
            "SELECT session_id FROM sessions WHERE owner = $1 ORDER BY created_at DESC, session_id LIMIT $2 OFFSET $3",
        )
        .bind(owner.to_owned())
        .bind(limit)
        .bind(offset)
        .fetch_all(&self.readers)
        .await?;
        Ok(found.into_iter().map(|(session,)| session).collect())
    }

    /// One of an owner's sessions.
    pub async fn session(&self, owner: &str, session: &SessionId) -> Result<Option<SessionInfo>, StoreError> {
        let found: Option<(String, Option<String>)> =
            sqlx::query_as("SELECT user_metadata, display_name FROM sessions WHERE session_id = $1 AND owner = $2")
                .bind(session.to_string())
                .bind(owner.to_owned())
                .fetch_optional(&self.readers)
                .await?;
        let Some((user_metadata, display_name)) = found else { return Ok(None) };
        let models: Vec<(String,)> = sqlx::query_as(
            "SELECT model_id FROM models WHERE session_id = $1 ORDER BY created_at, model_id LIMIT 10000",
        )
        .bind(session.to_string())
        .fetch_all(&self.readers)
        .await?;
        let samplers: Vec<(String,)> = sqlx::query_as(
            "SELECT sampler_id FROM samplers WHERE session_id = $1 ORDER BY created_at, sampler_id LIMIT 10000",
        )
        .bind(session.to_string())
        .fetch_all(&self.readers)
        .await?;
        Ok(Some(SessionInfo {
            models: models.into_iter().map(|(id,)| id).collect(),
            samplers: samplers.into_iter().map(|(id,)| id).collect(),
            user_metadata: serde_json::from_str(&user_metadata).unwrap_or_default(),
            display_name,
        }))
    }

    fn count_ended<'a>(&self, ended: impl IntoIterator<Item = &'a Ended>) {
        let failed = ended.into_iter().map(|ended| ended.requests.len()).sum();
        self.unfinished.fetch_sub(failed, std::sync::atomic::Ordering::Relaxed);
    }
}
