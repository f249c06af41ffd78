//! One function per path.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Extension, FromRequestParts, Path, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Json, Response};
use axum::routing::{get, post};
use axum::{Router, http};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use espalier_sandbox::{Limits, Sandbox};
use espalier_serving::{Bodies, OpenRequests};
use futures::FutureExt as _;
use serde_json::{Value as Json_, json};
use tokio::sync::OwnedSemaphorePermit;

use crate::error::ApiError;
use crate::ledger::promise;
use crate::options::ServerOptions;
use crate::session::{Attached, Progress, ToClient};
use crate::sessions::Sessions;
use crate::value;
use crate::wire::{self, Bind, Bound, Create, Execute, Fork, Get, Nothing, Restore, Return, Wait};

/// Bytes from which a body is parsed on a thread of its own, so that others are answered meanwhile.
const LARGE: usize = 64 << 10;

/// Bytes, not JSON.
const OCTETS: &str = "application/octet-stream";

/// What every request sees.
pub(crate) struct Server {
    pub(crate) sandbox: Sandbox,
    pub(crate) sessions: Sessions,
    pub(crate) options: ServerOptions,
    pub(crate) bodies: Bodies,
    /// Requests that are not answered yet.
    pub(crate) open: OpenRequests,
    /// No new work is taken.
    pub(crate) stopping: tokio_util::sync::CancellationToken,
}

type Shared = State<Arc<Server>>;

/// Whose request it is.
#[derive(Clone, Copy)]
struct Owner(usize);

pub(crate) fn router(server: Arc<Server>) -> Router {
    let repl = Router::new()
        .route("/v1/repls", get(list).post(create))
        .route("/v1/repls/restore", post(restore))
        .route("/v1/repls/{repl}", get(describe).delete(close))
        .route("/v1/repls/{repl}/execute", post(execute))
        .route("/v1/repls/{repl}/wait", post(wait))
        .route("/v1/repls/{repl}/return", post(give))
        .route("/v1/repls/{repl}/fork", post(fork))
        .route("/v1/repls/{repl}/snapshot", post(snapshot))
        .route("/v1/repls/{repl}/bind", post(bind))
        .route("/v1/repls/{repl}/get", post(read))
        .route("/v1/repls/{repl}/variables", get(variables))
        .route("/v1/repls/{repl}/reset", post(reset))
        .layer(middleware::from_fn_with_state(Arc::clone(&server), admit));
    Router::new()
        .route("/health", get(health))
        .merge(repl)
        .fallback(unknown)
        .method_not_allowed_fallback(wrong_method)
        .with_state(server)
}

async fn unknown(method: Method, uri: Uri) -> ApiError {
    ApiError::new(StatusCode::NOT_FOUND, "no_path", format!("there is no {method} `{}` here", uri.path()))
}

async fn wrong_method(method: Method, uri: Uri) -> ApiError {
    let message = format!("`{}` does not take {method}", uri.path());
    ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "method", message)
}

/// Lets a request in, or not.
async fn admit(State(server): Shared, mut request: Request, next: Next) -> Response {
    let stopping = || {
        let message = "this server is shutting down";
        ApiError::full(StatusCode::SERVICE_UNAVAILABLE, "stopping", message).into_response()
    };
    if server.stopping.is_cancelled() {
        return stopping();
    }
    let keys = &server.options.keys;
    let owner = if keys.is_open() { from_here(request.headers()) } else { bearer(request.headers(), keys) };
    match owner {
        Ok(owner) => {
            let _open = server.open.enter();
            request.extensions_mut().insert(owner);
            let answer = next.run(request).await;
            // Whoever waited for a REPL that the end of the server closed.
            if answer.status() == StatusCode::NOT_FOUND && server.stopping.is_cancelled() { stopping() } else { answer }
        }
        Err(refused) => refused.into_response(),
    }
}

