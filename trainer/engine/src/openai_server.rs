//! The engine behind the OpenAI HTTP API: `/v1/models`, `/v1/chat/completions`, `/v1/completions`, `/health`.
//!
//! | module | what lives there |
//! |---|---|
//! | `request` | JSON bodies to checked requests; every complaint names its parameter |
//! | `response` | answers and stream chunks |
//! | this one | routes, errors, limits, shutdown |
//!
//! Beyond OpenAI's own parameters, vLLM's `top_k`, `min_p`, `stop_token_ids`, `ignore_eos`, `include_stop_str_in_output`
//! and `return_token_ids` are known, and prompts may be token ids. Parameters that the engine would have to ignore are
//! refused. Log-probabilities are those of the sampled token (`logprobs: 1` or `top_logprobs: 1` repeat it as the only
//! alternative), under the softmax of the logits divided by the temperature.
//!
//! An adapter that is loaded is a model of its own: `/v1/models` lists it under its name, and `model` chooses it.
//!
//! A client that goes away cancels its request. Requests that run when the shutdown begins may finish within
//! [`ServerOptions::drain`]; then they are cancelled, and answered with what was sampled so far.

mod request;
mod response;

use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, Path, State};
use axum::http::{Method, StatusCode, Uri};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Json, Response};
use axum::routing::{get, post};
use espalier_inference::{EngineError, GenerateRequest, InferenceEngine, Prompt};
pub use espalier_serving::Shutdown;
use futures::future::try_join_all;
use futures::{Stream, StreamExt, stream};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::time::Instant;

use self::request::{Api, Call};
use self::response::{Chunks, completion};
use crate::local::{LocalEngine, StreamEvent};

/// How the server behaves. Every default is finite.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerOptions {
    /// Largest request body in bytes.
    pub max_body_bytes: usize,
    /// Longest time for one request.
    pub request_timeout: Duration,
    /// Most prompts in one request.
    pub max_prompts: usize,
    /// How long requests that run when the shutdown begins may still take.
    pub drain: Duration,
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self {
            max_body_bytes: 32 << 20,
            request_timeout: Duration::from_mins(10),
            max_prompts: 256,
            drain: Duration::from_secs(5),
        }
    }
}

struct Server {
    engine: Arc<LocalEngine>,
    options: ServerOptions,
    /// When the server started, which is when the model came to be there.
    started: u64,
    shutdown: Shutdown,
}

/// Seconds since 1970.
fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// An error as OpenAI's clients expect it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiError {
    status: StatusCode,
    kind: &'static str,
    code: Option<&'static str>,
    param: Option<String>,
    message: String,
}

impl ApiError {
    fn invalid(param: &str, message: impl Into<String>) -> Self {
        Self {
            status: StatusCode::BAD_REQUEST,
            kind: "invalid_request_error",
            code: None,
            param: Some(param.to_owned()),
            message: message.into(),
        }
    }

