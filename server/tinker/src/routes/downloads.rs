//! Files of checkpoints, through signed links that need no key.

use std::io::{self, BufWriter, Write};
use std::sync::Arc;
use std::task::Poll;

use axum::body::{Body, Bytes};
use axum::extract::{Path, State};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Json, Response};
use futures::stream;
use serde_json::{Map, Value, json};
use tokio::io::AsyncReadExt as _;
use tokio::sync::mpsc;
use tokio_util::io::ReaderStream;

use super::checkpoints::no_checkpoint;
use super::{Server, Shared, apart, iso};
use crate::error::ApiError;
use crate::links::{Held, Target, Times, files};
use crate::path::{CheckpointKind, TinkerPath};
use crate::store::now;

/// Bytes of an archive that are handed over at once.
const PIECE: usize = 64 << 10;

/// Where this server is, as the caller knows it: links are absolute.
fn base(headers: &HeaderMap) -> Result<String, ApiError> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let host = text("x-forwarded-host").or_else(|| text("host"));
    let host = host.and_then(|host| host.parse::<Authority>().ok());
    let host = host.ok_or_else(|| ApiError::bad_request("`Host`: expected the server's name, got none"))?;
    let scheme = text("x-forwarded-proto").filter(|scheme| *scheme == "https").unwrap_or("http");
    Ok(format!("{scheme}://{host}/api/v1/"))
}

impl Server {
    /// When a link ends that is made now.
    fn links_end(&self) -> i64 {
        now() + self.options.link_life.as_millis() as i64
    }

    /// The files of a checkpoint that this caller may read.
    async fn files(&self, path: &TinkerPath) -> Result<Vec<Held>, ApiError> {
        let none = || ApiError::not_found(format!("`checkpoint_id`: this server holds no files of `{path}`"));
        let folder = self.backend.checkpoint_folder(path).ok_or_else(none)?;
        let listed = path.clone();
        apart(move || files(&folder).map_err(|error| ApiError::internal(format!("the files of `{listed}`: {error}"))))
            .await
    }

    /// The checkpoint of a link that came back.
    async fn linked(&self, link: &Link, target: Target<'_>) -> Result<TinkerPath, ApiError> {
        let refused = |detail: &str| ApiError::new(StatusCode::FORBIDDEN, detail);
        let wrong = || refused("the link is not one of this server's, or it has ended: ask for a new one");
        let path = format!("tinker://{}/{}/{}", link.model, link.kind, link.name);
        let path: TinkerPath = path.parse().map_err(|_| wrong())?;
        let times = Times::read(&link.times).ok_or_else(wrong)?;
        if !self.store.links().knows(&path, target, times, &link.signature, now()) {
            return Err(wrong());
        }
        let found = self.store.checkpoint(&path).await?;
        let found = found.filter(|found| found.is_there(now()) && found.created_at == times.saved);
        found.map(|found| found.path).ok_or_else(|| no_checkpoint("checkpoint_id", &path))
    }
}

/// What a link says.
#[derive(Clone, Debug)]
struct Link {
    times: String,
    signature: String,
    model: String,
    kind: String,
    name: String,
}

/// `GET .../external_weights_urls`: a link for each file.
pub(super) async fn urls(
    server: &Server,
    owner: &str,
    path: &TinkerPath,
    headers: &HeaderMap,
) -> Result<Response, ApiError> {
    if path.kind != CheckpointKind::External {
        return Err(ApiError::bad_request(format!(
            "`checkpoint_id`: expected `external_weights`, which `save_weights_external` writes, got `{}`",
            path.kind.segment()
        )));
    }
    let found = server.store.readable(owner, path).await?.ok_or_else(|| no_checkpoint("checkpoint_id", path))?;
    let (base, ends) = (base(headers)?, server.links_end());
    let (links, times) = (server.store.links(), Times { ends, saved: found.created_at });
    let link = |held: Held| {
        let url = format!("{base}{}", links.link(path, Target::File(&held.name), times));
        (held.name, Value::String(url))
    };
    let urls: Map<String, Value> = server.files(path).await?.into_iter().map(link).collect();
    Ok(Json(json!({"urls": urls, "expires": iso(ends)})).into_response())
}

