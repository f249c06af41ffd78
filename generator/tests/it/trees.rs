//! Children: their place, their order, their end.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use espalier_envs::{ChildRequest, EnvContext, SubCallError, SubQuery};
use espalier_generator::Player;
use espalier_generator::episode::LoopOptions;
use espalier_generator::{Players, RolloutStop, Service, Trajectory, TreeLimits, TreeOptions, play_tree};
use espalier_inference::{ChatTemplate, SamplingParams, ScriptedEngine, Tokenizer};
use tokio_util::sync::CancellationToken;

use crate::support::{Reply, Scripted, Source, done, observe, play, play_with, player, replies, say, task};

pub(crate) fn ask(prompt: &str) -> ChildRequest {
    ChildRequest { prompt: prompt.to_owned(), context: None }
}

/// An environment whose turns name children: `a b` spawns two side by side, `!x` ends with `x`.
fn spawner() -> Source {
    Source::new(|_, action, context: EnvContext| async move {
        if let Some(answer) = action.text.strip_prefix('!') {
            let _ = answer;
            return Ok(done(1.0));
        }
        let requests = action.text.split(' ').map(ask).collect();
        let answers = context.services.rlm_query(requests, context.cancel.child_token()).await;
        let told: Vec<String> = answers
            .into_iter()
            .map(|answer| match answer {
                Ok(answer) => answer.answer.map_or_else(|| "nothing".to_owned(), |answer| answer.text),
                Err(error) => error.to_string(),
            })
            .collect();
        Ok(observe(&told.join(" | "), 0.0))
    })
}

/// The last user message of a prompt.
fn last_user(prompt: &str) -> &str {
    prompt.rsplit("<|im_start|>user\n").next().unwrap().split("<|im_end|>").next().unwrap()
}

fn ids(nodes: &[Trajectory]) -> Vec<&str> {
    nodes.iter().map(|node| node.rollout_id.as_str()).collect()
}

#[tokio::test]
async fn children_have_their_place_and_lie_depth_first() {
    let engine = Arc::new(Scripted::new(|prompt, _| match last_user(prompt) {
        "hi" => say("left right"),
        "left" => say("deep"),
        "right" => say("!r"),
        "deep" => say("!d"),
        other => say(format!("!saw {other}")),
    }));
    let tree = play(&engine, spawner(), LoopOptions::default()).await;
    assert_eq!(tree.root.rollout_id, "1_0");
    assert_eq!(ids(&tree.descendants), ["1_0/0", "1_0/0/0", "1_0/1"]);
    let deep = &tree.descendants[1];
    assert_eq!((deep.parent_id.as_deref(), deep.depth, deep.child_index), (Some("1_0/0"), 2, Some(0)));
    assert_eq!(deep.root_id, "1_0");
    assert_eq!(deep.id(), tree.root.id());
    assert_eq!(tree.root.messages[2].content, "!saw !d | !r", "answers come in the order of the requests");
    assert!(tree.nodes().all(|node| node.stop == RolloutStop::Completed));
}

#[tokio::test(start_paused = true)]
async fn children_of_one_call_run_side_by_side() {
    let engine = Arc::new(Scripted::new(|prompt, _| match last_user(prompt) {
        "hi" => say("a b c d e f g h"),
        text if text.contains('|') => say("!done"),
        _ => Reply::After(Duration::from_secs(10), Box::new(say("!x"))),
    }));
    let begun = tokio::time::Instant::now();
    let tree = play(&engine, spawner(), LoopOptions::default()).await;
    assert_eq!(tree.descendants.len(), 8);
    assert_eq!(engine.most_running.load(Ordering::SeqCst), 8);
    assert_eq!(begun.elapsed().as_secs(), 10, "virtual time: all eight waited at once");
}

