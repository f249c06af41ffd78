//! What a command says and which exit code it ends with where something is wrong, as `espalier --help` documents it.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use tempfile::TempDir;

fn command(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_espalier"));
    command.args(arguments).current_dir(folder).env("NO_COLOR", "1").env_remove("ESPALIER_LOG");
    command
}

fn espalier(folder: &Path, arguments: &[&str]) -> Output {
    command(folder, arguments).output().expect("the command starts")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Runs a command that must fail with this code; gives what it said.
fn fails(folder: &Path, code: i32, arguments: &[&str]) -> String {
    let output = espalier(folder, arguments);
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {said}");
    said
}

const SUITE: &str = r#"
name = "suite"

[[engine]]
name = "script"
kind = "scripted"
options = { script = "script.jsonl", cycle = true }

[[task]]
name = "stories"
env = "gsm8k"
data = { builtin = "stories", params = { rows = 2 } }
"#;

fn folder() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("suite.toml"), SUITE).unwrap();
    std::fs::write(folder.path().join("script.jsonl"), "\"#### 1\"\n").unwrap();
    folder
}

/// An endpoint that gives these answers (status and headers, body), one a connection, and then no more.
fn endpoint(answers: &'static [(&'static str, &'static str)]) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for (head, body) in answers {
            let Ok((stream, _)) = listener.accept() else { return };
            let mut reader = BufReader::new(stream);
            let (mut line, mut length) = (String::new(), 0);
            while reader.read_line(&mut line).is_ok_and(|read| read > 0) && !line.trim().is_empty() {
                if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                    length = value.trim().parse().unwrap();
                }
                line.clear();
            }
            let _ = reader.read_exact(&mut vec![0; length]);
            let length = body.len();
            let answer = format!("HTTP/1.1 {head}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}");
            let _ = reader.get_mut().write_all(answer.as_bytes());
        }
    });
    format!("http://{address}/v1#model")
}

#[test]
fn wrong_arguments_and_configuration_end_with_2() {
    let folder = folder();
    for (arguments, said) in [
        (&["eval", "--suite", "suite.toml", "samples=0"][..], "the override `samples=0`: key `samples`"),
        (
            &["eval", "--suite", "suite.toml", "task.0.samples=0"],
            "the override `task.0.samples=0`: key `task[0].samples`",
        ),
        (
            &["eval", "--suite", "suite.toml", "engine.0.kind=scriptd"],
            "the override `engine.0.kind=scriptd`: engine `script`",
        ),
        (&["eval", "--suite", "suite.toml", "engine.0.options.scrip=x"], "did you mean `script`?"),
        (&["eval", "--suite", "suite.toml", "engine.0=3"], "`engine.0` is a table, which no value can replace"),
        (&["eval", "--suite", "suite.toml", "limits.wall_s=nan"], "got `nan`"),
        (&["eval", "--suite", "suite.toml", "task.0.env=gsm8"], "`gsm8k`"),
        (&["eval", "--suite", "suite.toml", "task.0.params.flexble=true"], "did you mean `flexible`?"),
        (&["eval", "--suite", "suite.toml", "task.0.data.params.x=1"], "`params.x`"),
        (&["data", "show", "stories", "--param", "x=1"], "`params.x`"),
        (&["data", "show", "stories", "--format", "gsm8"], "gsm8k"),
        (&["data", "env", "rml"], "no environment `rml`; did you mean `rlm`?"),
        (
            &["rollout", "--model", "x", "--sampling", "temp=1", "hi"],
            "`temp` is no parameter; did you mean `temperature`?",
        ),
        (&["rollout", "--model", "x", "--env", "gsm8k", "hi"], "say it with `--truth TEXT`"),
        (
            &["rollout", "--model", "x", "--env", "gsm8k", "--truth", "one", "hi"],
            "`--truth` must be a number, got `one`",
        ),
        (&["rollout", "--model", "x", "--env", "long", "--truth", "1", "hi"], "`--context FILE`"),
    ] {
        let shown = fails(folder.path(), 2, arguments);
        assert!(shown.contains(said) && !shown.contains("row `0`"), "{said} in {shown}");
    }
    std::fs::write(folder.path().join("suite.toml"), SUITE.replace("name = \"suite\"", "sampels = 2")).unwrap();
    let shown = fails(folder.path(), 2, &["eval", "--suite", "suite.toml"]);
    assert!(shown.contains("`suite.toml`: key `sampels`"), "{shown}");
}

