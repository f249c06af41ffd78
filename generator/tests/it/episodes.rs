//! What ends an episode, and that nothing else does.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use espalier_envs::{EnvError, Step};
use espalier_generator::episode::LoopOptions;
use espalier_generator::{Players, RolloutStop, TreeLimits, TreeOptions, play_tree};
use espalier_inference::{EngineError, Fidelity, Message};
use tokio_util::sync::CancellationToken;

use crate::support::{Reply, Scripted, Source, done, observe, play, play_with, player, replies, say, steps, task};

#[tokio::test]
async fn the_loops_own_turn_limit_ends_an_endless_environment() {
    let engine = replies(&["a"]);
    let endless = Source::new(|_, _, _| async { Ok(observe("more", 0.0)) });
    let tree = play(&engine, endless, LoopOptions { max_turns: 3, ..LoopOptions::default() }).await;
    assert_eq!(tree.root.stop, RolloutStop::MaxTurns);
    assert_eq!(tree.root.turns.len(), 3);
    assert_eq!(tree.root.rows[0].response_ids().last(), Some(&crate::support::END), "the last observation is dropped");
}

#[tokio::test]
async fn an_environment_that_truncates_ends_as_max_turns() {
    let engine = replies(&["a"]);
    let tree = play(&engine, steps(vec![Step { truncated: true, ..Step::default() }]), LoopOptions::default()).await;
    assert_eq!(tree.root.stop, RolloutStop::MaxTurns);
}

#[tokio::test]
async fn a_first_prompt_that_does_not_fit_leaves_an_empty_row() {
    let engine = Arc::new(Scripted::new(|_, _| say("a")).context(5));
    let tree = play(&engine, steps(vec![done(1.0)]), LoopOptions::default()).await;
    assert_eq!(tree.root.stop, RolloutStop::ContextOverflow);
    assert_eq!(tree.root.rows.len(), 1);
    assert!(tree.root.rows[0].is_empty() && !tree.root.rows[0].prompt_ids().is_empty());
    assert_eq!(engine.requests(), 0);
}

#[tokio::test]
async fn the_prompt_of_the_current_turn_is_what_must_fit() {
    let engine = replies(&["a"]);
    let options = LoopOptions { max_input_tokens: Some(60), ..LoopOptions::default() };
    let tree = play(&engine, steps(vec![observe(&"x".repeat(100), 0.5), done(1.0)]), options).await;
    assert_eq!(tree.root.stop, RolloutStop::ContextOverflow);
    assert_eq!(engine.requests(), 1, "the second turn's prompt was not sent");
    assert_eq!(tree.root.rows[0].rewards(), [0.0, 0.5], "what was earned before stays");
    assert_eq!(tree.root.rows[0].trained_tokens(), 2);
}

#[tokio::test]
async fn max_tokens_is_bounded_by_what_fits() {
    let engine = Arc::new(Scripted::new(|_, _| say("abcdefghij")).context(30));
    let tree = play(&engine, steps(vec![done(0.0)]), LoopOptions::default()).await;
    let prompt = tree.root.rows[0].prompt_ids().len() as u32;
    assert_eq!(*engine.max_tokens.lock().unwrap(), [30 - prompt]);
    assert_eq!(tree.root.stop, RolloutStop::ContextOverflow, "the context cut the turn, not `max_tokens`");
}

#[tokio::test]
async fn an_environments_error_is_an_env_error_with_its_words_and_a_cleared_mask() {
    let engine = replies(&["a"]);
    let failing = Source::new(|turn, _, _| async move {
        if turn == 0 {
            return Ok(observe("go on", 0.0));
        }
        Err(EnvError::Grader { env: "test".to_owned(), reason: "no verdict".to_owned() })
    });
    let tree = play(&engine, failing, LoopOptions::default()).await;
    assert_eq!(tree.root.stop, RolloutStop::EnvError);
    assert!(tree.root.error.as_deref().unwrap().contains("no verdict"), "{:?}", tree.root.error);
    assert_eq!(tree.root.turns.len(), 2);
    assert!(!tree.root.rows[0].is_empty() && tree.root.trained_tokens() == 0);
}

