//! `espalier data` as a person or program meets it: what is shown, what is wrong, which exit code says so.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use insta::assert_snapshot;
use serde_json::{Value, json};
use tempfile::TempDir;

/// Runs the command in a folder of its own, with a cache there.
fn run(folder: &Path, variables: &[(&str, &str)], arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_espalier"));
    command.args(arguments).current_dir(folder).env("NO_COLOR", "1").env_remove("ESPALIER_LOG");
    command.env("HF_HUB_CACHE", folder.join("hub")).env_remove("HF_ENDPOINT").env_remove("HF_HUB_OFFLINE");
    command.env("HF_HOME", folder).env_remove("HF_TOKEN").envs(variables.iter().copied());
    command.output().expect("the command starts")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn succeeds(folder: &Path, arguments: &[&str]) -> String {
    let output = run(folder, &[], arguments);
    assert!(output.status.success(), "{arguments:?}: {}{}", text(&output.stdout), text(&output.stderr));
    text(&output.stdout)
}

/// What a command says that ends with this code: stdout and stderr.
fn fails(folder: &Path, code: i32, arguments: &[&str]) -> (String, String) {
    let output = run(folder, &[], arguments);
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {}{}", text(&output.stdout), text(&output.stderr));
    (text(&output.stdout), text(&output.stderr))
}

const RAW: &str = r#####"{"question": "How many apples?", "answer": "3 + 4 = 7\n#### 7"}
{"question": "How many pears, of all the pears that there are in the whole of the orchard?", "answer": "#### 1,200"}
"#####;

const ROWS: &str = r#"{"prompt": "one", "env_class": "gsm8k", "reward_spec": {"ground_truth": "1"}}
{"prompt": "two", "env_class": "gsm8k", "reward_spec": {"ground_truth": "two"}}
{"prompt": "three", "env_class": "gsm9k"}
{"prompt": 4}
not json
{"prompt": "six", "uid": "0"}
{"prompt": "seven", "max_turns": "many"}
{"prompt": "eight"}
"#;

fn folder() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("test.jsonl"), RAW).unwrap();
    std::fs::write(folder.path().join("train.jsonl"), RAW).unwrap();
    std::fs::write(folder.path().join("rows.jsonl"), ROWS).unwrap();
    folder
}

