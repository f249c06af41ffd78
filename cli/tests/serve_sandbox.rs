//! `espalier serve sandbox` as its users start and stop it.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Child, Command, ExitStatus, Stdio};

use serde_json::{Value, json};

const KEY: &str = "a-key-that-is-long-enough";

struct Server {
    child: Child,
    /// What it says on stderr.
    said: BufReader<std::process::ChildStderr>,
    address: String,
}

fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_espalier"));
    command.args(["serve", "sandbox"]).args(arguments).env_remove("ESPALIER_TEST_KEYS").stdin(Stdio::null());
    command
}

impl Server {
    fn start(command: &mut Command) -> Self {
        let mut child = command.stderr(Stdio::piped()).spawn().expect("the command starts");
        let mut said = BufReader::new(child.stderr.take().expect("piped"));
        let mut line = String::new();
        said.read_line(&mut line).expect("it says where it serves");
        let address = line.split("http://").nth(1).and_then(|rest| rest.split('/').next());
        let address = address.unwrap_or_else(|| panic!("no address: {line}")).to_owned();
        Self { child, said, address }
    }

    /// One request on a connection of its own: status and answer.
    fn ask(&self, method: &str, path: &str, key: Option<&str>, body: &Value) -> (u16, Value) {
        let body = body.to_string();
        let key = key.map(|key| format!("authorization: Bearer {key}\r\n")).unwrap_or_default();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: {}\r\n{key}connection: close\r\ncontent-length: {}\r\n\r\n{body}",
            self.address,
            body.len()
        );
        let mut stream = TcpStream::connect(&self.address).expect("it listens");
        stream.write_all(head.as_bytes()).expect("it reads");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("it answers UTF-8");
        let status = answer.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
        let body = answer.split_once("\r\n\r\n").expect("a body").1;
        (status, serde_json::from_str(body).unwrap_or_else(|error| panic!("not JSON ({error}): {answer}")))
    }

    fn repl(&self) -> String {
        let (status, answer) = self.ask("POST", "/v1/repls", None, &json!({}));
        assert_eq!(status, 201, "{answer}");
        answer["repl"].as_str().expect("an id").to_owned()
    }

    /// Ctrl-C, and what it says until its end.
    fn interrupt(mut self) -> (ExitStatus, String) {
        let pid = self.child.id().to_string();
        let sent = Command::new("sh").args(["-c", &format!("kill -INT {pid}")]).status().expect("a shell");
        assert!(sent.success());
        let status = self.child.wait().expect("it ends");
        let mut rest = String::new();
        self.said.read_to_string(&mut rest).expect("UTF-8");
        (status, rest)
    }
}

/// Exit code and stderr of a command that does not start.
fn refused(command: &mut Command) -> (Option<i32>, String) {
    let output = command.output().expect("the command starts");
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn it_serves_until_ctrl_c() {
    let server = Server::start(&mut command(&["--listen", "127.0.0.1:0", "--max-repls", "1", "--memory", "32"]));
    let repl = server.repl();
    let (_, answer) = server.ask("POST", &format!("/v1/repls/{repl}/execute"), None, &json!({"code": "print(6 * 7)"}));
    assert_eq!(answer["stdout"], "42\n");
    let (status, answer) = server.ask("POST", "/v1/repls", None, &json!({}));
    assert_eq!((status, &answer["error"]["type"]), (429, &json!("too_many_repls")));
    let (status, said) = server.interrupt();
    assert_eq!(status.code(), Some(0), "{said}");
    assert!(said.contains("stopping"), "{said}");
}

#[test]
fn a_block_that_is_cut_off_shows_in_the_exit_code() {
    let server = Server::start(&mut command(&["--listen", "127.0.0.1:0", "--timeout", "60"]));
    let repl = server.repl();
    let body = json!({"code": "while True: pass", "wait_s": 0});
    let (status, _) = server.ask("POST", &format!("/v1/repls/{repl}/execute"), None, &body);
    assert_eq!(status, 202);
    // Nobody waits for it, so nothing holds the server up.
    let (status, said) = server.interrupt();
    assert_eq!(status.code(), Some(130), "{said}");
    assert!(said.contains("1 block was cut off"), "{said}");
}

#[test]
fn idle_repls_are_closed() {
    let server = Server::start(&mut command(&["--listen", "127.0.0.1:0", "--idle-timeout", "0.3", "--memory", "32"]));
    for _ in 0..5 {
        server.repl();
    }
    while server.ask("GET", "/health", None, &json!({})).1["repls"] != 0 {}
    server.interrupt();
}

#[test]
fn keys_come_from_the_named_variable() {
    let mut start = command(&["--listen", "127.0.0.1:0", "--api-key-env", "ESPALIER_TEST_KEYS"]);
    let server = Server::start(start.env("ESPALIER_TEST_KEYS", format!("{KEY},another-key-of-some-length")));
    assert_eq!(server.ask("POST", "/v1/repls", None, &json!({})).0, 401);
    assert_eq!(server.ask("POST", "/v1/repls", Some("a-wrong-key-of-some-length"), &json!({})).0, 401);
    assert_eq!(server.ask("POST", "/v1/repls", Some(KEY), &json!({})).0, 201);
    let (_, said) = server.interrupt();
    assert!(!said.contains(KEY), "{said}");
}

#[test]
fn what_cannot_work_is_refused_at_the_start() {
    let open = refused(&mut command(&["--listen", "0.0.0.0:0"]));
    assert_eq!(open.0, Some(2));
    assert!(open.1.contains("can be reached from other machines") && open.1.contains("--api-key-env"), "{}", open.1);
    for (arguments, said) in [
        (vec!["--api-key-env", "ESPALIER_TEST_KEYS"], "there is no such variable"),
        (vec!["--idle-timeout", "0"], "`--idle-timeout`: expected a positive number of seconds, got `0`"),
        (vec!["--max-repls", "0"], "`--max-repls`: expected at least 1, got `0`"),
        (vec!["--max-memory", "100"], "`--max-memory`: expected at least `--memory`, 256 MiB, got `100`"),
        (vec!["--timeout", "0"], "`--timeout`: expected a positive number of seconds"),
    ] {
        let (code, message) = refused(&mut command(&arguments));
        assert!(code == Some(2) && message.contains(said), "{arguments:?}: {code:?} {message}");
    }
    let short = refused(command(&["--api-key-env", "ESPALIER_TEST_KEYS"]).env("ESPALIER_TEST_KEYS", "short"));
    assert!(short.0 == Some(2) && short.1.contains("key 1 has 5 bytes, expected at least 16"), "{}", short.1);
    assert!(!short.1.contains("`short`"), "{}", short.1);
}