fn bearer(headers: &HeaderMap, keys: &crate::Keys) -> Result<Owner, ApiError> {
    let refused = |message| Err(ApiError::new(StatusCode::UNAUTHORIZED, "unauthorized", message));
    let Some(header) = headers.get(header::AUTHORIZATION) else {
        return refused("this server asks for a key: `Authorization: Bearer KEY`");
    };
    let given = header.to_str().ok().and_then(|text| text.split_once(' '));
    match given {
        Some((scheme, key)) if scheme.eq_ignore_ascii_case("bearer") => match keys.owner(key.trim()) {
            Some(owner) => Ok(Owner(owner)),
            None => refused("this key is not one of the server's"),
        },
        _ => refused("expected `Authorization: Bearer KEY`"),
    }
}

/// Without keys only programs of this machine may come: a page in a browser here is one of another machine.
fn from_here(headers: &HeaderMap) -> Result<Owner, ApiError> {
    let local = |name: header::HeaderName| {
        let Some(given) = headers.get(name) else { return true };
        let Ok(given) = given.to_str() else { return false };
        let authority = given.split_once("://").map_or(given, |(_, rest)| rest);
        match authority.parse::<http::uri::Authority>() {
            Ok(authority) => {
                let host = authority.host().trim_start_matches('[').trim_end_matches(']');
                host.eq_ignore_ascii_case("localhost")
                    || host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
            }
            Err(_) => false,
        }
    };
    if local(header::HOST) && local(header::ORIGIN) {
        return Ok(Owner(0));
    }
    let message = "without keys this server answers programs of its own machine only: expected `localhost` or a loopback \
                   address as the host (and no page of another site)";
    Err(ApiError::new(StatusCode::FORBIDDEN, "forbidden", message))
}

/// The REPL that a path names, if it is the caller's.
struct Found(Attached);

impl FromRequestParts<Arc<Server>> for Found {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, server: &Arc<Server>) -> Result<Self, Response> {
        let Extension(owner) =
            Extension::<Owner>::from_request_parts(parts, server).await.map_err(IntoResponse::into_response)?;
        let Path(repl) =
            Path::<String>::from_request_parts(parts, server).await.map_err(IntoResponse::into_response)?;
        server.sessions.find(&repl, owner.0).map(Self).map_err(IntoResponse::into_response)
    }
}

impl Server {
    /// Reads a body and makes something of it. The room that it takes is free when the second part is dropped.
    async fn body<T: Send + 'static>(
        &self,
        body: Body,
        make: impl FnOnce(Vec<u8>) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<(T, OwnedSemaphorePermit), ApiError> {
        let (bytes, room) = self.bodies.read(body).await?.split();
        let made = if bytes.len() < LARGE { make(bytes)? } else { apart(move || make(bytes)).await? };
        Ok((made, room))
    }

    fn wait(&self, asked: Option<Duration>) -> Duration {
        asked.unwrap_or(self.options.max_wait).min(self.options.max_wait)
    }
}

/// Work that would hold up others, on a thread of its own.
async fn apart<T: Send + 'static>(work: impl FnOnce() -> Result<T, ApiError> + Send + 'static) -> Result<T, ApiError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) => Err(ApiError::internal(format!("a thread failed: {error}"))),
    }
}

async fn health(State(server): Shared) -> Response {
    let (repls, memory) = server.sessions.ledger.used();
    let stopping = server.stopping.is_cancelled();
    let status = if stopping { StatusCode::SERVICE_UNAVAILABLE } else { StatusCode::OK };
    let word = if stopping { "stopping" } else { "ok" };
    let body = json!({
        "status": word,
        "repls": repls,
        "max_repls": server.options.max_repls,
        "memory_bytes": memory,
        "max_memory_bytes": server.options.max_memory_bytes,
    });
    (status, Json(body)).into_response()
}

fn described(session: &Attached, server: &Server) -> Json_ {
    json!({
        "repl": session.id,
        "state": session.activity(),
        "limits": session.limits,
        "memory_bytes": session.promised(),
        "idle_timeout_s": server.options.idle_timeout.as_secs_f64(),
    })
}

