//! One function per path.
//!
//! | module | what lives there |
//! |---|---|
//! | this one | what every request sees, reading bodies, the table of paths |
//! | `admission` | keys, and who may come where there are none |
//! | `service` | what the server says of itself: configuration, models, health, telemetry |
//! | `sessions` | sessions and samplers |
//! | `training` | operations of models: taken in, in their order |
//! | `sampling` | samples |
//! | `results` | futures: waiting, fetching, cancelling |
//! | `reads` | lists of what there is |
//! | `checkpoints` | checkpoints: lists, what owners do to them |
//! | `downloads` | files of checkpoints, through signed links |

mod admission;
mod checkpoints;
mod downloads;
mod reads;
mod results;
mod sampling;
mod service;
mod sessions;
mod training;

use std::io::Read as _;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, header};
use axum::middleware;
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get, post};
use espalier_serving::Bodies;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;

use crate::backend::{Backend, BaseModel};
use crate::error::ApiError;
use crate::options::ServerOptions;
use crate::shelf::Shelf;
use crate::store::Store;
use crate::waiters::Waiters;
use crate::wire::{self, Checked};
use crate::worker::Worker;

/// Bytes from which a body is parsed on a thread of its own, so that others are answered meanwhile.
const LARGE: usize = 64 << 10;
/// Largest window of a compressed body, as a power of two: 64 MiB.
const WINDOW: u32 = 26;

/// What every request sees.
pub(crate) struct Server {
    pub(crate) store: Store,
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) shelf: Arc<Shelf>,
    pub(crate) worker: Arc<Worker>,
    pub(crate) waiters: Waiters,
    pub(crate) options: ServerOptions,
    pub(crate) bodies: Bodies,
    /// Room for archives that are written at once.
    pub(crate) archives: Arc<Semaphore>,
    /// Requests that are not answered yet.
    pub(crate) open: AtomicUsize,
    /// No new work is taken.
    pub(crate) stopping: CancellationToken,
}

type Shared = State<Arc<Server>>;

/// Whose request it is.
#[derive(Clone, Debug)]
struct Owner(Arc<str>);

pub(crate) fn router(server: Arc<Server>) -> Router {
    let api = Router::new()
        .route("/client/config", post(service::client_config))
        .route("/client/dynamic_config", post(service::dynamic_config))
        .route("/get_server_capabilities", get(service::capabilities))
        .route("/telemetry", post(service::telemetry))
        .route("/create_session", post(sessions::create))
        .route("/session_heartbeat", post(sessions::heartbeat))
        .route("/sessions", get(reads::sessions))
        .route("/sessions/{session}", get(reads::session))
        .route("/sessions/{session}/finish", post(sessions::finish))
        .route("/create_sampling_session", post(sessions::create_sampler))
        .route("/samplers/{sampler}", get(reads::sampler))
        .route("/create_model", post(training::create_model))
        .route("/get_info", post(training::get_info))
        .route("/forward_backward", post(training::forward_backward))
        .route("/optim_step", post(training::optim_step))
        .route("/save_weights", post(training::save_weights))
        .route("/save_weights_for_sampler", post(training::save_weights_for_sampler))
        .route("/save_weights_external", post(training::save_weights_external))
        .route("/load_weights", post(training::load_weights))
        .route("/asample", post(sampling::asample))
        .route("/retrieve_future", post(results::retrieve))
        .route("/retrieve_futures", post(results::retrieve_many))
        .route("/cancel_future", post(results::cancel))
        .route("/training_runs", get(reads::training_runs))
        .route("/training_runs/{run}", get(reads::training_run))
        .route("/training_runs/{run}/checkpoints", get(checkpoints::of_run))
        .route("/training_runs/{run}/checkpoints/{*rest}", any(checkpoints::at))
        .route("/checkpoints", get(checkpoints::list))
        .route("/weights_info", post(checkpoints::weights_info))
        .layer(middleware::from_fn_with_state(Arc::clone(&server), admission::admit));
    // No key is needed here: a link that was signed is one.
    let open = Router::new()
        .route("/healthz", get(service::health))
        .route("/files/{ends}/{signature}/{run}/{kind}/{name}/{*file}", get(downloads::file))
        .route("/archives/{ends}/{signature}/{run}/{kind}/{name}", get(downloads::tar));
    Router::new()
        .nest("/api/v1", open.merge(api))
        .fallback(unknown)
        .method_not_allowed_fallback(wrong_method)
        .with_state(server)
}