#[tokio::test]
async fn a_panic_in_an_environment_is_an_env_error() {
    let engine = replies(&["a"]);
    let panicking = Source::new(|_, _, _| async { panic!("boom") });
    let tree = play(&engine, panicking, LoopOptions::default()).await;
    assert_eq!(tree.root.stop, RolloutStop::EnvError);
    assert!(tree.root.error.as_deref().unwrap().contains("boom"));
    assert_eq!(tree.root.messages.len(), 2, "what was said before the panic is kept");
}

#[tokio::test]
async fn rewards_that_are_not_finite_are_env_errors() {
    for reward in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 1e300] {
        let tree = play(&replies(&["a"]), steps(vec![done(reward)]), LoopOptions::default()).await;
        assert_eq!(tree.root.stop, RolloutStop::EnvError, "{reward}");
        assert_eq!(tree.root.reward, 0.0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_that_fails_once_is_sent_again() {
    let engine = Arc::new(Scripted::new(|_, number| {
        let error = EngineError::Failed { model: "m".to_owned(), reason: "reset".to_owned() };
        if number == 0 { Reply::Fail(error) } else { say("a") }
    }));
    let tree = play(&engine, steps(vec![done(1.0)]), LoopOptions::default()).await;
    assert_eq!(tree.root.stop, RolloutStop::Completed);
    assert_eq!(engine.requests(), 2);
}

#[tokio::test(start_paused = true)]
async fn an_engine_that_keeps_failing_is_an_engine_error() {
    for reply in [
        || Reply::Fail(EngineError::Failed { model: "m".to_owned(), reason: "reset".to_owned() }),
        || Reply::Panic,
        || Reply::Hang,
    ] {
        let engine = Arc::new(Scripted::new(move |_, _| reply()));
        let options = LoopOptions { engine_timeout_s: 5.0, ..LoopOptions::default() };
        let tree = play(&engine, steps(vec![done(1.0)]), options).await;
        assert_eq!(tree.root.stop, RolloutStop::EngineError, "{:?}", tree.root.error);
        assert_eq!(engine.requests(), 2);
        assert_eq!(engine.running.load(Ordering::SeqCst), 0);
    }
}

#[tokio::test]
async fn a_request_that_is_wrong_is_not_sent_again() {
    let engine = Arc::new(Scripted::new(|_, _| {
        Reply::Fail(EngineError::Invalid { model: "m".to_owned(), reason: "no such model".to_owned() })
    }));
    let tree = play(&engine, steps(vec![done(1.0)]), LoopOptions::default()).await;
    assert_eq!(tree.root.stop, RolloutStop::EngineError);
    assert_eq!(engine.requests(), 1);
}

#[tokio::test(start_paused = true)]
async fn the_wall_time_of_a_tree_ends_it_as_timeout_wherever_it_waits() {
    let limits = TreeLimits { wall_s: 60.0, ..TreeLimits::default() };
    let options = TreeOptions { limits, ..TreeOptions::default() };
    let hanging_engine = Arc::new(Scripted::new(|_, _| Reply::Hang));
    let tree = play_with(&hanging_engine, steps(vec![done(1.0)]), options.clone()).await;
    assert_eq!(tree.root.stop, RolloutStop::Timeout, "{:?}", tree.root.error);

    let hanging_env = Source::new(|_, _, _| std::future::pending());
    let tree = play_with(&replies(&["a"]), hanging_env, options).await;
    assert_eq!(tree.root.stop, RolloutStop::Timeout);
    assert_eq!(tree.root.trained_tokens(), 0);
}

#[tokio::test(start_paused = true)]
async fn one_answer_of_an_environment_has_a_limit_of_its_own() {
    let hanging = Source::new(|_, _, _| std::future::pending());
    let options = LoopOptions { env_timeout_s: 3.0, ..LoopOptions::default() };
    let tree = play(&replies(&["a"]), hanging, options).await;
    assert_eq!(tree.root.stop, RolloutStop::Timeout);
    assert!(tree.root.error.as_deref().unwrap().contains("longer than 3 s"), "{:?}", tree.root.error);
}

#[tokio::test]
async fn a_grader_that_computes_apart_holds_up_no_deadline() {
    let (release, held) = std::sync::mpsc::channel::<()>();
    let held = Arc::new(std::sync::Mutex::new(held));
    let computing = Source::new(move |_, _, _| {
        let held = Arc::clone(&held);
        async move {
            // Ends when this test lets it, which is after the rollout.
            espalier_envs::computing::apart(move || held.lock().unwrap().recv()).await.unwrap();
            Ok(done(1.0))
        }
    });
    let options = LoopOptions { env_timeout_s: 0.05, ..LoopOptions::default() };
    let tree = play(&replies(&["a"]), computing, options).await;
    assert_eq!(tree.root.stop, RolloutStop::Timeout);
    assert!(tree.root.error.as_deref().unwrap().contains("longer than 0.05 s"), "{:?}", tree.root.error);
    release.send(()).unwrap();
}

#[tokio::test(start_paused = true)]
async fn cancellation_reaches_the_engines_request() {
    let engine = Arc::new(Scripted::new(|_, _| Reply::Hang));
    let cancel = CancellationToken::new();
    let ending = {
        let cancel = cancel.clone();
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_secs(1)).await;
            cancel.cancel();
        })
    };
    let players = Players::policy(player(&engine));
    let tree = play_tree(task("1", "hi", steps(vec![])), players, TreeOptions::default(), &cancel).await;
    ending.await.unwrap();
    assert_eq!(tree.root.stop, RolloutStop::Cancelled);
    assert_eq!(engine.abandoned.load(Ordering::SeqCst), 1);
    assert_eq!(engine.running.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn an_engine_that_knows_only_text_leaves_turns_without_rows() {
    let engine = Arc::new(Scripted::new(|_, _| say("a")).text_only());
    let tree = play(&engine, steps(vec![observe("out", 0.0), done(1.0)]), LoopOptions::default()).await;
    assert_eq!(tree.root.stop, RolloutStop::Completed);
    assert_eq!(tree.root.fidelity, Fidelity::Text);
    assert!(tree.root.rows.is_empty());
    assert_eq!(tree.root.turns.len(), 2);
    assert_eq!(tree.root.reward, 1.0);
    let contents: Vec<&str> = tree.root.messages.iter().map(|message| message.content.as_str()).collect();
    assert_eq!(contents, ["hi", "a", "out", "a"]);
}

#[tokio::test]
async fn an_environment_that_removes_what_is_not_there_is_an_env_error() {
    let step =
        Step { history: espalier_envs::History::Remove(9), observations: vec![Message::user("x")], ..Step::default() };
    let tree = play(&replies(&["a"]), steps(vec![step]), LoopOptions::default()).await;
    assert_eq!(tree.root.stop, RolloutStop::EnvError);
    assert!(tree.root.error.as_deref().unwrap().contains("message 9 of 2"), "{:?}", tree.root.error);
}

#[tokio::test]
async fn the_same_seed_gives_the_same_seeds_to_engine_and_environment() {
    let seeds = || async {
        let seen = Arc::new(std::sync::Mutex::new(Vec::new()));
        let source = {
            let seen = Arc::clone(&seen);
            Source::new(move |_, _, context| {
                seen.lock().unwrap().push(context.seed);
                async { Ok(done(0.0)) }
            })
        };
        play(&replies(&["a"]), source, LoopOptions::default()).await;
        Arc::try_unwrap(seen).unwrap().into_inner().unwrap()
    };
    assert_eq!(seeds().await, seeds().await);
}
