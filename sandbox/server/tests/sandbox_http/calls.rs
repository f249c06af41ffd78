//! Calls that the client answers.

use std::time::Duration;

use serde_json::{Value, json};

use crate::{Server, ServerOptions, kind, options};

const ALL: [&str; 4] = ["llm_query", "llm_query_batched", "rlm_query", "rlm_query_batched"];

#[tokio::test]
async fn a_call_is_put_to_the_client_and_its_answer_to_the_block() {
    let server = Server::start(options()).await;
    let repl = server.repl(json!({"functions": ALL, "tools": [{"name": "lookup", "description": "finds"}]})).await;
    let path = |what: &str| format!("/v1/repls/{repl}/{what}");
    let code = "print(llm_query('how many?', model='small'))\nprint(lookup(1, key={'a': 2}))\nprint(rlm_query_batched(['a', 'b']))";
    let asked = server.post(&path("execute"), json!({"code": code, "id": 9})).await;
    let call = &asked["call"];
    assert_eq!((&call["function"], &call["args"]), (&json!("llm_query"), &json!(["how many?"])));
    assert_eq!((&call["kwargs"], &call["index"]), (&json!({"model": "small"}), &json!(0)));
    assert_eq!((&call["repl"], &asked["id"]), (&json!(repl), &json!(9)));
    // Asking again shows the same call.
    assert_eq!(server.post(&path("wait"), json!({})).await, asked);
    let asked = server.post(&path("return"), json!({"return": "seven"})).await;
    assert_eq!(asked["call"]["function"], "lookup");
    assert_eq!((&asked["call"]["args"], &asked["call"]["kwargs"]), (&json!([1]), &json!({"key": {"a": 2}})));
    let asked = server.post(&path("return"), json!({"return": {"b": [null]}})).await;
    assert_eq!(asked["call"]["args"], json!([["a", "b"]]));
    let done = server.post(&path("return"), json!({"return": [1, "two"]})).await;
    assert_eq!(done["stdout"], "seven\n{'b': [None]}\n[1, 'two']\n");
    assert_eq!((&done["calls"], &done["id"]), (&json!(3), &json!(9)));
}

#[tokio::test]
async fn an_answer_may_be_an_exception() {
    let server = Server::start(options()).await;
    let repl = server.repl(json!({"functions": ALL})).await;
    let path = |what: &str| format!("/v1/repls/{repl}/{what}");
    let code = "try:\n    llm_query('?')\nexcept ValueError as error:\n    print('caught', error)\nllm_query('!')";
    server.post(&path("execute"), json!({"code": code})).await;
    let asked = server.post(&path("return"), json!({"raise": {"type": "ValueError", "message": "no"}})).await;
    assert_eq!(asked["call"]["args"], json!(["!"]));
    let done = server.post(&path("return"), json!({"raise": {"message": "still no"}})).await;
    assert_eq!((&done["stdout"], &done["error"]["type"]), (&json!("caught no\n"), &json!("RuntimeError")));
}

#[tokio::test]
async fn an_exception_that_python_does_not_know_is_a_runtime_error_that_names_it() {
    let server = Server::start(options()).await;
    let repl = server.repl(json!({"functions": ALL})).await;
    let path = |what: &str| format!("/v1/repls/{repl}/{what}");
    for (kind, expected, message) in [
        ("RateLimitError", "RuntimeError", "RateLimitError: wait"),
        ("print", "RuntimeError", "print: wait"),
        ("UnicodeDecodeError", "RuntimeError", "UnicodeDecodeError: wait"),
        ("TimeoutError", "TimeoutError", "wait"),
        ("RuntimeError", "RuntimeError", "wait"),
    ] {
        server.post(&path("execute"), json!({"code": "llm_query('?')"})).await;
        let done = server.post(&path("return"), json!({"raise": {"type": kind, "message": "wait"}})).await;
        assert_eq!(done["error"], json!({"type": expected, "message": message}), "{kind}");
    }
}

#[tokio::test]
async fn names_of_builtins_and_of_the_scaffold_are_refused_by_name() {
    let server = Server::start(options()).await;
    let repl = server.repl(json!({})).await;
    let long = "context_12".to_owned();
    for name in ["print", "ValueError", "eval", "__import__", "class", "FINAL", "llm_query", "context", &long, "1x", ""]
    {
        let bind = json!({"name": name, "value": 1});
        let tool = json!({"tools": [{"name": "fine"}, {"name": name}]});
        let python = json!({"tools": [{"name": name, "source": format!("{name} = 1")}]});
        for (path, body) in
            [(format!("/v1/repls/{repl}/bind"), bind), ("/v1/repls".into(), tool), ("/v1/repls".into(), python)]
        {
            let (status, answer) = server.try_post(&path, body).await;
            assert_eq!((status.as_u16(), &answer["error"]["type"]), (400, &Value::from("name")), "{name}: {answer}");
            let message = answer["error"]["message"].as_str().unwrap();
            assert!(message.starts_with(&format!("`{name}` cannot be bound: ")), "{message}");
        }
    }
    let twice = json!({"tools": [{"name": "a"}, {"name": "a", "source": "a = 1"}]});
    assert_eq!(server.refused("/v1/repls", twice).await, kind(400, "name"));
    assert_eq!(server.run(&repl, "print(len('ab'))").await["stdout"], "2\n");
}

