//! `espalier serve search`: from the command line to Ctrl-C, with a client of the crate that it serves for.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};

const CORPUS: &str = r#"{"id": "0", "contents": "\"Paris\"\nParis is the capital of France."}
{"id": "1", "contents": "\"Lyon\"\nLyon is a city."}
"#;

fn command(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_espalier"));
    command.args(arguments).current_dir(folder).env("NO_COLOR", "1").env_remove("ESPALIER_LOG");
    command
}

/// A server that is killed where a test fails.
struct Server {
    child: Child,
    address: String,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn started(folder: &Path, arguments: &[&str]) -> (Server, BufReader<std::process::ChildStderr>) {
    let mut child = command(folder, &[&["serve", "search", "--listen", "127.0.0.1:0"], arguments].concat())
        .stderr(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    said.read_line(&mut line).unwrap();
    let address = line.split("http://").nth(1).and_then(|rest| rest.split('/').next());
    let address = address.unwrap_or_else(|| panic!("no address in {line:?}")).to_owned();
    assert!(line.starts_with("serving 2 documents of `corpus.jsonl` at http://127.0.0.1:"), "{line}");
    (Server { child, address }, said)
}

/// The status and body of an answer.
fn post(address: &str, body: &str) -> (u16, serde_json::Value) {
    let mut stream = TcpStream::connect(address).unwrap();
    let length = body.len();
    let head = format!("POST /retrieve HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n");
    stream.write_all(head.as_bytes()).unwrap();
    stream.write_all(body.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let status = answer.split(' ').nth(1).unwrap().parse().unwrap();
    let (_, body) = answer.split_once("\r\n\r\n").unwrap();
    (status, serde_json::from_str(body).unwrap())
}

#[test]
fn it_serves_until_ctrl_c() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("corpus.jsonl"), CORPUS).unwrap();
    let (mut server, mut said) = started(folder.path(), &["--corpus", "corpus.jsonl", "--topk", "1"]);
    let (status, answer) =
        post(&server.address, r#"{"query": "capital of \"France\": (", "topk": 2, "return_scores": true}"#);
    assert_eq!((status, &answer["result"][0][0]["document"]["id"]), (200, &serde_json::json!("0")));
    let (_, answer) = post(&server.address, r#"{"queries": ["is", "city"]}"#);
    let counts: Vec<_> =
        answer["result"].as_array().unwrap().iter().map(|list| list.as_array().unwrap().len()).collect();
    assert_eq!(counts, [1, 1], "`--topk` holds where a request does not say");
    let (status, answer) = post(&server.address, "{}");
    assert_eq!(status, 400);
    assert!(answer["error"].as_str().unwrap().contains("`query` is missing"), "{answer}");
    let pid = server.child.id().to_string();
    assert!(Command::new("kill").args(["-INT", &pid]).status().unwrap().success());
    assert_eq!(server.child.wait().unwrap().code(), Some(0));
    let mut rest = String::new();
    said.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "stopping; no request runs\n");
}

#[test]
fn what_is_wrong_is_said() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("corpus.jsonl"), format!("{CORPUS}nonsense\n")).unwrap();
    for (arguments, code, expected) in [
        (vec!["--corpus", "none.jsonl"], 3, "`none.jsonl`: cannot be read"),
        (vec!["--corpus", "corpus.jsonl"], 3, "`corpus.jsonl`, line 3: is not JSON"),
        (
            vec!["--corpus", "corpus.jsonl", "--topk", "0"],
            2,
            "`--topk`: expected a whole number from 1 to 1000, got `0`",
        ),
        (vec![], 2, "--corpus <PATH>"),
    ] {
        let output = command(folder.path(), &[&["serve", "search"], arguments.as_slice()].concat()).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{said}");
        assert!(said.contains(expected), "{said}");
    }
}
