//! Lists of what there is.

use axum::extract::{Extension, Path, State};
use axum::http::Uri;
use axum::response::Json;
use serde_json::{Map, Value, json};

use super::checkpoints::checkpoint_json;
use super::sessions::no_session;
use super::training::no_model;
use super::{Owner, Shared, iso};
use crate::error::ApiError;
use crate::ids::{ModelId, SamplerId, SessionId};
use crate::path::CheckpointKind;
use crate::store::checkpoints::Checkpoint;
use crate::store::models::Model;

/// Most entries of one page.
const MOST: i64 = 1000;

/// `limit` and `offset` of a query. Others (`access_scope`, `project_id`) change nothing here: everybody sees their own.
pub(super) fn page(uri: &Uri, limit: i64) -> Result<(i64, i64), ApiError> {
    let number = |name: &str, default: i64, least: i64, most: i64| {
        let given =
            uri.query().unwrap_or_default().split('&').find_map(|part| part.strip_prefix(name)?.strip_prefix('='));
        let Some(given) = given else { return Ok(default) };
        given
            .parse::<i64>()
            .ok()
            .filter(|number| (least..=most).contains(number))
            .ok_or_else(|| ApiError::bad_request(format!("`{name}`: expected {least} to {most}, got `{given}`")))
    };
    Ok((number("limit", limit, 1, MOST)?, number("offset", 0, 0, i64::MAX)?))
}

/// `GET /sessions`.
pub(super) async fn sessions(
    State(server): Shared,
    Extension(owner): Extension<Owner>,
    uri: Uri,
) -> Result<Json<Value>, ApiError> {
    let (limit, offset) = page(&uri, 20)?;
    Ok(Json(json!({"sessions": server.store.sessions(&owner.0, limit, offset).await?})))
}

/// `GET /sessions/ID`.
pub(super) async fn session(
    State(server): Shared,
    Extension(owner): Extension<Owner>,
    Path(session): Path<String>,
) -> Result<Json<Value>, ApiError> {
    let session: SessionId = session.parse().map_err(|error| ApiError::not_found(format!("`session_id`: {error}")))?;
    let found = server.store.session(&owner.0, &session).await?.ok_or_else(|| no_session(&session))?;
    Ok(Json(json!({
        "training_run_ids": found.models,
        "sampler_ids": found.samplers,
        "user_metadata": texts(&found.user_metadata),
        "display_name": found.display_name,
    })))
}

/// `GET /samplers/ID`.
pub(super) async fn sampler(
    State(server): Shared,
    Extension(owner): Extension<Owner>,
    Path(sampler): Path<String>,
) -> Result<Json<Value>, ApiError> {
    let wrong = |error| ApiError::not_found(format!("`sampler_id`: {error}"));
    let sampler: SamplerId = sampler.parse().map_err(wrong)?;
    let found = server.store.sampler(&owner.0, &sampler).await?;
    let found = found.ok_or_else(|| ApiError::not_found(format!("`sampler_id`: there is no sampler `{sampler}`")))?;
    Ok(Json(json!({"sampler_id": found.sampler_id, "base_model": found.base_model, "model_path": found.model_path})))
}

/// A model, with those of the newest checkpoints of each kind that are its own.
fn run_json(model: &Model, newest: &[Checkpoint]) -> Value {
    let last = |kind: CheckpointKind| {
        let mut own = newest.iter().filter(|found| found.path.kind == kind);
        own.find(|found| found.path.model.to_string() == model.model_id).map(checkpoint_json)
    };
    let metadata: Map<String, Value> = serde_json::from_str(&model.user_metadata).unwrap_or_default();
    json!({
        "training_run_id": model.model_id,
        "base_model": model.base_model,
        "model_owner": model.owner,
        "is_lora": true,
        "lora_rank": model.adapter.rank,
        "corrupted": model.state == "failed",
        "last_request_time": iso(model.last_request_at),
        "last_checkpoint": last(CheckpointKind::Training),
        "last_sampler_checkpoint": last(CheckpointKind::Sampler),
        "user_metadata": texts(&metadata),
    })
}

/// Metadata for those who read: the SDK writes any JSON, and reads texts only.
pub(super) fn texts(metadata: &Map<String, Value>) -> Map<String, Value> {
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    metadata.iter().map(|(name, value)| (name.clone(), Value::String(text(value)))).collect()
}

/// `GET /training_runs`.
pub(super) async fn training_runs(
    State(server): Shared,
    Extension(owner): Extension<Owner>,
    uri: Uri,
) -> Result<Json<Value>, ApiError> {
    let (limit, offset) = page(&uri, 20)?;
    let (models, total) = server.store.models(&owner.0, limit, offset).await?;
    let newest = server.store.last_checkpoints(&owner.0, limit, offset).await?;
    let runs: Vec<Value> = models.iter().map(|model| run_json(model, &newest)).collect();
    Ok(Json(json!({
        "training_runs": runs,
        "cursor": {"offset": offset, "limit": limit, "total_count": total},
    })))
}

/// `GET /training_runs/ID`.
pub(super) async fn training_run(
    State(server): Shared,
    Extension(owner): Extension<Owner>,
    Path(run): Path<String>,
) -> Result<Json<Value>, ApiError> {
    let run: ModelId = run.parse().map_err(|error| ApiError::not_found(format!("`training_run_id`: {error}")))?;
    let found = server.store.model(&owner.0, &run).await?.ok_or_else(|| no_model(&run))?;
    let newest = server.store.last_checkpoints_of(&run).await?;
    Ok(Json(run_json(&found, &newest)))
}
