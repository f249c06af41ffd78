//! A backend that ends without a word, and another that takes its place.

mod common;

use std::sync::Mutex;
use std::time::Duration;

use async_trait::async_trait;
use common::{Client, backend_with, datum, tokens};
use espalier_tinker::ids::ModelId;
use espalier_tinker::operation::Kind;
use espalier_tinker::{Backend, BaseModel, Operation, OperationError, Outcome, Progress};
use espalier_tinker_engine::{LearnerOptions, LocalBackend};
use serde_json::json;
use tokio_util::sync::CancellationToken;

/// Remembers what was asked, as the server's database does.
struct Logged(LocalBackend, Mutex<Vec<Operation>>);

#[async_trait]
impl Backend for Logged {
    fn models(&self) -> &[BaseModel] {
        self.0.models()
    }

    async fn execute(&self, operation: Operation, cancel: CancellationToken) -> Result<Outcome, OperationError> {
        self.1.lock().unwrap().push(operation.clone());
        self.0.execute(operation, cancel).await
    }

    fn progress(&self, model: &ModelId) -> Option<Progress> {
        self.0.progress(model)
    }
}

async fn goes_on(keep_after: Duration, expected_kept: bool) {
    let folder = tempfile::tempdir().unwrap();
    let learner = LearnerOptions { keep_after, ..LearnerOptions::default() };
    let first = Logged(backend_with(folder.path(), learner.clone(), 4), Mutex::default());
    let row = |i: u32| vec![datum(&tokens(i, 8), &[])];
    let mut client = Client::create(&first, 0, json!({"rank": 4})).await;
    for i in 0..4 {
        client.train(row(i)).await;
        client.step(json!({"learning_rate": 0.01})).await.unwrap();
        // Gradients that are not applied yet, when it ends.
        client.train(row(i + 10)).await;
    }
    client.save(Kind::SaveWeights, "s").await.unwrap();
    let progress = first.progress(&client.id().parse().unwrap()).unwrap();
    assert_eq!((progress.reached, progress.kept >= 0), (13, expected_kept));
    // Nothing is told to it: it is gone.
    let second = backend_with(folder.path(), learner, 4);
    let found = second.progress(&client.id().parse().unwrap());
    assert_eq!(found.is_some(), expected_kept);
    let done = first.1.lock().unwrap().clone();
    let mut again = client.moved(&second, &done).await;
    for client in [&mut client, &mut again] {
        client.step(json!({"learning_rate": 0.01})).await.unwrap();
    }
    let (a, b) = (client.logprobs(row(3)).await, again.logprobs(row(3)).await);
    for (a, b) in a.iter().zip(&b) {
        assert!((a - b).abs() < 1e-4, "{a} {b}");
    }
}

#[tokio::test]
async fn a_model_is_brought_back_by_what_was_done() {
    goes_on(Duration::from_hours(1), false).await;
}

#[tokio::test]
async fn a_model_that_was_kept_is_brought_back_from_there() {
    goes_on(Duration::ZERO, true).await;
}

#[tokio::test]
async fn a_model_from_a_checkpoint_does_not_need_the_checkpoint_any_more() {
    let folder = tempfile::tempdir().unwrap();
    let first = backend_with(folder.path(), LearnerOptions::default(), 4);
    let row = || vec![datum(&tokens(1, 8), &[])];
    let mut client = Client::create(&first, 0, json!({"rank": 4})).await;
    client.train(row()).await;
    client.step(json!({"learning_rate": 0.01})).await.unwrap();
    let path = client.save(Kind::SaveWeights, "s").await.unwrap();
    let mut loaded = Client::from(&first, 1, &path, true).await.unwrap();
    let expected = loaded.logprobs(row()).await;
    first.delete_checkpoint(&path).await.unwrap();
    assert_eq!(first.checkpoint_folder(&path), None);
    let second = backend_with(folder.path(), LearnerOptions::default(), 4);
    assert_eq!(loaded.moved(&second, &[]).await.logprobs(row()).await, expected);
    // What belongs to a session goes with it.
    second.end_session(&"s".parse().unwrap());
    Client::create(&second, 9, json!({"rank": 2})).await;
    assert_eq!(second.progress(&loaded.id().parse().unwrap()), None);
    assert!(!folder.path().join("state/kept/s:train:1").exists());
}