#[tokio::test]
async fn a_failing_child_spoils_none_of_its_siblings() {
    let engine = Arc::new(Scripted::new(|prompt, _| match last_user(prompt) {
        "hi" => say("good bad good"),
        "bad" => Reply::Panic,
        text if text.contains('|') => say("!done"),
        _ => say("!fine"),
    }));
    let tree = play(&engine, spawner(), LoopOptions::default()).await;
    let stops: Vec<_> = tree.descendants.iter().map(|node| node.stop).collect();
    assert_eq!(stops, [RolloutStop::Completed, RolloutStop::EngineError, RolloutStop::Completed]);
    assert!(tree.root.messages[2].content.starts_with("!fine | "));
    assert!(tree.root.messages[2].content.contains("the script says so"));
    assert_eq!(tree.root.stop, RolloutStop::Completed);
}

#[tokio::test(start_paused = true)]
async fn children_of_a_block_that_dies_end_as_cancelled_with_mask_0() {
    let engine = Arc::new(Scripted::new(|prompt, _| match last_user(prompt) {
        "hi" => say("start"),
        "child" => say("spawn"),
        "more" => say("!done"),
        _ => Reply::Hang,
    }));
    let source = Source::new(|turn, action, context: EnvContext| async move {
        match action.text.as_str() {
            "start" if turn == 0 => {
                // The block is killed while it waits: its call is dropped.
                let call = context.services.rlm_query(vec![ask("child")], context.cancel.child_token());
                assert!(tokio::time::timeout(Duration::from_secs(5), call).await.is_err());
                Ok(observe("more", 0.0))
            }
            "spawn" => {
                context.services.rlm_query(vec![ask("grandchild")], context.cancel.child_token()).await;
                Ok(observe("never", 0.0))
            }
            _ => Ok(done(1.0)),
        }
    });
    let tree = play(&engine, source, LoopOptions::default()).await;
    assert_eq!(tree.root.stop, RolloutStop::Completed);
    assert_eq!(ids(&tree.descendants), ["1_0/0", "1_0/0/0"]);
    for node in &tree.descendants {
        assert_eq!(node.stop, RolloutStop::Cancelled);
        assert_eq!(node.trained_tokens(), 0);
    }
    assert!(!tree.descendants[0].rows[0].is_empty(), "what it had done is kept");
    assert_eq!(engine.running.load(Ordering::SeqCst), 0, "the grandchild's request ended as well");
}

#[tokio::test(start_paused = true)]
async fn the_cancellation_of_the_root_reaches_every_descendant() {
    let engine = Arc::new(Scripted::new(|prompt, _| match last_user(prompt) {
        "hi" => say("a b"),
        "a" => say("c d"),
        _ => Reply::Hang,
    }));
    let cancel = CancellationToken::new();
    tokio::spawn({
        let cancel = cancel.clone();
        async move {
            tokio::time::sleep(Duration::from_secs(30)).await;
            cancel.cancel();
        }
    });
    let players = Players::policy(player(&engine));
    let tree = play_tree(task("1", "hi", spawner()), players, TreeOptions::default(), &cancel).await;
    assert_eq!(tree.descendants.len(), 4);
    assert!(tree.nodes().all(|node| node.stop == RolloutStop::Cancelled));
    assert_eq!(engine.running.load(Ordering::SeqCst), 0);
    assert_eq!(engine.abandoned.load(Ordering::SeqCst), 3);
}

/// The root's environment is scripted, children get [`SlowEnv`].
struct Slow(Source);

/// Never answers, and takes an hour to close.
struct SlowEnv;

#[async_trait::async_trait]
impl espalier_envs::Env for SlowEnv {
    async fn init(
        &mut self,
        prompt: Vec<espalier_inference::Message>,
        _: EnvContext,
    ) -> Result<Vec<espalier_inference::Message>, espalier_envs::EnvError> {
        Ok(prompt)
    }
    async fn step(&mut self, _: espalier_envs::Action) -> Result<espalier_envs::Step, espalier_envs::EnvError> {
        std::future::pending().await
    }
    async fn close(&mut self) {
        // Closing may take five seconds; two levels of it stay within what a tree waits.
        tokio::time::sleep(Duration::from_hours(1)).await;
    }
}
impl espalier_generator::source::EnvSource for Slow {
    fn env_id(&self) -> &'static str {
        "slow"
    }
    fn root(&self) -> Result<Box<dyn espalier_envs::Env>, espalier_envs::EnvError> {
        self.0.root()
    }
    fn child(
        &self,
        request: &ChildRequest,
        _: u32,
    ) -> Result<(Box<dyn espalier_envs::Env>, Vec<espalier_inference::Message>), espalier_envs::EnvError> {
        Ok((Box::new(SlowEnv), vec![espalier_inference::Message::user(request.prompt.clone())]))
    }
}

