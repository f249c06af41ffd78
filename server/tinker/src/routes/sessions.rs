//! Sessions and samplers.

use axum::body::Body;
use axum::extract::{Extension, Path, State};
use axum::http::HeaderMap;
use axum::response::Json;
use serde_json::{Value, json};

use super::checkpoints::no_checkpoint;
use super::{Owner, Server, Shared};
use crate::error::ApiError;
use crate::housekeeping::session_ended;
use crate::ids::{SamplerId, SessionId};
use crate::path::{CheckpointKind, TinkerPath};
use crate::store::models::Made;
use crate::store::sessions::Standing;
use crate::wire::session::{CreateSamplingSession, CreateSession, Finish, Heartbeat};

/// There is no such session, for this caller.
pub(super) fn no_session(session: &SessionId) -> ApiError {
    ApiError::not_found(format!("`session_id`: there is no session `{session}`"))
}

/// The session takes no work any more.
pub(super) fn ended(session: &SessionId) -> ApiError {
    ApiError::bad_request(format!("`session_id`: the session `{session}` ended"))
}

/// `POST /create_session`.
pub(super) async fn create(
    State(server): Shared,
    Extension(owner): Extension<Owner>,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<Value>, ApiError> {
    let request: CreateSession = server.json(&headers, body).await?;
    let session = server.store.create_session(&owner.0, &request).await?;
    Ok(Json(json!({"type": "create_session", "session_id": session})))
}

/// `POST /session_heartbeat`.
pub(super) async fn heartbeat(
    State(server): Shared,
    Extension(owner): Extension<Owner>,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<Value>, ApiError> {
    let Heartbeat { session_id } = server.json(&headers, body).await?;
    match server.store.heartbeat(&owner.0, &session_id).await? {
        Standing::Open => Ok(Json(json!({"type": "session_heartbeat"}))),
        // This ends the client's heartbeats.
        Standing::Ended => Err(ApiError::gone(ended(&session_id).detail)),
        Standing::Unknown => Err(no_session(&session_id)),
    }
}

/// `POST /sessions/ID/finish`.
pub(super) async fn finish(
    State(server): Shared,
    Extension(owner): Extension<Owner>,
    Path(session): Path<String>,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<Value>, ApiError> {
    let session: SessionId = session.parse().map_err(|error| ApiError::not_found(format!("`session_id`: {error}")))?;
    let Finish { reason, detail } = server.json(&headers, body).await?;
    let (standing, done) = server.store.finish_session(&owner.0, &session, reason.name()).await?;
    if standing == Standing::Unknown {
        return Err(no_session(&session));
    }
    if let Some(done) = done {
        tracing::debug!(%session, reason = reason.name(), detail, "a session was finished");
        session_ended(&server.worker, &*server.backend, &done);
    }
    Ok(Json(json!({})))
}

impl Server {
    /// The base model of a checkpoint that is to be sampled from.
    async fn sampled(&self, owner: &Owner, path: &TinkerPath, named: Option<&str>) -> Result<String, ApiError> {
        if path.kind == CheckpointKind::External {
            return Err(ApiError::bad_request(format!(
                "`model_path`: expected `sampler_weights` or `weights`, got `external_weights` in `{path}`"
            )));
        }
        let found = self.store.readable(&owner.0, path).await?.ok_or_else(|| no_checkpoint("model_path", path))?;
        let base_model = found.base_model;
        if let Some(named) = named.filter(|named| *named != base_model) {
            return Err(ApiError::bad_request(format!(
                "`base_model`: expected `{base_model}`, which the checkpoint belongs to, got `{named}`"
            )));
        }
        self.base_model(&base_model)?;
        Ok(base_model)
    }
}

/// `POST /create_sampling_session`.
pub(super) async fn create_sampler(
    State(server): Shared,
    Extension(owner): Extension<Owner>,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<Value>, ApiError> {
    let request: CreateSamplingSession = server.json(&headers, body).await?;
    let CreateSamplingSession { session_id, sampling_session_seq_id: number, base_model, model_path } = request;
    let base_model = match &model_path {
        None => server.base_model(&base_model.unwrap_or_default())?.name.clone(),
        Some(path) => server.sampled(&owner, path, base_model.as_deref()).await?,
    };
    let model_path = model_path.map(|path| path.to_string());
    let sampler = SamplerId { session: session_id.clone(), number };
    match server.store.create_sampler(&owner.0, &sampler, &base_model, model_path).await? {
        Made::Yes => Ok(Json(json!({"type": "create_sampling_session", "sampling_session_id": sampler}))),
        Made::Conflict => Err(ApiError::bad_request(format!(
            "`sampling_session_seq_id`: {number} was given before to a sampling session of other weights"
        ))),
        Made::No(Standing::Ended) => Err(ended(&session_id)),
        Made::No(_) => Err(no_session(&session_id)),
    }
}