/// `GET .../archive`: where older SDKs find all files as a tar.
pub(super) async fn archive(
    server: &Server,
    owner: &str,
    path: &TinkerPath,
    headers: &HeaderMap,
) -> Result<Response, ApiError> {
    let found = server.store.readable(owner, path).await?.ok_or_else(|| no_checkpoint("checkpoint_id", path))?;
    server.files(path).await?;
    let ends = server.links_end();
    let times = Times { ends, saved: found.created_at };
    let url = format!("{}{}", base(headers)?, server.store.links().link(path, Target::Archive, times));
    let place = HeaderValue::try_from(url).map_err(|error| ApiError::internal(format!("a link: {error}")))?;
    // The SDK reads the link's end of this header.
    let moment = chrono::DateTime::from_timestamp_millis(ends).unwrap_or_default();
    let expires = HeaderValue::try_from(moment.format("%a, %d %b %Y %H:%M:%S GMT").to_string());
    let expires = expires.map_err(|error| ApiError::internal(format!("a date: {error}")))?;
    Ok((StatusCode::FOUND, [(header::LOCATION, place), (header::EXPIRES, expires)]).into_response())
}

/// `GET /files/...`: one file.
pub(super) async fn file(
    State(server): Shared,
    Path((times, signature, model, kind, name, file)): Path<(String, String, String, String, String, String)>,
) -> Result<Response, ApiError> {
    let path = server.linked(&Link { times, signature, model, kind, name }, Target::File(&file)).await?;
    let gone = || ApiError::not_found(format!("`{path}` holds no file `{file}`"));
    // Only what is listed: no name leads anywhere else.
    let held = server.files(&path).await?.into_iter().find(|held| held.name == file).ok_or_else(gone)?;
    let failed = |error: io::Error| ApiError::internal(format!("`{file}` of `{path}`: {error}"));
    let opened = tokio::fs::File::open(&held.place).await.map_err(failed)?;
    let bytes = opened.metadata().await.map_err(failed)?.len();
    let body = Body::from_stream(ReaderStream::new(opened.take(bytes)));
    let kind = HeaderValue::from_static("application/octet-stream");
    Ok(([(header::CONTENT_TYPE, kind), (header::CONTENT_LENGTH, HeaderValue::from(bytes))], body).into_response())
}

/// `GET /archives/...`: all files as a tar.
pub(super) async fn tar(
    State(server): Shared,
    Path((times, signature, model, kind, name)): Path<(String, String, String, String, String)>,
) -> Result<Response, ApiError> {
    let path = server.linked(&Link { times, signature, model, kind, name }, Target::Archive).await?;
    let files = server.files(&path).await?;
    let busy = |_| ApiError::full("too many archives are being read; send this again");
    let permit = Arc::clone(&server.archives).try_acquire_owned().map_err(busy)?;
    let (pipe, mut pieces) = mpsc::channel(4);
    tokio::task::spawn_blocking(move || {
        let failed = Pipe(pipe.clone());
        if let Err(error) = write_tar(&files, Pipe(pipe)) {
            tracing::warn!(%error, %path, "an archive was not sent whole");
            // Cuts the answer off, so that nobody takes a part for the whole.
            let _ = failed.0.blocking_send(Err(error));
        }
        drop(permit);
    });
    let body = Body::from_stream(stream::poll_fn(move |context| -> Poll<Option<io::Result<Bytes>>> {
        pieces.poll_recv(context)
    }));
    Ok(([(header::CONTENT_TYPE, HeaderValue::from_static("application/x-tar"))], body).into_response())
}

fn write_tar(files: &[Held], pipe: Pipe) -> io::Result<()> {
    let mut builder = tar::Builder::new(BufWriter::with_capacity(PIECE, pipe));
    for held in files {
        let file = std::fs::File::open(&held.place)?;
        let mut header = tar::Header::new_gnu();
        header.set_size(file.metadata()?.len());
        header.set_mode(0o644);
        let bytes = header.size()?;
        builder.append_data(&mut header, &held.name, io::Read::take(file, bytes))?;
    }
    builder.into_inner()?.flush()
}

/// Hands bytes from a thread to an answer.
struct Pipe(mpsc::Sender<io::Result<Bytes>>);

impl Write for Pipe {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let gone = |_| io::Error::new(io::ErrorKind::BrokenPipe, "the client is gone");
        self.0.blocking_send(Ok(Bytes::copy_from_slice(bytes))).map_err(gone)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
