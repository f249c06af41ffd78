//! Refusals: a status, and `{"detail": ...}`, which is what the SDK shows.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Json, Response};
use espalier_serving::BodyError;
use serde_json::json;

use crate::store::StoreError;

/// A refusal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiError {
    /// The status.
    pub status: StatusCode,
    /// The field that is wrong, what was expected and what came.
    pub detail: String,
    /// Seconds after which asking again may help.
    pub retry_after: Option<u64>,
}

impl ApiError {
    pub(crate) fn new(status: StatusCode, detail: impl Into<String>) -> Self {
        Self { status, detail: detail.into(), retry_after: None }
    }

    /// The request is wrong. Clients do not send it again.
    pub(crate) fn bad_request(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, detail)
    }

    /// There is no such thing, for this caller.
    pub(crate) fn not_found(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, detail)
    }

    /// It was there, and is gone.
    pub(crate) fn gone(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::GONE, detail)
    }

    /// There is no room now. Clients send it again.
    pub(crate) fn full(detail: impl Into<String>) -> Self {
        Self { retry_after: Some(1), ..Self::new(StatusCode::TOO_MANY_REQUESTS, detail) }
    }

    /// Something failed that should not. Clients send it again.
    pub(crate) fn internal(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, detail)
    }
}

impl From<StoreError> for ApiError {
    fn from(error: StoreError) -> Self {
        tracing::error!(%error, "a request was not done");
        Self::internal(error.to_string())
    }
}

impl From<BodyError> for ApiError {
    fn from(error: BodyError) -> Self {
        let detail = error.to_string();
        match error {
            BodyError::TooLarge { .. } => Self::new(StatusCode::PAYLOAD_TOO_LARGE, detail),
            BodyError::Broken(_) => Self::bad_request(detail),
            BodyError::Stalled { .. } => Self::new(StatusCode::REQUEST_TIMEOUT, detail),
            BodyError::Busy => Self::full(detail),
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = (self.status, Json(json!({"detail": self.detail}))).into_response();
        if let Some(seconds) = self.retry_after {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}
