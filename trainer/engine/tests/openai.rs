//! The HTTP API: in raw requests, and through the `openai` package from PyPI.

mod tiny;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use espalier_engine::openai_server::{ServerOptions, Shutdown, serve};
use espalier_engine::{EngineOptions, LocalEngine};
use espalier_inference::InferenceEngine;
use serde_json::{Value, json};
use tiny::{options, prompt, request, sampling};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

struct Running {
    engine: Arc<LocalEngine>,
    address: SocketAddr,
    shutdown: Shutdown,
    task: JoinHandle<std::io::Result<usize>>,
}

impl Running {
    async fn start(server: ServerOptions) -> Self {
        let engine = Arc::new(tiny::engine(EngineOptions { name: Some("tiny".to_owned()), ..options() }));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let shutdown = Shutdown::default();
        let task = tokio::spawn(serve(engine.clone(), listener, server, shutdown.clone()));
        Self { engine, address, shutdown, task }
    }

    async fn post(&self, path: &str, body: impl Into<reqwest::Body>) -> (u16, Value) {
        let url = format!("http://{}{path}", self.address);
        let response = reqwest::Client::new().post(url).body(body).send().await.unwrap();
        let status = response.status().as_u16();
        (status, serde_json::from_slice(&response.bytes().await.unwrap()).unwrap())
    }

    async fn json(&self, path: &str, body: &Value) -> (u16, Value) {
        self.post(path, body.to_string()).await
    }
}

#[tokio::test]
async fn a_completion_of_token_ids_is_what_the_engine_says() {
    let server = Running::start(ServerOptions::default()).await;
    let tokens = prompt(1, 20);
    let body = json!({"model": "tiny", "prompt": tokens, "max_tokens": 12, "seed": 5, "ignore_eos": true, "n": 2,
                      "logprobs": 1, "return_token_ids": true});
    let (status, answer) = server.json("/v1/completions", &body).await;
    assert_eq!(status, 200, "{answer}");
    let mut direct = request(tokens.clone(), sampling(5, 12));
    direct.n = 2;
    let expected = server.engine.generate(direct).await.unwrap();
    for (choice, generation) in answer["choices"].as_array().unwrap().iter().zip(&expected) {
        assert_eq!(choice["token_ids"], json!(generation.tokens));
        assert_eq!(choice["prompt_token_ids"], json!(tokens));
        assert_eq!(choice["text"], json!(generation.text));
        assert_eq!(choice["finish_reason"], "length");
        let logprobs: Vec<f32> = serde_json::from_value(choice["logprobs"]["token_logprobs"].clone()).unwrap();
        assert!(logprobs.iter().zip(&generation.logprobs).all(|(a, b)| (a - b).abs() < 1e-4));
    }
    assert_eq!((&answer["usage"]["prompt_tokens"], &answer["usage"]["completion_tokens"]), (&json!(20), &json!(24)));
}

#[tokio::test]
async fn an_adapter_is_a_model_of_its_own() {
    let server = Running::start(ServerOptions::default()).await;
    for (name, seed) in [("first", 1), ("second", 2)] {
        server.engine.load_adapter(name, &tiny::lora::weights(seed, 4)).unwrap();
    }
    let get = async |path: &str| {
        let response = reqwest::get(format!("http://{}{path}", server.address)).await.unwrap();
        serde_json::from_slice::<Value>(&response.bytes().await.unwrap()).unwrap()
    };
    let list = get("/v1/models").await;
    let names: Vec<(&Value, &Value)> =
        list["data"].as_array().unwrap().iter().map(|card| (&card["id"], &card["parent"])).collect();
    let tiny = json!("tiny");
    assert_eq!(names, [(&tiny, &Value::Null), (&json!("first"), &tiny), (&json!("second"), &tiny)]);
    assert_eq!(get("/v1/models/second").await["id"], "second");

    let mut texts = Vec::new();
    for name in ["tiny", "first", "second"] {
        let mut direct = request(prompt(1, 20), sampling(5, 12));
        direct.adapter = (name != "tiny").then(|| name.to_owned());
        let expected = server.engine.generate(direct).await.unwrap().remove(0);
        let mut body = json!({"model": name, "prompt": prompt(1, 20), "max_tokens": 12, "seed": 5, "ignore_eos": true,
                              "return_token_ids": true});
        let (_, answer) = server.json("/v1/completions", &body).await;
        assert_eq!((&answer["model"], &answer["choices"][0]["token_ids"]), (&json!(name), &json!(expected.tokens)));
        body["stream"] = json!(true);
        let url = format!("http://{}/v1/completions", server.address);
        let lines = reqwest::Client::new().post(url).body(body.to_string()).send().await.unwrap().text().await.unwrap();
        assert!(lines.contains(&format!("\"model\":\"{name}\"")), "{lines}");
        texts.push(expected.text);
    }
    assert!(texts[0] != texts[1] && texts[1] != texts[2]);

    server.engine.remove_adapter("first").unwrap();
    let (status, answer) = server.json("/v1/completions", &json!({"model": "first", "prompt": "hi"})).await;
    let said = answer["error"]["message"].as_str().unwrap();
    assert_eq!((status, said), (404, "`model`: expected `tiny` or `second`, got `first`"));
}

