//! The sandbox over HTTP, through its public interface.

mod access;
mod blocks;
mod bounds;
mod calls;
mod client;
mod state;

use std::net::SocketAddr;
use std::time::Duration;

use espalier_sandbox::{Limits, Sandbox};
use espalier_sandbox_server::{Closed, ServeError, ServerOptions, serve};
use reqwest::{Client, Method, StatusCode};
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// A server of its own for one test.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    client: Client,
    key: Option<String>,
    shutdown: CancellationToken,
    ended: JoinHandle<Result<Closed, ServeError>>,
}

/// Small enough that hundreds of REPLs fit.
pub(crate) fn options() -> ServerOptions {
    ServerOptions { limits: Limits { memory_bytes: 32 << 20, ..Limits::default() }, ..ServerOptions::default() }
}

impl Server {
    pub(crate) async fn start(options: ServerOptions) -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("an address");
        let shutdown = CancellationToken::new();
        let sandbox = Sandbox::shared().expect("the interpreter");
        let ended = tokio::spawn(serve(sandbox, listener, options, shutdown.clone()));
        Self { address, client: Client::new(), key: None, shutdown, ended }
    }

    /// The same server, used with a key.
    pub(crate) fn with_key(&mut self, key: &str) -> &mut Self {
        self.key = Some(key.to_owned());
        self
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    pub(crate) async fn send(&self, method: Method, path: &str, body: String) -> (StatusCode, Value) {
        let mut request = self.client.request(method, self.url(path)).body(body);
        if let Some(key) = &self.key {
            request = request.bearer_auth(key);
        }
        let response = request.send().await.expect("an answer");
        let status = response.status();
        let text = response.text().await.expect("a body");
        let answer = serde_json::from_str(&text).unwrap_or_else(|error| panic!("not JSON ({error}): {text}"));
        (status, answer)
    }

    /// `POST`, with the status.
    pub(crate) async fn try_post(&self, path: &str, body: Value) -> (StatusCode, Value) {
        self.send(Method::POST, path, body.to_string()).await
    }

    /// `POST` that must succeed.
    pub(crate) async fn post(&self, path: &str, body: Value) -> Value {
        let (status, answer) = self.try_post(path, body).await;
        assert!(status.is_success(), "{path}: {status} {answer}");
        answer
    }

    /// `POST` that must be refused: its status and the error's type.
    pub(crate) async fn refused(&self, path: &str, body: Value) -> (u16, String) {
        let (status, answer) = self.try_post(path, body).await;
        let message = answer["error"]["message"].as_str().unwrap_or_else(|| panic!("{status}: {answer}"));
        assert!(!message.is_empty());
        (status.as_u16(), answer["error"]["type"].as_str().expect("a type").to_owned())
    }

    pub(crate) async fn get(&self, path: &str) -> Value {
        let (status, answer) = self.send(Method::GET, path, String::new()).await;
        assert!(status.is_success(), "{path}: {status} {answer}");
        answer
    }

    /// A fresh REPL's id.
    pub(crate) async fn repl(&self, body: Value) -> String {
        self.post("/v1/repls", body).await["repl"].as_str().expect("an id").to_owned()
    }

    pub(crate) async fn run(&self, repl: &str, code: &str) -> Value {
        self.post(&format!("/v1/repls/{repl}/execute"), json!({"code": code})).await
    }

    /// REPLs that exist, as the health path says.
    pub(crate) async fn repls(&self) -> u64 {
        self.get("/health").await["repls"].as_u64().expect("a number")
    }

    /// Waits until so many REPLs exist.
    pub(crate) async fn until_repls(&self, count: u64) {
        while self.repls().await != count {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    pub(crate) async fn stop(self) -> Closed {
        self.shutdown.cancel();
        self.ended.await.expect("no panic").expect("a clean end")
    }
}

/// Whether a type is as expected.
pub(crate) fn kind(status: u16, kind: &str) -> (u16, String) {
    (status, kind.to_owned())
}
