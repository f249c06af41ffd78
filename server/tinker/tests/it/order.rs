//! The order of a model's operations: by `seq_id`, one at a time, once each.

use std::collections::BTreeSet;

use espalier_tinker::operation::{Kind, Payload, Reply};
use espalier_tinker::store::checkpoints::Adapter;
use espalier_tinker::store::requests::{NewModel, Room, Submission, Submitted};
use espalier_tinker::wire::session::CreateSession;
use espalier_tinker::{OperationError, ServerOptions, Store};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use serde_json::json;

use crate::harness::{INLINE, Running, create_model, optim, text};

#[tokio::test]
async fn operations_that_come_out_of_order_run_in_order() {
    let server = Running::start(ServerOptions::default()).await;
    let (model, created) = server.model(&server.session().await, 0).await;
    let mut names = vec![created];
    // As the SDK sends the chunks of a call: the first one last.
    for seq in [4, 3, 2, 6, 1, 5] {
        names.push(text(&server.ok("optim_step", &optim(&model, seq)).await["request_id"]));
    }
    for name in &names {
        assert_eq!(server.result(name).await.0, 200);
    }
    let places: Vec<String> = server.backend.log();
    let expected: Vec<String> =
        (0..7).map(|seq| format!("{model} {seq} {}", if seq == 0 { "create_model" } else { "optim_step" })).collect();
    assert_eq!((places, server.backend.was_crowded()), (expected, false));
}

#[tokio::test]
async fn a_refused_request_uses_up_its_place_also_when_it_is_sent_again() {
    let server = Running::start(ServerOptions::default()).await;
    let (model, _) = server.model(&server.session().await, 0).await;
    let later = text(&server.ok("optim_step", &optim(&model, 3)).await["request_id"]);
    let mut wrong = optim(&model, 1);
    wrong["adam_params"]["beta1"] = json!(1.5);
    let (status, refused) = server.post("optim_step", &wrong).await;
    assert_eq!((status, text(&refused["detail"]).starts_with("`adam_params.beta1`")), (400, true), "{refused}");
    // Protobuf that breaks after its head, and a body that is right at a place that was refused.
    let mut bytes = vec![0x0a, model.len() as u8];
    bytes.extend(model.as_bytes());
    bytes.extend([0x10, 2, 0x1a, 3, 0x0a, 1, 0xff]);
    assert_eq!(server.raw("forward_backward", bytes).await.0, 400);
    assert!(server.result(&later).await.1["metrics"].is_object());
    assert_eq!(server.post("optim_step", &optim(&model, 1)).await, (400, refused));
    assert_eq!(server.backend.log().len(), 2);
}

#[tokio::test]
async fn a_request_that_came_before_is_the_same_request() {
    let server = Running::start(ServerOptions::default()).await;
    let (model, _) = server.model(&server.session().await, 0).await;
    let first = server.ok("optim_step", &optim(&model, 1)).await;
    server.result(&text(&first["request_id"])).await;
    assert_eq!(server.ok("optim_step", &optim(&model, 1)).await, first);
    let mut other = optim(&model, 1);
    other["adam_params"]["learning_rate"] = json!(0.5);
    assert_eq!(server.post("optim_step", &other).await.0, 400);
    let save = json!({"model_id": model, "seq_id": 1, "path": "x", "overwrite": false, "type": "save_weights"});
    assert_eq!(server.post("save_weights", &save).await.0, 400);
    assert_eq!(server.backend.log().len(), 2);
}

#[tokio::test]
async fn models_do_not_wait_for_each_other() {
    let server = Running::start(ServerOptions::default()).await;
    let session = server.session().await;
    let (stuck, _) = server.model(&session, 0).await;
    server.ok("optim_step", &optim(&stuck, 2)).await;
    let (other, _) = server.model(&session, 1).await;
    assert!(server.done("optim_step", &optim(&other, 1)).await["metrics"].is_object());
}

#[tokio::test]
async fn a_failed_operation_does_not_stop_those_behind_it() {
    let server = Running::start(ServerOptions::default()).await;
    let (model, _) = server.model(&server.session().await, 0).await;
    let load =
        json!({"model_id": model, "seq_id": 1, "path": "tinker://x", "optimizer": false, "type": "load_weights"});
    assert_eq!(server.post("load_weights", &load).await.0, 400);
    assert!(server.done("optim_step", &optim(&model, 2)).await["metrics"].is_object());
}

#[tokio::test]
async fn a_request_far_ahead_is_asked_to_come_again() {
    let server = Running::start(ServerOptions { max_ahead: 3, max_unfinished: 2, ..ServerOptions::default() }).await;
    let (model, created) = server.model(&server.session().await, 0).await;
    server.result(&created).await;
    assert_eq!(server.post("optim_step", &optim(&model, 5)).await.0, 429);
    server.ok("optim_step", &optim(&model, 2)).await;
    server.ok("optim_step", &optim(&model, 3)).await;
    assert_eq!(server.post("optim_step", &optim(&model, 4)).await.0, 429);
    // Whoever's turn it is gets in, or nothing would ever go on.
    assert!(server.done("optim_step", &optim(&model, 1)).await["metrics"].is_object());
}

