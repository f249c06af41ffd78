//! The HTTP retriever against servers that are busy, broken, slow or endless, and against this crate's own.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use espalier_retrieval::server::{ServerOptions, Shutdown, serve};
use espalier_retrieval::{
    Bm25, Bm25Options, HttpOptions, HttpRetriever, QueryForm, RetrievalError, Retriever, SearchLimits,
};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

fn limits() -> SearchLimits {
    SearchLimits { deadline: Instant::now() + Duration::from_mins(1), cancel: CancellationToken::new() }
}

fn quick() -> HttpOptions {
    HttpOptions {
        first_backoff: Duration::from_millis(1),
        longest_backoff: Duration::from_millis(5),
        ..HttpOptions::default()
    }
}

/// A server whose answer to the n-th request (from 0) is `answer(n)`; its address and how many came.
async fn server<F, R>(answer: F) -> (String, Arc<AtomicUsize>)
where
    F: Fn(usize) -> R + Clone + Send + Sync + 'static,
    R: IntoResponse + Send + 'static,
{
    let count = Arc::new(AtomicUsize::new(0));
    let seen = count.clone();
    let handler = move || {
        let response: Response = answer(seen.fetch_add(1, Ordering::SeqCst)).into_response();
        async move { response }
    };
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let router = Router::new().route("/retrieve", post(handler));
    tokio::spawn(async move { axum::serve(listener, router).await });
    (format!("http://{address}/retrieve"), count)
}

fn good() -> String {
    json!({"result": [[{"document": {"contents": "found"}, "score": 1.0}]]}).to_string()
}

async fn ask(url: &str, options: HttpOptions) -> Result<String, RetrievalError> {
    let hits = HttpRetriever::new(url, options)?.search("q", 3, &limits()).await?;
    Ok(hits.into_iter().map(|hit| hit.contents).collect())
}

#[tokio::test]
async fn a_server_that_fails_a_few_times_is_asked_again() {
    for status in [429, 500, 502, 503, 504] {
        let status = StatusCode::from_u16(status).unwrap();
        let (url, count) =
            server(move |n| if n < 3 { (status, String::new()) } else { (StatusCode::OK, good()) }).await;
        assert_eq!(ask(&url, quick()).await.unwrap(), "found", "{status}");
        assert_eq!(count.load(Ordering::SeqCst), 4);
    }
}

#[tokio::test]
async fn tries_are_bounded_and_a_refusal_is_final() {
    let (url, count) = server(|_| (StatusCode::SERVICE_UNAVAILABLE, "loading\nthe index")).await;
    let error = ask(&url, HttpOptions { tries: 3, ..quick() }).await.unwrap_err();
    assert!(matches!(&error, RetrievalError::Exhausted { tries: 3, .. }), "{error:?}");
    let said = error.to_string();
    assert!(said.contains(&url) && said.contains("after 3 tries") && said.contains("`loading the index`"), "{said}");
    assert_eq!(count.load(Ordering::SeqCst), 3);
    for status in [400, 401, 404, 422] {
        let status = StatusCode::from_u16(status).unwrap();
        let (url, count) = server(move |_| (status, "no")).await;
        let error = ask(&url, quick()).await.unwrap_err();
        assert!(matches!(&error, RetrievalError::Refused { status: got, .. } if *got == status.as_u16()), "{error:?}");
        assert_eq!(count.load(Ordering::SeqCst), 1);
    }
}

#[tokio::test]
async fn a_retry_that_would_come_too_late_is_not_waited_for() {
    let (url, count) = server(|_| (StatusCode::TOO_MANY_REQUESTS, [("retry-after", "3600")], "")).await;
    let options = HttpOptions { longest_backoff: Duration::from_hours(2), ..HttpOptions::default() };
    let error = ask(&url, options).await.unwrap_err();
    assert!(
        matches!(&error, RetrievalError::Exhausted { tries: 1, reason, .. } if reason.contains("deadline")),
        "{error:?}"
    );
    assert_eq!(count.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn nobody_listening_is_said() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/retrieve", listener.local_addr().unwrap());
    drop(listener);
    let error = ask(&url, HttpOptions { tries: 2, ..quick() }).await.unwrap_err();
    assert!(matches!(&error, RetrievalError::Exhausted { tries: 2, .. }), "{error:?}");
    assert!(error.to_string().contains("refused"), "{error}");
}

/// A server that takes requests and says nothing.
async fn silent() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/retrieve", listener.local_addr().unwrap());
    tokio::spawn(async move {
        let mut held = Vec::new();
        while let Ok((stream, _)) = listener.accept().await {
            held.push(stream);
        }
    });
    url
}

