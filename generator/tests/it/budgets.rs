//! Each budget of a tree is hit, and nothing overshoots.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use espalier_envs::{EnvContext, SubCallError, SubQuery};
use espalier_generator::budget::{Reservation, Resource, TreeBudget};
use espalier_generator::{RolloutStop, TreeLimits, TreeOptions};

use crate::support::{Reply, Scripted, Source, done, observe, play_with, replies, say};
use crate::trees::ask;

fn limits(change: impl FnOnce(&mut TreeLimits)) -> TreeOptions {
    let mut limits = TreeLimits::default();
    change(&mut limits);
    TreeOptions { limits, ..TreeOptions::default() }
}

/// Spawns `count` children at once on its first turn and reports how many were refused by which budget.
fn spawning(count: usize) -> Source {
    Source::new(move |_, action, context: EnvContext| async move {
        if action.text != "spawn" {
            return Ok(done(1.0));
        }
        let requests = (0..count).map(|number| ask(&number.to_string())).collect();
        let answers = context.services.rlm_query(requests, context.cancel.child_token()).await;
        let refused: Vec<String> = answers.into_iter().filter_map(Result::err).map(|error| error.to_string()).collect();
        Ok(observe(&format!("{} refused: {}", refused.len(), refused.join("; ")), 0.0))
    })
}

fn spawner() -> Arc<Scripted> {
    Arc::new(Scripted::new(|prompt, _| {
        if prompt.contains("user\nhi<") && !prompt.contains("refused") { say("spawn") } else { say("x") }
    }))
}

#[tokio::test]
async fn the_budget_of_children_is_shared_by_the_tree() {
    let tree = play_with(&spawner(), spawning(5), limits(|limits| limits.children = 3)).await;
    assert_eq!(tree.descendants.len(), 3);
    assert!(tree.root.messages[2].content.starts_with("2 refused: the children budget"), "{:?}", tree.root.messages[2]);
    assert_eq!(tree.root.stop, RolloutStop::Completed, "the root goes on");
}

#[tokio::test]
async fn the_budget_of_memory_counts_repls_that_live() {
    let options = limits(|limits| {
        limits.repl_mb = 100;
        limits.repl_memory_mb = 350;
    });
    let tree = play_with(&spawner(), spawning(4), options).await;
    assert_eq!(tree.descendants.len(), 2, "the root and two children");
    assert!(tree.root.messages[2].content.contains("the memory budget of this rollout is spent (350)"));
}

#[tokio::test]
async fn depth_is_a_budget() {
    let endless = Source::new(|_, _, context: EnvContext| async move {
        if !context.services.has_children() {
            let answers = context.services.rlm_query(vec![ask("deeper")], context.cancel.child_token()).await;
            assert_eq!(answers[0], Err(SubCallError::Budget { budget: "depth", limit: 2 }));
            return Ok(done(1.0));
        }
        context.services.rlm_query(vec![ask("deeper")], context.cancel.child_token()).await;
        Ok(done(1.0))
    });
    let tree = play_with(&replies(&["go"]), endless, limits(|limits| limits.depth = 2)).await;
    assert_eq!(tree.descendants.last().unwrap().depth, 2);
    assert!(tree.nodes().all(|node| node.stop == RolloutStop::Completed), "{tree:?}");
}

fn querying(count: usize) -> Source {
    Source::new(move |_, _, context: EnvContext| async move {
        let queries = vec![SubQuery { prompt: "q".to_owned(), model: None }; count];
        let answers = context.services.llm_query(queries, context.cancel.child_token()).await;
        let refused: Vec<_> = answers.into_iter().filter_map(Result::err).collect();
        Ok(espalier_envs::Step {
            metadata: [("refused".to_owned(), format!("{refused:?}").into())].into(),
            ..done(1.0)
        })
    })
}

#[tokio::test]
async fn the_budget_of_sub_calls_is_exact() {
    let engine = replies(&["x"]);
    let tree = play_with(&engine, querying(10), limits(|limits| limits.sub_calls = 4)).await;
    assert_eq!(engine.requests(), 5, "the turn and four calls");
    assert_eq!(tree.root.calls.iter().filter(|call| call.error.is_some()).count(), 6);
    assert_eq!(tree.root.calls.len(), 10, "refused calls are recorded as well");
}