async fn unknown(method: Method, uri: Uri) -> ApiError {
    ApiError::not_found(format!("{method} `{}` is not served", uri.path()))
}

async fn wrong_method(method: Method, uri: Uri) -> ApiError {
    ApiError::new(StatusCode::METHOD_NOT_ALLOWED, format!("`{}` does not take {method}", uri.path()))
}

/// A body that was made something of. The room that it takes is free when this is dropped.
struct Taken<T> {
    value: T,
    _room: OwnedSemaphorePermit,
}

impl Server {
    /// Reads a JSON body.
    async fn json<T: Checked + Send + 'static>(&self, headers: &HeaderMap, body: Body) -> Result<T, ApiError> {
        Ok(self.made(headers, body, |bytes| wire::read(&bytes)).await?.value)
    }

    /// Reads a body and makes something of it.
    async fn made<T: Send + 'static>(
        &self,
        headers: &HeaderMap,
        body: Body,
        make: impl FnOnce(Vec<u8>) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<Taken<T>, ApiError> {
        let compressed = match headers.get(header::CONTENT_ENCODING).map(HeaderValue::as_bytes) {
            None | Some(b"identity") => false,
            Some(b"zstd") => true,
            Some(other) => {
                let detail = format!("`Content-Encoding`: expected `zstd`, got `{}`", String::from_utf8_lossy(other));
                return Err(ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, detail));
            }
        };
        let (bytes, room) = self.bodies.read(body).await?.split();
        let most = self.options.max_body_bytes;
        let made = if compressed {
            apart(move || make(decompress(&bytes, most)?)).await?
        } else if bytes.len() < LARGE {
            make(bytes)?
        } else {
            apart(move || make(bytes)).await?
        };
        Ok(Taken { value: made, _room: room })
    }

    /// The base model of a name.
    fn base_model(&self, name: &str) -> Result<&BaseModel, ApiError> {
        let models = self.backend.models();
        models.iter().find(|model| model.name == name).ok_or_else(|| {
            let known: Vec<String> = models.iter().map(|model| format!("`{}`", model.name)).collect();
            ApiError::bad_request(format!("`base_model`: expected {}, got `{name}`", known.join(" or ")))
        })
    }
}

/// Work that would hold up others, on a thread of its own.
async fn apart<T: Send + 'static>(work: impl FnOnce() -> Result<T, ApiError> + Send + 'static) -> Result<T, ApiError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) => Err(ApiError::internal(format!("a thread failed: {error}"))),
    }
}

/// What was compressed, unless it is more than a body may be.
fn decompress(bytes: &[u8], most: usize) -> Result<Vec<u8>, ApiError> {
    let wrong = |error: std::io::Error| ApiError::bad_request(format!("the body is no zstd: {error}"));
    let mut decoder = zstd::Decoder::new(bytes).map_err(wrong)?;
    decoder.window_log_max(WINDOW).map_err(wrong)?;
    let mut whole = Vec::new();
    decoder.take(most as u64 + 1).read_to_end(&mut whole).map_err(wrong)?;
    if whole.len() > most {
        let detail = format!("the body is larger than {most} bytes when it is decompressed");
        return Err(ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, detail));
    }
    Ok(whole)
}

/// Bytes of a media type.
fn bytes_of(kind: &'static str, bytes: Vec<u8>) -> Response {
    let mut response = bytes.into_response();
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

/// A moment in the form that the SDK reads.
fn iso(milliseconds: i64) -> String {
    let moment = chrono::DateTime::from_timestamp_millis(milliseconds).unwrap_or_default();
    moment.to_rfc3339_opts(chrono::SecondsFormat::Millis, true)
}
