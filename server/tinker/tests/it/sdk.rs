//! The official SDK as it comes from PyPI.

use std::path::{Path, PathBuf};
use std::process::Command;

use espalier_tinker::ServerOptions;

use crate::harness::{MODEL, Running};

/// The version of the package that this is tested with.
const TINKER: &str = "tinker==0.38.0";

/// Two tests want a Python at the same time.
static MAKING: std::sync::Mutex<()> = std::sync::Mutex::new(());

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

/// A Python with the `tinker` package: the one that `ESPALIER_TEST_PYTHON` names if it has it, else one made once in the
/// cache; `None`, said aloud, where there is no Python or no PyPI.
fn python_with_tinker() -> Option<PathBuf> {
    let run = |program: &Path, arguments: &[&str]| {
        Command::new(program).args(arguments).output().is_ok_and(|output| output.status.success())
    };
    let has = format!("import tinker; assert 'tinker==' + tinker.__version__ == '{TINKER}'");
    if let Some(python) = std::env::var_os("ESPALIER_TEST_PYTHON").map(PathBuf::from)
        && run(&python, &["-c", &has])
    {
        return Some(python);
    }
    let cache = std::env::var_os("ESPALIER_CACHE")
        .map(PathBuf::from)
        .or_else(|| std::env::var_os("XDG_CACHE_HOME").map(|c| PathBuf::from(c).join("espalier")))
        .or_else(|| std::env::var_os("HOME").map(|h| PathBuf::from(h).join(".cache/espalier")))?;
    let folder = cache.join("venvs").join(TINKER.replace("==", "-"));
    let (python, ready) = (folder.join("bin/python"), folder.join("ready"));
    let _making = MAKING.lock();
    if ready.exists() {
        return Some(python);
    }
    let path = folder.to_string_lossy().into_owned();
    let made = run(Path::new("python3"), &["-m", "venv", &path])
        && run(&python, &["-m", "pip", "install", "--quiet", "--disable-pip-version-check", TINKER])
        && std::fs::write(&ready, "").is_ok();
    if !made {
        skip("cannot make a virtual environment with the `tinker` package (no Python, or PyPI out of reach)");
        return None;
    }
    Some(python)
}

#[expect(clippy::print_stderr, reason = "a skipped test says so")]
fn skip(why: &str) {
    eprintln!("skipped: {why}");
}
