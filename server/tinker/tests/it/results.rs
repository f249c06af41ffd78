//! Waiting for results, one by one and all of a sampler.

use std::time::{Duration, Instant};

use espalier_tinker::ServerOptions;
use espalier_tinker::store::now;
use serde_json::json;

use crate::harness::{Running, optim, sample, text};

#[tokio::test]
async fn what_takes_longer_than_the_poll_is_a_408_and_asked_again() {
    let server = Running::start(ServerOptions { poll: Duration::from_millis(50), ..ServerOptions::default() }).await;
    let sampler = server.sampler(&server.session().await, 0).await;
    server.backend.hold();
    let id = text(&server.ok("asample", &sample(&sampler, 0, &[10])).await["request_id"]);
    let began = Instant::now();
    let (status, answer) = server.result(&id).await;
    assert_eq!((status, &answer["queue_state"]), (408, &json!("active")));
    assert!(began.elapsed() >= Duration::from_millis(50));
    server.backend.release();
    while server.result(&id).await.0 == 408 {}
    // As often as one likes.
    assert_eq!(server.result(&id).await, server.result(&id).await);
}

#[tokio::test]
async fn a_request_that_ends_wakes_whoever_waits() {
    // The poll is longer than the test may take.
    let poll = Duration::from_mins(1);
    let server = Running::start(ServerOptions { poll, ..ServerOptions::default() }).await;
    let session = server.session().await;
    server.backend.hold();
    let (model, created) = server.model(&session, 0).await;
    let step = text(&server.ok("optim_step", &optim(&model, 1)).await["request_id"]);
    let both = futures::future::join(server.result(&created), server.result(&step));
    let release = async {
        while server.backend.log().is_empty() {
            tokio::task::yield_now().await;
        }
        server.backend.release();
    };
    let (((status, made), (_, stepped)), ()) = futures::future::join(both, release).await;
    assert_eq!((status, &made["model_id"]), (200, &json!(model)));
    assert!(stepped["metrics"].is_object(), "{stepped}");
}

#[tokio::test]
async fn the_ends_of_a_samplers_requests_come_through_one_poll() {
    let server = Running::start(ServerOptions { poll: Duration::from_millis(200), ..ServerOptions::default() }).await;
    let sampler = server.sampler(&server.session().await, 0).await;
    let target =
        |clone: i64| json!({"type": "sampling_session", "sampling_session_id": sampler, "cloned_sampler_id": clone});
    let ask = |clone: i64, cursor: i64, timeout: Option<f64>| {
        let mut body = json!({"target": target(clone), "prev_cursor": cursor, "retrieved_request_ids": []});
        if let Some(timeout) = timeout {
            body["timeout"] = json!(timeout);
        }
        body
    };
    let none = server.ok("retrieve_futures", &ask(0, 0, Some(0.0))).await;
    assert_eq!(none, json!({"completions": [], "cursor": 0}));

    let mut names = Vec::new();
    for seq in [0, 1, 1_000_000_000] {
        let first = if seq == 1 { 13 } else { 10 };
        let id = text(&server.ok("asample", &sample(&sampler, seq, &[first])).await["request_id"]);
        server.result(&id).await;
        names.push(id);
    }
    let found = server.ok("retrieve_futures", &ask(0, 0, None)).await;
    let states: Vec<_> =
        found["completions"].as_array().unwrap().iter().map(|c| (text(&c["request_id"]), text(&c["state"]))).collect();
    assert_eq!(states, [(names[0].clone(), "finished".to_owned()), (names[1].clone(), "failed".to_owned())]);
    assert!(found["completions"][0]["response_payload_uncompressed_size"].as_i64().unwrap() > 0);
    let cursor = found["cursor"].as_i64().unwrap();
    let later = server.ok("retrieve_futures", &ask(0, cursor, Some(0.0))).await;
    assert_eq!(later, json!({"completions": [], "cursor": cursor}));
    // Another client of the same sampler has places of its own.
    let other = server.ok("retrieve_futures", &ask(1, 0, None)).await;
    assert_eq!(other["completions"][0]["request_id"], json!(names[2]));
    // One that waits is woken.
    let next = ask(0, cursor, None);
    let waiting = server.post("retrieve_futures", &next);
    let sampling = server.done("asample", &sample(&sampler, 2, &[10])).await;
    assert!(sampling["sequences"].is_array());
    assert_eq!(waiting.await.1["completions"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn a_result_is_forgotten_after_its_time_and_is_not_computed_again() {
    let server = Running::start(ServerOptions::default()).await;
    let sampler = server.sampler(&server.session().await, 0).await;
    let body = sample(&sampler, 0, &[10]);
    let id = text(&server.ok("asample", &body).await["request_id"]);
    assert_eq!(server.result(&id).await.0, 200);
    let kept = server.store.prune(now() - 60_000, 0).await.unwrap();
    assert_eq!((kept.results, server.result(&id).await.0), (0, 200));
    let pruned = server.store.prune(now() + 1, 0).await.unwrap();
    assert_eq!(pruned.results, 1);
    assert_eq!(server.result(&id).await.0, 410);
    assert_eq!(server.ok("asample", &body).await["request_id"], json!(id));
    assert_eq!(server.backend.log().len(), 1);
}

#[tokio::test]
async fn large_requests_and_results_lie_in_files_and_come_back_whole() {
    let server = Running::start(ServerOptions::default()).await;
    let sampler = server.sampler(&server.session().await, 0).await;
    let prompt: Vec<u32> = (20..1020).collect();
    let mut body = sample(&sampler, 0, &prompt);
    body["sampling_params"]["max_tokens"] = json!(1000);
    let result = server.done("asample", &body).await;
    assert_eq!(result["sequences"][1]["tokens"].as_array().unwrap().len(), 1000);
}

#[tokio::test]
async fn a_shutdown_ends_polls_and_leaves_what_waits_in_the_queue() {
    let options = ServerOptions { drain: Duration::from_millis(100), ..ServerOptions::default() };
    let server = Running::start(options).await;
    let sampler = server.sampler(&server.session().await, 0).await;
    server.backend.hold();
    let id = text(&server.ok("asample", &sample(&sampler, 0, &[10])).await["request_id"]);
    let shutdown = server.shutdown.clone();
    let release = async {
        while server.backend.log().is_empty() {
            tokio::task::yield_now().await;
        }
        shutdown.cancel();
    };
    let ((status, _), ()) = futures::future::join(server.result(&id), release).await;
    assert_eq!(status, 408);
    assert_eq!(server.stop().await, 1);
}
