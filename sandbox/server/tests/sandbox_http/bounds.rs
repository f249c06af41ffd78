//! Bounds: bad input, room, idleness, connections, shutdown.

use std::time::Duration;

use espalier_sandbox::Limits;
use reqwest::Method;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::{Server, ServerOptions, kind, options};

#[tokio::test]
async fn bad_requests_are_refused_with_what_was_expected() {
    let server = Server::start(options()).await;
    let repl = server.repl(json!({})).await;
    let path = |what: &str| format!("/v1/repls/{repl}/{what}");
    let (execute, bind) = (path("execute"), path("bind"));
    let bad = [
        ("/v1/repls", r#"{"policy": "lax"}"#),
        ("/v1/repls", r#"{"polcy": "strict"}"#),
        ("/v1/repls", r#"{"limits": {"blok": 1}}"#),
        ("/v1/repls", r#"{"limits": {"block": 0}}"#),
        ("/v1/repls", r#"{"limits": {"block": -1}}"#),
        ("/v1/repls", r#"{"limits": {"block": "1"}}"#),
        ("/v1/repls", r#"{"limits": {"recursion": 0}}"#),
        ("/v1/repls", r#"{"limits": 7}"#),
        ("/v1/repls", r#"{"seed": -1}"#),
        ("/v1/repls", r#"{"context": 1, "contexts": [2]}"#),
        ("/v1/repls", r#"{"contexts": "text"}"#),
        ("/v1/repls", "[]"),
        ("/v1/repls", "{"),
        ("/v1/repls", "\u{feff}{}"),
        ("/v1/repls/restore", "{}"),
        (&execute, "{}"),
        (&execute, r#"{"code": 1}"#),
        (&execute, r#"{"code": "1", "timeout_s": 0}"#),
        (&execute, r#"{"code": "1", "timeout_s": 1e300}"#),
        (&execute, r#"{"code": "1", "wait_s": -1}"#),
        (&bind, r#"{"name": "x"}"#),
        (&bind, r#"{"name": "x", "value": NaN}"#),
        (&bind, r#"{"name": "x", "value": [1e999]}"#),
        (&bind, r#"{"context": -1e999}"#),
        (&bind, r#"{"context": 1, "name": "x"}"#),
    ];
    for (path, body) in bad {
        let (status, answer) = server.send(Method::POST, path, body.to_owned()).await;
        assert_eq!((status.as_u16(), &answer["error"]["type"]), (400, &json!("request")), "{body}: {answer}");
    }
    for (path, body, said) in [
        ("/v1/repls", r#"{"echo": true, "seed": 1.5}"#, "`seed`: expected a whole number from 0, got `1.5`"),
        ("/v1/repls", r#"{"seed": 1e999}"#, "`seed`: number out of range"),
        ("/v1/repls", r#"{"limits": []}"#, "`limits`: expected an object, got a list"),
        ("/v1/repls", r#"{"limits": {"block": "5"}}"#, "`limits.block`: expected a number, got \"5\""),
        (
            "/v1/repls",
            r#"{"limits": {"block": 1e300}}"#,
            "`limits.block`: expected a number of seconds below 1e19, got 1e300",
        ),
        ("/v1/repls", r#"{"limits": {"grace": 1, "grace": 2}}"#, "`limits`: the key `grace` stands there twice"),
        ("/v1/repls", r#"{"context": [{"a": 1, "a": 2}]}"#, "`context`: the key `a` stands there twice"),
        ("/v1/repls", r#"{"tools": [{"name": 5}]}"#, "`tools`: expected a text, got `5`"),
        ("/v1/repls", r#"{"seed": 1, "seed": 2}"#, "the body: duplicate field `seed`"),
        ("/v1/repls", "{\"echo\":\n \"yes\"}", "`echo`: expected true or false, got \"yes\""),
        ("/v1/repls", "{", "the body is no JSON object: EOF while parsing an object"),
        (&execute, "{}", "the body: missing field `code`"),
        (&execute, r#"{"code": "1", "timeout_s": 1e300}"#, "from 0 to 1e19, got 1e300"),
        (&bind, r#"{"name": "x", "value": {"a": 1, "a": 2}}"#, "`value` of `x`: the key `a` stands there twice"),
        (&path("reset"), r#"{"seed": 1}"#, "the body: unknown field `seed`"),
        (&path("snapshot"), r#"{"x": 1}"#, "the body: unknown field `x`"),
    ] {
        let (status, answer) = server.send(Method::POST, path, body.to_owned()).await;
        let message = answer["error"]["message"].as_str().unwrap_or_default();
        assert!(status == 400 && message.contains(said), "{body}: {answer}");
    }
    let nameless = json!({"tools": [{"name": "t", "source": "x = 1"}]});
    let (_, answer) = server.send(Method::POST, "/v1/repls", nameless.to_string()).await;
    let expected = "`t` cannot be bound: ValueError: the source of the tool `t` must bind the name `t`";
    assert_eq!(answer["error"]["message"], expected);
    let deep = format!(r#"{{"context": {}1{}}}"#, "[".repeat(70), "]".repeat(70));
    assert_eq!(server.send(Method::POST, "/v1/repls", deep).await.0, 400);
    let deeper = format!(r#"{{"context": {}1{}}}"#, "[".repeat(50_000), "]".repeat(50_000));
    assert_eq!(server.send(Method::POST, "/v1/repls", deeper).await.0, 400);
    let unknown = ["00000000000000000000000000000000", "0", "x".repeat(5000).as_str()].map(str::to_owned);
    for id in unknown {
        let refused = server.refused(&format!("/v1/repls/{id}/execute"), json!({"code": "1"})).await;
        assert_eq!(refused, kind(404, "no_repl"));
    }
    assert_eq!(server.refused("/v1/other", json!({})).await, kind(404, "no_path"));
    assert_eq!(server.send(Method::GET, &execute, String::new()).await.0, 405);
    assert_eq!(server.run(&repl, "print('alive')").await["stdout"], "alive\n");
    assert_eq!(server.repls().await, 1);
}

#[tokio::test]
async fn a_body_that_is_too_large_is_refused() {
    let server = Server::start(ServerOptions { max_body_bytes: 100_000, ..options() }).await;
    let refused = server.refused("/v1/repls", json!({"context": "x".repeat(100_000)})).await;
    assert_eq!(refused, kind(413, "too_large"));
    let repl = server.repl(json!({"context": "x".repeat(90_000)})).await;
    assert_eq!(server.run(&repl, "print(len(context))").await["stdout"], "90000\n");
    server.run(&repl, "import random\nnoise = random.randbytes(1_000_000)").await;
    let snapshot = server.refused(&format!("/v1/repls/{repl}/snapshot"), json!({})).await;
    assert_eq!(snapshot, kind(413, "too_large"));
}

#[tokio::test]
async fn bodies_that_stand_still_are_given_up_and_make_room() {
    let options = ServerOptions {
        max_body_bytes: 1 << 20,
        max_bodies_bytes: 1 << 20,
        connection_idle: Duration::from_millis(400),
        max_wait: Duration::from_millis(100),
        ..options()
    };
    let server = Server::start(options).await;
    let head = "POST /v1/repls HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1000000\r\n\r\n";
    let large = json!({"context": "x".repeat(500_000)});
    // Whichever of the two comes first has the room: once it is the one that stands still, the other is asked to come
    // again.
    let mut stuck = loop {
        let mut stuck = TcpStream::connect(server.address).await.unwrap();
        stuck.write_all(head.as_bytes()).await.unwrap();
        stuck.write_all(&vec![b' '; 900_000]).await.unwrap();
        // A head start: the other comes on a connection that stands already.
        let _ = tokio::time::timeout(Duration::from_millis(100), stuck.readable()).await;
        let (status, answer) = server.try_post("/v1/repls", large.clone()).await;
        if status == 503 {
            assert_eq!(answer["error"]["type"], "busy", "{answer}");
            break stuck;
        }
        let path = format!("/v1/repls/{}", answer["repl"].as_str().expect("a REPL"));
        server.send(Method::DELETE, &path, String::new()).await;
    };
    let mut answer = String::new();
    let _ = stuck.read_to_string(&mut answer).await;
    while server.try_post("/v1/repls", large.clone()).await.0 == 503 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn connections_that_say_nothing_are_closed_and_do_not_keep_others_out() {
    let options = ServerOptions {
        max_connections: 2,
        connection_idle: Duration::from_millis(300),
        max_wait: Duration::from_millis(100),
        ..options()
    };
    let server = Server::start(options).await;
    let mut silent = Vec::new();
    for _ in 0..4 {
        silent.push(TcpStream::connect(server.address).await.unwrap());
    }
    assert_eq!(server.get("/health").await["status"], "ok");
    for mut stream in silent {
        let mut rest = Vec::new();
        // Whether it ends with an end or a reset, it ends.
        let _ = stream.read_to_end(&mut rest).await;
        assert!(rest.is_empty() || rest.starts_with(b"HTTP/1.1 4"));
    }
}

#[tokio::test]
async fn there_is_room_for_so_many_repls_and_so_much_memory() {
    let server = Server::start(ServerOptions { max_repls: 2, ..options() }).await;
    let first = server.repl(json!({})).await;
    server.repl(json!({})).await;
    let response = reqwest::Client::new().post(server.url("/v1/repls")).send().await.unwrap();
    assert_eq!((response.status().as_u16(), response.headers()["retry-after"].to_str().unwrap()), (429, "1"));
    assert_eq!(server.refused(&format!("/v1/repls/{first}/fork"), json!({})).await, kind(429, "too_many_repls"));
    server.send(Method::DELETE, &format!("/v1/repls/{first}"), String::new()).await;
    server.repl(json!({})).await;

    let limits = Limits { memory_bytes: 20 << 20, ..Limits::default() };
    let server = Server::start(ServerOptions { max_memory_bytes: 50 << 20, limits, ..options() }).await;
    let first = server.repl(json!({})).await;
    server.repl(json!({"limits": {"memory_bytes": 10 << 20}})).await;
    assert_eq!(server.refused("/v1/repls", json!({"context": "x".repeat(2 << 20)})).await, kind(503, "no_memory"));
    let more = json!({"context": "x".repeat(6 << 20)});
    assert_eq!(server.refused(&format!("/v1/repls/{first}/bind"), more).await, kind(503, "no_memory"));
    let wide = json!({"context": "x".repeat(13 << 20)});
    assert_eq!(server.refused("/v1/repls", wide).await, kind(413, "too_large"));
    assert_eq!(server.get("/health").await["memory_bytes"], 30 << 20);
    server.repl(json!({"limits": {"memory_bytes": 19 << 20}})).await;
}

#[tokio::test]
async fn idle_repls_are_closed_and_used_ones_stay() {
    let idle = Duration::from_millis(400);
    let server = Server::start(ServerOptions { idle_timeout: idle, ..options() }).await;
    let used = server.repl(json!({})).await;
    let forgotten = server.repl(json!({"limits": {"block": 30.0}})).await;
    // One that runs for ever, and whose client does not wait for it, is forgotten too.
    let body = json!({"code": "while True: pass", "wait_s": 0});
    server.post(&format!("/v1/repls/{forgotten}/execute"), body).await;
    while server.repls().await > 1 {
        assert_eq!(server.run(&used, "print(1)").await["stdout"], "1\n");
    }
    assert_eq!(server.run(&used, "print(2)").await["stdout"], "2\n");
    let refused = server.refused(&format!("/v1/repls/{forgotten}/wait"), json!({})).await;
    assert_eq!(refused, kind(404, "no_repl"));
    server.until_repls(0).await;
}

#[tokio::test]
async fn a_request_that_waits_keeps_its_repl() {
    let idle = Duration::from_millis(100);
    let server = Server::start(ServerOptions { idle_timeout: idle, ..options() }).await;
    let repl = server.repl(json!({})).await;
    let answer = server.run(&repl, "import time\nfor i in range(10):\n    time.sleep(0.05)\nprint('done')").await;
    assert_eq!(answer["stdout"], "done\n");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_thousand_clients_that_vanish_leave_no_slot_taken() {
    let limits = Limits { memory_bytes: 8 << 20, ..Limits::default() };
    let options = ServerOptions { max_repls: 1000, idle_timeout: Duration::from_secs(2), limits, ..options() };
    let server = Server::start(options).await;
    let open = |number: usize| {
        let address = server.address;
        async move {
            let mut stream = TcpStream::connect(address).await.unwrap();
            let head = "POST /v1/repls HTTP/1.1\r\nhost: localhost\r\ncontent-length: 2\r\n\r\n{}";
            stream.write_all(head.as_bytes()).await.unwrap();
            let mut answer = [0; 12];
            stream.read_exact(&mut answer).await.unwrap();
            assert_eq!(&answer, b"HTTP/1.1 201");
            // Half of them end their connection, the others only stop talking.
            number.is_multiple_of(2).then_some(stream)
        }
    };
    let mut silent = Vec::new();
    for batch in 0..20 {
        silent.extend(futures::future::join_all((0..50).map(|number| open(batch * 50 + number))).await);
    }
    server.until_repls(0).await;
    assert_eq!(server.get("/health").await["memory_bytes"], 0);
    let repl = server.repl(json!({})).await;
    assert_eq!(server.run(&repl, "print(1)").await["stdout"], "1\n");
    drop(silent);
}

#[tokio::test]
async fn a_shutdown_lets_blocks_finish_and_takes_no_new_ones() {
    let server = Server::start(options()).await;
    let repl = server.repl(json!({})).await;
    let other = server.repl(json!({})).await;
    let url = server.url(&format!("/v1/repls/{repl}/execute"));
    let code = json!({"code": "import time\nfor i in range(10):\n    time.sleep(0.03)\nprint('done')"}).to_string();
    let running = tokio::spawn(async move {
        let response = reqwest::Client::new().post(url).body(code).send().await.unwrap();
        serde_json::from_str::<Value>(&response.text().await.unwrap()).unwrap()
    });
    while server.get(&format!("/v1/repls/{repl}")).await["state"] != "running" {
        tokio::task::yield_now().await;
    }
    let kept_open = server.get(&format!("/v1/repls/{other}")).await;
    assert_eq!(kept_open["state"], "idle");
    let closed = server.stop().await;
    assert_eq!((closed.repls, closed.running), (2, 0));
    assert_eq!(running.await.unwrap()["stdout"], "done\n");
}

#[tokio::test]
async fn a_shutdown_cuts_off_what_does_not_finish() {
    let server = Server::start(ServerOptions { drain: Duration::from_millis(50), ..options() }).await;
    let repl = server.repl(json!({})).await;
    let body = json!({"code": "while True: pass", "wait_s": 0});
    server.post(&format!("/v1/repls/{repl}/execute"), body).await;
    let url = server.url(&format!("/v1/repls/{repl}/wait"));
    let waiting = tokio::spawn(async move { reqwest::Client::new().post(url).send().await });
    let closed = server.stop().await;
    assert_eq!((closed.repls, closed.running), (1, 1));
    // It came too late, or was told; it does not hang.
    if let Ok(response) = waiting.await.unwrap() {
        assert!(matches!(response.status().as_u16(), 404 | 503), "{}", response.status());
    }
}
