//! The example, registered and played.

use std::sync::Arc;
use std::time::Duration;

use espalier_envs::{Action, EnvContext, EnvRow, NoServices, Registry};
use espalier_example_custom_env::GuessKind;
use espalier_inference::StopReason;
use serde_json::json;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

#[tokio::test]
async fn halving_finds_the_number() {
    let mut registry = Registry::standard();
    registry.register(GuessKind).unwrap();
    let params = json!({"highest": 64}).as_object().cloned().unwrap();
    let mut env = registry.make("guess", &params, &EnvRow::ask("")).unwrap();
    let context = EnvContext {
        services: Arc::new(NoServices),
        seed: 1234,
        deadline: Instant::now() + Duration::from_mins(1),
        cancel: CancellationToken::new(),
        max_turns: 10,
        depth: 0,
    };
    env.init(vec![], context).await.unwrap();
    let (mut low, mut high) = (1, 64);
    loop {
        let guess = i32::midpoint(low, high);
        let action = Action { text: format!("I say {guess}"), tokens: vec![], stop: StopReason::EndOfTurn };
        let step = env.step(action).await.unwrap();
        if step.terminated {
            assert!(step.reward >= 1.0 / 7.0);
            break;
        }
        match step.observations[0].content.as_str() {
            "Higher." => low = guess + 1,
            _ => high = guess - 1,
        }
    }
    let error = registry.prepare("guess", &json!({"higest": 1}).as_object().cloned().unwrap()).unwrap_err();
    assert_eq!(error.to_string(), "`guess`: `higest` is no parameter; did you mean `highest`?");
}