#[test]
fn a_suite_of_which_a_part_failed_ends_with_7_and_resumes() {
    let folder = folder();
    // The second row's engine is gone; the first's answers.
    let script = "{\"when\": \"How many\", \"text\": \"#### 1\"}\n{\"fail\": \"the machine is gone\"}\n";
    std::fs::write(folder.path().join("script.jsonl"), script).unwrap();
    let rows = "{\"prompt\": \"How many? ####\", \"reward_spec\": {\"ground_truth\": 1}}\n\
                {\"prompt\": \"Why? ####\", \"reward_spec\": {\"ground_truth\": 1}}\n";
    std::fs::write(folder.path().join("rows.jsonl"), rows).unwrap();
    let suite = SUITE.replace("{ builtin = \"stories\", params = { rows = 2 } }", "{ path = \"rows.jsonl\" }");
    std::fs::write(folder.path().join("suite.toml"), suite).unwrap();
    let run = ["eval", "--suite", "suite.toml", "--out", "out"];
    let said = fails(folder.path(), 7, &run);
    assert!(said.contains("1 of 2 rollouts failed; `espalier trajectories show out` says why"), "{said}");
    let said = fails(folder.path(), 7, &[&run[..], &["--resume"]].concat());
    assert!(said.contains("1 of 2 rollouts failed"), "{said}");
    let help = text(&espalier(folder.path(), &["--help"]).stdout);
    assert!(help.contains("  7    a suite was played to its end, and some of its rollouts failed"), "{help}");
}

#[test]
fn a_file_of_an_environment_that_cannot_be_used_ends_with_3() {
    let folder = folder();
    std::fs::write(folder.path().join("binary.py"), [0xff]).unwrap();
    for (arguments, said) in [
        (&["rollout", "--model", "x", "--env", "python:none.py", "hi"][..], "`none.py` cannot be read: No such file"),
        (&["grade", "--env", "python:none.py"], "`none.py` cannot be read: No such file"),
        (&["grade", "--env", "python:binary.py"], "`binary.py` is not UTF-8 (line 1)"),
        (&["data", "env", "python:none.py"], "`none.py` cannot be read: No such file"),
        (&["data", "validate", "stories", "--env", "python:none.py"], "`none.py` cannot be read: No such file"),
        (&["eval", "--suite", "suite.toml", "task.0.env=python:none.py"], "`none.py` cannot be read: No such file"),
        (&["grade", "--env", "search", "--param", "corpus=none.jsonl"], "`none.jsonl`: cannot be read"),
        (&["grade", "--env", "text2sql", "--param", "db_path=none"], "`db_path` must be a folder, `none` is none"),
    ] {
        let shown = fails(folder.path(), 3, arguments);
        assert!(shown.contains(said), "{said} in {shown}");
    }
    fails(folder.path(), 2, &["grade", "--env", "python:"]);
}

