//! What is forgotten, and when: results first, then what is left of an ended session's requests, then files.

use super::{Store, StoreError};

/// Most rows of one sweep, so that no sweep holds up the writer.
const SWEEP: i64 = 512;

/// Most files that one sweep looks at.
const MOST_FILES: usize = 1 << 16;

/// What a sweep removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pruned {
    /// Results and failures.
    pub results: u64,
    /// Requests of sessions that ended.
    pub requests: u64,
}

impl Pruned {
    /// Whether there may be more to remove.
    pub fn is_partial(&self) -> bool {
        self.results.max(self.requests) >= SWEEP as u64
    }
}

impl Store {
    /// Forgets results that ended before `results`, and requests of sessions that ended before `sessions` (milliseconds since
    /// 1970). At most some hundreds at a time.
    ///
    /// A forgotten result leaves its place: the same request sent again is not executed again.
    pub async fn prune(&self, results: i64, sessions: i64) -> Result<Pruned, StoreError> {
        let pruned = self
            .write(move |connection| {
                Box::pin(async move {
                    let forgotten = sqlx::query(
                        "UPDATE requests SET state = 6, reply = NULL, reply_file = NULL, error = NULL WHERE number IN \
                         (SELECT number FROM requests WHERE state IN (3, 4) AND finished_at < $1 ORDER BY finished_at LIMIT $2)",
                    )
                    .bind(results)
                    .bind(SWEEP)
                    .execute(&mut *connection)
                    .await?;
                    let removed = sqlx::query(
                        "DELETE FROM requests WHERE number IN (SELECT requests.number FROM requests JOIN sessions \
                         ON sessions.session_id = requests.session_id WHERE sessions.ended_at < $1 LIMIT $2)",
                    )
                    .bind(sessions)
                    .bind(SWEEP)
                    .execute(connection)
                    .await?;
                    Ok(Pruned { results: forgotten.rows_affected(), requests: removed.rows_affected() })
                })
            })
            .await?;
        Ok(pruned)
    }

    /// Removes files that no row names any more; answers how many.
    pub async fn sweep_files(&self) -> Result<u64, StoreError> {
        let failed = |error: std::io::Error| StoreError::Database(format!("payloads: {error}"));
        let mut removed = 0;
        for name in self.payloads.old(MOST_FILES).await.map_err(failed)? {
            let needed: Option<i64> = sqlx::query_scalar(
                "SELECT number FROM requests WHERE payload_file = $1 UNION ALL SELECT number FROM requests \
                 WHERE reply_file = $1 LIMIT 1",
            )
            .bind(name.clone())
            .fetch_optional(&self.readers)
            .await?;
            if needed.is_none() {
                self.payloads.remove(&name).await.map_err(failed)?;
                removed += 1;
            }
        }
        Ok(removed)
    }
}
