//! Samples.

use axum::body::Body;
use axum::extract::{Extension, State};
use axum::http::HeaderMap;
use axum::response::Json;
use serde_json::{Value, json};

use super::sessions::ended;
use super::training::taken;
use super::{Owner, Shared};
use crate::error::ApiError;
use crate::operation::{Payload, Sample};
use crate::store::requests::{Submission, Submitted};
use crate::wire::sampling;

/// `POST /asample`.
///
/// Each of the samples has a name, which follows from its request's place: a request that is sent again gets the same names.
pub(super) async fn asample(
    State(server): Shared,
    Extension(owner): Extension<Owner>,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<Value>, ApiError> {
    let request: sampling::Sample = server.json(&headers, body).await?;
    let id = request.sampling_session_id.clone();
    let unknown = || ApiError::not_found(format!("`sampling_session_id`: there is no sampling session `{id}`"));
    let sampler = server.store.sampler(&owner.0, &id).await?.ok_or_else(unknown)?;
    let model = server.base_model(&sampler.base_model)?;
    let (prompt, most) = (request.prompt.tokens().len(), request.sampling_params.max_tokens);
    if prompt + most.unwrap_or(1) as usize > model.context as usize {
        return Err(ApiError::bad_request(format!(
            "Prompt length plus max_tokens exceeds the model's context window: {prompt} + {} > {}",
            most.unwrap_or(1),
            model.context
        )));
    }
    let weights = sampler.model_path.map(|path| path.parse()).transpose();
    let weights = weights.map_err(|error| ApiError::internal(format!("a sampler's path: {error}")))?;
    let (seq, samples) = (request.seq_id, request.num_samples);
    let payload = Payload::of_sample(Sample { request, base_model: sampler.base_model, weights })?;
    let submission = Submission::of_sampler(&id, payload);
    let submitted = server.store.submit(&owner.0, submission, server.options.room()).await?;
    match &submitted {
        Submitted::New(_) => server.worker.ring(false),
        // Not a 410: the SDK would send it again with another number.
        Submitted::SessionEnded => return Err(ended(&id.session)),
        _ => {}
    }
    let request_id = taken(submitted, &id.to_string(), seq)?;
    let names: Vec<String> = (0..samples).map(|index| format!("{id}:{seq}:{index}")).collect();
    Ok(Json(json!({"request_id": request_id, "sample_sequence_ids": names})))
}
