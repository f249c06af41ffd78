//! What the host does with a guest, shown with one that is no interpreter (`tiny.wat`).

use std::path::PathBuf;
use std::time::Duration;

use espalier_sandbox::{LoadOptions, Outcome, Repl, ReplOptions, Sandbox, SandboxError, Value};
use rand::{Rng as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

use crate::snapshots::forge;
use crate::{run, serving, tight};

/// A folder of this test's own, removed at the end.
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("espalier-test-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub(crate) fn load(&self) -> Sandbox {
        let artifact = include_bytes!("tiny.wasm.zst").to_vec();
        let options = LoadOptions { artifact: Some(artifact), cache: Some(self.0.clone()), threads: Some(2) };
        Sandbox::load(options).unwrap()
    }

    /// The files of the cache with this extension.
    pub(crate) fn files(&self, extension: &str) -> Vec<PathBuf> {
        let mut files: Vec<_> =
            std::fs::read_dir(self.0.join("guest")).unwrap().map(|entry| entry.unwrap().path()).collect();
        files.retain(|path| path.extension().is_some_and(|found| found == extension));
        files
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Runs blocks and answers what they printed.
async fn printed(repl: &mut Repl, blocks: &[&str]) -> String {
    let mut text = String::new();
    for block in blocks {
        let execution = run(repl, block).await;
        assert_eq!(execution.outcome, Outcome::Completed, "{block}");
        text += &execution.stdout.text;
    }
    text
}

#[tokio::test]
async fn blocks_count() {
    let folder = Folder::new("count");
    let mut repl = folder.load().repl(ReplOptions::default()).await.unwrap();
    assert_eq!(printed(&mut repl, &["i", "i", "i"]).await, "BCD");
}

#[tokio::test]
async fn an_endless_loop_and_a_trap_leave_the_state_before() {
    let folder = Folder::new("loop");
    let options = ReplOptions { limits: tight(), ..ReplOptions::default() };
    let mut repl = folder.load().repl(options).await.unwrap();
    printed(&mut repl, &["i", "i"]).await;
    for block in ["l", "u", "p"] {
        let execution = run(&mut repl, block).await;
        assert!(matches!(execution.outcome, Outcome::Killed { .. }), "{block}: {:?}", execution.outcome);
        assert!(execution.rolled_back);
    }
    assert_eq!(printed(&mut repl, &["i"]).await, "D");
}

#[tokio::test]
async fn an_interrupt_is_seen() {
    let folder = Folder::new("word");
    let options = ReplOptions { limits: tight(), ..ReplOptions::default() };
    let mut repl = folder.load().repl(options).await.unwrap();
    let execution = run(&mut repl, "w").await;
    assert_eq!(execution.outcome, Outcome::TimedOut);
    assert_eq!(printed(&mut repl, &["i"]).await, "C");
}

#[tokio::test]
async fn calls_clocks_and_randomness_are_repeated_on_the_way_back() {
    let folder = Folder::new("replay");
    let options = serving(|_, _| async {
        tokio::time::sleep(Duration::from_millis(1)).await;
        Ok(Value::from("four"))
    });
    let mut repl = folder.load().repl(options).await.unwrap();
    for block in ["c", "t", "r"] {
        let before = printed(&mut repl, &[block]).await;
        assert!(matches!(run(&mut repl, "l").await.outcome, Outcome::Killed { .. }));
        let counted = printed(&mut repl, &["i"]).await.as_bytes()[0];
        assert_eq!((counted - 65) % 32, (before.as_bytes()[0] - 65 + 1) % 32, "{block}");
    }
}

#[tokio::test]
async fn forks_share_a_large_heap_and_are_apart() {
    let folder = Folder::new("fork");
    let options = ReplOptions { limits: tight(), ..ReplOptions::default() };
    let mut parent = folder.load().repl(options).await.unwrap();
    // The counter at the time of growth, 2, is written to every new page.
    printed(&mut parent, &["i", "g"]).await;
    let mut fork = parent.fork(None).await.unwrap();
    assert_eq!(printed(&mut fork, &["i", "s"]).await, "DC");
    assert_eq!(printed(&mut parent, &["i", "i", "g", "s"]).await, "DEFF");
    let mut again = fork.fork(None).await.unwrap();
    assert_eq!(printed(&mut again, &["s", "i"]).await, "CD");
    assert!(matches!(run(&mut parent, "l").await.outcome, Outcome::Killed { .. }));
    assert_eq!(printed(&mut parent, &["s", "i"]).await, "FG");
}

#[tokio::test]
async fn a_snapshot_restores() {
    let folder = Folder::new("snapshot");
    let sandbox = folder.load();
    let mut repl = sandbox.repl(ReplOptions::default()).await.unwrap();
    printed(&mut repl, &["i", "g", "r"]).await;
    let bytes = repl.snapshot().await.unwrap();
    let expected = printed(&mut repl, &["r", "s"]).await;
    let mut restored = sandbox.restore(&bytes, ReplOptions::default()).await;
    // This guest answers nothing but blocks, so a restored one is refused at its first question.
    assert!(restored.as_mut().is_err(), "{expected}");
}

/// Snapshots with random damage and a checksum that fits are refused or lead to a guest that runs within its limits.
#[tokio::test]
async fn forged_snapshots_end_in_a_typed_error() {
    let folder = Folder::new("forged");
    let sandbox = folder.load();
    let mut repl = sandbox.repl(ReplOptions::default()).await.unwrap();
    printed(&mut repl, &["i", "g", "r"]).await;
    let bytes = repl.snapshot().await.unwrap();
    let mut choice = ChaCha8Rng::seed_from_u64(1);
    for round in 0..50 {
        let forged = forge(&bytes, |body| {
            for _ in 0..choice.random_range(1..4) {
                // Half of the changes hit the first bytes, where sizes and counts are.
                let end = if choice.random_bool(0.5) { 400 } else { body.len() };
                let position = choice.random_range(0..end);
                body[position] = choice.random();
            }
            if choice.random_bool(0.2) {
                body.truncate(choice.random_range(0..body.len()));
            }
        });
        match sandbox.restore(&forged, ReplOptions::default()).await {
            Err(SandboxError::Snapshot(_)) => {}
            other => panic!("round {round}: {other:?}"),
        }
    }
    assert_eq!(run(&mut repl, "i").await.outcome, Outcome::Completed);
}

/// Whatever fails in between, a REPL goes on as one in which nothing failed.
#[tokio::test]
async fn failures_in_between_change_nothing() {
    let folder = Folder::new("model");
    let sandbox = folder.load();
    for seed in 0..8 {
        let mut choice = ChaCha8Rng::seed_from_u64(seed);
        let options = || ReplOptions { seed, deterministic: true, ..serving(|_, _| async { Ok(Value::Int(3)) }) };
        let mut smooth = sandbox.repl(options()).await.unwrap();
        let mut rough = sandbox.repl(options()).await.unwrap();
        let mut history = Vec::new();
        for _ in 0..60 {
            let block = ["i", "r", "t", "c", "s", "g"][choice.random_range(0..6)];
            // Growth is bounded so that the test stays small.
            let block = if block == "g" && history.iter().filter(|b| **b == "g").count() > 4 { "i" } else { block };
            history.push(block);
            match choice.random_range(0..6) {
                0 => {
                    let stopped = run(&mut rough, "u").await;
                    assert!(matches!(stopped.outcome, Outcome::Killed { .. }), "{:?}", stopped.outcome);
                }
                1 => rough = rough.fork(None).await.unwrap(),
                2 => drop(rough.fork(None).await.unwrap()),
                3 => drop(rough.snapshot().await.unwrap()),
                _ => {}
            }
            assert_eq!(printed(&mut rough, &[block]).await, printed(&mut smooth, &[block]).await, "{history:?}");
        }
    }
}

/// A block that nobody awaits any more happened whole or not at all, whenever its future was dropped.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_dropped_block_happened_or_did_not() {
    let folder = Folder::new("dropped");
    let sandbox = folder.load();
    let tasks: Vec<_> = (0..16)
        .map(|seed| {
            let sandbox = sandbox.clone();
            tokio::spawn(async move {
                let mut choice = ChaCha8Rng::seed_from_u64(seed);
                let options = serving(|_, _| async { Ok(Value::Int(0)) });
                let mut repl = sandbox.repl(options).await.unwrap();
                // "f" is a block of its own letter: it only counts.
                let mut counted = 0u8;
                for _ in 0..100 {
                    let polls = choice.random_range(0..40);
                    let mut block = Box::pin(repl.execute("f"));
                    for _ in 0..polls {
                        if futures::poll!(&mut block).is_ready() {
                            break;
                        }
                        tokio::task::yield_now().await;
                    }
                    drop(block);
                    if choice.random_bool(0.2) {
                        drop(repl.fork(None).await.unwrap());
                    }
                    let now = (printed(&mut repl, &["f"]).await.as_bytes()[0] - 65) % 32;
                    let (without, with) = ((counted + 1) % 32, (counted + 2) % 32);
                    assert!(now == without || now == with, "counted {counted}, now {now}");
                    counted = now;
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
}