#[tokio::test]
async fn an_answer_to_another_call_is_refused() {
    let server = Server::start(options()).await;
    let repl = server.repl(json!({"functions": ALL})).await;
    let path = |what: &str| format!("/v1/repls/{repl}/{what}");
    assert_eq!(server.refused(&path("wait"), json!({})).await, kind(409, "no_block"));
    assert_eq!(server.refused(&path("return"), json!({"return": 1})).await, kind(409, "no_call"));
    let asked = server.post(&path("execute"), json!({"code": "a = llm_query('1')\nb = llm_query('2')"})).await;
    let (block, index) = (asked["call"]["block"].clone(), asked["call"]["index"].clone());
    let stale = json!({"return": "late", "block": block, "index": 5});
    assert_eq!(server.refused(&path("return"), stale).await, kind(409, "no_call"));
    assert_eq!(server.refused(&path("return"), json!({})).await, kind(400, "request"));
    assert_eq!(server.refused(&path("return"), json!({"return": 1, "raise": {"message": ""}})).await.0, 400);
    assert_eq!(server.refused(&path("execute"), json!({"code": "1"})).await, kind(409, "busy"));
    let next = server.post(&path("return"), json!({"return": "1", "block": block, "index": index})).await;
    assert_eq!(next["call"]["index"], 1);
    // The first answer again, as a client may send it that lost the reply to it.
    let again = json!({"return": "1", "block": block, "index": index});
    assert_eq!(server.refused(&path("return"), again).await, kind(409, "no_call"));
    assert_eq!(server.post(&path("return"), json!({"return": null})).await["outcome"], "completed");
}

#[tokio::test]
async fn one_answer_per_prompt() {
    let server = Server::start(options()).await;
    let repl = server.repl(json!({"functions": ALL})).await;
    let path = |what: &str| format!("/v1/repls/{repl}/{what}");
    for answer in [json!(["only one"]), json!("text")] {
        server.post(&path("execute"), json!({"code": "llm_query_batched(['a', 'b'])"})).await;
        let done = server.post(&path("return"), json!({"return": answer})).await;
        assert_eq!(done["error"]["type"], "RuntimeError", "{done}");
        assert!(done["error"]["message"].as_str().unwrap().contains('2'), "{done}");
    }
}

#[tokio::test]
async fn a_client_that_never_answers_ends_its_block_and_not_its_repl() {
    let server = Server::start(options()).await;
    let repl = server.repl(json!({"functions": ALL, "limits": {"waiting": 0.1}})).await;
    let path = |what: &str| format!("/v1/repls/{repl}/{what}");
    let asked = server.post(&path("execute"), json!({"code": "kept = 1\nllm_query('anybody?')"})).await;
    assert_eq!(asked["call"]["function"], "llm_query");
    let mut done = asked;
    while done.get("call").is_some() {
        done = server.post(&path("wait"), json!({})).await;
    }
    assert_eq!(done["outcome"], "timed_out", "{done}");
    assert!(done["stderr"].as_str().unwrap().contains("TimeoutError"), "{done}");
    assert_eq!(server.refused(&path("return"), json!({"return": "late"})).await, kind(409, "no_call"));
    assert_eq!(server.run(&repl, "print(kept)").await["stdout"], "1\n");
}

#[tokio::test]
async fn a_client_that_vanishes_during_a_call_leaves_nothing() {
    let idle = Duration::from_millis(300);
    let server = Server::start(ServerOptions { idle_timeout: idle, ..options() }).await;
    let repl = server.repl(json!({"functions": ALL})).await;
    let path = format!("/v1/repls/{repl}/execute");
    let asked = server.post(&path, json!({"code": "llm_query('anybody?')"})).await;
    assert_eq!(asked["call"]["function"], "llm_query");
    server.until_repls(0).await;
    assert_eq!(server.refused(&path, json!({"code": "1"})).await, kind(404, "no_repl"));
}

#[tokio::test]
async fn a_forks_calls_go_to_whoever_runs_the_fork() {
    let server = Server::start(options()).await;
    let parent = server.repl(json!({"functions": ALL})).await;
    let fork = server.post(&format!("/v1/repls/{parent}/fork"), json!({})).await["repl"].as_str().unwrap().to_owned();
    let ask = |repl: String, prompt: &'static str| {
        let server = &server;
        async move {
            let code = json!({"code": format!("print(llm_query('{prompt}'))")});
            let asked = server.post(&format!("/v1/repls/{repl}/execute"), code).await;
            assert_eq!((&asked["call"]["args"], &asked["call"]["repl"]), (&json!([prompt]), &json!(repl)));
        }
    };
    tokio::join!(ask(parent.clone(), "from the parent"), ask(fork.clone(), "from the fork"));
    for (repl, answer) in [(&fork, "for the fork"), (&parent, "for the parent")] {
        let done = server.post(&format!("/v1/repls/{repl}/return"), json!({"return": answer})).await;
        assert_eq!(done["stdout"], format!("{answer}\n"));
    }
}

#[tokio::test]
async fn names_that_nobody_serves_do_not_exist() {
    let server = Server::start(options()).await;
    let repl = server.repl(json!({"functions": ["llm_query"]})).await;
    let answer = server.run(&repl, "rlm_query('?')").await;
    assert_eq!(answer["error"]["type"], "NameError");
    assert_eq!(server.refused("/v1/repls", json!({"functions": ["other"]})).await, kind(400, "request"));
    assert_eq!(server.refused("/v1/repls", json!({"tools": [{"name": "context"}]})).await, kind(400, "name"));
    let broken = json!({"tools": [{"name": "f", "source": "def f(:"}]});
    let (status, answer) = server.try_post("/v1/repls", broken).await;
    assert_eq!((status.as_u16(), &answer["error"]["type"]), (400, &Value::from("name")), "{answer}");
    assert_eq!(server.repls().await, 1, "what was refused takes no place");
}
