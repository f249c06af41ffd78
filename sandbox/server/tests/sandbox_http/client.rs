//! The Python client in `examples/sandbox_client` drives this server, with nothing but Python's standard library.

use std::path::{Path, PathBuf};
use std::time::Duration;

use espalier_sandbox_server::Keys;
use tokio::process::Command;

use crate::{Server, ServerOptions, options};

const KEY: &str = "a-key-for-the-python-client";

fn examples() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/sandbox_client")
}

/// What a Python program prints; `None`, said aloud, where there is no Python.
#[expect(clippy::print_stderr, reason = "a test that skips says so")]
async fn python(arguments: &[&str]) -> Option<String> {
    let mut command = Command::new("python3");
    command
        .args(arguments)
        .current_dir(examples())
        .env("ESPALIER_SANDBOX_KEY", KEY)
        .env("PYTHONDONTWRITEBYTECODE", "1");
    match command.output().await {
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{said}");
            Some(String::from_utf8_lossy(&output.stdout).into_owned())
        }
        Err(error) => {
            eprintln!("skipped: `python3` cannot be started: {error}");
            None
        }
    }
}

async fn server() -> Server {
    Server::start(ServerOptions { keys: Keys::parse(KEY).expect("a key"), ..options() }).await
}

#[tokio::test]
async fn an_rlm_loop_runs_in_the_sandbox_and_leaves_nothing() {
    let server = server().await;
    let Some(printed) = python(&["toy_rlm.py", &server.url("")]).await else { return };
    assert_eq!(printed, "pear\n");
    assert_eq!(server.repls().await, 0);
}

#[tokio::test]
async fn the_client_serves_calls_raises_and_closes() {
    const PROGRAM: &str = r#"
import sys
from espalier_sandbox import EspalierREPL, SandboxError

def llm_query(prompt, model=None):
    if prompt == "fail":
        raise ValueError("the model is away")
    return f"{prompt}! ({model})"

def lookup(key):
    return {"a": [1, None]}[key]

url = sys.argv[1]
with EspalierREPL({"n": 2}, {"llm_query": llm_query, "lookup": lookup}, url=url, seed=3) as repl:
    print(repl.execute("x = context['n'] + 40\nprint(x)").stdout.strip())
    print(repl.execute("print(llm_query('hi', model='small'), lookup('a'))").stdout.strip())
    failed = repl.execute("llm_query('fail')")
    print(failed.raw["error"])
    print("KeyError" in repl.execute("lookup('b')").stderr)
    fork = repl.fork()
    fork.execute("x = 0")
    print(repl.get("x"), fork.get("x"))
    fork.close()
    done = repl.execute("FINAL_VAR('x')")
    print(done.final_answer, done.locals, done.execution_time > 0)
    print(repl.execute("while True: pass", timeout_s=0.05).stderr.splitlines()[-1])
    try:
        repl.get("nothing")
    except SandboxError as error:
        print(error.status, error.type)
    gone = repl.id
try:
    repl.id = gone
    repl.execute("1")
except SandboxError as error:
    print(error.type)
try:
    EspalierREPL(url=url, api_key="another key altogether")
except SandboxError as error:
    print(error.status)
"#;
    let server = server().await;
    let Some(printed) = python(&["-c", PROGRAM, &server.url("")]).await else { return };
    let expected = "42\n\
        hi! (small) [1, None]\n\
        {'type': 'ValueError', 'message': 'the model is away'}\n\
        True\n\
        42 0\n\
        42 {'x': 'int'} True\n\
        [timed_out]\n\
        404 no_variable\n\
        no_repl\n\
        401\n";
    assert_eq!(printed, expected);
    assert_eq!(server.repls().await, 0);
}

#[tokio::test]
#[expect(clippy::print_stderr, reason = "a test that skips says so")]
async fn a_client_that_is_killed_in_a_call_leaves_no_slot_taken() {
    const PROGRAM: &str = r#"
import sys, time
from espalier_sandbox import EspalierREPL

def llm_query(prompt):
    print("asked", flush=True)
    time.sleep(600)

repls = [EspalierREPL(functions={"llm_query": llm_query}, url=sys.argv[1]) for _ in range(20)]
repls[0].execute("llm_query('?')")
"#;
    let keys = Keys::parse(KEY).expect("a key");
    let server = Server::start(ServerOptions { keys, idle_timeout: Duration::from_secs(2), ..options() }).await;
    let mut command = Command::new("python3");
    command.args(["-c", PROGRAM, &server.url("")]).current_dir(examples()).env("ESPALIER_SANDBOX_KEY", KEY);
    command.env("PYTHONDONTWRITEBYTECODE", "1").stdout(std::process::Stdio::piped());
    let Ok(mut child) = command.spawn() else {
        eprintln!("skipped: `python3` cannot be started");
        return;
    };
    let mut said = [0; 5];
    let mut output = child.stdout.take().expect("piped");
    tokio::io::AsyncReadExt::read_exact(&mut output, &mut said).await.expect("it asks");
    assert_eq!(server.repls().await, 20);
    child.kill().await.expect("it lived");
    server.until_repls(0).await;
}
