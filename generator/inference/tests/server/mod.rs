//! Endpoints that answer as they are told, some of them badly.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, Response, StatusCode, Uri};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::mpsc;

/// One answer.
#[derive(Clone)]
pub(crate) enum Answer {
    Json(Value),
    Status(u16, &'static str),
    RetryAfter(u16, &'static str),
    /// Never; the server notices when the client goes away.
    Stall,
    /// JSON, after a while.
    Slow(Value),
}

/// A request as it came.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) path: String,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Value,
}

pub(crate) struct Server {
    pub(crate) base_url: String,
    seen: Arc<Mutex<Vec<Seen>>>,
    most_at_once: Arc<Mutex<(usize, usize)>>,
    gone: mpsc::UnboundedReceiver<()>,
}

impl Server {
    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.seen.lock().unwrap().clone()
    }

    /// The most requests that were under way at once.
    pub(crate) fn most_at_once(&self) -> usize {
        self.most_at_once.lock().unwrap().1
    }

    /// Waits until a client went away from a stalled answer.
    pub(crate) async fn client_gone(&mut self) {
        tokio::time::timeout(Duration::from_secs(20), self.gone.recv())
            .await
            .expect("the connection was kept open")
            .unwrap();
    }
}

struct Guard(Arc<Mutex<(usize, usize)>>, Option<mpsc::UnboundedSender<()>>);

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.lock().unwrap().0 -= 1;
        if let Some(gone) = &self.1 {
            let _ = gone.send(());
        }
    }
}

/// Serves the answers in turn, the last one from then on.
pub(crate) async fn serve(answers: impl IntoIterator<Item = Answer>) -> Server {
    let answers: Arc<Mutex<VecDeque<Answer>>> = Arc::new(Mutex::new(answers.into_iter().collect()));
    let seen: Arc<Mutex<Vec<Seen>>> = Arc::default();
    let most_at_once: Arc<Mutex<(usize, usize)>> = Arc::default();
    let (sender, gone) = mpsc::unbounded_channel();
    let state = (answers, seen.clone(), most_at_once.clone(), sender);
    let app = Router::new().fallback(move |uri: Uri, headers: HeaderMap, body: Bytes| {
        let (answers, seen, counts, sender) = state.clone();
        async move {
            {
                let mut counts = counts.lock().unwrap();
                counts.0 += 1;
                counts.1 = counts.1.max(counts.0);
            }
            let mut guard = Guard(counts, None);
            let body = serde_json::from_slice(&body).unwrap_or(Value::Null);
            seen.lock().unwrap().push(Seen { path: uri.path().to_owned(), headers, body });
            let answer = {
                let mut answers = answers.lock().unwrap();
                if answers.len() > 1 { answers.pop_front().unwrap() } else { answers[0].clone() }
            };
            let text = |status: u16, text: String| {
                Response::builder().status(StatusCode::from_u16(status).unwrap()).body(Body::from(text)).unwrap()
            };
            match answer {
                Answer::Json(value) => text(200, value.to_string()),
                Answer::Status(status, body) => text(status, body.to_owned()),
                Answer::RetryAfter(status, seconds) => {
                    let mut response = text(status, "busy".to_owned());
                    response.headers_mut().insert("retry-after", seconds.parse().unwrap());
                    response
                }
                Answer::Stall => {
                    guard.1 = Some(sender);
                    std::future::pending().await
                }
                Answer::Slow(value) => {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                    text(200, value.to_string())
                }
            }
        }
    });
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let base_url = format!("http://{}/v1", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, app).await });
    Server { base_url, seen, most_at_once, gone }
}

/// A server that writes these bytes, one per connection, and closes the connection.
pub(crate) async fn raw(answers: Vec<String>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let base_url = format!("http://{}/v1", listener.local_addr().unwrap());
    tokio::spawn(async move {
        for answer in answers {
            let (mut socket, _) = listener.accept().await.unwrap();
            let mut request = Vec::new();
            // The whole request is read before the socket closes, so that the client sees an end and not a reset.
            while !complete(&request) {
                let mut buffer = [0; 4096];
                match socket.read(&mut buffer).await.unwrap() {
                    0 => break,
                    read => request.extend_from_slice(&buffer[..read]),
                }
            }
            socket.write_all(answer.as_bytes()).await.unwrap();
            socket.shutdown().await.unwrap();
        }
    });
    base_url
}

fn complete(request: &[u8]) -> bool {
    let text = String::from_utf8_lossy(request);
    let Some((head, body)) = text.split_once("\r\n\r\n") else { return false };
    let length = head.lines().find_map(|line| line.to_lowercase().strip_prefix("content-length: ")?.parse().ok());
    body.len() >= length.unwrap_or(0_usize)
}

/// What `/chat/completions` answers.
pub(crate) fn chat(text: &str) -> Value {
    json!({
        "choices": [{"message": {"role": "assistant", "content": text}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 7, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 4}},
    })
}
