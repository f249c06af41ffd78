//! Operations of models: taken in, in their order.
//!
//! A request that is refused has used up its `seq_id`: the SDK goes on with the next one. Where the model and the place can
//! be read of it, the place is marked, so that what follows does not wait for ever.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Extension, State};
use axum::http::HeaderMap;
use axum::response::Json;
use prost::Message as _;
use serde::Deserialize;
use serde_json::{Value, json};

use super::sessions::{ended, no_session};
use super::{Owner, Server, Shared};
use crate::error::ApiError;
use crate::ids::ModelId;
use crate::operation::{Kind, Operation, Payload};
use crate::proto::ForwardBackwardHead;
use crate::store::checkpoints::Adapter;
use crate::store::requests::{NewModel, Submission, Submitted};
use crate::wire::session::GetInfo;

/// There is no such model, for this caller.
pub(super) fn no_model(model: &ModelId) -> ApiError {
    ApiError::not_found(format!("`model_id`: there is no model `{model}`"))
}

/// The name of a request that was taken in, or why it was not.
pub(super) fn taken(submitted: Submitted, lane: &str, seq: i64) -> Result<String, ApiError> {
    match submitted {
        Submitted::New(request_id) | Submitted::Known(request_id) => Ok(request_id),
        Submitted::Refused { status, detail } => {
            let status = axum::http::StatusCode::from_u16(status).unwrap_or(axum::http::StatusCode::BAD_REQUEST);
            Err(ApiError::new(status, detail))
        }
        // Not a 409: the SDK would send it again for minutes.
        Submitted::Conflict(kind) => Err(ApiError::bad_request(format!(
            "`seq_id`: {seq} of `{lane}` was given before to another request, of `{}`",
            kind.name()
        ))),
        Submitted::Gone { next } => Err(ApiError::bad_request(format!(
            "`seq_id`: expected {next} or more, got {seq}: what came before of `{lane}` was done and is forgotten"
        ))),
        Submitted::Full => Err(ApiError::full("too many requests wait; send this one again")),
        Submitted::SessionEnded => Err(ApiError::bad_request(format!("the session of `{lane}` ended"))),
        Submitted::Unknown => Err(ApiError::not_found(format!("there is no `{lane}`"))),
    }
}

/// What can be read of a request that is wrong.
#[derive(Deserialize)]
struct Head {
    model_id: ModelId,
    seq_id: i64,
}

fn head(kind: Kind, bytes: &[u8]) -> Option<Head> {
    if kind == Kind::ForwardBackward {
        let head = ForwardBackwardHead::decode(bytes).ok()?;
        return Some(Head { model_id: head.model_id.parse().ok()?, seq_id: i64::from(head.seq_id) });
    }
    serde_json::from_slice(bytes).ok()
}

impl Server {
    /// Takes in an operation of a model.
    async fn operation(
        self: &Arc<Self>,
        owner: &Owner,
        kind: Kind,
        headers: &HeaderMap,
        body: Body,
    ) -> Result<Json<Value>, ApiError> {
        let read = move |bytes: Vec<u8>| Ok(Payload::read(kind, &bytes).map_err(|error| (error, head(kind, &bytes))));
        let made = self.made(headers, body, read).await?;
        let payload = match made.value {
            Ok(payload) => payload,
            Err((error, head)) => {
                if let Some(Head { model_id, seq_id }) = head
                    && error.status.is_client_error()
                    && crate::wire::training::check_seq(seq_id).is_ok()
                {
                    let status = error.status.as_u16();
                    self.store.refuse(&owner.0, &model_id, seq_id, kind, status, &error.detail).await?;
                    self.worker.ring(true);
                }
                return Err(error);
            }
        };
        let creates = match &payload.operation {
            Operation::CreateModel(request) => {
                self.base_model(&request.base_model)?;
                Some(NewModel {
                    base_model: request.base_model.clone(),
                    adapter: Adapter {
                        rank: Some(i64::from(request.lora_config.rank)),
                        attn: Some(request.lora_config.train_attn),
                        mlp: Some(request.lora_config.train_mlp),
                        unembed: Some(request.lora_config.train_unembed),
                    },
                    user_metadata: metadata(request.user_metadata.as_ref()),
                })
            }
            Operation::LoadWeights(request) if request.creates().is_some() => {
                // Where there is no such checkpoint the model is made all the same, and fails: the reason is its result.
                let found = self.store.readable(&owner.0, &request.path).await?;
                let (base_model, adapter) = match found {
                    Some(found) => (found.base_model, found.adapter),
                    None => (request.base_model.clone().unwrap_or_default(), Adapter::default()),
                };
                Some(NewModel { base_model, adapter, user_metadata: metadata(request.user_metadata.as_ref()) })
            }
            _ => None,
        };
        let Some(model) = payload.operation.model() else {
            return Err(ApiError::internal("an operation names no model"));
        };
        let (seq, makes) = (payload.operation.seq(), creates.is_some());
        let submission = Submission::of_model(&model, payload, creates);
        let submitted = self.store.submit(&owner.0, submission, self.options.room()).await?;
        match &submitted {
            Submitted::New(_) => self.worker.ring(true),
            Submitted::Unknown if makes => return Err(no_session(&model.session)),
            Submitted::Unknown => return Err(no_model(&model)),
            Submitted::SessionEnded => return Err(ended(&model.session)),
            _ => {}
        }
        let request_id = taken(submitted, &model.to_string(), seq)?;
        Ok(Json(json!({"request_id": request_id, "model_id": model})))
    }
}

fn metadata(given: Option<&serde_json::Map<String, Value>>) -> String {
    given.map_or_else(|| "{}".to_owned(), |metadata| Value::Object(metadata.clone()).to_string())
}

/// A function for a path that takes in one kind of operation.
macro_rules! operations {
    ($($(#[$doc:meta])* $name:ident: $kind:ident;)*) => {$(
        $(#[$doc])*
        pub(super) async fn $name(
            State(server): Shared,
            Extension(owner): Extension<Owner>,
            headers: HeaderMap,
            body: Body,
        ) -> Result<Json<Value>, ApiError> {
            server.operation(&owner, Kind::$kind, &headers, body).await
        }
    )*};
}

operations! {
    /// `POST /create_model`.
    create_model: CreateModel;
    /// `POST /forward_backward`.
    forward_backward: ForwardBackward;
    /// `POST /optim_step`.
    optim_step: OptimStep;
    /// `POST /save_weights`.
    save_weights: SaveWeights;
    /// `POST /save_weights_for_sampler`.
    save_weights_for_sampler: SaveWeightsForSampler;
    /// `POST /save_weights_external`.
    save_weights_external: SaveWeightsExternal;
    /// `POST /load_weights`.
    load_weights: LoadWeights;
}

/// `POST /get_info`.
pub(super) async fn get_info(
    State(server): Shared,
    Extension(owner): Extension<Owner>,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<Value>, ApiError> {
    let GetInfo { model_id } = server.json(&headers, body).await?;
    let model = server.store.model(&owner.0, &model_id).await?.ok_or_else(|| no_model(&model_id))?;
    if model.state == "failed" {
        let reason = model.failure.unwrap_or_default();
        return Err(ApiError::bad_request(format!("`model_id`: the model `{model_id}` is not there: {reason}")));
    }
    Ok(Json(json!({
        "type": "get_info",
        "model_id": model.model_id,
        "is_lora": true,
        "lora_rank": model.adapter.rank,
        "model_name": model.base_model,
        "model_data": {"model_name": model.base_model, "tokenizer_id": model.base_model},
    })))
}