#[tokio::test]
async fn a_stop_text_is_cut_off_and_never_streamed() {
    let server = Running::start(ServerOptions::default()).await;
    let base = json!({"prompt": "once upon a time", "max_tokens": 60, "seed": 3, "ignore_eos": true});
    let (_, free) = server.json("/v1/completions", &base).await;
    let text = free["choices"][0]["text"].as_str().unwrap();
    let from = text.char_indices().nth(15).unwrap().0;
    let stop = &text[from..text.char_indices().nth(18).unwrap().0];
    let expected = &text[..text.find(stop).unwrap()];
    let mut stopped = base.clone();
    stopped["stop"] = json!([stop]);
    let (_, whole) = server.json("/v1/completions", &stopped).await;
    assert_eq!(
        (&whole["choices"][0]["text"], &whole["choices"][0]["finish_reason"]),
        (&json!(expected), &json!("stop"))
    );
    stopped["stream"] = json!(true);
    let url = format!("http://{}/v1/completions", server.address);
    let lines = reqwest::Client::new().post(url).body(stopped.to_string()).send().await.unwrap().text().await.unwrap();
    let data: Vec<&str> = lines.lines().filter_map(|l| l.strip_prefix("data: ")).collect();
    assert_eq!(data.last(), Some(&"[DONE]"));
    let chunks: Vec<Value> = data[..data.len() - 1].iter().map(|d| serde_json::from_str(d).unwrap()).collect();
    let streamed: String = chunks.iter().map(|c| c["choices"][0]["text"].as_str().unwrap()).collect();
    assert_eq!(streamed, expected);
    assert_eq!(chunks.last().unwrap()["choices"][0]["finish_reason"], "stop");
}