#[tokio::test(start_paused = true)]
async fn what_a_dead_parents_child_brings_late_is_dropped() {
    // The child's environment ignores its cancellation for longer than a tree waits.
    let source = Source::new(|_, action, context: EnvContext| async move {
        if action.text == "spawn" {
            let call = context.services.rlm_query(vec![ask("child")], context.cancel.child_token());
            let _ = tokio::time::timeout(Duration::from_secs(1), call).await;
        }
        Ok(done(1.0))
    });
    let engine = replies(&["spawn", "x"]);
    let players = Players::policy(player(&engine));
    let cancel = CancellationToken::new();
    let tree = play_tree(task("1", "hi", Slow(source)), players, TreeOptions::default(), &cancel).await;
    assert_eq!(tree.root.stop, RolloutStop::Completed);
    assert_eq!(tree.descendants.len(), 1);
    assert_eq!(tree.descendants[0].stop, RolloutStop::Cancelled);
}

#[test]
fn a_thousand_parents_with_children_finish_on_two_threads() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let stops = runtime.block_on(async {
        let engine = Arc::new(Scripted::new(|prompt, _| match last_user(prompt) {
            "hi" => say("a b"),
            "a" | "b" => say("c"),
            "c" => say("!c"),
            _ => say("!up"),
        }));
        let cancel = CancellationToken::new();
        let trees = (0..1000).map(|number| {
            let task = task(&number.to_string(), "hi", spawner());
            play_tree(task, Players::policy(player(&engine)), TreeOptions::default(), &cancel)
        });
        let trees = futures::future::join_all(trees).await;
        trees.iter().flat_map(|tree| tree.nodes().map(|node| node.stop)).collect::<Vec<_>>()
    });
    assert_eq!(stops.len(), 5000);
    assert!(stops.iter().all(|&stop| stop == RolloutStop::Completed));
}

#[tokio::test]
async fn a_frozen_model_plays_children_with_mask_0() {
    let policy = Arc::new(Scripted::new(|prompt, _| match last_user(prompt) {
        "hi" => say("child"),
        _ => say("!done"),
    }));
    let other = replies(&["!other"]);
    let players = Players { children: Service::Frozen(player(&other).frozen()), ..Players::policy(player(&policy)) };
    let cancel = CancellationToken::new();
    let tree = play_tree(task("1", "hi", spawner()), players, TreeOptions::default(), &cancel).await;
    assert!(tree.root.trained_tokens() > 0);
    let child = &tree.descendants[0];
    assert!(!child.trained && child.trained_tokens() == 0 && !child.rows[0].is_empty());
}

#[tokio::test]
async fn sub_calls_are_recorded_and_never_trained() {
    let engine = Arc::new(Scripted::new(|prompt, _| match last_user(prompt) {
        "hi" => say("go"),
        text => say(format!("re: {text}")),
    }));
    let source = Source::new(|_, _, context: EnvContext| async move {
        let queries = ["one", "two"].map(|prompt| SubQuery { prompt: prompt.to_owned(), model: None });
        let answers = context.services.llm_query(queries.into(), context.cancel.child_token()).await;
        let answers: Result<Vec<String>, SubCallError> = answers.into_iter().collect();
        assert_eq!(answers, Ok(vec!["re: one".to_owned(), "re: two".to_owned()]));
        Ok(done(1.0))
    });
    let tree = play(&engine, source, LoopOptions::default()).await;
    assert_eq!(tree.root.stop, RolloutStop::Completed, "{:?}", tree.root.error);
    let calls: Vec<_> = tree.root.calls.iter().map(|call| (call.index, call.turn, call.prompt.as_str())).collect();
    assert_eq!(calls, [(0, 0, "one"), (1, 0, "two")]);
    assert_eq!(tree.root.calls[1].response.as_deref(), Some("re: two"));
    assert_eq!(tree.root.rows.len(), 1);
    assert_eq!(tree.root.trained_tokens(), 3, "only the turn itself");
    assert!(tree.root.usage.sampled_tokens > 16, "but they cost");
}

