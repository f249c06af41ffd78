//! Blocks: what they did, limits, waiting.

use std::time::Duration;

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::{Server, kind, options};

#[tokio::test]
async fn a_block_answers_output_outcome_and_variables() {
    let server = Server::start(options()).await;
    let repl = server.repl(json!({})).await;
    let body = json!({"code": "x = 20 + 1\nprint(x * 2)", "id": {"any": 1}});
    let answer = server.post(&format!("/v1/repls/{repl}/execute"), body).await;
    assert_eq!(answer["outcome"], "completed");
    assert_eq!(answer["stdout"], "42\n");
    assert_eq!(answer["final_answer"], Value::Null);
    assert_eq!(answer["variables"], json!({"x": "int"}));
    assert_eq!((&answer["repl"], &answer["id"]), (&json!(repl), &json!({"any": 1})));
    assert!(answer["cpu_s"].as_f64().is_some_and(|seconds| seconds >= 0.0));
    let answer = server.run(&repl, "FINAL_VAR('x')").await;
    assert_eq!((&answer["final_answer"], &answer["final_value"]), (&json!("21"), &json!(21)));
    assert_eq!(answer["final_type"], "int");
}

#[tokio::test]
async fn an_error_names_itself_and_keeps_assignments() {
    let server = Server::start(options()).await;
    let repl = server.repl(json!({})).await;
    let answer = server.run(&repl, "y = 1\n1 / 0").await;
    assert_eq!((&answer["outcome"], &answer["error"]["type"]), (&json!("raised"), &json!("ZeroDivisionError")));
    assert!(answer["stderr"].as_str().unwrap().contains("1 / 0"), "{answer}");
    assert_eq!(server.run(&repl, "print(y)").await["stdout"], "1\n");
}

#[tokio::test]
async fn policy_echo_seed_and_contexts_are_as_asked() {
    let server = Server::start(options()).await;
    let strict = server.repl(json!({"policy": "strict", "echo": true, "context": {"a": [1, null]}})).await;
    assert_eq!(server.run(&strict, "import re").await["error"]["type"], "ImportError");
    assert_eq!(server.run(&strict, "context['a']").await["stdout"], "[1, None]\n");
    let two = server.repl(json!({"contexts": ["{\"text\": 1}", [2]], "seed": 5})).await;
    assert_eq!(server.run(&two, "print(context, context_1)").await["stdout"], "{\"text\": 1} [2]\n");
    let draw = "import random\nprint(random.random())";
    let other = server.repl(json!({"seed": 5})).await;
    assert_eq!(server.run(&two, draw).await["stdout"], server.run(&other, draw).await["stdout"]);
    let tool = json!({"tools": [{"name": "twice", "source": "def twice(x):\n    return 2 * x"}]});
    let tool = server.repl(tool).await;
    assert_eq!(server.run(&tool, "print(twice(21))").await["stdout"], "42\n");
}

#[tokio::test]
async fn the_source_of_a_tool_is_bounded_by_the_limit_of_setting_up() {
    let server = Server::start(options()).await;
    let tool =
        |source: &str| json!({"limits": {"set_up": 0.5, "block": 600}, "tools": [{"name": "t", "source": source}]});
    let (status, answer) = server.try_post("/v1/repls", tool("while True: pass")).await;
    assert_eq!((status.as_u16(), answer["error"]["type"].as_str()), (422, Some("stopped")), "{answer}");
    assert!(answer["error"]["message"].as_str().unwrap().starts_with("setting up was stopped"), "{answer}");
    let made = server.post("/v1/repls", tool("t = 42")).await;
    assert_eq!(made["limits"]["set_up"], 0.5);
    assert_eq!(server.run(made["repl"].as_str().unwrap(), "print(t)").await["stdout"], "42\n");
    assert_eq!(server.refused("/v1/repls", json!({"limits": {"set_up": 0}})).await, kind(400, "request"));
}

#[tokio::test]
async fn limits_hold_and_no_more_than_the_servers_are_given() {
    let server = Server::start(options()).await;
    let asked = json!({"limits": {"block": 0.1, "output_bytes": 100, "memory_bytes": 1u64 << 40}});
    let made = server.post("/v1/repls", asked).await;
    assert_eq!(made["limits"]["memory_bytes"], 32 << 20);
    assert_eq!(made["limits"]["block"], 0.1);
    let repl = made["repl"].as_str().unwrap();
    let answer = server.run(repl, "print('before')\nkept = 1\nwhile True: pass").await;
    assert_eq!((&answer["outcome"], &answer["stdout"]), (&json!("timed_out"), &json!("before\n")));
    assert_eq!(server.run(repl, "print(kept)").await["stdout"], "1\n");
    let answer = server.run(repl, "print('x' * 1000)").await;
    assert_eq!(answer["stdout_bytes"], 1001);
    assert!(answer["stdout"].as_str().unwrap().len() < 200, "{answer}");
    let roomy = server.repl(json!({})).await;
    let answer = server.run(&roomy, "held = []\nwhile True: held.append('x' * 100_000)").await;
    assert_eq!(answer["outcome"], "memory_exceeded");
    assert_eq!(server.run(&roomy, "print(1)").await["stdout"], "1\n");
}

