//! Whose turn it is in a model's order.
//!
//! A model's `next_seq` is the place that is executed next, or is being executed. A request at that place is ready; one
//! behind it waits; nothing is accepted before it. When the place is finished, the next one that is there becomes ready;
//! places that were refused are passed over. A place that never came holds up those behind it.

use sqlx::sqlite::SqliteConnection;

use super::requests::State;
use super::{Recovered, StoreError};

/// The state of a request that is taken in at a place.
pub(super) fn on_arrival(seq: i64, next: i64) -> State {
    if seq == next { State::Ready } else { State::Waiting }
}

/// Moves a model's order on, after the request at a place was finished or refused.
pub(super) async fn advance(connection: &mut SqliteConnection, lane: &str, finished: i64) -> Result<(), StoreError> {
    let next: Option<i64> = sqlx::query_scalar("SELECT next_seq FROM models WHERE model_id = $1")
        .bind(lane.to_owned())
        .fetch_optional(&mut *connection)
        .await?;
    if next != Some(finished) {
        return Ok(());
    }
    let mut next = finished + 1;
    loop {
        let state: Option<i64> = sqlx::query_scalar("SELECT state FROM requests WHERE lane = $1 AND seq = $2")
            .bind(lane.to_owned())
            .bind(next)
            .fetch_optional(&mut *connection)
            .await?;
        match state.map(State::of).transpose()? {
            Some(State::Done | State::Failed | State::Refused | State::Expired) => next += 1,
            Some(State::Waiting) => {
                sqlx::query("UPDATE requests SET state = 1 WHERE lane = $1 AND seq = $2")
                    .bind(lane.to_owned())
                    .bind(next)
                    .execute(&mut *connection)
                    .await?;
                break;
            }
            Some(State::Ready | State::Running) | None => break,
        }
    }
    sqlx::query("UPDATE models SET next_seq = $2 WHERE model_id = $1")
        .bind(lane.to_owned())
        .bind(next)
        .execute(connection)
        .await?;
    Ok(())
}

/// Puts in order what a process left that died: what was running goes back to the queue, as nobody saw a result. Samples
/// change nothing. What an operation changed was in the memory that is gone; its model is brought back to the place before it.
pub(super) async fn recover(connection: &mut SqliteConnection) -> Result<Recovered, StoreError> {
    let again = sqlx::query("UPDATE requests SET state = 1 WHERE state = 2").execute(connection).await?;
    Ok(Recovered { again: again.rows_affected() })
}