#[tokio::test]
async fn every_bad_request_is_answered_with_its_parameter() {
    let server = Running::start(ServerOptions { max_prompts: 3, ..ServerOptions::default() }).await;
    let chat = |key: &str, value: Value| {
        let mut body = json!({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2});
        body[key] = value;
        ("/v1/chat/completions", body)
    };
    let text = |key: &str, value: Value| {
        let mut body = json!({"prompt": "hi", "max_tokens": 2});
        body[key] = value;
        ("/v1/completions", body)
    };
    let cases = [
        (chat("messages", json!([])), "messages"),
        (chat("messages", json!("hi")), "messages"),
        (chat("messages", json!([{"role": "nobody", "content": "x"}])), "messages[0]"),
        (chat("messages", json!([{"role": "user", "content": [{"type": "image_url"}]}])), "messages[0].content"),
        (chat("temperature", json!("warm")), "temperature"),
        (chat("temperature", json!(-1)), "temperature"),
        (chat("top_p", json!(0)), "top_p"),
        (chat("n", json!(0)), "n"),
        (chat("max_tokens", json!(0)), "max_tokens"),
        (chat("max_completion_tokens", json!(-5)), "max_completion_tokens"),
        (chat("stop", json!([1])), "stop"),
        (chat("stop", json!("")), "stop"),
        (chat("top_logprobs", json!(5)), "top_logprobs"),
        (chat("top_logprobs", json!(1)), "top_logprobs"),
        (chat("logprobs", json!(1)), "logprobs"),
        (chat("seed", json!(1.5)), "seed"),
        (chat("stream", json!("yes")), "stream"),
        (chat("presence_penalty", json!(0.5)), "presence_penalty"),
        (chat("tools", json!([{}])), "tools"),
        (chat("response_format", json!({"type": "json_object"})), "response_format"),
        (chat("temprature", json!(1)), "temprature"),
        (text("prompt", json!([])), "prompt"),
        (text("prompt", json!(["a", "b", "c", "d"])), "prompt"),
        (text("prompt", json!([1, "a"])), "prompt"),
        (text("prompt", json!([100_000])), "prompt"),
        (text("prompt", json!("x".repeat(600))), "prompt"),
        (text("logprobs", json!(3)), "logprobs"),
        (text("stop_token_ids", json!([-1])), "stop_token_ids"),
        (text("echo", json!(true)), "echo"),
    ];
    for ((path, body), param) in cases {
        let (status, answer) = server.json(path, &body).await;
        assert_eq!((status, &answer["error"]["param"]), (400, &json!(param)), "{body}: {answer}");
        assert_eq!(answer["error"]["type"], "invalid_request_error");
        assert!(answer["error"]["message"].as_str().unwrap().len() > 10);
    }
    let (status, answer) = server.post("/v1/completions", "{").await;
    assert_eq!((status, &answer["error"]["param"]), (400, &Value::Null));
    let (status, answer) = server.json("/v1/completions", &text("model", json!("gpt-4")).1).await;
    assert_eq!((status, &answer["error"]["code"]), (404, &json!("model_not_found")));
    let (status, answer) = server.json("/v1/embeddings", &json!({})).await;
    assert_eq!((status, &answer["error"]["code"]), (404, &json!("unknown_url")));
}

#[tokio::test]
async fn a_body_over_the_limit_is_refused() {
    let server = Running::start(ServerOptions { max_body_bytes: 1000, ..ServerOptions::default() }).await;
    let (status, answer) = server.json("/v1/completions", &json!({"prompt": "x".repeat(2000)})).await;
    assert_eq!((status, &answer["error"]["type"]), (413, &json!("invalid_request_error")));
}