#[tokio::test]
async fn a_killed_block_leaves_the_repl_as_it_was() {
    let server = Server::start(options()).await;
    let repl = server.repl(json!({"limits": {"block": 0.1}})).await;
    server.run(&repl, "kept = 1").await;
    let answer = server.run(&repl, "kept = 2\nn = 7 ** 30_000_000").await;
    assert_eq!((&answer["outcome"], &answer["rolled_back"]), (&json!("killed"), &json!(true)), "{answer}");
    assert!(answer["error"]["message"].as_str().unwrap().contains("execution time"), "{answer}");
    assert_eq!(server.run(&repl, "print(kept)").await["stdout"], "1\n");
}

#[tokio::test]
async fn a_time_limit_of_one_block_holds_for_that_block() {
    let server = Server::start(options()).await;
    let repl = server.repl(json!({})).await;
    let body = json!({"code": "while True: pass", "timeout_s": 0.05});
    assert_eq!(server.post(&format!("/v1/repls/{repl}/execute"), body).await["outcome"], "timed_out");
}

#[tokio::test]
async fn a_request_need_not_wait_for_its_block() {
    let server = Server::start(options()).await;
    let repl = server.repl(json!({"limits": {"block": 0.4}})).await;
    let body = json!({"code": "print('on its way')\nwhile True: pass", "wait_s": 0});
    let (status, answer) = server.try_post(&format!("/v1/repls/{repl}/execute"), body).await;
    assert_eq!((status, &answer["running"]), (StatusCode::ACCEPTED, &json!(true)));
    let busy = server.refused(&format!("/v1/repls/{repl}/execute"), json!({"code": "1"})).await;
    assert_eq!(busy, kind(409, "busy"));
    assert_eq!(server.refused(&format!("/v1/repls/{repl}/fork"), json!({})).await, kind(409, "busy"));
    assert_eq!(server.get(&format!("/v1/repls/{repl}")).await["state"], "running");
    let answer = server.post(&format!("/v1/repls/{repl}/wait"), json!({})).await;
    assert_eq!((&answer["outcome"], &answer["stdout"]), (&json!("timed_out"), &json!("on its way\n")));
    // It may be asked for again: whoever lost the answer on the way has not lost it for good.
    assert_eq!(server.post(&format!("/v1/repls/{repl}/wait"), json!({})).await, answer);
}

#[tokio::test]
async fn a_client_that_hangs_up_loses_nothing() {
    let server = Server::start(options()).await;
    let repl = server.repl(json!({"limits": {"block": 5.0}})).await;
    let url = server.url(&format!("/v1/repls/{repl}/execute"));
    let code = "import time\nfor i in range(10):\n    time.sleep(0.02)\ndone = True\nprint('done')";
    let impatient = reqwest::Client::builder().timeout(Duration::from_millis(60)).build().unwrap();
    let hung_up = impatient.post(&url).body(json!({"code": code}).to_string()).send().await;
    assert!(hung_up.is_err());
    assert_eq!(server.post(&format!("/v1/repls/{repl}/wait"), json!({})).await["stdout"], "done\n");
    assert_eq!(server.run(&repl, "print(done)").await["stdout"], "True\n");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn two_hundred_repls_work_side_by_side() {
    let server = Server::start(crate::ServerOptions { max_repls: 200, ..options() }).await;
    let play = |number: usize| {
        let server = &server;
        async move {
            let repl = server.repl(json!({"seed": number})).await;
            server.run(&repl, &format!("mine = {number}")).await;
            let answer = server.run(&repl, "print(mine * 2)").await;
            assert_eq!(answer["stdout"], format!("{}\n", number * 2), "{answer}");
            repl
        }
    };
    let repls = futures::future::join_all((0..200).map(play)).await;
    assert_eq!(server.repls().await, 200);
    let listed = server.get("/v1/repls").await;
    assert_eq!(listed["repls"].as_array().map(Vec::len), Some(200));
    futures::future::join_all(repls.iter().map(|repl| {
        let path = format!("/v1/repls/{repl}");
        let server = &server;
        async move { server.send(Method::DELETE, &path, String::new()).await }
    }))
    .await;
    assert_eq!(server.repls().await, 0);
}

#[tokio::test]
async fn health_answers_while_a_block_keeps_the_processor_busy() {
    let server = Server::start(options()).await;
    let repl = server.repl(json!({"limits": {"block": 0.5}})).await;
    let (answer, health) = tokio::join!(server.run(&repl, "while True: pass"), server.get("/health"));
    assert_eq!((&answer["outcome"], &health["status"]), (&json!("timed_out"), &json!("ok")));
}