#[test]
fn inspect_shows_rows_columns_lengths_and_splits() {
    let folder = folder();
    let shown = succeeds(folder.path(), &["data", "inspect", "test.jsonl", "--format", "auto"]);
    // Which environments there are is not this test's business.
    let shown: String =
        shown.lines().filter(|line| !line.starts_with("fits")).map(|line| format!("{}\n", line.trim_end())).collect();
    assert_snapshot!(shown, @r"
    test.jsonl: 2 rows, format `gsm8k`
    splits       test (this file), train (train.jsonl)
    env_class    `gsm8k` (2 rows)

    prompt                        least       half       90 %       99 %       most
    characters                       16         16         76         76         76

    column                    type       filled  example
    prompt                    text            2  How many apples?
    env_class                 text            2  gsm8k
    data_source               text            2  openai/gsm8k
    reward_spec.method        text            2  numeric
    reward_spec.ground_truth  text            2  7
    extra_info.index          number          2  0
    extra_info.question       text            2  How many apples?
    extra_info.answer         text            2  3 + 4 = 7 #### 7
    ");
    let json: Value = serde_json::from_str(&succeeds(
        folder.path(),
        &["data", "inspect", "test.jsonl", "--format", "gsm8k", "--json"],
    ))
    .unwrap();
    assert_eq!(
        (&json["rows"], &json["format"], &json["env_class"]),
        (&json!(2), &json!("gsm8k"), &json!({"gsm8k": 2}))
    );
    assert!(json["fits"].as_array().unwrap().contains(&json!("gsm8k")), "{json}");
    assert_eq!(json["prompt_characters"]["max"], 76);
}

#[test]
fn inspect_counts_rows_that_are_wrong_and_goes_on() {
    let folder = folder();
    let shown = succeeds(folder.path(), &["data", "inspect", "rows.jsonl"]);
    assert!(
        shown.starts_with("rows.jsonl: 5 rows, format `rows`\nwrong rows   3; `espalier data validate` names them\n"),
        "{shown}"
    );
    let (_, said) = fails(folder.path(), 3, &["data", "inspect", "none.jsonl"]);
    assert_eq!(said, "error: `none.jsonl`: No such file or directory (os error 2)\n");
}

#[test]
fn inspect_shows_the_prompt() {
    let folder = folder();
    let arguments = ["data", "inspect", "test.jsonl", "--format", "gsm8k", "--prompt", "--prompt-template"];
    assert_snapshot!(succeeds(folder.path(), &[&arguments[..], &["instruct"]].concat()), @r"
    # template
    {{ question }}

    Think step by step. Then give the final number alone on the last line, after `####`, like this: #### 7

    # prompt of row 0
    How many apples?

    Think step by step. Then give the final number alone on the last line, after `####`, like this: #### 7
    ");
    let shown = succeeds(folder.path(), &[&arguments[..], &["{{ question | upper }}"]].concat());
    assert!(shown.ends_with("# prompt of row 0\nHOW MANY APPLES?\n"), "{shown}");
    let (_, said) = fails(folder.path(), 2, &[&arguments[..], &["{{ question"]].concat());
    assert!(said.contains("`prompt_template` line 1: syntax error"), "{said}");
}

#[test]
fn validate_names_every_problem_with_its_place() {
    let folder = folder();
    let (shown, said) = fails(folder.path(), 3, &["data", "validate", "rows.jsonl"]);
    assert_snapshot!(shown, @r#"
    `rows.jsonl`, line 2: `gsm8k`: `reward_spec.ground_truth` must be a number, got `two` in row `1`
    `rows.jsonl`, line 3, column `env_class`: no environment `gsm9k`; did you mean `gsm8k`?
    `rows.jsonl`, line 4, column `prompt`: must be a text or a list of messages, got a number
    `rows.jsonl`, line 5: expected one JSON object, got: expected ident (character 2)
    `rows.jsonl`, line 6, column `uid`: `0` is the id of line 1 already; ids must differ
    `rows.jsonl`, line 7: `row 6`: `max_turns` must be a whole number from 1, got `"many"`
    "#);
    assert_snapshot!(said, @r"
    1 row names no environment; `--env ID` checks them with one
    error: `rows.jsonl`: 6 problems in 8 rows
    ");
    let (shown, said) = fails(folder.path(), 3, &["data", "validate", "rows.jsonl", "--problems", "2"]);
    assert_eq!(shown.lines().count(), 2);
    assert!(said.ends_with("2 problems in 3 rows; stopped there, `--problems` says where\n"), "{said}");
    let (shown, _) = fails(folder.path(), 3, &["data", "validate", "rows.jsonl", "--json"]);
    let lines: Vec<Value> = shown.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines[2]["line"], 4);
    assert_eq!(lines[2]["column"], "prompt");
    assert_eq!(
        (&lines[6]["rows"], &lines[6]["problems"], &lines[6]["without_environment"]),
        (&json!(8), &json!(6), &json!(1))
    );
}

#[test]
fn validate_says_what_takes_the_rows() {
    let folder = folder();
    let shown = succeeds(folder.path(), &["data", "validate", "test.jsonl", "--format", "gsm8k"]);
    assert_eq!(shown, "2 rows, nothing wrong; `gsm8k` takes 2 rows\n");
    let shown = succeeds(folder.path(), &["data", "validate", "stories", "--param", "rows=3", "--env", "gsm8k"]);
    assert_eq!(shown, "3 rows, nothing wrong; `gsm8k` takes 3 rows\n");
    let (_, said) = fails(folder.path(), 2, &["data", "validate", "stories", "--env", "gsm9k"]);
    assert!(said.contains("no environment `gsm9k`"), "{said}");
    let (_, said) = fails(folder.path(), 2, &["data", "validate", "stories", "--env", "gsm8k", "--env-param", "x=1"]);
    assert!(said.contains("`x` is no parameter"), "{said}");
}

#[test]
fn a_source_that_is_nothing_is_told_what_there_is() {
    let folder = folder();
    let (_, said) = fails(folder.path(), 3, &["data", "show", "storys"]);
    assert!(
        said.contains("`storys`: no such file, and no generated data set of that name; there is `long_needle`"),
        "{said}"
    );
    let (_, said) = fails(folder.path(), 3, &["data", "show", "test.jsonl"]);
    assert!(said.contains("it looks like gsm8k: say `format = \"gsm8k\"`"), "{said}");
    let (_, said) = fails(folder.path(), 3, &["data", "inspect", "."]);
    assert!(said.contains("is a folder; name a file in it: `rows.jsonl`, `test.jsonl`, `train.jsonl`"), "{said}");
}

/// A tokenizer of words, without a chat template.
const WORDS: &str = r#"{"version": "1.0", "added_tokens": [], "pre_tokenizer": {"type": "Whitespace"},
    "model": {"type": "WordLevel", "vocab": {"[UNK]": 0, "How": 1, "many": 2}, "unk_token": "[UNK]"}}"#;

#[test]
fn prompts_that_are_too_long_are_left_out_and_named() {
    let folder = folder();
    std::fs::create_dir(folder.path().join("words")).unwrap();
    std::fs::write(folder.path().join("words/tokenizer.json"), WORDS).unwrap();
    let arguments = ["test.jsonl", "--format", "gsm8k", "--tokenizer", "words", "--max-prompt-tokens", "10"];
    let output = run(folder.path(), &[], &[&["data", "show"][..], &arguments].concat());
    assert_eq!(text(&output.stdout).lines().count(), 1, "{}", text(&output.stderr));
    assert_eq!(
        text(&output.stderr),
        "1 row was left out: the prompt has more than 10 tokens (`max_prompt_tokens`) (1 of `openai/gsm8k`; ids 1)\n"
    );
    let shown = succeeds(folder.path(), &[&["data", "inspect"][..], &arguments].concat());
    assert!(shown.contains("\n1 row longer than 10 tokens: 1\n"), "{shown}");
    assert!(shown.lines().any(|line| line.split_whitespace().eq(["tokens", "4", "4", "18", "18", "18"])), "{shown}");
    let (_, said) =
        fails(folder.path(), 3, &["data", "inspect", "test.jsonl", "--format", "gsm8k", "--tokenizer", "none"]);
    assert!(said.contains("tokenizer: "), "{said}");
}

#[test]
fn validate_names_the_rows_that_a_limit_on_tokens_leaves_out() {
    let folder = folder();
    std::fs::create_dir(folder.path().join("words")).unwrap();
    std::fs::write(folder.path().join("words/tokenizer.json"), WORDS).unwrap();
    let limited = |most: &'static str| {
        let source = ["data", "validate", "test.jsonl", "--format", "gsm8k", "--tokenizer", "words"];
        [&source[..], &["--max-prompt-tokens", most]].concat()
    };
    assert_eq!(
        succeeds(folder.path(), &limited("10")),
        "`test.jsonl`, line 2: row `1` is left out: its prompt has 18 tokens, the limit is 10\n\
         2 rows, nothing wrong; `gsm8k` takes 1 row; 1 row too long; the longest prompt has 18 tokens\n"
    );
    assert_eq!(
        succeeds(folder.path(), &limited("18")),
        "2 rows, nothing wrong; `gsm8k` takes 2 rows; the longest prompt has 18 tokens\n"
    );
    let shown = succeeds(folder.path(), &[&limited("10")[..], &["--json"]].concat());
    let lines: Vec<Value> = shown.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines[0], json!({"file": "test.jsonl", "id": "1", "tokens": 18, "limit": 10, "line": 2}));
    assert_eq!((&lines[1]["longer"], &lines[1]["longest_prompt_tokens"]), (&json!(1), &json!(18)));
    let (_, said) = fails(folder.path(), 3, &limited("3"));
    assert!(said.ends_with("`test.jsonl`: no row is left: every prompt has more than 3 tokens\n"), "{said}");
    let (_, said) = fails(folder.path(), 2, &["data", "validate", "test.jsonl", "--max-prompt-tokens", "3"]);
    assert!(said.contains("--tokenizer"), "{said}");
}

