//! `espalier repl --json` as a program meets it.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde_json::{Value, json};

struct Driver {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Driver {
    fn start(arguments: &[&str]) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_espalier"))
            .args(["repl", "--json"])
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the command starts");
        let input = child.stdin.take().expect("piped");
        let output = BufReader::new(child.stdout.take().expect("piped"));
        Self { child, input, output }
    }

    fn send(&mut self, line: &Value) {
        self.send_text(&line.to_string());
    }

    fn send_text(&mut self, line: &str) {
        writeln!(self.input, "{line}").expect("the command reads");
    }

    fn receive(&mut self) -> Value {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("the command writes UTF-8");
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("not JSON ({error}): {line:?}"))
    }

    fn ask(&mut self, line: Value) -> Value {
        self.send(&line);
        self.receive()
    }

    fn run(&mut self, code: &str) -> Value {
        self.ask(json!({"code": code}))
    }

    fn finish(mut self) {
        drop(self.input);
        assert!(self.child.wait().expect("the command ends").success(), "the end of the input is a clean end");
    }
}

#[test]
fn a_block_answers_output_outcome_and_variables() {
    let mut driver = Driver::start(&[]);
    let answer = driver.ask(json!({"code": "x = 20 + 1\nprint(x * 2)", "id": {"any": 1}}));
    assert_eq!(answer["id"], json!({"any": 1}));
    assert_eq!(answer["outcome"], "completed");
    assert_eq!(answer["stdout"], "42\n");
    assert_eq!(answer["stdout_bytes"], 3);
    assert_eq!(answer["final_answer"], Value::Null);
    assert_eq!(answer["variables"], json!({"x": "int"}));
    assert_eq!(answer["calls"], 0);
    driver.finish();
}

#[test]
fn an_error_keeps_assignments_and_names_itself() {
    let mut driver = Driver::start(&[]);
    let answer = driver.run("y = 1\n1 / 0");
    assert_eq!(answer["outcome"], "raised");
    assert_eq!(answer["error"]["type"], "ZeroDivisionError");
    assert!(answer["stderr"].as_str().unwrap().contains("1 / 0"), "{answer}");
    assert_eq!(driver.run("print(y)")["stdout"], "1\n");
    driver.finish();
}

#[test]
fn a_final_answer_comes_as_text_and_as_value() {
    let mut driver = Driver::start(&[]);
    let answer = driver.run("found = [1, 'a']\nFINAL_VAR('found')");
    assert_eq!(answer["final_answer"], "[1, 'a']");
    assert_eq!(answer["final_value"], json!([1, "a"]));
    assert_eq!(answer["final_type"], "list");
    driver.finish();
}

#[test]
fn a_time_limit_of_one_line_holds_for_that_line() {
    let mut driver = Driver::start(&[]);
    let answer = driver.ask(json!({"code": "print('before')\nkept = 1\nwhile True: pass", "timeout_s": 0.1}));
    assert_eq!(answer["outcome"], "timed_out");
    assert_eq!(answer["stdout"], "before\n");
    assert_eq!(driver.run("print(kept)")["stdout"], "1\n");
    driver.finish();
}

#[test]
fn a_fork_goes_its_own_way() {
    let mut driver = Driver::start(&[]);
    driver.run("x = [1]");
    let fork = driver.ask(json!({"op": "fork"}))["repl"].as_str().expect("a name").to_owned();
    assert_eq!(fork, "1");
    driver.ask(json!({"code": "x.append(2)", "repl": fork}));
    assert_eq!(driver.run("print(x)")["stdout"], "[1]\n");
    assert_eq!(driver.ask(json!({"code": "print(x)", "repl": "1"}))["stdout"], "[1, 2]\n");
    driver.finish();
}

#[test]
fn a_snapshot_comes_back_through_text_and_through_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("state");
    let mut driver = Driver::start(&[]);
    driver.run("x = 'kept'");
    let text = driver.ask(json!({"op": "snapshot"}))["snapshot"].as_str().expect("base64").to_owned();
    let written = driver.ask(json!({"op": "snapshot", "file": file}));
    assert!(written["bytes"].as_u64().unwrap() > 0, "{written}");
    for source in [json!({"op": "restore", "snapshot": text}), json!({"op": "restore", "file": file})] {
        let repl = driver.ask(source)["repl"].clone();
        assert_eq!(driver.ask(json!({"code": "print(x)", "repl": repl}))["stdout"], "kept\n");
    }
    driver.finish();
}

#[test]
fn bound_values_and_contexts_are_there() {
    let mut driver = Driver::start(&[]);
    assert_eq!(driver.ask(json!({"op": "bind", "name": "n", "value": {"a": [1, 2]}}))["bound"], "n");
    assert_eq!(driver.ask(json!({"op": "bind", "context": "long text"}))["bound"], "context_0");
    assert_eq!(driver.run("print(n['a'], context)")["stdout"], "[1, 2] long text\n");
    let value = driver.ask(json!({"op": "get", "name": "n"}));
    assert_eq!((&value["value"], &value["type"]), (&json!({"a": [1, 2]}), &json!("dict")));
    driver.finish();
}

