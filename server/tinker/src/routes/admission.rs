//! Who may come.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use axum::extract::{Request, State};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderName, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::{Owner, Server, Shared};
use crate::error::ApiError;

/// Counts a request while it is there.
struct Open(Arc<Server>);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Lets a request in, or not.
pub(super) async fn admit(State(server): Shared, mut request: Request, next: Next) -> Response {
    if server.stopping.is_cancelled() {
        let error = ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "this server is shutting down");
        return ApiError { retry_after: Some(1), ..error }.into_response();
    }
    match owner(&server, request.headers()) {
        Ok(owner) => {
            server.open.fetch_add(1, Ordering::Relaxed);
            let _open = Open(Arc::clone(&server));
            request.extensions_mut().insert(owner);
            next.run(request).await
        }
        Err(refused) => refused.into_response(),
    }
}

fn owner(server: &Server, headers: &HeaderMap) -> Result<Owner, ApiError> {
    let keys = &server.options.keys;
    if keys.is_open() && !server.options.open {
        from_here(headers)?;
    }
    let given = headers.get("x-api-key").and_then(|key| key.to_str().ok());
    match (given, keys.is_open()) {
        (None, false) => Err(ApiError::new(StatusCode::UNAUTHORIZED, "`X-API-Key`: expected a key, got none")),
        (given, _) => match keys.owner(given.unwrap_or_default()) {
            Some(owner) => Ok(Owner(owner.into())),
            None => Err(ApiError::new(StatusCode::UNAUTHORIZED, "`X-API-Key`: this key is not one of the server's")),
        },
    }
}

/// Without keys only programs of this machine may come: a page in a browser here is one of another machine.
fn from_here(headers: &HeaderMap) -> Result<(), ApiError> {
    let local = |name: HeaderName| {
        let Some(given) = headers.get(name) else { return true };
        let Ok(given) = given.to_str() else { return false };
        let authority = given.split_once("://").map_or(given, |(_, rest)| rest);
        match authority.parse::<Authority>() {
            Ok(authority) => {
                let host = authority.host().trim_start_matches('[').trim_end_matches(']');
                host.eq_ignore_ascii_case("localhost")
                    || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
            }
            Err(_) => false,
        }
    };
    if local(header::HOST) && local(header::ORIGIN) {
        return Ok(());
    }
    let detail = "without keys this server answers programs of its own machine only: expected `localhost` or a loopback \
                  address as the host (and no page of another site)";
    Err(ApiError::new(StatusCode::FORBIDDEN, detail))
}