/// A suite whose data has a limit on tokens says what it leaves out, and goes on.
#[test]
fn a_suite_says_which_rows_were_too_long() {
    let folder = folder();
    std::fs::create_dir(folder.path().join("words")).unwrap();
    std::fs::write(folder.path().join("words/tokenizer.json"), WORDS).unwrap();
    std::fs::write(folder.path().join("script.jsonl"), "\"#### 7\"\n").unwrap();
    let suite = r#"
name = "short"
[[engine]]
name = "script"
kind = "scripted"
options = { script = "script.jsonl", cycle = true }
[[task]]
name = "apples"
env = "gsm8k"
data = { path = "test.jsonl", format = "gsm8k", tokenizer = "words", max_prompt_tokens = 10 }
"#;
    std::fs::write(folder.path().join("suite.toml"), suite).unwrap();
    let output = run(folder.path(), &[], &["eval", "--suite", "suite.toml", "--out", "out"]);
    let said = text(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert!(said.contains("1 row was left out: the prompt has more than 10 tokens"), "{said}");
    let results: Value =
        serde_json::from_str(&std::fs::read_to_string(folder.path().join("out/results.json")).unwrap()).unwrap();
    assert!(results.to_string().contains("apples"));
}

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// A cache with one data set, as the hub's own library leaves it.
fn cached(folder: &Path) {
    let repo = folder.join("hub/datasets--org--set");
    let snapshot = repo.join("snapshots").join(COMMIT);
    for part in ["blobs", "refs"] {
        std::fs::create_dir_all(repo.join(part)).unwrap();
    }
    std::fs::create_dir_all(snapshot.join("main")).unwrap();
    std::fs::write(repo.join("refs/main"), COMMIT).unwrap();
    std::fs::write(repo.join("blobs/aa"), RAW).unwrap();
    std::os::unix::fs::symlink("../../../blobs/aa", snapshot.join("main/test.jsonl")).unwrap();
}

#[test]
fn sets_of_the_cache_are_listed_and_read() {
    let folder = folder();
    cached(folder.path());
    let shown = succeeds(folder.path(), &["data", "list"]);
    let lines: Vec<String> = shown.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    assert!(lines.contains(&"cached set org/set main (0123456): 1 file, 181 B".to_owned()), "{shown}");
    assert!(lines.iter().any(|line| line.starts_with("format gsm8k GSM8K: ")), "{shown}");
    let shown = succeeds(folder.path(), &["data", "validate", "hf://org/set/main/*.jsonl", "--format", "auto"]);
    assert_eq!(shown, "2 rows, nothing wrong; `gsm8k` takes 2 rows\n");
    let (_, said) = fails(folder.path(), 3, &["data", "show", "hf://org/set/other.jsonl"]);
    assert!(said.contains("get it with `espalier data fetch org/set --file other.jsonl`"), "{said}");
    let offline = [("HF_HUB_OFFLINE", "1")];
    let output = run(folder.path(), &offline, &["data", "fetch", "org/set", "--file", "main/*"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let path: PathBuf = text(&output.stdout).trim_end().into();
    assert!(path.ends_with(format!("snapshots/{COMMIT}/main/test.jsonl")), "{}", path.display());
    let output = run(folder.path(), &offline, &["data", "fetch", "org/none"]);
    assert_eq!(output.status.code(), Some(3));
    assert!(text(&output.stderr).contains("`HF_HUB_OFFLINE` forbids to ask for it"), "{}", text(&output.stderr));
}

#[test]
fn a_hub_that_cannot_be_asked_has_its_own_exit_codes() {
    let folder = folder();
    let (_, said) = fails(folder.path(), 2, &["data", "fetch", "org/set/more"]);
    assert!(said.contains("`org/set/more` names no repository: expected `org/name`"), "{said}");
    fails(folder.path(), 2, &["data", "fetch", "org/set@../x"]);
    let output = run(folder.path(), &[("HF_ENDPOINT", "nonsense")], &["data", "fetch", "org/set"]);
    assert_eq!(output.status.code(), Some(2), "{}", text(&output.stderr));
}

#[test]
#[expect(clippy::print_stdout, reason = "a test that skips says so")]
fn the_published_sets_are_valid() {
    let Some(data) = std::env::var_os("ESPALIER_DATA") else {
        println!("skipped: ESPALIER_DATA names no folder with published sets");
        return;
    };
    let folder = folder();
    for (file, env, rows) in [
        ("gsm8k/train.jsonl", "gsm8k", "7,473"),
        ("gsm8k/test.jsonl", "gsm8k", "1,319"),
        ("math/math_test.json", "math", "5,000"),
        ("aime/aime24.jsonl", "aime", "30"),
        ("code/HumanEval.jsonl.gz", "code", "164"),
        ("code/mbpp.jsonl", "code", "974"),
    ] {
        let path = Path::new(&data).join(file);
        let shown = succeeds(folder.path(), &["data", "validate", path.to_str().unwrap(), "--format", "auto"]);
        assert_eq!(shown, format!("{rows} rows, nothing wrong; `{env}` takes {rows} rows\n"), "{file}");
    }
}