#[test]
fn reset_forgets_variables_and_close_forgets_the_repl() {
    let mut driver = Driver::start(&[]);
    driver.run("x = 1");
    assert_eq!(driver.ask(json!({"op": "reset"}))["reset"], true);
    assert_eq!(driver.run("print(x)")["error"]["type"], "NameError");
    driver.ask(json!({"op": "close"}));
    assert_eq!(driver.run("1")["error"]["type"], "request");
    driver.finish();
}

#[test]
fn calls_are_put_to_the_driver_and_answered() {
    let mut driver = Driver::start(&["--host-calls", "--tool", "look_up"]);
    driver.send(&json!({"code": "print(llm_query('hi'), look_up(1, key=[2]))", "id": 7}));
    let call = driver.receive()["call"].clone();
    assert_eq!((&call["function"], &call["args"]), (&json!("llm_query"), &json!(["hi"])));
    driver.send(&json!({"return": "there"}));
    let call = driver.receive()["call"].clone();
    assert_eq!((&call["function"], &call["kwargs"]), (&json!("look_up"), &json!({"key": [2]})));
    driver.send(&json!({"raise": {"type": "KeyError", "message": "nothing there"}}));
    let answer = driver.receive();
    assert_eq!((&answer["id"], &answer["outcome"]), (&json!(7), &json!("raised")));
    assert_eq!(answer["error"]["type"], "KeyError");
    assert_eq!(answer["calls"], 2);
    driver.finish();
}

#[test]
fn without_host_calls_the_names_do_not_exist() {
    let mut driver = Driver::start(&[]);
    assert_eq!(driver.run("llm_query('hi')")["error"]["type"], "NameError");
    driver.finish();
}

#[test]
fn a_bad_line_is_refused_and_the_next_one_served() {
    let mut driver = Driver::start(&[]);
    for bad in ["{", "[1]", "{}", r#"{"code": 1}"#, r#"{"op": "fly"}"#, r#"{"code": "1", "repl": "9"}"#] {
        driver.send_text(bad);
        let answer = driver.receive();
        assert_eq!(answer["error"]["type"], "request", "{bad}: {answer}");
    }
    assert_eq!(driver.run("print(1)")["stdout"], "1\n");
    driver.finish();
}

#[test]
fn a_context_file_is_text_or_json_by_its_name() {
    let folder = tempfile::tempdir().unwrap();
    let (text, object) = (folder.path().join("a.txt"), folder.path().join("b.json"));
    std::fs::write(&text, "{\"not\": \"parsed\"}").unwrap();
    std::fs::write(&object, "{\"a\": [1]}").unwrap();
    let mut driver = Driver::start(&["--context", text.to_str().unwrap(), "--context", object.to_str().unwrap()]);
    assert_eq!(driver.run("print(type(context).__name__, context_1['a'])")["stdout"], "str [1]\n");
    driver.finish();
}

#[test]
fn a_missing_context_file_is_named() {
    let output = Command::new(env!("CARGO_BIN_EXE_espalier"))
        .args(["repl", "--json", "--context", "no/such/file"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(3));
    assert!(String::from_utf8_lossy(&output.stderr).contains("`no/such/file`"));
}

#[test]
fn every_line_gets_one_answer_whatever_it_holds() {
    let mut driver = Driver::start(&[]);
    driver.send_text("");
    assert!(driver.receive()["error"]["message"].as_str().unwrap().contains("line 1: "));
    driver.input.write_all(b"{\"code\": \"\xff\"}\n").unwrap();
    assert!(driver.receive()["error"]["message"].as_str().unwrap().contains("line 2: expected UTF-8"));
    let answer = driver.ask(json!({"op": "zz", "id": 3}));
    assert_eq!(answer["id"], 3);
    assert_eq!(driver.run("print(3)")["stdout"], "3\n");
    driver.finish();
}

#[test]
fn integers_come_in_with_all_their_digits() {
    let mut driver = Driver::start(&[]);
    driver.send_text(r#"{"op": "bind", "name": "big", "value": [123456789012345678901234567890, 1.5]}"#);
    assert_eq!(driver.receive()["bound"], "big");
    assert_eq!(driver.run("print(big)")["stdout"], "[123456789012345678901234567890, 1.5]\n");
    driver.finish();
}

#[test]
fn a_batch_that_is_answered_short_raises() {
    let mut driver = Driver::start(&["--host-calls"]);
    let call = driver.run("llm_query_batched(['a', 'b'])");
    assert_eq!(call["call"]["function"], "llm_query_batched");
    let answer = driver.ask(json!({"return": ["x"]}));
    assert_eq!(answer["outcome"], "raised");
    assert!(answer["error"]["message"].as_str().unwrap().contains("1 of 2 prompts"), "{answer}");
    driver.finish();
}

#[test]
fn code_on_a_pipe_runs_statement_by_statement_to_its_end() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_espalier"))
        .arg("repl")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the command starts");
    let code = "def f():\n  return 5\n\nprint(f())\n# note:\n6 + 1\nfor i in range(2):\n  print(i)";
    child.stdin.take().unwrap().write_all(code.as_bytes()).unwrap();
    let output = child.wait_with_output().expect("the command ends");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "5\n7\n0\n1\n");
}
