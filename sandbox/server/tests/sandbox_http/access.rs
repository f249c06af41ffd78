//! Who may do what.

use espalier_sandbox::Sandbox;
use espalier_sandbox_server::{Keys, ServeError, ServerOptions, serve};
use reqwest::Method;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::{Server, kind, options};

const ONE: &str = "the-first-key-0123456789";
const TWO: &str = "the-other-key-0123456789";

#[tokio::test]
async fn without_a_right_key_nothing_is_answered_but_health() {
    let keys = Keys::parse(&format!("{ONE},{TWO}")).unwrap();
    let mut server = Server::start(ServerOptions { keys, ..options() }).await;
    assert_eq!(server.get("/health").await["status"], "ok");
    assert_eq!(server.refused("/v1/repls", json!({})).await, kind(401, "unauthorized"));
    for wrong in ["x", &ONE[..ONE.len() - 1], &format!("{ONE}x"), ""] {
        server.with_key(wrong);
        assert_eq!(server.refused("/v1/repls", json!({})).await, kind(401, "unauthorized"));
        assert_eq!(server.send(Method::GET, "/v1/repls", String::new()).await.0, 401);
    }
    let basic = reqwest::Client::new().post(server.url("/v1/repls")).header("authorization", format!("Basic {ONE}"));
    assert_eq!(basic.send().await.unwrap().status(), 401);
    server.with_key(ONE).repl(json!({})).await;
}

#[tokio::test]
async fn a_key_sees_its_own_repls_only() {
    let keys = Keys::parse(&format!("{ONE}\n{TWO}")).unwrap();
    let mut server = Server::start(ServerOptions { keys, ..options() }).await;
    let mine = server.with_key(ONE).repl(json!({})).await;
    server.run(&mine, "secret = 1").await;
    let path = |what: &str| format!("/v1/repls/{mine}{what}");
    server.with_key(TWO);
    assert_eq!(server.get("/v1/repls").await["repls"], json!([]));
    for what in ["/execute", "/wait", "/return", "/fork", "/snapshot", "/bind", "/get", "/reset"] {
        assert_eq!(server.refused(&path(what), json!({"code": "1"})).await, kind(404, "no_repl"), "{what}");
    }
    for (method, what) in [(Method::GET, ""), (Method::DELETE, ""), (Method::GET, "/variables")] {
        assert_eq!(server.send(method, &path(what), String::new()).await.0, 404);
    }
    server.with_key(ONE);
    assert_eq!(server.run(&mine, "print(secret)").await["stdout"], "1\n");
    assert_eq!(server.get("/v1/repls").await["repls"][0]["repl"], mine);
}

#[tokio::test]
async fn beyond_loopback_a_key_is_required() {
    let start = async |keys| {
        let listener = tokio::net::TcpListener::bind("0.0.0.0:0").await.unwrap();
        let shutdown = CancellationToken::new();
        shutdown.cancel();
        serve(Sandbox::shared().unwrap(), listener, ServerOptions { keys, ..options() }, shutdown).await
    };
    assert!(matches!(start(Keys::default()).await, Err(ServeError::NoKeys(_))));
    assert!(start(Keys::parse(ONE).unwrap()).await.is_ok());
}

#[tokio::test]
async fn pages_of_other_sites_are_refused_where_there_are_no_keys() {
    let server = Server::start(options()).await;
    let client = reqwest::Client::new();
    let post = || client.post(server.url("/v1/repls"));
    for (header, value, status) in [
        ("origin", "https://example.com", 403),
        ("host", "rebound.example.com", 403),
        ("origin", "null", 403),
        ("origin", "http://localhost:3000", 201),
        ("host", "localhost:1", 201),
        ("host", "[::1]:1", 201),
    ] {
        let response = post().header(header, value).send().await.unwrap();
        assert_eq!(response.status(), status, "{header}: {value}");
    }
}

#[tokio::test]
async fn ids_are_long_and_differ() {
    let server = Server::start(options()).await;
    let (one, two) = (server.repl(json!({})).await, server.repl(json!({})).await);
    assert_ne!(one, two);
    assert!(one.len() == 32 && one.bytes().all(|byte| byte.is_ascii_hexdigit()), "{one}");
}
