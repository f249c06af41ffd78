//! `espalier serve tinker` as its users start it: with a real model, for the official SDK.
#![cfg(feature = "torch")]

use std::io::{BufRead as _, BufReader, Read as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The version of the package that this is tested with.
const TINKER: &str = "tinker==0.38.0";
const MODEL: &str = "smollm2-135m-instruct";

fn cache() -> Option<PathBuf> {
    std::env::var_os("ESPALIER_CACHE")
        .map(PathBuf::from)
        .or_else(|| std::env::var_os("XDG_CACHE_HOME").map(|c| PathBuf::from(c).join("espalier")))
        .or_else(|| std::env::var_os("HOME").map(|h| PathBuf::from(h).join(".cache/espalier")))
}

fn has_model() -> bool {
    let own = std::env::var_os("ESPALIER_MODELS").map(PathBuf::from);
    let folders = own.into_iter().chain(cache().map(|cache| cache.join("models")));
    folders.map(|folder| folder.join(MODEL)).any(|folder| folder.join("model.safetensors").exists())
}

/// A Python with the `tinker` package: the one that `ESPALIER_TEST_PYTHON` names if it has it, else the one that
/// `espalier-tinker`'s tests make in the cache.
fn python_with_tinker() -> Option<PathBuf> {
    let named = std::env::var_os("ESPALIER_TEST_PYTHON").map(PathBuf::from);
    let made = cache().map(|cache| cache.join("venvs").join(TINKER.replace("==", "-")).join("bin/python"));
    let check = format!("import tinker; assert 'tinker==' + tinker.__version__ == '{TINKER}'");
    let has = |python: &PathBuf| {
        Command::new(python).args(["-c", &check]).output().is_ok_and(|output| output.status.success())
    };
    named.into_iter().chain(made).find(has)
}

#[expect(clippy::print_stderr, reason = "a skipped test says so")]
fn skip(why: &str) {
    eprintln!("skipped: {why}");
}

fn command(state: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_espalier"));
    command.args(["serve", "tinker", "--base-model", MODEL, "--state"]).arg(state).args(arguments);
    command.stdin(Stdio::null());
    command
}

/// Exit code and stderr of a command that does not start.
fn refused(state: &Path, arguments: &[&str]) -> (Option<i32>, String) {
    let output = command(state, arguments).output().expect("the command starts");
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn it_samples_and_trains_for_the_official_sdk_until_ctrl_c() {
    if !has_model() {
        return skip("no `smollm2-135m-instruct` in ESPALIER_MODELS or the cache; run `scripts/setup-model.sh`");
    }
    let Some(python) = python_with_tinker() else {
        return skip("no Python with the `tinker` package; the tests of `espalier-tinker` make one");
    };
    let state = tempfile::tempdir().expect("a folder");
    let arguments = ["--listen", "127.0.0.1:0", "--name", "Org/Model", "--precision", "f32", "--kv-cache-mb", "512"];
    let mut child = command(state.path(), &arguments).stderr(Stdio::piped()).spawn().expect("the command starts");
    let mut said = BufReader::new(child.stderr.take().expect("piped"));
    let mut line = String::new();
    said.read_line(&mut line).expect("it says where it serves");
    let address = line.split("http://").nth(1).and_then(|rest| rest.split_whitespace().next());
    let base = format!("http://{}", address.unwrap_or_else(|| panic!("no address: {line}")));
    assert!(line.contains("`Org/Model`"), "{line}");
    // The folder is this server's.
    let (code, second) = refused(state.path(), &["--listen", "127.0.0.1:0"]);
    assert_eq!((code, second.contains("another process")), (Some(6), true), "{second}");

    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/tinker_client.py");
    let output = Command::new(python)
        .arg(script)
        .args([&base, "Org/Model"])
        .env("TINKER_API_KEY", "tml-test")
        .output()
        .expect("Python starts");
    let client = format!("{}\n{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let sent = Command::new("sh").args(["-c", &format!("kill -INT {}", child.id())]).status().expect("a shell");
    assert!(sent.success());
    let (status, mut rest) = (child.wait().expect("it ends"), String::new());
    said.read_to_string(&mut rest).expect("UTF-8");
    assert!(output.status.success(), "{client}\n{rest}");
    assert_eq!(status.code(), Some(0), "{rest}");
}

#[test]
fn it_starts_for_others_only_with_keys_or_a_word() {
    let folder = tempfile::tempdir().expect("a folder");
    let (code, said) = refused(folder.path(), &["--listen", "0.0.0.0:0"]);
    assert_eq!((code, said.contains("`--api-keys FILE`") && said.contains("`--open`")), (Some(2), true), "{said}");
    let file = folder.path().join("keys");
    let named = file.to_str().expect("UTF-8");
    let (code, said) = refused(folder.path(), &["--listen", "0.0.0.0:0", "--api-keys", named]);
    assert_eq!((code, said.contains("cannot be read")), (Some(3), true), "{said}");
    std::fs::write(&file, "ann tml-a-secret-that-is-long").expect("written");
    let (code, said) = refused(folder.path(), &["--listen", "0.0.0.0:0", "--api-keys", named]);
    assert_eq!((code, said.contains("line 1") && !said.contains("secret")), (Some(3), true), "{said}");
    let (code, said) = refused(folder.path(), &["--keep-results", "0"]);
    assert_eq!((code, said.contains("`--keep-results`")), (Some(2), true), "{said}");
}
