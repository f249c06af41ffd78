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

/// What is wrong with a REPL after a block, if anything. The probe leans on nothing that a block may make its own:
/// `print` and `len` are the model's to shadow, the scaffold's names are not.
async fn ailment(repl: &mut Repl) -> Option<String> {
    match repl.execute("").await {
        Err(error) => return Some(format!("an empty block failed: {error}")),
        Ok(empty) if empty.outcome != Outcome::Completed => {
            return Some(format!("an empty block ended as {:?}: {}", empty.outcome, empty.stderr.text));
        }
        Ok(_) => {}
    }
    let probe = "espalier_probe = context\nespalier_shown = SHOW_VARS() is not None\nFINAL_VAR('espalier_probe')";
    match repl.execute(probe).await {
        Err(error) => Some(format!("the scaffold failed: {error}")),
        Ok(scaffold) if scaffold.outcome != Outcome::Completed => {
            Some(format!("the scaffold ended as {:?}: {}", scaffold.outcome, scaffold.stderr.text))
        }
        Ok(scaffold) => match scaffold.final_answer {
            Some(answer) if answer.text == CANARY => None,
            other => Some(format!("`context` must be the host's, FINAL_VAR gave {other:?}")),
        },
    }
}

/// Runs a file's blocks; what went wrong.
async fn attack(sandbox: &Sandbox, file: &Path, policy: Policy) -> Vec<String> {
    let text = std::fs::read_to_string(file).expect("a readable file of the corpus");
    let name = file.file_name().expect("a file").to_string_lossy().into_owned();
    let mut repl = fresh(sandbox, policy).await;
    let mut wrong = Vec::new();
    for (index, block) in text.split("# ---\n").enumerate() {
        let place = format!("{name}, block {} ({policy:?})", index + 1);
        let execution = match repl.execute(block).await {
            Ok(execution) => execution,
            Err(error) => {
                wrong.push(format!("{place}: the REPL died: {error}"));
                return wrong;
            }
        };
        let said = format!("{}{}", execution.stdout.text, execution.stderr.text);
        // The marker as a line of output, not as the source line that a traceback quotes.
        if said.lines().any(|line| line.starts_with("ESCAPED")) {
            wrong.push(format!("{place} escaped: {}", said.chars().take(2000).collect::<String>()));
        }
        if matches!(execution.outcome, Outcome::HostError { .. }) {
            wrong.push(format!("{place}: {:?}", execution.outcome));
        }
        if execution.stdout.text.len() > limits().output_bytes + 200 {
            wrong.push(format!("{place}: {} bytes of output kept", execution.stdout.text.len()));
        }
        if let Some(ailment) = ailment(&mut repl).await {
            wrong.push(format!("{place}: {ailment}"));
        }
    }
    wrong
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
    let mut wrong = Vec::new();
    for path in corpus() {
        wrong.extend(attack(&sandbox, &path, policy).await);
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
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
