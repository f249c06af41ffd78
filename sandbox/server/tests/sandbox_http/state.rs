//! State: variables, contexts, forks, snapshots, reset, close.

use reqwest::Method;
use serde_json::{Value, json};

use crate::{Server, kind, options};

#[tokio::test]
async fn what_is_bound_is_there_and_can_be_read() {
    let server = Server::start(options()).await;
    let repl = server.repl(json!({})).await;
    let path = |what: &str| format!("/v1/repls/{repl}/{what}");
    let big = "123456789012345678901234567890";
    let (_, bound) =
        server.send(Method::POST, &path("bind"), format!(r#"{{"name": "n", "value": {{"a": [{big}]}}}}"#)).await;
    assert_eq!(bound["bound"], "n");
    assert_eq!(server.post(&path("bind"), json!({"context": "long text"})).await["bound"], "context_0");
    assert_eq!(
        server.run(&repl, "print(n['a'][0] + 1, context)").await["stdout"],
        format!("{}1 long text\n", &big[..29])
    );
    let read = server.post(&path("get"), json!({"name": "n"})).await;
    assert_eq!((&read["value"], &read["type"]), (&json!({"a": [big]}), &json!("dict")));
    assert_eq!(server.get(&path("variables")).await["variables"], json!({"n": "dict"}));
    assert_eq!(server.refused(&path("get"), json!({"name": "nothing"})).await, kind(404, "no_variable"));
    assert_eq!(server.refused(&path("bind"), json!({"name": "not a name", "value": 1})).await, kind(400, "name"));
    assert_eq!(server.refused(&path("bind"), json!({"name": "FINAL", "value": 1})).await, kind(400, "name"));
}

#[tokio::test]
async fn a_fork_goes_its_own_way() {
    let server = Server::start(options()).await;
    let repl = server.repl(json!({})).await;
    server.run(&repl, "x = [1]").await;
    let fork = server.post(&format!("/v1/repls/{repl}/fork"), json!({"seed": 3})).await;
    let fork = fork["repl"].as_str().unwrap();
    assert_ne!(fork, repl);
    server.run(fork, "x.append(2)").await;
    assert_eq!(server.run(&repl, "print(x)").await["stdout"], "[1]\n");
    assert_eq!(server.run(fork, "print(x)").await["stdout"], "[1, 2]\n");
    assert_eq!(server.repls().await, 2);
}

#[tokio::test]
async fn a_snapshot_comes_back_as_text_and_as_bytes() {
    let server = Server::start(options()).await;
    let repl = server.repl(json!({"context": "the context"})).await;
    server.run(&repl, "x = 'kept'").await;
    let path = format!("/v1/repls/{repl}/snapshot");
    let text = server.post(&path, json!({})).await;
    let again = server
        .post(
            "/v1/repls/restore",
            json!({"snapshot": text["snapshot"], "context": "the context", "limits": {"block": 1}}),
        )
        .await;
    assert_eq!(again["limits"]["block"], 1.0);
    let again = again["repl"].as_str().unwrap();
    assert_eq!(server.run(again, "print(x, context)").await["stdout"], "kept the context\n");
    server.post(&format!("/v1/repls/{again}/reset"), json!({})).await;
    assert_eq!(server.run(again, "print(context)").await["stdout"], "the context\n");

    let client = reqwest::Client::new();
    let octets = "application/octet-stream";
    let raw = client.post(server.url(&path)).header("accept", octets).send().await.unwrap().bytes().await.unwrap();
    assert_eq!(raw.len() as u64, text["bytes"].as_u64().unwrap());
    let restored = client.post(server.url("/v1/repls/restore")).header("content-type", octets).body(raw.clone());
    let restored: Value = serde_json::from_str(&restored.send().await.unwrap().text().await.unwrap()).unwrap();
    assert_eq!(server.run(restored["repl"].as_str().unwrap(), "print(x)").await["stdout"], "kept\n");

    let mut damaged = raw.to_vec();
    let middle = damaged.len() / 2;
    damaged[middle] ^= 1;
    let refused = client.post(server.url("/v1/repls/restore")).header("content-type", octets).body(damaged);
    assert_eq!(refused.send().await.unwrap().status(), 400);
    let text = json!({"snapshot": "bm8gc25hcHNob3Q="});
    assert_eq!(server.refused("/v1/repls/restore", text).await, kind(400, "snapshot"));
    assert_eq!(server.refused("/v1/repls/restore", json!({"snapshot": "!"})).await, kind(400, "request"));
}

#[tokio::test]
async fn reset_forgets_variables_and_close_forgets_the_repl() {
    let server = Server::start(options()).await;
    let repl = server.repl(json!({})).await;
    server.run(&repl, "x = 1").await;
    assert_eq!(server.post(&format!("/v1/repls/{repl}/reset"), json!({})).await["reset"], true);
    assert_eq!(server.run(&repl, "print(x)").await["error"]["type"], "NameError");
    let path = format!("/v1/repls/{repl}");
    let (_, closed) = server.send(Method::DELETE, &path, String::new()).await;
    assert_eq!(closed["closed"], repl);
    assert_eq!(server.refused(&format!("{path}/execute"), json!({"code": "1"})).await, kind(404, "no_repl"));
    assert_eq!(server.send(Method::DELETE, &path, String::new()).await.0, 404);
    assert_eq!(server.repls().await, 0);
}

#[tokio::test]
async fn a_busy_repl_can_be_closed() {
    let server = Server::start(options()).await;
    let repl = server.repl(json!({})).await;
    let path = format!("/v1/repls/{repl}");
    let execute = format!("{path}/execute");
    let (running, _) = tokio::join!(server.try_post(&execute, json!({"code": "while True: pass"})), async {
        while server.get(&path).await["state"] != "running" {
            tokio::task::yield_now().await;
        }
        server.send(Method::DELETE, &path, String::new()).await
    });
    assert_eq!((running.0.as_u16(), &running.1["error"]["type"]), (404, &json!("no_repl")));
    assert_eq!(server.repls().await, 0);
}
