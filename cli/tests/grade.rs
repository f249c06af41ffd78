//! `espalier grade`: responses in, verdicts out, and what is said of lines that cannot be graded.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};

fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_espalier"));
    command.arg("grade").args(arguments).env("NO_COLOR", "1").env_remove("ESPALIER_LOG");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn grade(arguments: &[&str], input: &str) -> Output {
    let mut child = command(arguments).spawn().expect("the command starts");
    // A command that refuses its arguments reads nothing.
    let _ = child.stdin.take().expect("a pipe").write_all(input.as_bytes());
    child.wait_with_output().expect("the command ends")
}

fn lines(output: &Output) -> Vec<Value> {
    let text = String::from_utf8_lossy(&output.stdout);
    text.lines().map(|line| serde_json::from_str(line).expect("one object per line")).collect()
}

#[test]
fn each_line_is_graded_in_order_and_keeps_its_id() {
    let input = (0..200)
        .map(|number| {
            json!({"id": number, "response": format!("#### {number}"), "ground_truth": "7"}).to_string() + "\n"
        })
        .collect::<String>();
    let output = grade(&["--env", "gsm8k", "--json"], &input);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let answers = lines(&output);
    assert_eq!(answers.len(), 200);
    for (number, answer) in answers.iter().enumerate() {
        assert_eq!(answer["id"], json!(number));
        assert_eq!(answer["reward"], json!(if number == 7 { 1.0 } else { 0.0 }));
        assert_eq!(answer["error"], Value::Null);
    }
    assert!(String::from_utf8_lossy(&output.stderr).contains("graded 200 of 200 lines, mean reward 0.0050"));
}

#[test]
fn a_line_that_cannot_be_graded_has_an_error_and_no_reward_and_spoils_no_other() {
    let input = concat!(
        "{\"response\": \"#### 7\", \"ground_truth\": \"7\"}\n",
        "\n",
        "nonsense\n",
        "{\"ground_truth\": \"7\"}\n",
        "{\"response\": 5, \"ground_truth\": \"7\"}\n",
        "{\"response\": \"#### 7\"}\n",
        "{\"response\": \"#### 7\", \"ground_truth\": \"7\", \"params\": {\"compatt\": \"skyrl\"}}\n",
        "{\"response\": \"#### 7\", \"ground_truth\": \"7\", \"reward_spec\": {\"ground_truth\": \"8\"}}\n",
        "{\"response\": \"#### 7.\", \"ground_truth\": \"7\", \"params\": {\"compat\": \"skyrl\"}}\n",
        "[1]\n",
        "{\"response\": \"#### 7\"\n",
    );
    let output = grade(&["--env", "gsm8k", "--json"], input);
    assert_eq!(output.status.code(), Some(3));
    let answers = lines(&output);
    let errors: Vec<&str> = answers.iter().map(|answer| answer["error"].as_str().unwrap_or("")).collect();
    let expected = [
        "",
        "line 3: expected one JSON object",
        "line 4: `response` is missing",
        "line 5: `response` must be a text or a list of texts, got a number",
        "line 6: `gsm8k`: `reward_spec.ground_truth` is missing",
        "line 7: `gsm8k`: `compatt` is no parameter; did you mean `compat`?",
        "line 8: `ground_truth` and `reward_spec.ground_truth` are both there",
        "",
        "line 10: expected one JSON object, got: a list",
        "line 11: expected one JSON object, got: EOF while parsing an object (character 21); an object must end on the",
    ];
    assert_eq!(errors.len(), expected.len(), "{errors:?}");
    for (said, expected) in errors.iter().zip(expected) {
        assert!(said.starts_with(expected) && said.is_empty() == expected.is_empty(), "`{said}` for `{expected}`");
    }
    assert_eq!((&answers[0]["reward"], &answers[7]["reward"]), (&json!(1.0), &json!(0.0)));
    assert!(answers[1]["reward"].is_null());
}

#[test]
fn several_texts_are_the_turns_of_one_episode() {
    let input = json!({"response": ["#### 6", "#### 7", "never played"], "ground_truth": "7"}).to_string();
    let output = grade(&["--env", "gsm8k_multi_turn", "--json"], &input);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let answer = lines(&output).remove(0);
    assert!((answer["reward"].as_f64().unwrap() - 1.0).abs() < 0.2, "{answer}");
    assert_eq!((&answer["metadata"]["steps"], &answer["metadata"]["unplayed"]), (&json!(2), &json!(1)), "{answer}");
}

