//! What the server says of itself.

use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Json;
use serde_json::{Value, json};

use super::{Server, Shared};
use crate::error::ApiError;

/// How often clients ask again for [`dynamic_config`], seconds.
const REFRESH: u32 = 300;
/// Cancellations that a client sends at once.
const CANCELLATIONS: u32 = 64;

/// `GET /healthz`.
pub(super) async fn health() -> Json<Value> {
    Json(json!({"status": "ok"}))
}

/// `POST /client/config`. Flags that are not here have the SDK's defaults, which ask for nothing that is not served.
pub(super) async fn client_config(State(server): Shared) -> Json<Value> {
    Json(json!({
        "sample_max_concurrent_requests": server.options.client_samples,
        "sample_use_retrieve_futures": server.options.session_polls,
    }))
}

/// `POST /client/dynamic_config`.
pub(super) async fn dynamic_config() -> Json<Value> {
    Json(json!({
        "refresh_interval_sec": REFRESH,
        "sample_cancel_enabled": true,
        "sample_cancel_max_batch_size": CANCELLATIONS,
    }))
}

/// `GET /get_server_capabilities`.
pub(super) async fn capabilities(State(server): Shared) -> Json<Value> {
    let models: Vec<Value> = server
        .backend
        .models()
        .iter()
        .map(|model| {
            json!({
                "model_name": model.name,
                "max_context_length": model.context,
                "trainable": model.trainable,
                "sampleable": true,
            })
        })
        .collect();
    Json(json!({"supported_models": models}))
}

/// `POST /telemetry`: read to its end, and dropped.
pub(super) async fn telemetry(State(server): Shared, headers: HeaderMap, body: Body) -> Result<Json<Value>, ApiError> {
    let dropped = |bytes: Vec<u8>| {
        tracing::debug!(bytes = bytes.len(), "telemetry");
        Ok(())
    };
    Server::made(&server, &headers, body, dropped).await?;
    Ok(Json(json!({"status": "accepted"})))
}