#[tokio::test(start_paused = true)]
async fn sub_calls_of_one_tree_are_bounded_side_by_side() {
    let engine = Arc::new(Scripted::new(|_, number| {
        if number == 0 { say("go") } else { Reply::After(std::time::Duration::from_secs(1), Box::new(say("x"))) }
    }));
    play_with(&engine, querying(20), limits(|limits| limits.concurrent_calls = 3)).await;
    assert_eq!(engine.most_running.load(Ordering::SeqCst), 3);
    assert_eq!(engine.requests(), 21);
}

#[tokio::test]
async fn the_budget_of_tokens_ends_the_root_as_budget() {
    let engine = replies(&["abcdefghij"]);
    let endless = Source::new(|_, _, _| async { Ok(observe("more", 0.0)) });
    let tree = play_with(&engine, endless, limits(|limits| limits.tokens = 150)).await;
    assert_eq!(tree.root.stop, RolloutStop::Budget);
    assert!(tree.root.error.as_deref().unwrap().contains("tokens budget"), "{:?}", tree.root.error);
    assert!(tree.root.turns.len() > 1);
    let row = &tree.root.rows[0];
    assert!(row.prompt_ids().len() + row.len() <= 150, "every token counts once");
    assert!(row.trained_tokens() > 0, "what was played within the budget may train");
}

#[tokio::test]
async fn the_budget_of_tokens_bounds_sub_calls_that_run_side_by_side() {
    let engine = replies(&["go", &"x".repeat(100)]);
    let tree = play_with(&engine, querying(50), limits(|limits| limits.tokens = 1000)).await;
    let spent: u64 = tree.nodes().map(|node| node.usage.prompt_tokens + node.usage.sampled_tokens).sum();
    assert!(spent <= 1000, "{spent}");
    assert!(tree.root.calls.iter().any(|call| call.response.is_some()));
    assert!(
        tree.root.calls.iter().any(|call| call.error.as_deref().is_some_and(|error| error.contains("tokens budget")))
    );
}

#[tokio::test(start_paused = true)]
async fn the_wall_time_ends_children_and_root() {
    let engine =
        Arc::new(Scripted::new(|prompt, _| if prompt.contains("user\nhi<") { say("spawn") } else { Reply::Hang }));
    let begun = tokio::time::Instant::now();
    let tree = play_with(&engine, spawning(2), limits(|limits| limits.wall_s = 20.0)).await;
    assert!(begun.elapsed().as_secs_f64() < 40.0);
    assert_eq!(tree.root.stop, RolloutStop::Timeout);
    for child in &tree.descendants {
        assert!(matches!(child.stop, RolloutStop::Timeout | RolloutStop::Cancelled), "{:?}", child.stop);
    }
}

#[tokio::test]
async fn limits_of_nothing_end_at_once_and_typed() {
    let tokens = play_with(&replies(&["x"]), spawning(0), limits(|limits| limits.tokens = 0)).await;
    assert_eq!(tokens.root.stop, RolloutStop::Budget);
    let wall = play_with(
        &replies(&["x"]),
        Source::new(|_, _, _| std::future::pending()),
        limits(|limits| limits.wall_s = f64::NAN),
    )
    .await;
    assert_eq!(wall.root.stop, RolloutStop::Timeout);
    let memory = play_with(&replies(&["x"]), spawning(0), limits(|limits| limits.repl_memory_mb = 0)).await;
    assert_eq!(memory.root.stop, RolloutStop::Budget);
}

#[test]
fn threads_that_spend_at_once_do_not_overshoot() {
    let budget = TreeBudget::new(&TreeLimits { sub_calls: 1000, ..TreeLimits::default() });
    let granted: usize = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8)
            .map(|_| {
                scope.spawn(|| {
                    (0..500)
                        .filter(|_| budget.reserve(Resource::SubCalls, 1).map(Reservation::spend_all).is_ok())
                        .count()
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    assert_eq!(granted, 1000);
}