#[tokio::test]
async fn where_nobody_serves_children_the_environment_is_told() {
    let engine = replies(&["go"]);
    let source = Source::new(|_, _, context: EnvContext| async move {
        assert!(!context.services.has_children());
        assert!(context.services.has_llm());
        Ok(done(1.0))
    });
    let players = Players { children: Service::None, ..Players::policy(player(&engine)) };
    let cancel = CancellationToken::new();
    let tree = play_tree(task("1", "hi", source), players, TreeOptions::default(), &cancel).await;
    assert_eq!(tree.root.stop, RolloutStop::Completed, "{:?}", tree.root.error);
}

#[tokio::test]
async fn ids_and_seeds_are_the_same_in_every_run() {
    let play = || async {
        let engine = Arc::new(Scripted::new(|prompt, _| match last_user(prompt) {
            "hi" => say("a b"),
            text if text.contains('|') => say("!up"),
            _ => say("!x"),
        }));
        let tree = play(&engine, spawner(), LoopOptions::default()).await;
        tree.nodes().map(|node| (node.rollout_id.clone(), node.seed)).collect::<Vec<_>>()
    };
    let first = play().await;
    assert_eq!(first, play().await);
    assert_ne!(first[1].1, first[2].1);
}

#[tokio::test]
async fn an_environment_without_children_fails_the_call_and_nothing_else() {
    struct Childless(Source);
    impl espalier_generator::source::EnvSource for Childless {
        fn env_id(&self) -> &'static str {
            "childless"
        }
        fn root(&self) -> Result<Box<dyn espalier_envs::Env>, espalier_envs::EnvError> {
            self.0.root()
        }
    }
    let engine = replies(&["a", "!done"]);
    let cancel = CancellationToken::new();
    let players = Players::policy(player(&engine));
    let tree = play_tree(task("1", "hi", Childless(spawner())), players, TreeOptions::default(), &cancel).await;
    assert_eq!(tree.root.stop, RolloutStop::Completed);
    assert!(tree.root.messages[2].content.contains("has no children"), "{}", tree.root.messages[2].content);
}

#[tokio::test]
async fn a_tree_is_put_together_from_nodes_in_any_order() {
    let engine = Arc::new(Scripted::new(|prompt, _| match last_user(prompt) {
        "hi" => say("a b"),
        "a" => say("c d"),
        text if text.contains('|') => say("!up"),
        _ => say("!x"),
    }));
    let tree =
        play_with(&engine, spawner(), TreeOptions { limits: TreeLimits::default(), ..TreeOptions::default() }).await;
    let mut nodes: Vec<Trajectory> = tree.nodes().cloned().collect();
    nodes.reverse();
    assert_eq!(espalier_generator::Tree::assemble(nodes.clone()).unwrap(), tree);
    nodes.retain(|node| node.rollout_id != "1_0/0");
    assert!(espalier_generator::Tree::assemble(nodes).is_err());
}

#[tokio::test]
async fn two_trees_of_one_task_have_sessions_of_their_own() {
    let engine = ScriptedEngine::replies(["!first"]).vocabulary(Tokenizer::bytes(), ChatTemplate::chatml()).build();
    let template = player(&replies(&["x"])).template;
    let player = Player { engine: Arc::new(engine), template, sampling: SamplingParams::default(), trained: true };
    let cancel = CancellationToken::new();
    for _ in 0..2 {
        // A script is played from its start by every session; in a session that goes on there is no second reply.
        let players = Players::policy(player.clone());
        let tree = play_tree(task("1", "hi", spawner()), players, TreeOptions::default(), &cancel).await;
        assert_eq!(tree.root.stop, RolloutStop::Completed, "{:?}", tree.root.error);
    }
}
