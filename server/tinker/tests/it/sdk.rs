//! The official SDK as it comes from PyPI.

use std::path::PathBuf;
use std::process::Command;

use espalier_tinker::ServerOptions;

use crate::harness::{MODEL, Running};

async fn play(options: ServerOptions) {
    let Some(python) = python_with_tinker() else { return };
    let server = Running::start(options).await;
    let script = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/sdk_client.py");
    let base = format!("http://{}", server.address);
    let output = tokio::task::spawn_blocking(move || {
        Command::new(python).arg(script).args([base, MODEL.to_owned()]).env("TINKER_API_KEY", "tml-test").output()
    });
    let output = output.await.unwrap().unwrap();
    let said = format!("{}\n{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{said}");
    assert!(!server.backend.was_crowded());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_sdk_samples_and_trains() {
    play(ServerOptions::default()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_sdk_fetches_results_through_one_poll() {
    play(ServerOptions { session_polls: true, ..ServerOptions::default() }).await;
}

/// A Python with the `tinker` package, which `scripts/setup-tinker-client.sh` finds or makes; `None`, said aloud, where there
/// is no Python or no PyPI.
fn python_with_tinker() -> Option<PathBuf> {
    let script = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../scripts/setup-tinker-client.sh");
    let output = Command::new("bash").arg(&script).output().ok()?;
    if !output.status.success() {
        skip(&format!("no Python with the Tinker SDK: {}", String::from_utf8_lossy(&output.stderr).trim_end()));
        return None;
    }
    Some(String::from_utf8_lossy(&output.stdout).trim_end().into())
}

#[expect(clippy::print_stderr, reason = "a skipped test says so")]
fn skip(why: &str) {
    eprintln!("skipped: {why}");
}
