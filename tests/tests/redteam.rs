//! Runs `redteam/*.py`: nothing outside the guest changes, the host lives, an empty next block works.

use std::path::{Path, PathBuf};
use std::time::Duration;

use espalier_sandbox::{Context, Limits, Outcome, Policy, Repl, ReplOptions, Sandbox, Value};

const CANARY: &str = "canary-5e0f7c";

fn corpus() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("redteam");
    let mut files: Vec<_> = std::fs::read_dir(&folder)
        .expect("the corpus lies beside this crate")
        .map(|entry| entry.expect("a readable folder").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "py"))
        .collect();
    files.sort();
    assert!(files.len() >= 20, "the corpus is incomplete: {} files", files.len());
    files
}

/// Time limits short enough for a suite, long enough for a busy machine; the memory limit of a small rollout.
fn limits() -> Limits {
    Limits {
        block: Duration::from_millis(500),
        waiting: Duration::from_millis(300),
        memory_bytes: 128 << 20,
        output_bytes: 64 << 10,
        ..Limits::default()
    }
}

async fn fresh(sandbox: &Sandbox, policy: Policy) -> Repl {
    let options = ReplOptions {
        policy,
        limits: limits(),
        contexts: vec![Context::new(Value::from(CANARY))],
        ..ReplOptions::default()
    };
    sandbox.repl(options).await.expect("a fresh REPL")
}

async fn assert_alive(repl: &mut Repl, place: &str) {
    let empty = repl.execute("").await.unwrap_or_else(|error| panic!("{place}: an empty block failed: {error}"));
    assert_eq!(empty.outcome, Outcome::Completed, "{place}: an empty next block must complete; {}", empty.stderr.text);
    let scaffold = repl
        .execute("espalier_probe = context\nprint(len(espalier_probe), SHOW_VARS() is not None)\nFINAL_VAR('espalier_probe')")
        .await
        .unwrap_or_else(|error| panic!("{place}: the scaffold failed: {error}"));
    assert_eq!(scaffold.outcome, Outcome::Completed, "{place}: scaffold: {}", scaffold.stderr.text);
    assert_eq!(scaffold.stdout.text, format!("{} True\n", CANARY.len()), "{place}");
    let answer = scaffold.final_answer.unwrap_or_else(|| panic!("{place}: no final answer"));
    assert_eq!(answer.text, CANARY, "{place}: `context` must be the host's");
}

async fn attack(sandbox: &Sandbox, file: &Path, policy: Policy) {
    let text = std::fs::read_to_string(file).expect("a readable file of the corpus");
    let name = file.file_name().expect("a file").to_string_lossy().into_owned();
    let mut repl = fresh(sandbox, policy).await;
    for (index, block) in text.split("# ---\n").enumerate() {
        let place = format!("{name}, block {} ({policy:?})", index + 1);
        let execution = repl.execute(block).await.unwrap_or_else(|error| panic!("{place}: the REPL died: {error}"));
        let said = format!("{}{}", execution.stdout.text, execution.stderr.text);
        // The marker as a line of output, not as the source line that a traceback quotes.
        assert!(
            !said.lines().any(|line| line.starts_with("ESCAPED")),
            "{place} escaped: {}",
            said.chars().take(2000).collect::<String>()
        );
        assert!(!matches!(execution.outcome, Outcome::HostError { .. }), "{place}: {:?}", execution.outcome);
        assert!(execution.stdout.text.len() <= limits().output_bytes + 200, "{place}: too much output kept");
        assert_alive(&mut repl, &place).await;
    }
}

async fn run(policy: Policy) {
    let sandbox = Sandbox::shared().expect("the interpreter loads");
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("canary");
    std::fs::write(&file, CANARY).expect("a canary file");
    let here = std::env::current_dir().expect("a current folder");
    let listing = |path: &Path| {
        let mut names: Vec<_> =
            std::fs::read_dir(path).expect("a readable folder").map(|e| e.unwrap().path()).collect();
        names.sort();
        names
    };
    let before = listing(&here);
    for path in corpus() {
        attack(&sandbox, &path, policy).await;
    }
    assert_eq!(std::fs::read_to_string(&file).expect("the canary file"), CANARY);
    assert_eq!(listing(&here), before, "no file was made or removed");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_corpus_escapes_nothing_under_the_default_policy() {
    run(Policy::Default).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_corpus_escapes_nothing_under_the_strict_policy() {
    run(Policy::Strict).await;
}