async fn list(State(server): Shared, Extension(owner): Extension<Owner>) -> Response {
    let repls: Vec<Json_> = server
        .sessions
        .of(owner.0)
        .iter()
        .map(|session| {
            // Being listed is not being used.
            let idle = session.idle().unwrap_or_default().as_secs_f64();
            json!({"repl": session.id, "state": session.activity(), "idle_s": idle, "memory_bytes": session.promised()})
        })
        .collect();
    Json(json!({"repls": repls})).into_response()
}

async fn create(State(server): Shared, Extension(owner): Extension<Owner>, body: Body) -> Result<Response, ApiError> {
    let given = server.options.limits.clone();
    let made = move |bytes: Vec<u8>| wire::read::<Create>(&bytes)?.options(&given, Arc::new(ToClient));
    let (options, _room) = server.body(body, made).await?;
    let limits = options.limits.clone();
    let place = server.sessions.ledger.place(promise(&limits, context_bytes(&options)))?;
    let repl = server.sandbox.repl(options).await?;
    let session = server.sessions.add(owner.0, repl, limits, place)?;
    Ok((StatusCode::CREATED, Json(described(&session, &server))).into_response())
}

fn context_bytes(options: &espalier_sandbox::ReplOptions) -> u64 {
    options.contexts.iter().map(|context| context.size() as u64).sum()
}

async fn restore(
    State(server): Shared,
    Extension(owner): Extension<Owner>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    let given = server.options.limits.clone();
    let raw = names(&headers, &header::CONTENT_TYPE, OCTETS);
    let made = move |bytes: Vec<u8>| {
        let host = Arc::new(ToClient);
        if raw {
            return Ok((bytes, Restore::plain().options(&given, host)?));
        }
        let restore = wire::read::<Restore>(&bytes)?;
        let options = restore.options(&given, host)?;
        let snapshot = BASE64
            .decode(&restore.snapshot)
            .map_err(|error| ApiError::request(format!("`snapshot` must be base64: {error}")))?;
        Ok((snapshot, options))
    };
    let ((snapshot, options), _room) = server.body(body, made).await?;
    let limits = options.limits.clone();
    let place = server.sessions.ledger.place(promise(&limits, context_bytes(&options)))?;
    let repl = server.sandbox.restore(&snapshot, options).await?;
    let session = server.sessions.add(owner.0, repl, limits, place)?;
    Ok((StatusCode::CREATED, Json(described(&session, &server))).into_response())
}

/// Whether a header names a media type.
fn names(headers: &HeaderMap, header: &header::HeaderName, kind: &str) -> bool {
    headers.get(header).and_then(|value| value.to_str().ok()).is_some_and(|value| value.contains(kind))
}

async fn describe(State(server): Shared, Found(session): Found) -> Result<Response, ApiError> {
    Ok(Json(described(&session, &server)).into_response())
}

async fn close(State(server): Shared, Found(session): Found) -> Result<Response, ApiError> {
    server.sessions.close(&session);
    Ok(Json(json!({"closed": session.id})).into_response())
}

async fn execute(State(server): Shared, Found(session): Found, body: Body) -> Result<Response, ApiError> {
    let (asked, _room) = server.body(body, |bytes| wire::read::<Execute>(&bytes)).await?;
    let (timeout, wait) = (asked.timeout()?, server.wait(asked.wait()?));
    let limits = Limits { block: timeout.unwrap_or(session.limits.block), ..session.limits.clone() };
    session.execute(asked.code, limits, asked.id)?;
    follow(&session, wait).await
}

async fn wait(State(server): Shared, Found(session): Found, body: Body) -> Result<Response, ApiError> {
    let (asked, _room) = server.body(body, |bytes| wire::read::<Wait>(&bytes)).await?;
    let wait = server.wait(asked.wait()?);
    follow(&session, wait).await
}