#[tokio::test]
async fn a_server_that_hangs_is_given_up() {
    let url = silent().await;
    let options = HttpOptions { tries: 2, try_timeout: Duration::from_millis(20), ..quick() };
    let error = ask(&url, options).await.unwrap_err();
    assert!(error.to_string().contains("after 2 tries: no answer within the 20 ms"), "{error}");
    let retriever = HttpRetriever::new(&url, HttpOptions::default()).unwrap();
    let late = SearchLimits { deadline: Instant::now() + Duration::from_millis(20), ..limits() };
    assert_eq!(retriever.search("q", 1, &late).await, Err(RetrievalError::Deadline));
    let cancelled = limits();
    let (searched, ()) = tokio::join!(retriever.search("q", 1, &cancelled), async { cancelled.cancel.cancel() });
    assert_eq!(searched, Err(RetrievalError::Cancelled));
}

#[tokio::test]
async fn an_endless_answer_is_cut_at_the_bound() {
    let chunk = vec![b' '; 1 << 20];
    let (url, count) = server(move |_| {
        let chunks = futures::stream::iter((0..1024).map({
            let chunk = chunk.clone();
            move |_| Ok::<_, std::io::Error>(chunk.clone())
        }));
        Body::from_stream(chunks)
    })
    .await;
    let error = ask(&url, HttpOptions { answer_bytes: 2 << 20, ..quick() }).await.unwrap_err();
    assert!(matches!(error, RetrievalError::TooLarge { limit: 2_097_152, .. }), "{error:?}");
    assert_eq!(count.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn an_answer_that_breaks_off_is_asked_for_again() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/retrieve", listener.local_addr().unwrap());
    tokio::spawn(async move {
        for n in 0.. {
            let Ok((mut stream, _)) = listener.accept().await else { return };
            let mut buffer = [0; 4096];
            let _ = stream.read(&mut buffer).await;
            let body = good();
            let sent = if n == 0 { &body[..10] } else { &body };
            let length = body.len();
            let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{sent}");
            let _ = stream.write_all(head.as_bytes()).await;
        }
    });
    assert_eq!(ask(&url, quick()).await.unwrap(), "found");
}

#[tokio::test]
async fn an_answer_of_another_shape_is_an_error() {
    for (body, said) in [
        ("<html>", "it is not JSON"),
        ("", "it is not JSON"),
        ("{}", "`result` is missing"),
        (r#"{"result": [[{"document": {"id": 1}, "score": 1}]]}"#, "has no `contents`"),
        (r#"{"result": [[], []]}"#, "one list of results per query (1), got 2"),
    ] {
        let (url, _) = server(move |_| body).await;
        let error = ask(&url, quick()).await.unwrap_err();
        assert!(matches!(&error, RetrievalError::Answer { .. }) && error.to_string().contains(said), "{body}: {error}");
    }
    let (url, _) = server(|_| r#"{"result": []}"#).await;
    assert_eq!(ask(&url, quick()).await.unwrap(), "", "a server may leave empty lists out");
}

#[test]
fn addresses_are_checked() {
    for wrong in ["", "localhost:8000", "ftp://host/x", "file:///etc", "http://"] {
        let error = HttpRetriever::new(wrong, HttpOptions::default()).unwrap_err().to_string();
        assert!(error.contains("`search_url` must be an address"), "{wrong}: {error}");
    }
}

/// This crate's server over three documents, in this process.
async fn own(options: ServerOptions) -> (String, Shutdown, tokio::task::JoinHandle<std::io::Result<usize>>) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("corpus.jsonl");
    let lines = [
        r#"{"id": "a", "contents": "\"One\"\nred apples"}"#,
        r#"{"id": "b", "contents": "\"Two\"\ngreen apples and pears"}"#,
        r#"{"id": "c", "contents": "\"Three\"\nblue plums"}"#,
    ];
    fs::write(&path, lines.join("\n")).unwrap();
    let bm25 = Bm25::open(&path, &Bm25Options::default()).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let shutdown = Shutdown::default();
    let serving = tokio::spawn(serve(Arc::new(bm25), listener, options, shutdown.clone()));
    (format!("http://{address}"), shutdown, serving)
}

async fn send(url: &str, body: impl Into<reqwest::Body>) -> (u16, Value) {
    let response = reqwest::Client::new().post(url).body(body).send().await.unwrap();
    (response.status().as_u16(), response.json().await.unwrap())
}

#[tokio::test]
async fn our_server_and_client_speak_both_forms() {
    let (url, shutdown, serving) = own(ServerOptions::default()).await;
    let url = format!("{url}/retrieve");
    for form in [QueryForm::Single, QueryForm::List] {
        let retriever = HttpRetriever::new(&url, HttpOptions { form, ..quick() }).unwrap();
        let hits = retriever.search("apple", 2, &limits()).await.unwrap();
        assert_eq!(hits.iter().map(|hit| hit.id.as_deref().unwrap()).collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!((hits[0].title.as_deref(), hits[0].contents.as_str()), (Some("One"), "\"One\"\nred apples"));
        assert!(hits[0].score > hits[1].score);
        let queries = ["plums".to_owned(), String::new(), "pear".to_owned()];
        let lists = retriever.search_all(&queries, 3, &limits()).await.unwrap();
        assert_eq!(lists.iter().map(Vec::len).collect::<Vec<_>>(), [1, 0, 1]);
    }
    let (status, answer) = send(&url, r#"{"query": "plums"}"#).await;
    assert_eq!(status, 200);
    assert_eq!(answer["result"][0][0]["contents"], "\"Three\"\nblue plums", "without scores the document alone");
    shutdown.begun().cancel();
    assert_eq!(serving.await.unwrap().unwrap(), 0);
}

#[tokio::test]
async fn our_server_says_what_it_expected() {
    let (url, shutdown, serving) = own(ServerOptions { max_body_bytes: 1000, ..ServerOptions::default() }).await;
    let retrieve = format!("{url}/retrieve");
    for (body, status, said) in [
        ("{".to_owned(), 400, "the body is not JSON"),
        (r#"{"q": 1}"#.to_owned(), 400, "`query` is missing; expected {\"query\": TEXT"),
        (r#"{"query": "a", "topk": 100000}"#.to_owned(), 400, "`topk` must be a whole number from 1 to 1000"),
        ("x".repeat(1001), 413, "may have 1000 bytes"),
    ] {
        let (got, answer) = send(&retrieve, body).await;
        assert_eq!(got, status, "{answer}");
        assert!(answer["error"].as_str().unwrap().contains(said), "{answer}");
    }
    let (status, answer) = send(&format!("{url}/search"), "{}").await;
    assert_eq!((status, answer["error"].as_str().unwrap().contains("`POST /retrieve`")), (404, true), "{answer}");
    for (path, status) in [("/health", 200), ("/retrieve", 405), ("/", 404)] {
        let response = reqwest::get(format!("{url}{path}")).await.unwrap();
        assert_eq!(response.status(), status, "{path}");
        let _: Value = response.json().await.unwrap();
    }
    shutdown.begun().cancel();
    assert_eq!(serving.await.unwrap().unwrap(), 0);
}

#[tokio::test]
async fn a_connection_without_a_request_does_not_hold_our_server_up() {
    let (url, shutdown, serving) = own(ServerOptions { drain: Duration::ZERO, ..ServerOptions::default() }).await;
    let address = url.strip_prefix("http://").unwrap();
    let mut half = tokio::net::TcpStream::connect(address).await.unwrap();
    half.write_all(b"POST /retrieve HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{").await.unwrap();
    shutdown.begun().cancel();
    assert!(serving.await.unwrap().unwrap() <= 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn two_hundred_and_fifty_six_searches_at_once() {
    let (url, shutdown, serving) = own(ServerOptions::default()).await;
    let retriever = HttpRetriever::new(&format!("{url}/retrieve"), HttpOptions::default()).unwrap();
    let searches = (0..256).map(|at| {
        let retriever = retriever.clone();
        let (query, id) = [("red", "a"), ("pears", "b"), ("plum", "c")][at % 3];
        tokio::spawn(async move {
            let hits = retriever.search(query, 1, &limits()).await.unwrap();
            assert_eq!(hits[0].id.as_deref(), Some(id));
        })
    });
    for search in searches.collect::<Vec<_>>() {
        search.await.unwrap();
    }
    shutdown.begun().cancel();
    assert_eq!(serving.await.unwrap().unwrap(), 0);
}
