//! `espalier serve tinker` as its users start it: with a real model, for the official SDK.
#![cfg(feature = "torch")]

use std::io::{BufRead as _, BufReader, Read as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Stdio};

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

/// A Python with the `tinker` package, which `scripts/setup-tinker-client.sh` finds or makes; `None`, said aloud, where there
/// is no Python or no PyPI.
fn python_with_tinker() -> Option<PathBuf> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/setup-tinker-client.sh");
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

/// A server that runs, and where.
struct Server {
    child: Child,
    said: BufReader<ChildStderr>,
    base: String,
}

impl Server {
    fn start(state: &Path, listen: &str) -> Self {
        let clients = state.join("clients");
        let arguments = ["--listen", listen, "--name", "Org/Model", "--precision", "f32", "--kv-cache-mb", "512"];
        let mut command = command(state, &arguments);
        let mut child =
            command.arg("--write-client-dir").arg(&clients).stderr(Stdio::piped()).spawn().expect("the command starts");
        let mut said = BufReader::new(child.stderr.take().expect("piped"));
        let mut all = String::new();
        let base = loop {
            let mut line = String::new();
            assert_ne!(said.read_line(&mut line).expect("UTF-8"), 0, "it ended: {all}");
            all += &line;
            if let Some(rest) = line.split("http://").nth(1) {
                assert!(line.contains("`Org/Model`"), "{line}");
                break format!("http://{}", rest.split_whitespace().next().expect("an address"));
            }
        };
        Self { child, said, base }
    }

    /// Ctrl-C; what it said since.
    fn stop(mut self) -> (Option<i32>, String) {
        let sent = Command::new("sh").args(["-c", &format!("kill -INT {}", self.child.id())]).status();
        assert!(sent.expect("a shell").success());
        let (status, mut rest) = (self.child.wait().expect("it ends"), String::new());
        self.said.read_to_string(&mut rest).expect("UTF-8");
        (status.code(), rest)
    }
}

fn client(python: &Path, script: &str, base: &str) -> Command {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(script);
    let mut command = Command::new(python);
    command.arg(script).args([base, "Org/Model"]).env("TINKER_API_KEY", "tml-test").env("HF_HUB_OFFLINE", "1");
    command
}

/// A Python with the SDK, where there are one and a model.
fn prepared() -> Option<PathBuf> {
    if !has_model() {
        skip("no `smollm2-135m-instruct` in ESPALIER_MODELS or the cache; run `scripts/setup-model.sh`");
        return None;
    }
    python_with_tinker()
}

#[test]
fn it_samples_and_trains_for_the_official_sdk_until_ctrl_c() {
    let Some(python) = prepared() else { return };
    let state = tempfile::tempdir().expect("a folder");
    let server = Server::start(state.path(), "127.0.0.1:0");
    // The folder is this server's.
    let (code, second) = refused(state.path(), &["--listen", "127.0.0.1:0"]);
    assert_eq!((code, second.contains("another process")), (Some(6), true), "{second}");
    // The SDK finds the tokenizer in the folder that was written.
    let clients = state.path().join("clients");
    assert!(clients.join("Org/Model/tokenizer.json").is_file());
    let output =
        client(&python, "tinker_client.py", &server.base).current_dir(&clients).output().expect("Python starts");
    let client = format!("{}\n{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let (code, rest) = server.stop();
    assert!(output.status.success(), "{client}\n{rest}");
    assert_eq!(code, Some(0), "{rest}");
}

#[test]
fn a_client_trains_on_as_if_the_server_had_not_been_killed() {
    let Some(python) = prepared() else { return };
    let state = tempfile::tempdir().expect("a folder");
    let mut server = Server::start(state.path(), "127.0.0.1:0");
    let address = server.base.trim_start_matches("http://").to_owned();
    let mut trains = client(&python, "tinker_survivor.py", &server.base)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("Python starts");
    let mut lines = BufReader::new(trains.stdout.take().expect("piped")).lines();
    let mut seen = Vec::new();
    while let Some(Ok(line)) = lines.next() {
        seen.push(line);
        if seen.len() == 2 || seen.len() == 4 {
            // SIGKILL: it has no time to say or to write anything. What follows is under way.
            server.child.kill().expect("killed");
            server.child.wait().expect("it ends");
            server = Server::start(state.path(), &address);
        }
    }
    let ended = trains.wait_with_output().expect("it ends");
    let (code, rest) = server.stop();
    let client = String::from_utf8_lossy(&ended.stderr);
    assert!(ended.status.success(), "{seen:?}\n{client}\n{rest}");
    assert_eq!((seen.len(), code), (8, Some(0)), "{seen:?}\n{rest}");
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
    let (code, said) =
        refused(folder.path(), &["--name", "../x", "--write-client-dir", "clients", "--listen", "127.0.0.1:0"]);
    assert_eq!((code, said.contains("`../x`")), (Some(2), true), "{said}");
    let (code, said) = refused(folder.path(), &["--keep-results", "0"]);
    assert_eq!((code, said.contains("`--keep-results`")), (Some(2), true), "{said}");
}