#[test]
fn files_that_cannot_be_used_end_with_3_and_are_named_once() {
    let folder = folder();
    std::fs::create_dir(folder.path().join("model")).unwrap();
    std::fs::write(folder.path().join("model/tokenizer.json"), "{").unwrap();
    for arguments in [
        &["eval", "--suite", "nothing"][..],
        &["eval", "--suite", "suite.toml", "engine.0.options.script=nothing"],
        &["eval", "compare", "nothing", "nothing"],
        &["data", "show", "nothing"],
        &["data", "show", "nothing.jsonl"],
        &["trajectories", "show", "nothing"],
    ] {
        let shown = fails(folder.path(), 3, arguments);
        // An override is quoted as well.
        let said = shown.replace("script=nothing", "");
        assert_eq!(said.matches("nothing").count(), 1, "{shown}");
    }
    let shown = fails(folder.path(), 3, &["eval", "--suite", "suite.toml", "engine.0.options.tokenizer=model"]);
    assert!(shown.contains("tokenizer.json"), "{shown}");
}

#[cfg(feature = "torch")]
#[test]
fn models_that_cannot_be_used_end_with_3() {
    let folder = folder();
    std::fs::create_dir(folder.path().join("model")).unwrap();
    std::fs::write(folder.path().join("model/tokenizer.json"), "{").unwrap();
    for arguments in [
        &["rollout", "--model", "model", "hi"][..],
        &["rollout", "--model", "nothing", "hi"],
        &["serve", "openai", "--model", "model", "--listen", "127.0.0.1:0"],
        &["model", "convert", "nothing", "out"],
    ] {
        fails(folder.path(), 3, arguments);
    }
    for adapter in ["tuned", "=folder", "tuned="] {
        let shown = fails(folder.path(), 2, &["serve", "openai", "--model", "model", "--adapter", adapter]);
        assert!(shown.contains("expected a name, `=` and a folder"), "{shown}");
    }
}

#[test]
fn an_engine_that_fails_ends_with_4_and_who_waits_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let model = endpoint(&[("503 Busy\r\nRetry-After: 0", "busy"), ("401 Unauthorized", "no")]);
    let output = espalier(folder.path(), &["rollout", "--model", &model, "hi"]);
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(4), "{said}");
    assert!(said.contains("(try 1 of 6)") && said.contains("trying again in 0.0 s"), "{said}");
    assert!(said.contains("the engine failed") && text(&output.stdout).contains("engine_error"), "{said}");
}

#[test]
fn a_question_without_a_truth_is_played_and_any_answer_rewarded() {
    let folder = tempfile::tempdir().unwrap();
    let model = endpoint(&[(
        "200 OK\r\nContent-Type: application/json",
        r#"{"choices": [{"message": {"content": "FINAL(Paris)"}, "finish_reason": "stop", "index": 0}]}"#,
    )]);
    let output = espalier(folder.path(), &["rollout", "--model", &model, "What is the capital of France?"]);
    let shown = text(&output.stdout);
    assert!(output.status.success(), "{shown}{}", text(&output.stderr));
    assert!(shown.contains("completed, reward 1,"), "{shown}");
}

#[test]
fn a_rollout_is_graded_by_the_judge_that_it_names() {
    const JSON: &str = "200 OK\r\nContent-Type: application/json";
    let folder = tempfile::tempdir().unwrap();
    let model = endpoint(&[
        (JSON, r#"{"choices": [{"message": {"content": "Paris"}, "finish_reason": "stop", "index": 0}]}"#),
        (
            JSON,
            r#"{"choices": [{"message": {"content": "{\"reasoning\": \"fine\", \"score\": 1}"}, "finish_reason": "stop", "index": 0}]}"#,
        ),
    ]);
    let judge = model.replace("#model", "#wise");
    let play = |judge: &[&str]| {
        let task = ["rollout", "--model", &model, "--env", "llm_judge", "--truth", "Paris"];
        espalier(folder.path(), &[&task[..], judge, &["What is the capital of France?", "--json"]].concat())
    };
    let output = play(&["--judge", &judge]);
    let shown = text(&output.stdout);
    assert!(output.status.success(), "{shown}{}", text(&output.stderr));
    assert!(shown.contains("\"reward\":1.0") && shown.contains("\"kind\":\"judge\""), "{shown}");
    assert!(shown.contains("\"model\":\"wise\""), "{shown}");
    // Without one it is said what is missing, before the model is asked.
    let output = play(&[]);
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(5), "{said}");
    assert!(said.contains("`--judge`"), "{said}");
}

