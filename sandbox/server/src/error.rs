//! Refusals: a status, and `{"error": {"type": ..., "message": ...}}`.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Json, Response};
use espalier_sandbox::SandboxError;
use espalier_serving::BodyError;
use serde_json::json;

/// A refusal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiError {
    /// The status.
    pub status: StatusCode,
    /// What kind of refusal this is, for programs: it does not change.
    pub kind: &'static str,
    /// What was expected and what came, for people.
    pub message: String,
    /// Seconds after which asking again may help.
    pub retry_after: Option<u64>,
}

impl ApiError {
    pub(crate) fn new(status: StatusCode, kind: &'static str, message: impl Into<String>) -> Self {
        Self { status, kind, message: message.into(), retry_after: None }
    }

    /// The request itself is wrong.
    pub(crate) fn request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "request", message)
    }

    /// Something is too large.
    pub(crate) fn too_large(message: impl Into<String>) -> Self {
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", message)
    }

    /// There is no such REPL, for this caller.
    pub(crate) fn no_repl(id: &str) -> Self {
        let shown: String = id.chars().take(64).collect();
        let message = format!("no REPL `{shown}`: it was closed, it was idle for too long, or it never was");
        Self::new(StatusCode::NOT_FOUND, "no_repl", message)
    }

    /// The server has no room; asking again may help.
    pub(crate) fn full(status: StatusCode, kind: &'static str, message: impl Into<String>) -> Self {
        Self { retry_after: Some(1), ..Self::new(status, kind, message) }
    }

    /// Something failed that should not.
    pub(crate) fn internal(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "sandbox", message)
    }
}

impl From<BodyError> for ApiError {
    fn from(error: BodyError) -> Self {
        let message = error.to_string();
        match error {
            BodyError::TooLarge { .. } => Self::too_large(message),
            BodyError::Broken(_) => Self::request(message),
            BodyError::Stalled { .. } => Self::new(StatusCode::REQUEST_TIMEOUT, "timeout", message),
            BodyError::Busy => Self::full(StatusCode::SERVICE_UNAVAILABLE, "busy", message),
        }
    }
}

impl From<SandboxError> for ApiError {
    fn from(error: SandboxError) -> Self {
        let message = error.to_string();
        let (status, kind) = match error {
            SandboxError::Name { .. } => (StatusCode::BAD_REQUEST, "name"),
            SandboxError::NoVariable(_) => (StatusCode::NOT_FOUND, "no_variable"),
            SandboxError::Unreadable { .. } => (StatusCode::UNPROCESSABLE_ENTITY, "unreadable"),
            SandboxError::Snapshot(_) => (StatusCode::BAD_REQUEST, "snapshot"),
            SandboxError::TooLarge { .. } => (StatusCode::PAYLOAD_TOO_LARGE, "too_large"),
            SandboxError::Stopped { .. } => (StatusCode::UNPROCESSABLE_ENTITY, "stopped"),
            SandboxError::Lost(_) => (StatusCode::CONFLICT, "lost"),
            SandboxError::Load(_) | SandboxError::Guest(_) => (StatusCode::INTERNAL_SERVER_ERROR, "sandbox"),
        };
        Self::new(status, kind, message)
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let body = json!({"error": {"type": self.kind, "message": self.message}});
        let mut response = (self.status, Json(body)).into_response();
        if let Some(seconds) = self.retry_after {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}
