//! Sessions: their life, their end, and what ends with them.

use std::time::Duration;

use espalier_tinker::ServerOptions;
use serde_json::json;

use crate::harness::{MODEL, Running, create_model, optim, sample, text};

#[tokio::test]
async fn a_client_is_told_what_it_needs_to_start() {
    let server = Running::start(ServerOptions::default()).await;
    assert_eq!(server.get("healthz").await, (200, json!({"status": "ok"})));
    let config = server.ok("client/config", &json!({"sdk_version": "0.38.0"})).await;
    assert_eq!(config["sample_use_retrieve_futures"], false);
    assert!(
        server.ok("client/dynamic_config", &json!({"sdk_version": "0.38.0"})).await["refresh_interval_sec"].is_number()
    );
    let (_, capabilities) = server.get("get_server_capabilities").await;
    assert_eq!(capabilities["supported_models"][0]["model_name"], MODEL);
    assert_eq!(
        server.ok("telemetry", &json!({"events": [{"event": "SESSION_START"}]})).await,
        json!({"status": "accepted"})
    );
    assert_eq!(server.raw("telemetry", "no JSON at all").await.0, 200);
}

#[tokio::test]
async fn a_finished_session_takes_no_work_and_fails_what_was_not_done() {
    let server = Running::start(ServerOptions::default()).await;
    let session = server.session().await;
    let sampler = server.sampler(&session, 0).await;
    assert_eq!(server.post("session_heartbeat", &json!({"session_id": session})).await.0, 200);
    server.backend.hold();
    let (model, created) = server.model(&session, 0).await;
    let waiting = text(&server.ok("optim_step", &optim(&model, 2)).await["request_id"]);
    let sampling = text(&server.ok("asample", &sample(&sampler, 0, &[10])).await["request_id"]);
    let results = futures::future::join_all([created, waiting, sampling].map(|id| {
        let server = &server;
        async move { server.result(&id).await }
    }));
    let finish = format!("sessions/{session}/finish");
    let reason = |reason: &str| json!({"reason": {"type": reason}, "detail": null});
    let success = reason("success");
    let (results, done) = futures::future::join(results, server.post(&finish, &success)).await;
    assert_eq!(done.0, 200);
    for (status, result) in results {
        assert_eq!((status, &result["category"]), (200, &json!("user")), "{result}");
        assert!(text(&result["error"]).contains("the session ended (success)"), "{result}");
    }
    // The first reason stays; the end is the end.
    assert_eq!(server.post(&finish, &reason("errored")).await.0, 200);
    assert_eq!(server.post("session_heartbeat", &json!({"session_id": session})).await.0, 410);
    assert_eq!(server.post("asample", &sample(&sampler, 1, &[10])).await.0, 400);
    assert_eq!(server.post("create_model", &create_model(&session, 1)).await.0, 400);
    assert_eq!(server.post("optim_step", &optim(&model, 3)).await.0, 400);
    assert_eq!(server.store.unfinished(), 0);
}

#[tokio::test]
async fn a_session_that_falls_silent_ends() {
    let session_timeout = Duration::from_millis(300);
    let server = Running::start(ServerOptions { session_timeout, ..ServerOptions::default() }).await;
    let (silent, alive) = (server.session().await, server.session().await);
    let sampler = server.sampler(&silent, 0).await;
    server.backend.hold();
    let id = text(&server.ok("asample", &sample(&sampler, 0, &[10])).await["request_id"]);
    let beat = async {
        loop {
            assert_eq!(server.post("session_heartbeat", &json!({"session_id": alive})).await.0, 200);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::select! {
        result = server.result(&id) => assert!(text(&result.1["error"]).contains("fell silent"), "{result:?}"),
        () = beat => {}
    }
    assert_eq!(server.post("session_heartbeat", &json!({"session_id": silent})).await.0, 410);
}

#[tokio::test]
async fn a_number_names_one_sampler_and_one_model() {
    let server = Running::start(ServerOptions::default()).await;
    let session = server.session().await;
    assert_eq!(server.sampler(&session, 3).await, format!("{session}:sample:3"));
    assert_eq!(server.sampler(&session, 3).await, format!("{session}:sample:3"));
    let (model, first) = server.model(&session, 0).await;
    assert_eq!((model, first.clone()), (format!("{session}:train:0"), server.model(&session, 0).await.1));
    let mut other = create_model(&session, 0);
    other["lora_config"]["rank"] = json!(16);
    assert_eq!(server.post("create_model", &other).await.0, 400);
}

#[tokio::test]
async fn what_there_is_can_be_read() {
    let server = Running::start(ServerOptions::default()).await;
    let session = server.session().await;
    let sampler = server.sampler(&session, 0).await;
    let (model, created) = server.model(&session, 0).await;
    server.result(&created).await;
    let info = server.ok("get_info", &json!({"model_id": model, "type": "get_info"})).await;
    assert_eq!((&info["model_data"]["model_name"], &info["lora_rank"]), (&json!(MODEL), &json!(8)));
    let (_, run) = server.get(&format!("training_runs/{model}?access_scope=owned")).await;
    for key in ["training_run_id", "base_model", "model_owner", "is_lora", "corrupted", "last_request_time"] {
        assert!(!run[key].is_null(), "{key}: {run}");
    }
    assert_eq!(run["user_metadata"], json!({"k": "v"}));
    let (_, runs) = server.get("training_runs?limit=2&offset=0&access_scope=owned").await;
    assert_eq!((&runs["training_runs"], &runs["cursor"]["total_count"]), (&json!([run]), &json!(1)));
    let (_, listed) = server.get("sessions?limit=20&offset=0").await;
    assert_eq!(listed, json!({"sessions": [session]}));
    let (_, one) = server.get(&format!("sessions/{session}")).await;
    assert_eq!((&one["training_run_ids"], &one["sampler_ids"]), (&json!([model]), &json!([sampler])));
    let (_, one) = server.get(&format!("samplers/{sampler}")).await;
    assert_eq!(one, json!({"sampler_id": sampler, "base_model": MODEL, "model_path": null}));
    assert_eq!(server.get(&format!("training_runs/{model}/checkpoints")).await.1["checkpoints"], json!([]));
    assert_eq!(server.get("checkpoints?limit=100&offset=0").await.1["cursor"]["total_count"], 0);
    assert_eq!(server.get("training_runs?limit=0").await.0, 400);
}
