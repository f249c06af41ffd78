//! A server that is killed, and what the next one finds.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use espalier_tinker::{ScriptedBackend, ServerOptions, Store, StoreError};
use serde_json::{Value, json};

use crate::harness::{INLINE, MODEL, Running, optim, sample, text};

const CHILD: &str = "ESPALIER_TEST_TINKER_FOLDER";

fn backend(folder: &Path) -> ScriptedBackend {
    ScriptedBackend::new(MODEL).log_to(folder.join("log"))
}

fn log(folder: &Path) -> Vec<String> {
    std::fs::read_to_string(folder.join("log")).unwrap_or_default().lines().map(str::to_owned).collect()
}

/// The server that is killed: a process of its own. Each line of its input makes the engine hold everything.
#[expect(clippy::print_stdout, reason = "the other process reads it")]
async fn victim(folder: &Path) {
    let server = Running::over(folder, backend(folder), ServerOptions::default()).await;
    println!("\nlistening at {}", server.address);
    let lines = tokio::task::spawn_blocking(move || {
        for line in std::io::stdin().lines() {
            line.unwrap();
            server.backend.hold();
            println!("\nholding");
        }
    });
    lines.await.unwrap();
}

/// A client of the process that is killed.
struct Client(String);

impl Client {
    async fn ok(&self, path: &str, body: &Value) -> Value {
        let sent = reqwest::Client::new().post(format!("http://{}/api/v1/{path}", self.0)).body(body.to_string());
        let answer = sent.send().await.unwrap();
        assert_eq!(answer.status().as_u16(), 200, "{path} {body}");
        serde_json::from_slice(&answer.bytes().await.unwrap()).unwrap()
    }

    async fn take(&self, path: &str, body: &Value) -> String {
        text(&self.ok(path, body).await["request_id"])
    }

    async fn result(&self, request_id: &str) -> Value {
        self.ok("retrieve_future", &json!({"request_id": request_id})).await
    }
}

fn line(child: &mut Child, lines: &mut impl Iterator<Item = std::io::Result<String>>, wanted: &str) -> String {
    let found = lines.map(Result::unwrap).find_map(|line| line.split_once(wanted).map(|(_, rest)| rest.to_owned()));
    found.unwrap_or_else(|| panic!("the server ended: {:?}", child.wait()))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_killed_loses_nothing_and_does_nothing_twice() {
    if let Ok(folder) = std::env::var(CHILD) {
        victim(Path::new(&folder)).await;
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "restart::a_server_that_is_killed_loses_nothing_and_does_nothing_twice", "--nocapture"])
        .env(CHILD, folder.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let client = Client(line(&mut child, &mut lines, "listening at "));
    let create = json!({"tags": [], "sdk_version": "0.38.0"});
    let session = text(&client.ok("create_session", &create).await["session_id"]);
    let made = json!({"session_id": session, "sampling_session_seq_id": 0, "base_model": MODEL});
    let sampler = text(&client.ok("create_sampling_session", &made).await["sampling_session_id"]);
    let model = format!("{session}:train:0");
    client.take("create_model", &crate::harness::create_model(&session, 0)).await;

    // What is done before.
    let mut long = sample(&sampler, 0, &[10]);
    long["sampling_params"]["max_tokens"] = json!(500);
    let sampled = client.take("asample", &long).await;
    let stepped = client.take("optim_step", &optim(&model, 1)).await;
    let (sampled_result, stepped_result) = (client.result(&sampled).await, client.result(&stepped).await);
    // What runs when it is killed, and what waits.
    child.stdin.as_mut().unwrap().write_all(b"hold\n").unwrap();
    line(&mut child, &mut lines, "holding");
    let running = client.take("asample", &sample(&sampler, 1, &[10])).await;
    let changing = client.take("optim_step", &optim(&model, 2)).await;
    let behind = client.take("optim_step", &optim(&model, 3)).await;
    while log(folder.path()).len() < 5 {
        tokio::task::yield_now().await;
    }
    child.kill().unwrap();
    child.wait().unwrap();

    let server = Running::over(folder.path(), backend(folder.path()), ServerOptions::default()).await;
    let found = server.store.recovered();
    assert_eq!(found.again, 2);
    assert_eq!(server.result(&sampled).await, (200, sampled_result));
    assert_eq!(server.result(&stepped).await, (200, stepped_result));
    assert!(server.result(&running).await.1["sequences"].is_array());
    // What was running is done, and what waited.
    for name in [&changing, &behind] {
        assert!(server.result(name).await.1["metrics"].is_object());
    }
    // Sent again, all of it is known.
    assert_eq!(text(&server.ok("asample", &long).await["request_id"]), sampled);
    for (seq, name) in [(1, &stepped), (2, &changing), (3, &behind)] {
        assert_eq!(text(&server.ok("optim_step", &optim(&model, seq)).await["request_id"]), *name);
    }
    // The model was in the memory that is gone: it is brought back by what was done, once and in its order, before the step
    // goes on that was cut off.
    let of_model: Vec<String> = log(folder.path()).into_iter().filter(|ran| ran.starts_with(&model)).collect();
    let steps = ["0 create_model", "1 optim_step", "2 optim_step"];
    let expected: Vec<String> =
        steps.iter().chain(&steps).chain(&["3 optim_step"]).map(|step| format!("{model} {step}")).collect();
    assert_eq!(of_model, expected);
    let ran = |line: String| log(folder.path()).iter().filter(|ran| **ran == line).count();
    assert_eq!(ran(format!("{sampler} 0 sample")), 1);
    // Sampling changes nothing: what was cut off is done again, and nobody saw the first time.
    assert_eq!(ran(format!("{sampler} 1 sample")), 2);
    // The session lives on, and makes another model.
    let (other, made) = server.model(&session, 1).await;
    assert_eq!(server.result(&made).await.1["model_id"], json!(other));
}

#[tokio::test]
async fn a_folder_is_one_servers_at_a_time() {
    let folder = tempfile::tempdir().unwrap();
    let first = Store::open(folder.path(), INLINE).await.unwrap();
    let second = Store::open(folder.path(), INLINE).await.err();
    assert_eq!(second, Some(StoreError::Taken(folder.path().to_owned())));
    drop(first);
    // The writer lets go of the folder's files on its own time; the lock is free at once.
    assert!(Store::open(folder.path(), INLINE).await.is_ok());
}
