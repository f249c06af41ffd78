//! A retrieval server in this process, for tests: it answers every query as it was told to, and counts.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

/// A status and a body.
pub(crate) type Answer = (u16, String);

/// A running server. It ends with the runtime of the test.
pub(crate) struct RetrievalServer {
    /// Where it takes queries.
    pub(crate) url: String,
    asked: Arc<AtomicUsize>,
}

impl RetrievalServer {
    /// A server that answers queries from a table, and any other with no results.
    pub(crate) async fn of(answers: HashMap<String, Answer>) -> Self {
        Self::start(move |query, _| {
            answers.get(query).cloned().unwrap_or_else(|| (200, json!({"result": [[]]}).to_string()))
        })
        .await
    }

    /// A server that answers the n-th request (from 0) by `answer(query, n)`.
    pub(crate) async fn start(answer: impl Fn(&str, usize) -> Answer + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/retrieve", listener.local_addr().unwrap());
        let asked = Arc::new(AtomicUsize::new(0));
        let (answer, count) = (Arc::new(answer), asked.clone());
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, answer.clone(), count.clone()));
            }
        });
        Self { url, asked }
    }

    /// Requests so far.
    pub(crate) fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }
}

/// A good answer of documents.
pub(crate) fn documents(contents: &[&str]) -> Answer {
    let items: Vec<Value> = contents.iter().map(|text| json!({"document": {"contents": text}, "score": 1.0})).collect();
    (200, json!({"result": [items]}).to_string())
}

/// What is answered to a query and its `topk`.
type Answers = dyn Fn(&str, usize) -> Answer + Send + Sync;

async fn serve(stream: TcpStream, answer: Arc<Answers>, count: Arc<AtomicUsize>) {
    let mut stream = BufReader::new(stream);
    loop {
        let mut length = 0;
        loop {
            let mut line = String::new();
            if stream.read_line(&mut line).await.unwrap_or(0) == 0 {
                return;
            }
            let line = line.trim_end().to_lowercase();
            if let Some(value) = line.strip_prefix("content-length:") {
                length = value.trim().parse().unwrap();
            }
            if line.is_empty() {
                break;
            }
        }
        let mut body = vec![0; length];
        if stream.read_exact(&mut body).await.is_err() {
            return;
        }
        let request: Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(request["return_scores"], true);
        let query = request["query"].as_str().or_else(|| request["queries"][0].as_str()).unwrap();
        let (status, body) = answer(query, count.fetch_add(1, Ordering::SeqCst));
        let head = format!("HTTP/1.1 {status} X\r\ncontent-length: {}\r\n\r\n", body.len());
        if stream.write_all(head.as_bytes()).await.is_err() || stream.write_all(body.as_bytes()).await.is_err() {
            return;
        }
    }
}

/// A recorded episode of another gym (`tests/parity`).
pub(crate) struct Recorded {
    /// The data columns.
    pub(crate) row: Value,
    /// Parameters of the environment.
    pub(crate) params: Value,
    /// What the server answers.
    pub(crate) answers: HashMap<String, Answer>,
    /// Action, observations, reward and end, turn by turn.
    pub(crate) turns: Vec<Value>,
}

/// The episodes of a file in `tests/parity`.
pub(crate) fn recorded(name: &str) -> Vec<Recorded> {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/parity").join(name);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let episode = |line: &str| {
        let episode: Value = serde_json::from_str(line).unwrap();
        let answer =
            |answer: &Value| (answer["status"].as_u64().unwrap() as u16, answer["body"].as_str().unwrap().to_owned());
        let answers = episode["retrieval"].as_object().unwrap();
        Recorded {
            row: episode["row"].clone(),
            params: episode["params"].clone(),
            answers: answers.iter().map(|(query, value)| (query.clone(), answer(value))).collect(),
            turns: episode["turns"].as_array().unwrap().clone(),
        }
    };
    text.lines().map(episode).collect()
}

/// A text as it is recorded: without the server's address and the request's random id.
pub(crate) fn masked(text: &str, url: &str) -> String {
    let id = regex::Regex::new("[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}").unwrap();
    id.replace_all(text, "REQUEST").replace(url, "SERVER")
}
