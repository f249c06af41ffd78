//! Futures: waiting, fetching, cancelling.

use std::time::Duration;

use axum::body::Body;
use axum::extract::{Extension, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Json, Response};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::sessions::{ended, no_session};
use super::{Owner, Shared, bytes_of};
use crate::error::ApiError;
use crate::operation::{ReplyKind, sample_json};
use crate::store::requests::{Completion, Look};
use crate::store::sessions::Standing;
use crate::wire::session::{CancelFuture, RetrieveFuture, RetrieveFutures, Target};

const JSON: &str = "application/json";
const PROTOBUF: &str = "application/x-protobuf";
/// Requests of one client of a sampling session have this many places.
const PLACES: i64 = 1_000_000_000;
/// Most ends in one answer; a client asks again for more.
const MOST_COMPLETIONS: i64 = 1024;

fn unknown(request_id: &str) -> ApiError {
    let shown: String = request_id.chars().take(64).collect();
    ApiError::not_found(format!("`request_id`: there is no request `{shown}`"))
}

/// `POST /retrieve_future`: waits for a while, then says that the client may ask again.
pub(super) async fn retrieve(
    State(server): Shared,
    Extension(owner): Extension<Owner>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    let RetrieveFuture { request_id } = server.json(&headers, body).await?;
    let accept = headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok());
    let protobuf = accept.is_some_and(|accept| accept.contains(PROTOBUF));
    let give_up = Instant::now() + server.options.poll;
    let mut waiter = server.waiters.register(&request_id);
    loop {
        match server.store.look(&owner.0, &request_id).await? {
            Look::Pending => {}
            Look::Done(kind, bytes) => return reply(kind, bytes, protobuf),
            // A 4xx would be retried and lose the category: failures are answers.
            Look::Failed(error) => {
                let body = json!({"error": error.message, "category": error.category.name()});
                return Ok(Json(body).into_response());
            }
            Look::Gone => {
                return Err(ApiError::gone(format!("`request_id`: the result of `{request_id}` is not kept any more")));
            }
            Look::Unknown => return Err(unknown(&request_id)),
        }
        tokio::select! {
            () = waiter.woken() => {}
            () = tokio::time::sleep_until(give_up) => return Ok(not_yet()),
            () = server.stopping.cancelled() => return Ok(not_yet()),
        }
    }
}

/// Clients ask again at once.
fn not_yet() -> Response {
    (StatusCode::REQUEST_TIMEOUT, Json(json!({"queue_state": "active"}))).into_response()
}

fn reply(kind: ReplyKind, bytes: Vec<u8>, protobuf: bool) -> Result<Response, ApiError> {
    match kind {
        ReplyKind::Json => Ok(bytes_of(JSON, bytes)),
        ReplyKind::Sample | ReplyKind::ForwardBackward if protobuf => Ok(bytes_of(PROTOBUF, bytes)),
        ReplyKind::Sample => {
            let value = sample_json(&bytes).ok_or_else(|| ApiError::internal("a stored result cannot be read"))?;
            Ok(Json(value).into_response())
        }
        ReplyKind::ForwardBackward => {
            let detail = "`Accept`: expected `application/x-protobuf`: this result has no other form";
            Err(ApiError::new(StatusCode::NOT_ACCEPTABLE, detail))
        }
    }
}

/// `POST /retrieve_futures`: the ends of a sampler's requests, as they come.
pub(super) async fn retrieve_many(
    State(server): Shared,
    Extension(owner): Extension<Owner>,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<Value>, ApiError> {
    let RetrieveFutures { target, prev_cursor, timeout } = server.json(&headers, body).await?;
    let Target::SamplingSession { sampling_session_id: sampler, cloned_sampler_id: clone } = target;
    if server.store.sampler(&owner.0, &sampler).await?.is_none() {
        let detail = format!("`target.sampling_session_id`: there is no sampling session `{sampler}`");
        return Err(ApiError::not_found(detail));
    }
    let first = clone.saturating_mul(PLACES);
    let places = first..first.saturating_add(PLACES);
    let asked = timeout.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    let give_up = Instant::now() + asked.unwrap_or(server.options.poll).min(server.options.poll);
    let mut waiter = server.waiters.register(&sampler.to_string());
    loop {
        let found = server.store.completions(&sampler, places.clone(), prev_cursor, MOST_COMPLETIONS).await?;
        if !found.is_empty() || Instant::now() >= give_up || server.stopping.is_cancelled() {
            return Ok(completions(&found, prev_cursor));
        }
        match server.store.standing(&owner.0, &sampler.session).await? {
            Standing::Open => {}
            Standing::Ended => return Err(ended(&sampler.session)),
            Standing::Unknown => return Err(no_session(&sampler.session)),
        }
        tokio::select! {
            () = waiter.woken() => {}
            () = tokio::time::sleep_until(give_up) => {}
            () = server.stopping.cancelled() => {}
        }
    }
}

fn completions(found: &[Completion], cursor: i64) -> Json<Value> {
    let completion = |completion: &Completion| {
        let Completion { request_id, done, bytes, .. } = completion;
        match (done, bytes) {
            (true, Some(bytes)) => {
                json!({"state": "finished", "request_id": request_id, "response_payload_uncompressed_size": bytes})
            }
            (true, None) => json!({"state": "finished", "request_id": request_id}),
            (false, _) => json!({"state": "failed", "request_id": request_id}),
        }
    };
    let all: Vec<Value> = found.iter().map(completion).collect();
    let cursor = found.last().map_or(cursor, |last| last.cursor);
    Json(json!({"completions": all, "cursor": cursor}))
}

/// `POST /cancel_future`. Only samples can be cancelled; anything else goes on.
pub(super) async fn cancel(
    State(server): Shared,
    Extension(owner): Extension<Owner>,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<Value>, ApiError> {
    let CancelFuture { request_id } = server.json(&headers, body).await?;
    match server.store.cancel(&owner.0, &request_id).await? {
        Some(lane) => server.worker.cancel([(request_id.as_str(), lane.as_str())]),
        None if server.store.look(&owner.0, &request_id).await? == Look::Unknown => return Err(unknown(&request_id)),
        None => {}
    }
    Ok(Json(json!({})))
}
