//! A retriever behind the protocol of Search-R1 and skyrl-gym: `POST /retrieve`, and `GET /health`.
//!
//! A request that cannot be served is answered by `{"error": TEXT}`, which says what was expected: 400 for what is wrong
//! with it, 404 and 405 for other paths and methods, 413 for a body that is too large, 504 for a search that took too
//! long, 500 for one that failed. Requests that run when the shutdown begins may finish within
//! [`ServerOptions::drain`]; then they are cancelled.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::{Method, StatusCode, Uri};
use axum::response::{IntoResponse, Json, Response};
use axum::routing::{get, post};
pub use espalier_serving::Shutdown;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::time::Instant;

use crate::protocol::{self, RequestBounds};
use crate::retriever::{RetrievalError, Retriever, SearchLimits};

/// How the server behaves. Every default is finite.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerOptions {
    /// Documents per query where a request does not say.
    pub topk: usize,
    /// Most documents per query.
    pub max_topk: usize,
    /// Most queries in one request.
    pub max_queries: usize,
    /// Largest body of a request, bytes.
    pub max_body_bytes: usize,
    /// Longest time for one request.
    pub request_timeout: Duration,
    /// How long requests that run when the shutdown begins may still take.
    pub drain: Duration,
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self {
            topk: 3,
            max_topk: 1000,
            max_queries: 1024,
            max_body_bytes: 8 << 20,
            request_timeout: Duration::from_mins(1),
            drain: Duration::from_secs(5),
        }
    }
}

struct Server {
    retriever: Arc<dyn Retriever>,
    options: ServerOptions,
    shutdown: Shutdown,
}

/// Serves until the shutdown begins and what runs has ended, or its time is over. Gives the number of requests that were
/// cut off.
pub async fn serve(
    retriever: Arc<dyn Retriever>,
    listener: TcpListener,
    options: ServerOptions,
    shutdown: Shutdown,
) -> io::Result<usize> {
    let drain = options.drain;
    let router = router(Server { retriever, options, shutdown: shutdown.clone() });
    espalier_serving::serve(listener, router, drain, &shutdown).await
}

fn router(server: Server) -> Router {
    let limit = DefaultBodyLimit::max(server.options.max_body_bytes);
    Router::new()
        .route("/retrieve", post(retrieve))
        .route("/health", get(async || Json(json!({"status": "ok"}))))
        .fallback(nowhere)
        .method_not_allowed_fallback(not_so)
        .layer(limit)
        .with_state(Arc::new(server))
}

async fn nowhere(uri: Uri) -> Response {
    complaint(
        StatusCode::NOT_FOUND,
        format!("there is no `{}`; there are `POST /retrieve` and `GET /health`", uri.path()),
    )
}

async fn not_so(method: Method, uri: Uri) -> Response {
    let expected = if uri.path() == "/health" { "GET" } else { "POST" };
    complaint(StatusCode::METHOD_NOT_ALLOWED, format!("`{}` takes {expected}, got {method}", uri.path()))
}

async fn retrieve(State(server): State<Arc<Server>>, body: Result<Bytes, BytesRejection>) -> Response {
    let _open = server.shutdown.requests().enter();
    let options = &server.options;
    let body = match body {
        Ok(body) => body,
        Err(rejection) if rejection.status() == StatusCode::PAYLOAD_TOO_LARGE => {
            let limit = options.max_body_bytes;
            return complaint(rejection.status(), format!("a request's body may have {limit} bytes, got more"));
        }
        Err(rejection) => return complaint(rejection.status(), rejection.body_text()),
    };
    let bounds = RequestBounds { topk: options.max_topk, queries: options.max_queries };
    let request = match protocol::read_request(&body, bounds) {
        Ok(request) => request,
        Err(reason) => return complaint(StatusCode::BAD_REQUEST, reason),
    };
    let limits = SearchLimits {
        deadline: Instant::now() + options.request_timeout,
        cancel: server.shutdown.cut().child_token(),
    };
    let topk = request.topk.unwrap_or(options.topk);
    match server.retriever.search_all(&request.queries, topk, &limits).await {
        Ok(lists) => Json(protocol::answer(lists, request.return_scores)).into_response(),
        Err(error) => {
            let status = match &error {
                RetrievalError::Deadline => StatusCode::GATEWAY_TIMEOUT,
                RetrievalError::Cancelled => StatusCode::SERVICE_UNAVAILABLE,
                _ => StatusCode::INTERNAL_SERVER_ERROR,
            };
            complaint(status, error.to_string())
        }
    }
}

fn complaint(status: StatusCode, message: String) -> Response {
    let body: Value = json!({"error": message});
    (status, Json(body)).into_response()
}
