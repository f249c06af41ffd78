//! Keys, and what belongs to whom.

use std::sync::Arc;

use espalier_tinker::{KeyError, Keys, ScriptedBackend, ServeError, ServerOptions, Store, serve};
use serde_json::json;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::harness::{INLINE, MODEL, Running, optim, sample, text};

const ANN: &str = "tml-0123456789-ann";
const BEN: &str = "tml-0123456789-ben";

fn keys() -> Keys {
    Keys::parse(&format!("# who\n{}\n\n{} # the other\n", Keys::line("ann", ANN), Keys::line("ben", BEN))).unwrap()
}

#[tokio::test]
async fn without_a_key_nothing_but_health_is_answered() {
    let mut server = Running::start(ServerOptions { keys: keys(), ..ServerOptions::default() }).await;
    assert_eq!(server.get("healthz").await.0, 200);
    for key in [None, Some("tml-wrong".to_owned()), Some(String::new())] {
        server.key = key;
        let (status, answer) = server.post("client/config", &json!({"sdk_version": "0.38.0"})).await;
        assert_eq!((status, text(&answer["detail"]).starts_with("`X-API-Key`: ")), (401, true), "{answer}");
        assert_eq!(server.get("get_server_capabilities").await.0, 401);
    }
    server.key = Some(ANN.to_owned());
    assert_eq!(server.post("client/config", &json!({"sdk_version": "0.38.0"})).await.0, 200);
}

#[tokio::test]
async fn what_is_anns_does_not_exist_for_ben() {
    let mut server = Running::start(ServerOptions { keys: keys(), ..ServerOptions::default() }).await;
    server.key = Some(ANN.to_owned());
    let session = server.session().await;
    let sampler = server.sampler(&session, 0).await;
    let (model, created) = server.model(&session, 0).await;
    assert_eq!(server.result(&created).await.0, 200);
    assert_eq!(server.get(&format!("training_runs/{model}")).await.1["model_owner"], "ann");

    server.key = Some(BEN.to_owned());
    assert_eq!(server.result(&created).await.0, 404);
    for (path, body) in [
        ("asample", sample(&sampler, 0, &[10])),
        ("optim_step", optim(&model, 1)),
        ("get_info", json!({"model_id": model})),
        ("cancel_future", json!({"request_id": created})),
        ("session_heartbeat", json!({"session_id": session})),
        ("create_sampling_session", json!({"session_id": session, "sampling_session_seq_id": 1, "base_model": MODEL})),
        ("retrieve_futures", json!({"target": {"type": "sampling_session", "sampling_session_id": sampler}})),
    ] {
        assert_eq!(server.post(path, &body).await.0, 404, "{path}");
    }
    // A refusal of a stranger uses up no place.
    let mut wrong = optim(&model, 1);
    wrong["adam_params"]["beta1"] = json!(2);
    assert_eq!(server.post("optim_step", &wrong).await.0, 400);
    for path in ["sessions", "training_runs", "samplers", "checkpoints"] {
        let (status, answer) = server.get(path).await;
        let empty = answer.as_object().unwrap().values().all(|value| value.as_array().is_none_or(Vec::is_empty));
        assert!(status == 404 || empty, "{path}: {answer}");
    }
    assert_eq!(server.get(&format!("sessions/{session}")).await.0, 404);

    server.key = Some(ANN.to_owned());
    assert!(server.done("optim_step", &optim(&model, 1)).await["metrics"].is_object());
}

#[tokio::test]
async fn a_page_of_another_site_is_not_let_in_where_there_are_no_keys() {
    let server = Running::start(ServerOptions::default()).await;
    let body = || server.request("client/config").body("{}");
    assert_eq!(server.send(body().header("Origin", "https://evil.example")).await.status().as_u16(), 403);
    assert_eq!(server.send(body().header("Host", "evil.example")).await.status().as_u16(), 403);
    assert_eq!(server.send(body().header("Origin", "http://localhost:3000")).await.status().as_u16(), 200);
}

#[tokio::test]
async fn a_server_that_anybody_reaches_wants_keys_or_a_word() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path(), INLINE).await.unwrap();
    for (options, starts) in [
        (ServerOptions::default(), false),
        (ServerOptions { open: true, ..ServerOptions::default() }, true),
        (ServerOptions { keys: keys(), ..ServerOptions::default() }, true),
    ] {
        let listener = TcpListener::bind("0.0.0.0:0").await.unwrap();
        let shutdown = CancellationToken::new();
        shutdown.cancel();
        let served = serve(store.clone(), Arc::new(ScriptedBackend::new(MODEL)), listener, options, shutdown).await;
        assert_eq!(served.is_ok(), starts);
        assert!(starts || matches!(served, Err(ServeError::NoKeys(_))));
    }
}

#[test]
fn keys_that_are_none_are_refused_without_being_shown() {
    assert_eq!(Keys::parse("# nobody\n").unwrap_err(), KeyError::None);
    let plain = Keys::parse("ann tml-secret-secret-secret").unwrap_err();
    assert!(matches!(plain, KeyError::Line { line: 1, .. }) && !plain.to_string().contains("secret"), "{plain}");
    assert!(matches!(Keys::parse("\nann").unwrap_err(), KeyError::Line { line: 2, .. }));
    let twice = format!("{}\n{}", Keys::line("ann", ANN), Keys::line("ben", ANN));
    assert_eq!(Keys::parse(&twice).unwrap_err(), KeyError::Twice { line: 2 });
    assert_eq!(format!("{:?}", keys()), "Keys(2)");
}