#[tokio::test]
async fn a_client_that_goes_away_frees_its_place() {
    let server = Running::start(ServerOptions::default()).await;
    for stream in [false, true] {
        let body =
            json!({"prompt": "hi", "max_tokens": 500, "ignore_eos": true, "n": 64, "stream": stream}).to_string();
        let url = format!("http://{}/v1/completions", server.address);
        let call = reqwest::Client::new().post(url).body(body).timeout(Duration::from_millis(60)).send();
        if let Ok(response) = call.await {
            drop(response);
        }
        while server.engine.stats().running > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
    assert!(server.engine.stats().sampled_tokens < 2 * 64 * 480);
}

#[tokio::test]
async fn a_shutdown_finishes_what_runs_and_takes_nothing_new() {
    let server = Running::start(ServerOptions { drain: Duration::from_mins(1), ..ServerOptions::default() }).await;
    let body = json!({"prompt": "hi", "max_tokens": 200, "ignore_eos": true, "seed": 1});
    let url = format!("http://{}/v1/completions", server.address);
    let running = tokio::spawn(reqwest::Client::new().post(url).body(body.to_string()).send());
    while server.engine.stats().running == 0 {
        tokio::task::yield_now().await;
    }
    assert_eq!(server.shutdown.open_requests(), 1);
    server.shutdown.begun().cancel();
    let answer: Value = serde_json::from_slice(&running.await.unwrap().unwrap().bytes().await.unwrap()).unwrap();
    assert_eq!(answer["usage"]["completion_tokens"], 200);
    assert_eq!((server.task.await.unwrap().unwrap(), server.shutdown.open_requests()), (0, 0));
}

#[tokio::test]
async fn what_runs_longer_than_the_drain_is_cut_off_and_answered_with_what_there_is() {
    for stream in [false, true] {
        let server = Running::start(ServerOptions { drain: Duration::ZERO, ..ServerOptions::default() }).await;
        let body = json!({"prompt": "hi", "max_tokens": 500, "ignore_eos": true, "n": 64, "stream": stream});
        let url = format!("http://{}/v1/completions", server.address);
        let running = tokio::spawn(async move {
            reqwest::Client::new().post(url).body(body.to_string()).send().await.unwrap().text().await.unwrap()
        });
        while server.engine.stats().sampled_tokens == 0 {
            tokio::task::yield_now().await;
        }
        server.shutdown.begun().cancel();
        assert_eq!(server.task.await.unwrap().unwrap(), 1, "stream: {stream}");
        let answer = running.await.unwrap();
        assert!(answer.contains("\"finish_reason\":\"abort\""), "{answer}");
        assert!(!stream || answer.trim_end().ends_with("[DONE]"), "{answer}");
        while server.engine.stats().running > 0 {
            tokio::task::yield_now().await;
        }
        assert!(server.engine.stats().sampled_tokens < 64 * 480);
    }
}

#[tokio::test]
async fn every_answer_says_when_it_was_made() {
    let now = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let server = Running::start(ServerOptions::default()).await;
    let started = now();
    // The times are whole seconds: in the next one an answer differs from the server's start.
    while now() == started {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let before = now();
    let mut body = json!({"prompt": "hi", "max_tokens": 2, "stream": false});
    let (_, answer) = server.json("/v1/completions", &body).await;
    assert!((before..=now()).contains(&answer["created"].as_u64().unwrap()), "{answer}");
    body["stream"] = json!(true);
    let url = format!("http://{}/v1/completions", server.address);
    let lines = reqwest::Client::new().post(url).body(body.to_string()).send().await.unwrap().text().await.unwrap();
    let data = lines.lines().find_map(|line| line.strip_prefix("data: ")).unwrap();
    let chunk: Value = serde_json::from_str(data).unwrap();
    assert!((before..=now()).contains(&chunk["created"].as_u64().unwrap()), "{chunk}");
}

#[tokio::test]
async fn the_openai_package_understands_every_answer() {
    let Some(python) = python_with_openai() else { return };
    let server = Running::start(ServerOptions::default()).await;
    let script = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/openai_client.py");
    let base = format!("http://{}/v1", server.address);
    let output = tokio::task::spawn_blocking(move || Command::new(python).arg(script).arg(base).output())
        .await
        .unwrap()
        .unwrap();
    assert!(
        output.status.success(),
        "{}\n{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}

/// The version of the package that this is tested with.
const OPENAI: &str = "openai==3.57.0";

/// A Python with the `openai` package, made once in the cache; `None`, said aloud, where there is no Python or no PyPI.
fn python_with_openai() -> Option<PathBuf> {
    let cache = std::env::var_os("ESPALIER_CACHE")
        .map(PathBuf::from)
        .or_else(|| std::env::var_os("XDG_CACHE_HOME").map(|c| PathBuf::from(c).join("espalier")))
        .or_else(|| std::env::var_os("HOME").map(|h| PathBuf::from(h).join(".cache/espalier")))?;
    let folder = cache.join("venvs").join(OPENAI.replace("==", "-"));
    let python = folder.join("bin/python");
    let ready = folder.join("ready");
    if ready.exists() {
        return Some(python);
    }
    let run = |program: &std::path::Path, arguments: &[&str]| {
        Command::new(program).args(arguments).output().is_ok_and(|o| o.status.success())
    };
    let path = folder.to_string_lossy().into_owned();
    let made = run(std::path::Path::new("python3"), &["-m", "venv", &path])
        && run(&python, &["-m", "pip", "install", "--quiet", "--disable-pip-version-check", OPENAI])
        && std::fs::write(&ready, "").is_ok();
    if !made {
        skip("cannot make a virtual environment with the `openai` package (no Python, or PyPI out of reach)");
        return None;
    }
    Some(python)
}

#[expect(clippy::print_stderr, reason = "a skipped test says so")]
fn skip(why: &str) {
    eprintln!("skipped: {why}");
}