#[test]
fn a_turn_that_was_cut_off_is_read_as_one() {
    let folder = tempfile::tempdir().unwrap();
    let corpus = folder.path().join("corpus.jsonl");
    std::fs::write(&corpus, "{\"text\": \"Paris is the capital of France.\"}\n").unwrap();
    let corpus = format!("corpus={}", corpus.display());
    let line = |more: Value| {
        let mut line = json!({"response": "<answer>Paris", "ground_truth": {"target": "Paris"}});
        line.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let output = grade(&["--env", "search", "--param", &corpus, "--json"], &line.to_string());
        lines(&output).remove(0)
    };
    for (more, reward) in [
        (json!({}), 1.0),
        (json!({"stop": null}), 1.0),
        (json!({"stop": "stop"}), 1.0),
        (json!({"stop": "stop_string"}), 1.0),
        (json!({"stop": "length"}), 0.0),
        (json!({"stop": ["max_tokens"]}), 0.0),
        (json!({"stop": "context_overflow"}), 0.0),
    ] {
        assert_eq!(line(more.clone())["reward"], json!(reward), "{more}");
    }
    for (more, said) in [
        (json!({"stop": "lenght"}), "`stop` must be one of `stop`, `length`"),
        (json!({"stop": 3}), "`stop` must be a text, got a number"),
        (json!({"stop": ["stop", "stop"]}), "`stop` must say how each turn ended: 1 expected, got 2"),
        (json!({"stop": [null]}), "`stop[0]` must be a text, got null"),
    ] {
        let answer = line(more);
        assert!(answer["error"].as_str().unwrap().contains(said), "{answer}");
    }
}

#[test]
fn a_key_that_stands_twice_on_a_line_is_refused() {
    let output = grade(
        &["--env", "gsm8k", "--json"],
        r#####"{"response": "#### 7", "response": "#### 8", "ground_truth": "7"}"#####,
    );
    assert_eq!(output.status.code(), Some(3));
    let answer = lines(&output).remove(0);
    assert!(answer["error"].as_str().unwrap().contains("the key `response` stands there twice"), "{answer}");
}

#[test]
fn a_line_that_is_not_utf8_spoils_no_other_and_a_line_without_an_id_has_none() {
    let mut child = command(&["--env", "gsm8k", "--json"]).spawn().expect("the command starts");
    let good = "{\"response\": \"#### 7\", \"ground_truth\": \"7\"}\n".as_bytes();
    let _ = child.stdin.take().expect("a pipe").write_all(&[good, b"{\"response\": \"\xff\"}\n", good].concat());
    let output = child.wait_with_output().expect("the command ends");
    let answers = lines(&output);
    assert_eq!(output.status.code(), Some(3));
    assert_eq!(
        answers.iter().map(|answer| &answer["reward"]).collect::<Vec<_>>(),
        [&json!(1.0), &Value::Null, &json!(1.0)]
    );
    assert!(answers.iter().all(|answer| answer.get("id") == Some(&Value::Null)), "{answers:?}");
}

#[test]
fn an_episode_that_could_go_on_is_not_at_its_end() {
    let line = |more: Value| {
        let mut line = json!({"response": "#### 6", "ground_truth": "7"});
        line.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        lines(&grade(&["--env", "gsm8k_multi_turn", "--json"], &line.to_string())).remove(0)
    };
    assert_eq!(line(json!({}))["metadata"].get("ended"), None);
    for more in [json!({"max_turns": 3}), json!({"params": {"max_turns": 3}})] {
        assert_eq!(line(more.clone())["metadata"]["ended"], json!(false), "{more}");
    }
}

#[test]
fn an_answer_comes_as_soon_as_its_line_is_there() {
    let mut child = command(&["--env", "gsm8k", "--json"]).spawn().expect("the command starts");
    let mut input = child.stdin.take().expect("a pipe");
    let mut answers = BufReader::new(child.stdout.take().expect("a pipe")).lines();
    for number in 0..3 {
        writeln!(input, "{}", json!({"id": number, "response": "#### 7", "ground_truth": "7"})).unwrap();
        let answer: Value = serde_json::from_str(&answers.next().unwrap().unwrap()).unwrap();
        assert_eq!(answer["id"], json!(number));
    }
    drop(input);
    assert!(child.wait().unwrap().success());
}

#[test]
fn what_is_wrong_with_the_command_line_is_said_before_anything_is_read() {
    for (arguments, code, said) in [
        (vec!["--env", "gsm9k"], 2, "no environment `gsm9k`; did you mean `gsm8k`?"),
        (vec!["--env", "gsm8k", "--param", "compat=other"], 2, "compat"),
        (vec!["--env", "gsm8k", "--timeout", "0"], 2, "seconds above 0"),
        (vec!["--env", "gsm8k", "--timeout", "1e18"], 2, "seconds above 0, at most 1e9, got 1e18"),
        (vec!["--env", "gsm8k", "absent.jsonl"], 3, "absent.jsonl"),
    ] {
        let output = grade(&arguments, "");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {stderr}");
        assert!(stderr.contains(said), "{arguments:?}: {stderr}");
    }
}

#[test]
fn a_byte_order_mark_is_no_part_of_the_first_line() {
    let output =
        grade(&["--env", "gsm8k", "--json"], "\u{feff}{\"response\": \"#### 7\", \"ground_truth\": \"7\"}\r\n");
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(lines(&output)[0]["reward"], json!(1.0));
}

#[test]
fn the_timeout_does_not_wait_for_a_grader_that_computes() {
    let factors: String = (2..120).map(|number| format!("(x+1/{number})")).collect();
    let line = json!({"response": format!(r"\boxed{{{factors}}}"), "ground_truth": "x+1"}).to_string() + "\n";
    let output = grade(&["--env", "math", "--json", "--timeout", "0.001"], &line);
    assert_eq!(output.status.code(), Some(5), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(lines(&output)[0]["error"], json!("`math`: no verdict within 0.001 s"));
}