    fn body(&self) -> Value {
        json!({"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}})
    }
}

impl From<EngineError> for ApiError {
    fn from(error: EngineError) -> Self {
        let message = error.to_string();
        let (status, kind, code) = match &error {
            EngineError::Invalid { .. } => (StatusCode::BAD_REQUEST, "invalid_request_error", None),
            EngineError::UnknownAdapter { .. } => {
                (StatusCode::NOT_FOUND, "invalid_request_error", Some("model_not_found"))
            }
            EngineError::ContextOverflow { .. } => {
                (StatusCode::BAD_REQUEST, "invalid_request_error", Some("context_length_exceeded"))
            }
            EngineError::Deadline { .. } => (StatusCode::GATEWAY_TIMEOUT, "timeout_error", Some("deadline")),
            EngineError::Cancelled => (StatusCode::SERVICE_UNAVAILABLE, "server_error", Some("cancelled")),
            EngineError::Failed { .. } => (StatusCode::INTERNAL_SERVER_ERROR, "server_error", None),
        };
        // The engine puts the parameter's name first, in backticks.
        let named =
            |reason: &str| reason.strip_prefix('`').and_then(|r| r.split_once('`')).map(|(name, _)| name.to_owned());
        let param = match &error {
            EngineError::Invalid { reason, .. } => named(reason),
            EngineError::ContextOverflow { .. } => Some("prompt".to_owned()),
            EngineError::UnknownAdapter { .. } => Some("model".to_owned()),
            _ => None,
        };
        Self { status, kind, code, param, message }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        (self.status, Json(self.body())).into_response()
    }
}

fn router(server: Server) -> Router {
    let limit = server.options.max_body_bytes;
    Router::new()
        .route("/health", get(|| async { Json(json!({"status": "ok"})) }))
        .route("/v1/models", get(models))
        .route("/v1/models/{model}", get(model))
        .route("/v1/chat/completions", post(chat))
        .route("/v1/completions", post(complete))
        .fallback(unknown)
        .method_not_allowed_fallback(wrong_method)
        .layer(DefaultBodyLimit::max(limit))
        .with_state(Arc::new(server))
}

/// Serves the API until the shutdown begins; then takes no new connections, and ends when the last request is answered,
/// or cancelled after [`ServerOptions::drain`]. Gives the number of requests that were cancelled.
pub async fn serve(
    engine: Arc<LocalEngine>,
    listener: TcpListener,
    options: ServerOptions,
    shutdown: Shutdown,
) -> io::Result<usize> {
    let drain = options.drain;
    let server = Server { engine, options, started: now(), shutdown: shutdown.clone() };
    espalier_serving::serve(listener, router(server), drain, &shutdown).await
}

async fn unknown(method: Method, uri: Uri) -> ApiError {
    ApiError {
        status: StatusCode::NOT_FOUND,
        kind: "invalid_request_error",
        code: Some("unknown_url"),
        param: None,
        message: format!("unknown request URL: {method} `{}`", uri.path()),
    }
}

async fn wrong_method(method: Method, uri: Uri) -> ApiError {
    ApiError {
        status: StatusCode::METHOD_NOT_ALLOWED,
        kind: "invalid_request_error",
        code: Some("method_not_allowed"),
        param: None,
        message: format!("`{}` does not take {method}", uri.path()),
    }
}

impl Server {
    /// What `/v1/models` says of the base model or of an adapter.
    fn card(&self, adapter: Option<&str>) -> Value {
        let info = self.engine.info();
        let parent = adapter.map(|_| &info.model);
        json!({"id": adapter.unwrap_or(&info.model), "object": "model", "created": self.started,
               "owned_by": "espalier", "max_model_len": info.context_tokens, "parent": parent})
    }

    /// The adapter of that name; nothing for the base model.
    fn adapter(&self, name: &str) -> Result<Option<String>, ApiError> {
        let own = &self.engine.info().model;
        if name == own {
            return Ok(None);
        }
        let adapters = self.engine.adapters();
        if adapters.iter().any(|(known, _)| known == name) {
            return Ok(Some(name.to_owned()));
        }
        let known: Vec<String> =
            std::iter::once(own).chain(adapters.iter().map(|(known, _)| known)).map(|n| format!("`{n}`")).collect();
        Err(ApiError {
            status: StatusCode::NOT_FOUND,
            kind: "invalid_request_error",
            code: Some("model_not_found"),
            param: Some("model".to_owned()),
            message: format!("`model`: expected {}, got `{name}`", known.join(" or ")),
        })
    }

    fn requests(&self, call: &Call) -> Vec<GenerateRequest> {
        let deadline = Instant::now() + self.options.request_timeout;
        call.prompts
            .iter()
            .map(|prompt| GenerateRequest {
                prompt: prompt.clone(),
                sampling: call.sampling.clone(),
                n: call.n,
                adapter: call.adapter.clone(),
                session: call.session.clone(),
                deadline,
                cancel: self.shutdown.cut().child_token(),
            })
            .collect()
    }
}

async fn models(State(server): State<Arc<Server>>) -> Json<Value> {
    let adapters = server.engine.adapters();
    let cards = std::iter::once(None).chain(adapters.iter().map(|(name, _)| Some(name.as_str())));
    Json(json!({"object": "list", "data": cards.map(|name| server.card(name)).collect::<Vec<_>>()}))
}

async fn model(State(server): State<Arc<Server>>, Path(name): Path<String>) -> Result<Json<Value>, ApiError> {
    let adapter = server.adapter(&name)?;
    Ok(Json(server.card(adapter.as_deref())))
}

async fn chat(
    State(server): State<Arc<Server>>,
    body: Result<Bytes, axum::extract::rejection::BytesRejection>,
) -> Response {
    answer(server, Api::Chat, body).await.unwrap_or_else(IntoResponse::into_response)
}

async fn complete(
    State(server): State<Arc<Server>>,
    body: Result<Bytes, axum::extract::rejection::BytesRejection>,
) -> Response {
    answer(server, Api::Completions, body).await.unwrap_or_else(IntoResponse::into_response)
}

async fn answer(
    server: Arc<Server>,
    api: Api,
    body: Result<Bytes, axum::extract::rejection::BytesRejection>,
) -> Result<Response, ApiError> {
    let body = body.map_err(|rejection| ApiError {
        status: rejection.status(),
        kind: "invalid_request_error",
        code: None,
        param: None,
        message: format!("{} (at most {} bytes)", rejection.body_text(), server.options.max_body_bytes),
    })?;
    let mut call = Call::parse(api, &body, server.options.max_prompts)?;
    if let Some(name) = &call.model {
        call.adapter = server.adapter(name)?;
    }
    if call.return_token_ids || call.stream {
        // The ids that are reported are the ids that are sent.
        for prompt in &mut call.prompts {
            *prompt = Prompt::Tokens(server.engine.encode(prompt).await?);
        }
    }
    let open = server.shutdown.requests().enter();
    let created = now();
    let requests = server.requests(&call);
    if call.stream {
        let mut streams = Vec::new();
        for (i, request) in requests.into_iter().enumerate() {
            let mut events = server.engine.generate_stream(request).await?;
            streams.push(stream::poll_fn(move |cx| events.poll_recv(cx)).map(move |event| (i, event)).boxed());
        }
        let chunks = Chunks::new(call, server.engine.clone(), created);
        let events = sse(stream::select_all(streams), chunks);
        // The request is open until its last event is sent, or its client is gone.
        let events = events.inspect(move |_| _ = &open);
        return Ok(Sse::new(events).keep_alive(KeepAlive::default()).into_response());
    }
    let results = try_join_all(requests.into_iter().map(|request| server.engine.generate(request))).await?;
    Ok(Json(completion(&call, &server.engine, created, &results)).into_response())
}

/// Turns engine events into server-sent events: chunks, then `[DONE]`; an error ends the stream as an `error` object.
fn sse(
    events: impl Stream<Item = (usize, StreamEvent)> + Send + Unpin + 'static,
    chunks: Chunks,
) -> impl Stream<Item = Result<Event, Infallible>> + Send {
    let event = |value: &Value| Ok(Event::default().data(value.to_string()));
    let first: Vec<Value> = chunks.first();
    let body = stream::unfold((events, Some(chunks)), |(mut events, chunks)| async move {
        let mut chunks = chunks?;
        match events.next().await {
            None => Some((chunks.last(), (events, None))),
            Some((_, StreamEvent::Done(Err(error)))) => Some((vec![ApiError::from(error).body()], (events, None))),
            Some((prompt, event)) => {
                let values = chunks.next(prompt, event);
                Some((values, (events, Some(chunks))))
            }
        }
    });
    stream::iter(first)
        .chain(body.map(stream::iter).flatten())
        .map(move |value| event(&value))
        .chain(stream::iter([Ok(Event::default().data("[DONE]"))]))
}