async fn give(State(server): Shared, Found(session): Found, body: Body) -> Result<Response, ApiError> {
    let made = |bytes: Vec<u8>| {
        let asked = wire::read::<Return>(&bytes)?;
        let result = asked.result()?;
        Ok((asked, result))
    };
    let ((asked, result), _room) = server.body(body, made).await?;
    let wait = server.wait(asked.wait()?);
    session.answer((asked.block, asked.index), result)?;
    follow(&session, wait).await
}

/// What a block comes to: its end, a call, or (202) that it still runs.
async fn follow(session: &Attached, wait: Duration) -> Result<Response, ApiError> {
    Ok(match session.progress(wait).await? {
        Progress::Done(answer) | Progress::Call(answer) => Json(answer).into_response(),
        Progress::Running => (StatusCode::ACCEPTED, Json(json!({"running": true, "repl": session.id}))).into_response(),
    })
}

async fn fork(
    State(server): Shared,
    Extension(owner): Extension<Owner>,
    Found(parent): Found,
    body: Body,
) -> Result<Response, ApiError> {
    let (asked, _room) = server.body(body, |bytes| wire::read::<Fork>(&bytes)).await?;
    let place = parent.another_place()?;
    let fork = parent.work("being forked", move |repl| repl.fork(asked.seed).boxed()).await?;
    let session = server.sessions.add(owner.0, fork, parent.limits.clone(), place)?;
    Ok((StatusCode::CREATED, Json(described(&session, &server))).into_response())
}

async fn snapshot(
    State(server): Shared,
    Found(session): Found,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    let (Nothing {}, _room) = server.body(body, |bytes| wire::read::<Nothing>(&bytes)).await?;
    let bytes = session.work("writing a snapshot", |repl| repl.snapshot().boxed()).await?;
    let (length, most) = (bytes.len(), server.options.max_body_bytes);
    if length > most {
        return Err(ApiError::too_large(format!(
            "the snapshot has {length} bytes; no request could bring it back, since bodies have at most {most}"
        )));
    }
    if names(&headers, &header::ACCEPT, OCTETS) {
        let mut response = bytes.into_response();
        response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(OCTETS));
        return Ok(response);
    }
    let text = apart(move || Ok(BASE64.encode(bytes))).await?;
    Ok(Json(json!({"snapshot": text, "bytes": length})).into_response())
}

async fn bind(State(server): Shared, Found(session): Found, body: Body) -> Result<Response, ApiError> {
    let (bound, _room) = server.body(body, |bytes| wire::read::<Bind>(&bytes)?.bound()).await?;
    let name = match bound {
        Bound::Variable(name, value) => {
            let bound = name.clone();
            session
                .work("binding a variable", move |repl| async move { repl.bind(&name, value).await }.boxed())
                .await?;
            bound
        }
        Bound::Context(context) => {
            let more = promise(&Limits { memory_bytes: 0, ..Limits::default() }, context.size() as u64);
            session.grow(more)?;
            let bound = session.work("binding a context", move |repl| repl.bind_context(context).boxed()).await;
            if bound.is_err() {
                session.shrink(more);
            }
            format!("context_{}", bound?)
        }
    };
    Ok(Json(json!({"bound": name})).into_response())
}

async fn read(State(server): Shared, Found(session): Found, body: Body) -> Result<Response, ApiError> {
    let (Get { name }, _room) = server.body(body, |bytes| wire::read::<Get>(&bytes)).await?;
    let read = session.work("reading a variable", move |repl| async move { repl.get(&name).await }.boxed()).await?;
    Ok(Json(json!({"value": value::to_json(&read), "type": read.type_name()})).into_response())
}

async fn variables(Found(session): Found) -> Result<Response, ApiError> {
    let variables = session.work("listing its variables", |repl| repl.variables().boxed()).await?;
    Ok(Json(wire::variables(&variables)).into_response())
}

async fn reset(State(server): Shared, Found(session): Found, body: Body) -> Result<Response, ApiError> {
    let (Nothing {}, _room) = server.body(body, |bytes| wire::read::<Nothing>(&bytes)).await?;
    session.work("being reset", |repl| repl.reset().boxed()).await?;
    Ok(Json(json!({"reset": true})).into_response())
}
