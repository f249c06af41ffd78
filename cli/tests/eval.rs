//! `espalier eval`, `rollout`, `trajectories` and `data` as a person or program meets them, with a scripted model in
//! real REPLs.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;
use tempfile::TempDir;

fn espalier(folder: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_espalier"))
        .args(arguments)
        .current_dir(folder)
        .env("NO_COLOR", "1")
        .output()
        .expect("the command starts")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn succeeds(output: &Output) -> String {
    assert!(output.status.success(), "{}\n{}", text(&output.stdout), text(&output.stderr));
    text(&output.stdout)
}

/// A suite whose model asks a copy of itself and answers what the copy said.
const SUITE: &str = r#"
name = "scripted"
seed = 3

[[engine]]
name = "script"
kind = "scripted"
options = { script = "script.jsonl" }

[[task]]
name = "relay"
env = "long"
modes = ["repl", "recursive"]
data = { path = "rows.jsonl" }
"#;

const SCRIPT: &str = r#"
{"text": "FINAL(17)", "when": "how many doors"}
"```repl\nanswer = rlm_query('how many doors', context='a house of 17 doors')\nprint(type(answer).__name__)\n```"
"FINAL_VAR(answer)"
"#;

const ROWS: &str = r#"
{"uid": "a", "prompt": "Ask a helper.", "reward_spec": {"method": "exact", "ground_truth": "17"}, "extra_info": {"context_text": "a long text"}}
"#;

fn folder() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, content) in [("suite.toml", SUITE), ("script.jsonl", SCRIPT), ("rows.jsonl", ROWS)] {
        std::fs::write(folder.path().join(name), content.trim_start()).unwrap();
    }
    folder
}

fn results(folder: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(folder.join("out/results.json")).unwrap()).unwrap()
}

#[test]
fn a_model_asks_a_copy_of_itself_and_answers_with_what_it_said() {
    let folder = folder();
    let shown = succeeds(&espalier(folder.path(), &["eval", "--suite", "suite.toml", "--out", "out"]));
    assert!(shown.contains("with REPL and recursion"), "{shown}");
    let results = results(folder.path());
    let recursive = &results["cells"][1];
    assert_eq!((&recursive["mode"], &recursive["children"]), (&"recursive".into(), &1.0.into()), "{results}");
    assert_eq!(recursive["rewards"]["a"][0], 1.0, "{results}");

    let tree = succeeds(&espalier(folder.path(), &["trajectories", "show", "out", "--tree"]));
    assert!(tree.contains("rlm_query('how many doors'") && tree.contains("FINAL(17)"), "{tree}");
    let lines = succeeds(&espalier(folder.path(), &["trajectories", "show", "out", "--json"]));
    let nodes: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(
        nodes.iter().any(|node| node["depth"] == 1 && !node["_rlm_parent_rid"].is_null()),
        "a child with its parent"
    );
}

#[test]
fn a_run_is_not_overwritten_but_resumed() {
    let folder = folder();
    let run = ["eval", "--suite", "suite.toml", "--out", "out"];
    succeeds(&espalier(folder.path(), &run));
    let again = espalier(folder.path(), &run);
    assert_eq!(again.status.code(), Some(6));
    assert!(text(&again.stderr).contains("resume"), "{}", text(&again.stderr));
    let before = results(folder.path());
    succeeds(&espalier(folder.path(), &[&run[..], &["--resume"]].concat()));
    assert_eq!(results(folder.path())["cells"][0]["rewards"], before["cells"][0]["rewards"]);
}

#[test]
fn two_runs_are_compared() {
    let folder = folder();
    succeeds(&espalier(folder.path(), &["eval", "--suite", "suite.toml", "--out", "out"]));
    let shown = succeeds(&espalier(folder.path(), &["eval", "compare", "out", "out"]));
    assert!(shown.contains("relay"), "{shown}");
}

#[test]
fn an_unknown_key_is_refused_with_the_nearest_name() {
    let folder = folder();
    let output = espalier(folder.path(), &["eval", "--suite", "suite.toml", "engine.0.sampling.temprature=1"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("temperature"), "{}", text(&output.stderr));
}

#[test]
fn what_is_wrong_with_the_files_is_said_with_file_and_place() {
    let folder = folder();
    std::fs::write(folder.path().join("rows.jsonl"), "{\"prompt\": 5}\n").unwrap();
    let output = espalier(folder.path(), &["eval", "--suite", "suite.toml"]);
    assert_eq!(output.status.code(), Some(3));
    let said = text(&output.stderr);
    assert!(said.contains("rows.jsonl") && said.contains("prompt") && said.contains('1'), "{said}");
    assert!(!folder.path().join("runs").exists(), "nothing half-written is left");

    let output = espalier(folder.path(), &["eval", "--suite", "none.toml"]);
    assert_eq!(output.status.code(), Some(3));
    assert!(text(&output.stderr).contains("`none.toml`"));
}

#[test]
fn trajectories_that_are_not_there_are_said() {
    let folder = tempfile::tempdir().unwrap();
    let output = espalier(folder.path(), &["trajectories", "show", "."]);
    assert_eq!(output.status.code(), Some(3));
    assert!(text(&output.stderr).contains("no trajectories"));
}

#[test]
fn generated_rows_read_back_as_data() {
    let folder = tempfile::tempdir().unwrap();
    let rows =
        succeeds(&espalier(folder.path(), &["data", "show", "long_needle", "--param", "size=2048", "--limit", "2"]));
    assert_eq!(rows.lines().count(), 2);
    std::fs::write(folder.path().join("rows.jsonl"), &rows).unwrap();
    let parsed = |text: &str| text.lines().map(|line| serde_json::from_str(line).unwrap()).collect::<Vec<Value>>();
    assert_eq!(parsed(&succeeds(&espalier(folder.path(), &["data", "show", "rows.jsonl"]))), parsed(&rows));
}

#[test]
fn environments_describe_themselves() {
    let folder = tempfile::tempdir().unwrap();
    let list = succeeds(&espalier(folder.path(), &["data", "list"]));
    for name in ["rlm", "gsm8k", "long", "long_count", "stories"] {
        assert!(list.contains(name), "{name} in {list}");
    }
    assert!(succeeds(&espalier(folder.path(), &["data", "env", "rlm"])).contains("output_chars"));
    let unknown = espalier(folder.path(), &["data", "env", "rml"]);
    assert!(text(&unknown.stderr).contains("`rlm`"), "{}", text(&unknown.stderr));
}
