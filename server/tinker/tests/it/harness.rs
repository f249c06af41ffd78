//! A running server with a scripted engine, and a client for it.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use espalier_tinker::{ScriptedBackend, ServeError, ServerOptions, Store, serve};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// The model that every server here has.
pub(crate) const MODEL: &str = "models/tinymodel";
/// Small, so that files are used.
pub(crate) const INLINE: usize = 256;

pub(crate) struct Running {
    pub(crate) backend: Arc<ScriptedBackend>,
    pub(crate) store: Store,
    pub(crate) address: SocketAddr,
    pub(crate) shutdown: CancellationToken,
    pub(crate) task: JoinHandle<Result<usize, ServeError>>,
    pub(crate) key: Option<String>,
    pub(crate) client: reqwest::Client,
    /// Removed when the server is dropped.
    folder: Option<TempDir>,
}

impl Running {
    pub(crate) async fn start(options: ServerOptions) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let backend = ScriptedBackend::new(MODEL).checkpoints_in(folder.path().join("checkpoints"));
        let mut running = Self::over(folder.path(), backend, options).await;
        running.folder = Some(folder);
        running
    }

    pub(crate) async fn over(folder: &Path, backend: ScriptedBackend, options: ServerOptions) -> Self {
        let store = Store::open(folder, INLINE).await.unwrap();
        let backend = Arc::new(backend);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let shutdown = CancellationToken::new();
        let task = tokio::spawn(serve(store.clone(), backend.clone(), listener, options, shutdown.clone()));
        let client = reqwest::Client::new();
        Self { backend, store, address, shutdown, task, key: None, client, folder: None }
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}/api/v1/{}", self.address, path.trim_start_matches('/'))
    }

    pub(crate) async fn send(&self, request: reqwest::RequestBuilder) -> reqwest::Response {
        let request = match &self.key {
            Some(key) => request.header("X-API-Key", key),
            None => request,
        };
        request.send().await.unwrap()
    }

    pub(crate) async fn raw(&self, path: &str, body: impl Into<reqwest::Body>) -> (u16, Value) {
        answer(self.send(self.client.post(self.url(path)).body(body)).await).await
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> (u16, Value) {
        self.raw(path, body.to_string()).await
    }

    /// The answer to a request that must be taken.
    pub(crate) async fn ok(&self, path: &str, body: &Value) -> Value {
        let (status, answer) = self.post(path, body).await;
        assert_eq!(status, 200, "{path} {body}: {answer}");
        answer
    }

    pub(crate) async fn get(&self, path: &str) -> (u16, Value) {
        answer(self.send(self.client.get(self.url(path))).await).await
    }

    /// A request of any method; the answer is null where it is empty.
    pub(crate) async fn call(&self, method: &str, path: &str, body: &Value) -> (u16, Value) {
        let request = self.client.request(method.parse().unwrap(), self.url(path));
        let request = if body.is_null() { request } else { request.body(body.to_string()) };
        answer(self.send(request).await).await
    }

    pub(crate) fn request(&self, path: &str) -> reqwest::RequestBuilder {
        self.client.post(self.url(path))
    }

    pub(crate) async fn session(&self) -> String {
        let body = json!({"tags": [], "user_metadata": {}, "sdk_version": "0.38.0", "type": "create_session"});
        self.ok("create_session", &body).await["session_id"].as_str().unwrap().to_owned()
    }

    pub(crate) async fn sampler(&self, session: &str, number: u32) -> String {
        let body = json!({"session_id": session, "sampling_session_seq_id": number, "base_model": MODEL,
                          "type": "create_sampling_session"});
        self.ok("create_sampling_session", &body).await["sampling_session_id"].as_str().unwrap().to_owned()
    }

    /// A model, and the name of the request that makes it.
    pub(crate) async fn model(&self, session: &str, number: u32) -> (String, String) {
        let answer = self.ok("create_model", &create_model(session, number)).await;
        (text(&answer["model_id"]), text(&answer["request_id"]))
    }

    /// Waits for a result.
    pub(crate) async fn result(&self, request_id: &str) -> (u16, Value) {
        self.post("retrieve_future", &json!({"request_id": request_id, "allow_metadata_only": true})).await
    }

    /// Takes in a request and waits for its result.
    pub(crate) async fn done(&self, path: &str, body: &Value) -> Value {
        let (status, result) = self.result(&text(&self.ok(path, body).await["request_id"])).await;
        assert_eq!(status, 200, "{path} {body}: {result}");
        result
    }

    pub(crate) async fn stop(self) -> usize {
        self.shutdown.cancel();
        self.task.await.unwrap().unwrap()
    }
}

async fn answer(response: reqwest::Response) -> (u16, Value) {
    let status = response.status().as_u16();
    let bytes = response.bytes().await.unwrap();
    if bytes.is_empty() {
        return (status, Value::Null);
    }
    let value = serde_json::from_slice(&bytes).unwrap_or_else(|_| panic!("{status}: {bytes:?}"));
    (status, value)
}

pub(crate) fn text(value: &Value) -> String {
    value.as_str().unwrap_or_else(|| panic!("no text: {value}")).to_owned()
}

pub(crate) fn create_model(session: &str, number: u32) -> Value {
    json!({"session_id": session, "model_seq_id": number, "base_model": MODEL, "user_metadata": {"k": "v"},
           "lora_config": {"rank": 8, "seed": 7, "train_unembed": false, "train_mlp": true, "train_attn": true},
           "optimizer_config": {"type": "adamw"}, "type": "create_model"})
}

pub(crate) fn optim(model: &str, seq: i64) -> Value {
    json!({"model_id": model, "seq_id": seq, "type": "optim_step",
           "adam_params": {"learning_rate": 1e-4, "beta1": 0.9, "beta2": 0.95, "eps": 1e-12, "weight_decay": 0.0,
                           "grad_clip_norm": 0.0}})
}

pub(crate) fn sample(sampler: &str, seq: i64, tokens: &[u32]) -> Value {
    json!({"num_samples": 2, "prompt": {"chunks": [{"type": "encoded_text", "tokens": tokens}]},
           "sampling_params": {"max_tokens": 3, "temperature": 1.0, "top_k": -1, "top_p": 1.0},
           "sampling_session_id": sampler, "seq_id": seq, "prompt_logprobs": false, "topk_prompt_logprobs": 0,
           "topk_sample_logprobs": 0, "prompt_alt_tokens_k": 0, "record_stability_info": false, "type": "sample"})
}