/// What a client does to one place of a model's order.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// Sends its request; `true`: twice.
    Send(i64, bool),
    /// Sends a wrong one.
    Wrong(i64),
    /// The engine finishes what is ready, so many.
    Finish(u8),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let places = Just((1i64..12).collect::<Vec<_>>()).prop_shuffle();
    let kinds = proptest::collection::vec((0u8..10, any::<bool>(), 0u8..3), 11);
    (places, kinds).prop_map(|(places, kinds)| {
        let mut steps = Vec::new();
        for (seq, (kind, twice, finish)) in places.into_iter().zip(kinds) {
            steps.push(if kind < 2 { Step::Wrong(seq) } else { Step::Send(seq, twice) });
            steps.extend((finish > 0).then_some(Step::Finish(finish)));
        }
        steps
    })
}

fn submission(model: &str, seq: i64) -> Submission {
    let payload = Payload::read(Kind::OptimStep, optim(model, seq).to_string().as_bytes()).unwrap();
    Submission::of_model(&model.parse().unwrap(), payload, None)
}

const ROOM: Room = Room { unfinished: 1000, ahead: 1000 };

/// Plays the steps; answers the places that ran, in order, and those that were refused.
async fn play(store: &Store, steps: &[Step]) -> (Vec<i64>, BTreeSet<i64>) {
    let session = store.create_session("ann", &CreateSession::default()).await.unwrap();
    let model = format!("{session}:train:0");
    let id = model.parse().unwrap();
    let created = Payload::read(Kind::CreateModel, create_model(session.as_str(), 0).to_string().as_bytes()).unwrap();
    let new = NewModel { base_model: "m".to_owned(), adapter: Adapter::default(), user_metadata: "{}".to_owned() };
    let made = store.submit("ann", Submission::of_model(&id, created, Some(new)), ROOM).await.unwrap();
    assert!(matches!(made, Submitted::New(_)));
    let (mut ran, mut refused) = (Vec::new(), BTreeSet::new());
    let rest = [Step::Finish(100)];
    for step in steps.iter().chain(&rest) {
        match *step {
            Step::Send(seq, twice) => {
                let first = store.submit("ann", submission(&model, seq), ROOM).await.unwrap();
                let Submitted::New(name) = first else { panic!("{seq}: {first:?}") };
                if twice {
                    let again = store.submit("ann", submission(&model, seq), ROOM).await.unwrap();
                    assert_eq!(again, Submitted::Known(name));
                }
            }
            Step::Wrong(seq) => {
                store.refuse("ann", &id, seq, Kind::OptimStep, 400, "wrong").await.unwrap();
                let again = store.submit("ann", submission(&model, seq), ROOM).await.unwrap();
                assert_eq!(again, Submitted::Refused { status: 400, detail: "wrong".to_owned() });
                refused.insert(seq);
            }
            Step::Finish(most) => {
                for _ in 0..most {
                    let claimed = store.claim(true, 8).await.unwrap();
                    assert!(claimed.len() <= 1, "one model does one thing at a time");
                    let Some(one) = claimed.into_iter().next() else { break };
                    assert!(store.claim(true, 8).await.unwrap().is_empty());
                    let end = if one.seq % 3 == 0 {
                        Err(OperationError::user("no"))
                    } else {
                        let asked = Payload::read(Kind::OptimStep, optim(&model, 1).to_string().as_bytes()).unwrap();
                        Ok(Reply::of(&asked.operation, espalier_tinker::Outcome::OptimStep([].into())).unwrap())
                    };
                    assert!(store.finish(&one, end).await.unwrap());
                    ran.push(one.seq);
                }
            }
        }
    }
    (ran, refused)
}

#[test]
fn whatever_comes_in_whatever_order_runs_once_and_in_order() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let store = runtime.block_on(Store::open(folder.path(), INLINE)).unwrap();
    let mut runner =
        TestRunner::new(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() });
    let played = runner.run(&steps(), |steps| {
        let (ran, refused) = runtime.block_on(play(&store, &steps));
        let expected: Vec<i64> = (0..12).filter(|seq| !refused.contains(seq)).collect();
        prop_assert_eq!(ran, expected);
        Ok(())
    });
    played.unwrap();
    assert_eq!(store.unfinished(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_writers_at_once_never_find_the_database_locked() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path(), INLINE).await.unwrap();
    let writers = (0..64).map(|_| {
        let store = store.clone();
        tokio::spawn(async move {
            let session = store.create_session("ann", &CreateSession::default()).await.unwrap();
            let model = format!("{session}:train:0");
            let created =
                Payload::read(Kind::CreateModel, create_model(session.as_str(), 0).to_string().as_bytes()).unwrap();
            let new =
                NewModel { base_model: "m".to_owned(), adapter: Adapter::default(), user_metadata: "{}".to_owned() };
            store.submit("ann", Submission::of_model(&model.parse().unwrap(), created, Some(new)), ROOM).await.unwrap();
            for seq in 1..40 {
                let room = Room { unfinished: 100_000, ahead: 1000 };
                let made = store.submit("ann", submission(&model, seq), room).await.unwrap();
                assert!(matches!(made, Submitted::New(_)));
            }
        })
    });
    for writer in writers.collect::<Vec<_>>() {
        writer.await.unwrap();
    }
    assert_eq!(store.unfinished(), 64 * 40);
}