#[test]
fn output_that_cannot_be_written_or_is_there_ends_with_6() {
    let folder = folder();
    std::fs::write(folder.path().join("file"), "").unwrap();
    fails(folder.path(), 6, &["eval", "--suite", "suite.toml", "--out", "file/out"]);
    let run = ["eval", "--suite", "suite.toml", "--out", "out"];
    assert!(espalier(folder.path(), &run).status.success());
    assert!(fails(folder.path(), 6, &run).contains("`out`"));
    let other = [&run[..], &["--resume", "seed=9"]].concat();
    assert!(fails(folder.path(), 6, &other).contains("`seed` differs"));
}

#[test]
fn stdout_that_cannot_be_written_is_an_error_and_no_panic() {
    let folder = folder();
    let full = || File::options().write(true).open("/dev/full").unwrap();
    for arguments in [
        &["data", "list"][..],
        &["data", "env", "rlm"],
        &["eval", "--suite", "suite.toml", "--out", "out"],
        &["--help"],
    ] {
        let output = command(folder.path(), arguments).stdout(full()).output().unwrap();
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(6), "{arguments:?}: {said}");
        assert!(said.ends_with("error: stdout cannot be written: No space left on device (os error 28)\n"), "{said}");
    }
    assert!(folder.path().join("out/results.json").exists(), "the run itself is kept");
    let output = command(folder.path(), &["trajectories", "show", "out"]).stdout(full()).output().unwrap();
    assert_eq!(output.status.code(), Some(6));
    // Nobody hears what is wrong, but the code says it.
    let status = command(folder.path(), &["data", "env", "nothing"]).stderr(full()).status().unwrap();
    assert_eq!(status.code(), Some(2));
}

#[test]
fn a_reader_that_goes_away_ends_the_command_silently() {
    let folder = tempfile::tempdir().unwrap();
    let mut child = command(folder.path(), &["data", "show", "stories", "--param", "rows=100000"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut first = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut first).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), text(&output.stderr)), (Some(141), String::new()));
}

#[test]
fn files_may_have_names_that_are_not_utf_8_and_other_arguments_are_named() {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt as _;

    let folder = tempfile::tempdir().unwrap();
    let name = OsStr::from_bytes(b"n\xff.jsonl");
    std::fs::write(folder.path().join(name), "{\"prompt\": \"hi\"}\n").unwrap();
    let output = command(folder.path(), &["data", "show"]).arg(name).output().unwrap();
    assert!(output.status.success() && text(&output.stdout).contains("\"hi\""), "{}", text(&output.stderr));
    let output =
        command(folder.path(), &["rollout", "--model", "x"]).arg(OsStr::from_bytes(b"h\xff")).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("the argument `h\u{fffd}` is not UTF-8"), "{}", text(&output.stderr));
}

#[test]
fn a_mask_through_another_vocabulary_is_said_to_mean_nothing() {
    let folder = folder();
    std::fs::create_dir_all(folder.path().join("models/other")).unwrap();
    // Sampled with one token per byte; this vocabulary has two words.
    let tokenizer = r#"{"version": "1.0", "added_tokens": [], "model": {"type": "WordLevel", "vocab": {"a": 0, "b": 1}, "unk_token": "a"}}"#;
    std::fs::write(folder.path().join("models/other/tokenizer.json"), tokenizer).unwrap();
    assert!(espalier(folder.path(), &["eval", "--suite", "suite.toml", "--out", "out"]).status.success());
    let output = command(folder.path(), &["trajectories", "show", "out", "--mask", "other"])
        .env("ESPALIER_MODELS", folder.path().join("models"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("is not the vocabulary"), "{}", text(&output.stderr));
}
