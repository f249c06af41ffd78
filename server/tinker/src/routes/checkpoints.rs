//! Checkpoints: lists of them, and what their owners do to them.
//!
//! Their paths hold colons and slashes, which clients do not escape: everything below `checkpoints/` comes as one tail.

use std::str::FromStr;

use axum::body::Body;
use axum::extract::{Extension, Path, State};
use axum::http::{HeaderMap, Method, StatusCode, Uri};
use axum::response::{IntoResponse, Json, Response};
use serde_json::{Map, Value, json};

use super::downloads::{archive, urls};
use super::reads::{page, texts};
use super::training::no_model;
use super::{Owner, Server, Shared, iso, wrong_method};
use crate::error::ApiError;
use crate::ids::ModelId;
use crate::path::TinkerPath;
use crate::shelf::Removal;
use crate::store::checkpoints::{Change, Checkpoint};
use crate::store::now;
use crate::wire::session::{Ttl, WeightsInfo};

/// There is no such checkpoint, for this caller.
pub(super) fn no_checkpoint(field: &str, path: &TinkerPath) -> ApiError {
    ApiError::not_found(format!("`{field}`: there is no checkpoint `{path}`"))
}

pub(super) fn checkpoint_json(checkpoint: &Checkpoint) -> Value {
    let Checkpoint { path, user_metadata, .. } = checkpoint;
    let metadata = user_metadata.as_ref().map(|text| serde_json::from_str::<Map<String, Value>>(text));
    json!({
        "checkpoint_id": format!("{}/{}", path.kind.segment(), path.name.as_str()),
        "checkpoint_type": path.kind.name(),
        "time": iso(checkpoint.created_at),
        "tinker_path": path,
        "size_bytes": checkpoint.size_bytes,
        "public": checkpoint.public,
        "user_metadata": metadata.map(|metadata| texts(&metadata.unwrap_or_default())),
        "expires_at": checkpoint.expires_at.map(iso),
    })
}

/// `GET /checkpoints`.
pub(super) async fn list(
    State(server): Shared,
    Extension(owner): Extension<Owner>,
    uri: Uri,
) -> Result<Json<Value>, ApiError> {
    let (limit, offset) = page(&uri, 100)?;
    let (found, total) = server.store.checkpoints(&owner.0, limit, offset).await?;
    Ok(Json(json!({
        "checkpoints": found.iter().map(checkpoint_json).collect::<Vec<_>>(),
        "cursor": {"offset": offset, "limit": limit, "total_count": total},
    })))
}

/// `GET /training_runs/ID/checkpoints`.
pub(super) async fn of_run(
    State(server): Shared,
    Extension(owner): Extension<Owner>,
    Path(run): Path<String>,
) -> Result<Json<Value>, ApiError> {
    let run = run_id(&run)?;
    server.store.model(&owner.0, &run).await?.ok_or_else(|| no_model(&run))?;
    let found = server.store.checkpoints_of(&run).await?;
    let found: Vec<Value> = found.iter().map(checkpoint_json).collect();
    Ok(Json(json!({"checkpoints": found, "cursor": null})))
}

/// `POST /weights_info`: what has to be known to load a checkpoint.
pub(super) async fn weights_info(
    State(server): Shared,
    Extension(owner): Extension<Owner>,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<Value>, ApiError> {
    let WeightsInfo { tinker_path } = server.json(&headers, body).await?;
    let found = server.store.readable(&owner.0, &tinker_path).await?;
    let Checkpoint { base_model, adapter, .. } = found.ok_or_else(|| no_checkpoint("tinker_path", &tinker_path))?;
    Ok(Json(json!({
        "base_model": base_model,
        "is_lora": true,
        "lora_rank": adapter.rank,
        "train_attn": adapter.attn,
        "train_mlp": adapter.mlp,
        "train_unembed": adapter.unembed,
    })))
}

fn run_id(text: &str) -> Result<ModelId, ApiError> {
    text.parse().map_err(|error| ApiError::not_found(format!("`training_run_id`: {error}")))
}

/// What is done to the checkpoint that a path names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Act {
    Itself,
    Publish,
    Ttl,
    Urls,
    Archive,
}

impl FromStr for Act {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        match text {
            "publish" => Ok(Self::Publish),
            "ttl" => Ok(Self::Ttl),
            "external_weights_urls" => Ok(Self::Urls),
            "archive" => Ok(Self::Archive),
            _ => Err(()),
        }
    }
}

/// Takes `KIND/NAME` or `KIND/NAME/ACT` apart.
fn tail(run: &str, tail: &str, uri: &Uri) -> Result<(TinkerPath, Act), ApiError> {
    let model = run_id(run)?;
    let mut parts = tail.split('/');
    let (kind, name, act, more) = (parts.next(), parts.next(), parts.next(), parts.next());
    let (Some(kind), Some(name), None) = (kind, name, more) else {
        return Err(ApiError::not_found(format!(
            "`{}`: expected `KIND/NAME` of a checkpoint behind `checkpoints/`, got `{tail}`",
            uri.path()
        )));
    };
    let act = act.map_or(Ok(Act::Itself), str::parse);
    let act = act.map_err(|()| ApiError::not_found(format!("`{}` is not served", uri.path())))?;
    let wrong = |error| ApiError::not_found(format!("`checkpoint_id`: {error}"));
    Ok((TinkerPath { model, kind: kind.parse().map_err(wrong)?, name: name.parse().map_err(wrong)? }, act))
}

/// Everything below `/training_runs/ID/checkpoints/`.
pub(super) async fn at(
    State(server): Shared,
    Extension(owner): Extension<Owner>,
    Path((run, rest)): Path<(String, String)>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    let (path, act) = tail(&run, &rest, &uri)?;
    let change = match (method.as_str(), act) {
        ("GET", Act::Urls) => return urls(&server, &owner.0, &path, &headers).await,
        ("GET", Act::Archive) => return archive(&server, &owner.0, &path, &headers).await,
        ("DELETE", Act::Itself) => Change::Remove,
        ("POST", Act::Publish) => Change::Publish(true),
        ("DELETE", Act::Publish) => Change::Publish(false),
        ("PUT", Act::Ttl) => {
            let Ttl { ttl_seconds } = server.json(&headers, body).await?;
            Change::Expire(ttl_seconds.and_then(|seconds| i64::try_from(seconds).ok()).map(|s| now() + s * 1000))
        }
        _ => return Err(wrong_method(method, uri).await),
    };
    server.change(&owner, &path, change).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

impl Server {
    async fn change(&self, owner: &Owner, path: &TinkerPath, change: Change) -> Result<(), ApiError> {
        let changed = if change == Change::Remove {
            match self.shelf.remove(&owner.0, path).await? {
                Removal::Done => true,
                Removal::Unknown => false,
                // Clients send it again for a while.
                Removal::Busy => {
                    let detail = format!("`checkpoint_id`: `{path}` is being written or removed; send this again");
                    return Err(ApiError { retry_after: Some(1), ..ApiError::new(StatusCode::CONFLICT, detail) });
                }
            }
        } else {
            self.store.change_checkpoint(&owner.0, path, change).await?
        };
        if changed {
            return Ok(());
        }
        match self.store.readable(&owner.0, path).await? {
            Some(found) if found.owner != *owner.0 => Err(ApiError::new(
                StatusCode::FORBIDDEN,
                format!("`checkpoint_id`: `{path}` is another key's: it can be read, and not changed"),
            )),
            _ => Err(no_checkpoint("checkpoint_id", path)),
        }
    }
}
