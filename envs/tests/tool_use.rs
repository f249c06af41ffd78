//! `tool_use`: calls, files, code, checks, and a long episode.

#[allow(dead_code, reason = "every test file uses a part")]
mod support;

use espalier_envs::tool_use::{FileLimits, Files, calls, files, python};
use espalier_envs::{Action, Env, EnvError, EnvRow, Step, make};
use espalier_inference::{Message, StopReason};
use proptest::prelude::*;
use serde_json::{Value, json};
use support::{alone, says};

fn row(reward_spec: Value) -> EnvRow {
    let mut row = EnvRow::ask("Add up the numbers in `data/`.");
    row.reward_spec = reward_spec.as_object().cloned().unwrap();
    row.extra_info
        .insert("files".to_owned(), json!({"data/a.txt": "1\n2\n3\n", "data/b.txt": "40\n", "notes.md": "# Notes\n"}));
    row
}

fn exact() -> EnvRow {
    row(json!({"ground_truth": "46"}))
}

async fn start(params: Value, row: &EnvRow, turns: u32) -> (Box<dyn Env>, Vec<Message>) {
    let mut env = make("tool_use", params.as_object().unwrap(), row).unwrap();
    let messages = env.init(row.prompt.clone(), alone(turns)).await.unwrap();
    (env, messages)
}

fn call(name: &str, arguments: &Value) -> String {
    format!("<tool_call>\n{}\n</tool_call>", json!({"name": name, "arguments": arguments}))
}

async fn calls_tool(env: &mut dyn Env, name: &str, arguments: Value) -> String {
    let step = env.step(says(&format!("I call it.\n{}", call(name, &arguments)))).await.unwrap();
    seen(&step)
}

fn seen(step: &Step) -> String {
    assert!(!step.terminated && !step.truncated, "{step:?}");
    step.observations[0].content.clone()
}

/// Without code: everything but `run_python`.
fn quiet() -> Value {
    json!({"runtime": "none"})
}

/// Whether programs can be run here; a test that cannot says so.
#[expect(clippy::print_stderr, reason = "a test that skips says so")]
async fn programs() -> bool {
    match python::processes().await {
        Ok(_) => true,
        Err(reason) => {
            eprintln!("skipped: no process sandbox here: {reason:?}");
            false
        }
    }
}

#[tokio::test]
async fn files_are_listed_read_written_edited_and_searched() {
    let (mut env, messages) = start(quiet(), &exact(), 60).await;
    assert_eq!(messages.len(), 2);
    let env = env.as_mut();
    let mut told = Vec::new();
    for (name, arguments) in [
        ("list_files", json!({})),
        ("list_files", json!({"path": "data"})),
        ("list_files", json!({"path": "nowhere"})),
        ("read_file", json!({"path": "./data/a.txt"})),
        ("read_file", json!({"path": "data/a.txt", "start_line": 2, "end_line": 2})),
        ("read_file", json!({"path": "data/a.txt", "start_line": 9})),
        ("read_file", json!({"path": "data/c.txt"})),
        ("read_file", json!({"path": "data"})),
        ("write_file", json!({"path": "out/sum.txt", "content": "sum = 46\nsum = 46\n"})),
        ("edit_file", json!({"path": "out/sum.txt", "old": "sum = 46", "new": "total: 46"})),
        ("edit_file", json!({"path": "out/sum.txt", "old": "sum = 46", "new": "total: 46", "all": true})),
        ("edit_file", json!({"path": "out/sum.txt", "old": "sum", "new": "x"})),
        ("search_files", json!({"pattern": "^\\d+$", "path": "data"})),
        ("search_files", json!({"pattern": "(", "path": "data"})),
        ("search_files", json!({"pattern": "NOTES", "ignore_case": true})),
        ("write_file", json!({"path": "data", "content": "x"})),
        ("write_file", json!({"path": "notes.md/x", "content": "x"})),
    ] {
        let asked = arguments.to_string();
        told.push(format!("{name} {asked}\n{}", calls_tool(env, name, arguments).await));
    }
    insta::assert_snapshot!("file_tools", told.join("\n\n"));
    let step = env.step(says(&call("finish", &json!({"answer": 46})))).await.unwrap();
    assert_eq!((step.terminated, step.reward), (true, 1.0));
    let metrics = env.metrics();
    assert_eq!(
        (&metrics["turns"], &metrics["calls/read_file"], &metrics["tool_errors"]),
        (&json!(18), &json!(5), &json!(9))
    );
    assert_eq!(env.answer().unwrap().text, "46");
}

#[tokio::test]
async fn mistakes_are_answered_with_what_was_expected() {
    let (mut env, _) = start(quiet(), &exact(), 60).await;
    for (response, expected) in [
        (call("reed_file", &json!({"path": "a"})), "there is no tool `reed_file`; did you mean `read_file`?"),
        (call("run_python", &json!({"code": "1"})), "there is no tool `run_python`"),
        (call("read_file", &json!({})), "`read_file` needs `path`: the file"),
        (call("read_file", &json!({"paht": "x"})), "`read_file` has no parameter `paht`; did you mean `path`?"),
        (call("read_file", &json!({"path": 3})), "`read_file`: `path` must be a string, got `3`"),
        (call("read_file", &json!({"path": "x", "start_line": "2"})), "`start_line` must be an integer, got `\"2\"`"),
        (call("read_file", &json!({"path": "../etc/passwd"})), "must not leave the workspace"),
        (call("read_file", &json!({"path": "/etc/passwd"})), "must be relative to the workspace"),
        ("<tool_call>{\"name\": \"list_files\", }</tool_call>".to_owned(), "not valid at line 1, column 24"),
        (
            "<tool_call>\n{\"name\": \"write_file\",\n \"arguments\": {\"path\": \"a\" \"content\": 1}}\n</tool_call>"
                .to_owned(),
            "line 2",
        ),
        ("<tool_call></tool_call>".to_owned(), "JSON of a call is not valid"),
        ("<tool_call>[1]</tool_call>".to_owned(), "a call must be an object"),
        ("<tool_call>{\"arguments\": {}}</tool_call>".to_owned(), "a call must have a `name`"),
        ("I am done: 46".to_owned(), "Your response held no tool call"),
        (
            "<think><tool_call>{\"name\": \"finish\", \"arguments\": {\"answer\": \"1\"}}</tool_call></think>hm"
                .to_owned(),
            "held no tool call",
        ),
    ] {
        let step = env.step(says(&response)).await.unwrap();
        assert!(seen(&step).contains(expected), "{response}: {}", seen(&step));
    }
    let cut = Action { stop: StopReason::MaxTokens, ..says("I will now think about") };
    let step = env.step(cut).await.unwrap();
    assert!(seen(&step).contains("cut off at its length limit"));
    assert_eq!(env.metrics()["turns_without_call"], json!(3));
}

#[test]
fn calls_are_read_however_they_are_written() {
    let read = |text: &str| {
        calls::read(text)
            .into_iter()
            .map(|call| call.map(|call| (call.name, Value::Object(call.arguments))))
            .collect::<Vec<_>>()
    };
    let one = |arguments: Value| vec![Ok(("f".to_owned(), arguments))];
    assert_eq!(read("<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1}}</tool_call>"), one(json!({"a": 1})));
    assert_eq!(
        read("<tool_call>{\"name\": \"f\", \"arguments\": \"{\\\"a\\\": 1}\"}</tool_call>"),
        one(json!({"a": 1}))
    );
    assert_eq!(
        read("<tool_call>{\"type\": \"function\", \"function\": {\"name\": \"f\", \"parameters\": {}}}</tool_call>"),
        one(json!({}))
    );
    assert_eq!(read("<tool_call>\n```json\n{\"name\": \"f\"}\n```\n</tool_call> ok"), one(json!({})));
    assert_eq!(read("<tool_call>{\"name\": \"f\"}"), one(json!({})));
    // A content that holds the tags.
    let text = "</tool_call><tool_call>{}";
    let tricky = call("f", &json!({"content": text}));
    assert_eq!(read(&tricky), one(json!({"content": text})));
    let two = read(&format!("{}{}", call("a", &json!({})), call("b", &json!({}))));
    assert_eq!(two.iter().map(|call| call.as_ref().unwrap().0.as_str()).collect::<Vec<_>>(), ["a", "b"]);
    assert_eq!(read("<tool_call>[{\"name\": \"a\"}, {\"name\": \"b\"}]</tool_call>").len(), 2);
    let after = read("<tool_call>{\"name\": oops}</tool_call><tool_call>{\"name\": \"b\"}</tool_call>");
    assert!(after[0].is_err() && after[1].is_ok(), "{after:?}");
    assert_eq!(read(&call("f", &json!({})).repeat(100)).len(), 33);
    // What ends a thought is text within a call.
    let html = json!({"content": "a</think>b <think>c"});
    for before in [
        "",
        "<think>so</think>",
        "so</think>",
        "<think><tool_call>{}</tool_call></think>",
        "perhaps <tool_call> or </think>",
    ] {
        assert_eq!(read(&format!("{before}{}", call("f", &html))), one(html.clone()), "{before}");
    }
    for thought in [format!("<think>{}</think>", call("f", &html)), format!("{}</think>hm", call("f", &json!({})))] {
        assert!(read(&thought).is_empty(), "{thought}");
    }
}

proptest! {
    #[test]
    fn whatever_a_response_says_it_is_read(text in "(<tool_call>|</tool_call>|\\{|\\}|\"name\"|:|\"f\"|\\[|,|```|\u{e9}|\n| |x){0,40}") {
        for call in calls::read(&text).into_iter().flatten() {
            prop_assert!(!call.name.contains('\n') || !call.name.is_empty());
        }
    }

    #[test]
    fn any_arguments_come_through(arguments in prop::collection::btree_map("[a-z]{1,5}", any::<String>(), 0..4)) {
        let arguments = json!(arguments);
        let read = calls::read(&format!("so\n{}\ndone", call("f", &arguments)));
        prop_assert_eq!(Value::Object(read[0].clone().unwrap().arguments), arguments);
    }

    #[test]
    fn no_name_leads_out_of_the_workspace(path in "(\\.\\.|\\.|/|a|b|\\\\|~|\u{0}|\u{e9}){0,12}") {
        if let Ok(plain) = files::plain(&path) {
            prop_assert!(!plain.starts_with('/') && plain.split('/').all(|part| part != ".." && part != "."));
            prop_assert_eq!(files::plain(&plain), Ok(plain.clone()));
        }
    }

    #[test]
    fn files_keep_their_bounds(writes in prop::collection::vec(("[ab]{1,2}(/[ab]){0,2}", 0_usize..40), 0..30)) {
        let mut files = Files::new(FileLimits { files: 4, file_bytes: 30, bytes: 60 });
        for (path, size) in writes {
            let before = files.clone();
            if files.put(&path, vec![b'x'; size]).is_err() {
                prop_assert_eq!(&files, &before);
            }
            prop_assert!(files.len() <= 4);
            prop_assert!(files.iter().map(|(_, content)| content.len()).sum::<usize>() <= 60);
            let names: Vec<String> = files.iter().map(|(name, _)| name.to_owned()).collect();
            for name in &names {
                let below = format!("{name}/");
                prop_assert!(!names.iter().any(|other| other.starts_with(&below)));
            }
        }
    }
}

#[tokio::test]
async fn several_calls_of_a_turn_are_made_in_order_until_the_end() {
    let (mut env, _) = start(quiet(), &exact(), 10).await;
    let both = format!(
        "{}\n{}",
        call("write_file", &json!({"path": "x", "content": "1"})),
        call("read_file", &json!({"path": "x"}))
    );
    let step = env.step(says(&both)).await.unwrap();
    assert_eq!(seen(&step).matches("<tool_response>").count(), 2);
    assert!(seen(&step).contains("<tool_response>\n1\n</tool_response>"));
    let ends = format!(
        "{}\n{}",
        call("finish", &json!({"answer": "46"})),
        call("write_file", &json!({"path": "y", "content": "1"}))
    );
    let step = env.step(says(&ends)).await.unwrap();
    assert_eq!((step.terminated, step.reward), (true, 1.0));
    assert_eq!(env.metrics()["calls/write_file"], json!(1), "what follows the end is not done");
}

#[tokio::test]
async fn a_policy_of_sixty_turns_comes_to_its_end() {
    let task = row(json!({"method": "files", "files": {"total.txt": "1770\n"}}));
    let (mut env, _) = start(quiet(), &task, 80).await;
    let mut total = 0;
    for turn in 0..60_u64 {
        total += turn;
        let step = env
            .step(says(&format!(
                "Turn {turn}.\n{}\n{}",
                call("write_file", &json!({"path": format!("log/{turn:02}.txt"), "content": turn.to_string()})),
                call("write_file", &json!({"path": "total.txt", "content": total.to_string()}))
            )))
            .await
            .unwrap();
        assert!(seen(&step).contains(&format!("`log/{turn:02}.txt`")));
    }
    let step = env.step(says(&call("finish", &json!({"answer": "done"})))).await.unwrap();
    assert_eq!((step.terminated, step.reward), (true, 1.0), "{:?}", step.metadata);
    let metrics = env.metrics();
    assert_eq!((&metrics["turns"], &metrics["tool_calls"], &metrics["files"]), (&json!(61), &json!(121), &json!(64)));
}

#[tokio::test]
async fn the_turn_limit_ends_an_episode_and_files_still_count() {
    let wanted = row(json!({"method": "files", "files": {"x.txt": "1"}}));
    for (task, reward) in [(wanted, 1.0), (exact(), 0.0)] {
        let (mut env, messages) = start(json!({"runtime": "none", "max_turns": 2}), &task, 60).await;
        assert!(messages[0].content.contains("You have 2 turns."));
        let first = env.step(says(&call("write_file", &json!({"path": "x.txt", "content": "1"})))).await.unwrap();
        assert!(seen(&first).contains("This is your last turn"));
        let last = env.step(says("hm")).await.unwrap();
        assert_eq!((last.terminated, last.truncated, last.reward), (false, true, reward));
        assert_eq!(env.metrics()["finished"], json!(false));
    }
}

#[test]
fn rows_that_cannot_be_played_are_refused() {
    for (spec, expected) in [
        (json!({}), "`reward_spec.ground_truth` is missing"),
        (json!({"method": "exakt"}), "names no method: `exakt`; did you mean `exact`?"),
        (json!({"method": "files"}), "`reward_spec.files` is missing: `files` grades by it"),
        (json!({"method": "files", "files": {"../x": "1"}}), "must not leave the workspace"),
        (json!({"method": "python", "check": ""}), "must be the text of a script"),
    ] {
        let error = make("tool_use", &serde_json::Map::new(), &row(spec)).err().unwrap().to_string();
        assert!(error.contains(expected), "{error}");
    }
    let mut wrong = exact();
    wrong.extra_info.insert("files".to_owned(), json!({"a": 1}));
    let error = make("tool_use", &serde_json::Map::new(), &wrong).err().unwrap().to_string();
    assert!(error.contains("`extra_info.files.a` must be a text, got"), "{error}");
    let error = make("tool_use", json!({"memory_mb": 1}).as_object().unwrap(), &exact()).err().unwrap().to_string();
    assert!(error.contains("`memory_mb` must be from 16"), "{error}");
}

#[tokio::test]
async fn the_prompt_says_what_there_is() {
    let (_, messages) = start(json!({"runtime": "wasm", "max_turns": 50}), &exact(), 60).await;
    insta::assert_snapshot!(
        "tool_use_prompt",
        messages.iter().map(|m| format!("{:?}: {}", m.role, m.content)).collect::<Vec<_>>().join("\n----\n")
    );
    let (_, messages) = start(quiet(), &exact(), 60).await;
    assert!(!messages[0].content.contains("run_python"));
}

#[tokio::test]
async fn code_in_the_interpreter_reads_and_writes_files() {
    let (mut env, _) = start(json!({"runtime": "wasm", "python_timeout_s": 2.0}), &exact(), 60).await;
    let code = "total = sum(int(n) for f in list_files() if f.startswith('data/') for n in read_file(f).split())
write_file('sum.txt', str(total))
print(total)";
    assert!(calls_tool(env.as_mut(), "run_python", json!({"code": code})).await.contains("stdout:\n46"));
    assert!(calls_tool(env.as_mut(), "read_file", json!({"path": "sum.txt"})).await.contains("46"));
    let raised = calls_tool(env.as_mut(), "run_python", json!({"code": "read_file('../x')"})).await;
    assert!(raised.contains("must not leave the workspace"), "{raised}");
    let endless = calls_tool(env.as_mut(), "run_python", json!({"code": "while True: pass"})).await;
    assert!(endless.contains("stopped"), "{endless}");
}

#[tokio::test]
async fn code_behind_walls_works_on_the_workspace() {
    if !programs().await {
        return;
    }
    let (mut env, _) = start(json!({"python_timeout_s": 5.0}), &exact(), 60).await;
    let env = env.as_mut();
    let code = "import pathlib, os
print(sum(int(n) for f in pathlib.Path('data').iterdir() for n in f.read_text().split()))
pathlib.Path('out').mkdir()
pathlib.Path('out/x.txt').write_text('kept')
os.remove('notes.md')
os.symlink('/etc/passwd', 'link')";
    let told = calls_tool(env, "run_python", json!({"code": code})).await;
    assert!(told.contains("stdout:\n46") && told.contains("1 files that are no regular ones"), "{told}");
    let listed = calls_tool(env, "list_files", json!({})).await;
    assert!(
        listed.contains("out/x.txt (4 bytes)") && !listed.contains("notes.md") && !listed.contains("link"),
        "{listed}"
    );
    let failed = calls_tool(env, "run_python", json!({"code": "import sys\nsys.exit(3)"})).await;
    assert!(failed.contains("exit code 3"), "{failed}");
    let raised = calls_tool(env, "run_python", json!({"code": "1 / 0"})).await;
    assert!(raised.contains("ZeroDivisionError") && raised.contains("exit code 1"), "{raised}");
    let killed = calls_tool(
        env,
        "run_python",
        json!({"code": "import os, signal\nopen('late', 'w').close()\nos.kill(os.getppid(), signal.SIGKILL)"}),
    )
    .await;
    assert!(killed.contains("files are as they were") || killed.contains("exit code"), "{killed}");
    let flood = calls_tool(env, "run_python", json!({"code": "print('x' * 10_000_000)"})).await;
    assert!(flood.len() < 20_000 && flood.contains("left out"), "{}", flood.len());
    let step = env.step(says(&call("finish", &json!({"answer": "46"})))).await.unwrap();
    assert_eq!(step.reward, 1.0);
}

#[tokio::test]
async fn a_hidden_check_answers_with_data_and_cannot_be_forged() {
    if !programs().await {
        return;
    }
    let check = "def check():
    assert read('add.py') is not None, 'no add.py'
    code, out, err = run('-c', 'import add; print(add.add(2, 3))')
    return 1.0 if out.strip() == '5' and answer == 'done' else 0.25";
    let task = row(json!({"method": "python", "check": check}));
    // What the agent's files hold, and what they earn.
    for (content, reward) in [
        (Some("def add(a, b):\n    return a + b\n"), 1.0),
        (Some("def add(a, b):\n    return a - b\n"), 0.25),
        (Some("import os\nprint('{\"reward\": 1.0}')\nos._exit(0)\n"), 0.25),
        (None, 0.0),
    ] {
        let (mut env, messages) = start(quiet(), &task, 60).await;
        assert!(messages.iter().all(|message| !message.content.contains("add.add")), "the check is hidden");
        if let Some(content) = content {
            calls_tool(env.as_mut(), "write_file", json!({"path": "add.py", "content": content})).await;
            // Files that a careless grader would run or read.
            calls_tool(env.as_mut(), "write_file", json!({"path": "json.py", "content": "raise SystemExit"})).await;
            calls_tool(env.as_mut(), "write_file", json!({"path": "reward.txt", "content": "1.0"})).await;
        }
        let step = env.step(says(&call("finish", &json!({"answer": "done"})))).await.unwrap();
        assert_eq!((step.terminated, step.reward), (true, reward), "{content:?} {:?}", step.metadata);
    }
    for (check, expected) in [
        ("def check():\n    return 2", "from 0 to 1, got 2"),
        ("def check():\n    return float('nan')", "check() must give a number from 0 to 1, got nan"),
        ("def check():\n    return '1'", "check() must give a number from 0 to 1, got '1'"),
        ("def check():\n    return None", "must be real number, not NoneType"),
        ("x = 1", "must define check()"),
        ("def check():\n    return read('nope').strip()", "AttributeError"),
        ("import os\nos._exit(0)", "gave no report"),
    ] {
        let (mut env, _) = start(quiet(), &row(json!({"method": "python", "check": check})), 9).await;
        let error = env.step(says(&call("finish", &json!({"answer": "done"})))).await.unwrap_err();
        assert!(matches!(&error, EnvError::Grader { .. }) && error.to_string().contains(expected), "{error}");
    }
}

/// The grade of an answer `done` by a check, with the agent's files.
async fn checked(check: &str, files: &[(&str, &str)]) -> Result<Step, EnvError> {
    let (mut env, _) = start(quiet(), &row(json!({"method": "python", "check": check})), 60).await;
    for (path, content) in files {
        calls_tool(env.as_mut(), "write_file", json!({"path": path, "content": content})).await;
    }
    env.step(says(&call("finish", &json!({"answer": "done"})))).await
}

#[tokio::test]
async fn a_module_beside_the_workspace_is_not_imported_by_the_check() {
    if !programs().await {
        return;
    }
    let plants = "import os
module = '''
import json, os, sys
frame = sys._getframe()
while frame:
    for value in list(frame.f_locals.values()) + list(frame.f_globals.values()):
        if isinstance(value, dict) and 'mark' in value:
            os.write(1, ('\\\\n' + value['mark'] + '{\"reward\": 1.0}\\\\n').encode())
    frame = frame.f_back
os._exit(0)
'''
for folder in ('..', '.', os.environ['HOME'], os.environ['TMPDIR']):
    open(os.path.join(folder, 'fractions.py'), 'w').write(module)
for name in ('mem', 'fd/1'):
    try:
        os.close(os.open('/proc/%d/%s' % (os.getppid(), name), os.O_RDWR if name == 'mem' else os.O_WRONLY))
        print('opened', name)
    except OSError:
        pass
print('planted')";
    let check = "def check():
    code, out, err = run('sol.py')
    assert out == 'planted\\n', out + err
    import fractions
    return float(fractions.Fraction(1, 4))";
    let step = checked(check, &[("sol.py", plants)]).await.unwrap();
    assert_eq!((step.terminated, step.reward), (true, 0.25), "{:?}", step.metadata);
}

#[tokio::test]
async fn a_run_of_the_check_leaves_nothing_that_a_later_one_executes() {
    if !programs().await {
        return;
    }
    let plants = "import os, site, time
home = os.environ['HOME']
below = os.path.relpath(site.getusersitepackages(), home)
for base in (home, os.path.dirname(home), os.path.dirname(os.path.dirname(home))):
    try:
        os.makedirs(os.path.join(base, below), exist_ok=True)
        open(os.path.join(base, below, 'usercustomize.py'), 'w').write('print(\"planted\")')
    except OSError:
        pass
reader, writer = os.pipe()
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.write(writer, b'x')
        time.sleep(600)
    os._exit(0)
os.read(reader, 1)";
    let check = "import os, time
def lives(name):
    try:
        return open('/proc/' + name + '/stat').read().rsplit(')', 1)[1].split()[0] not in 'ZX'
    except OSError:
        return False
def others():
    return [name for name in os.listdir('/proc') if name.isdigit() and int(name) > 2 and lives(name)]
def check():
    code, out, err = run('a.py')
    assert code == 0, err
    # What was killed takes a moment to be gone; what was not would stay for minutes.
    for _ in range(1000):
        if not os.path.isdir('/proc') or not others():
            break
        time.sleep(0.01)
    else:
        raise AssertionError('there are others: ' + str(others()))
    code, out, err = run('b.py')
    assert out == 'b\\n', out + err
    return 1";
    let step = checked(check, &[("a.py", plants), ("b.py", "print('b')")]).await.unwrap();
    assert_eq!((step.terminated, step.reward), (true, 1.0), "{:?}", step.metadata);
}

#[tokio::test]
async fn code_that_ends_or_hinders_its_check_earns_nothing_and_is_no_grader_error() {
    if !programs().await {
        return;
    }
    let check = "def check():
    run('sol.py')
    code, out, err = run('-c', 'print(open(\"sol.py\").read())')
    assert code == 0, 'no sol.py'
    assert read('out') is not None, 'no out'
    return float(len(open(folder + '/data.txt').read()) > 0)";
    for (code, noted) in [
        ("import os, signal\nos.kill(os.getppid(), signal.SIGKILL)", "gave no report after it ran"),
        ("import os, signal\nos.kill(os.getppid(), signal.SIGINT)\nimport time\ntime.sleep(5)", "gave no report"),
        ("import os, shutil\nshutil.rmtree(os.getcwd())", "no sol.py"),
        ("import os, shutil\nshutil.rmtree('..', ignore_errors=True)", "no sol.py"),
        ("import os\nos.mkfifo('out')", "no out"),
        ("import os\nos.symlink('sol.py', 'out')", "no out"),
        ("import sys\nfor _ in range(3000): sys.stdout.write('x' * 100000)", "no out"),
        ("open('out', 'w').close()", "FileNotFoundError"),
        (
            "import os, resource\nresource.prlimit(os.getppid(), resource.RLIMIT_NOFILE, (3, 3))",
            "changed the limits of the check",
        ),
    ] {
        let step = checked(check, &[("sol.py", code)]).await.unwrap_or_else(|error| panic!("{code}: {error}"));
        let told = step.metadata["check"].as_str().unwrap_or_default();
        assert_eq!((step.terminated, step.reward), (true, 0.0), "{code}");
        assert!(told.contains(noted), "{code}: {told}");
    }
    let bounded = "def check():
    code, out, err = run('sol.py')
    return float(len(out) == 4 << 20)";
    let step = checked(bounded, &[("sol.py", "print('x' * (6 << 20))")]).await.unwrap();
    assert_eq!(step.reward, 1.0, "{:?}", step.metadata);
    // What the check itself does wrong is still said, before and after the agent's code ran.
    for wrong in ["open('/nowhere')", "run('sol.py'); open('/nowhere')", "run('sol.py'); {}['x']"] {
        let error = checked(&format!("def check():\n    {wrong}"), &[("sol.py", "")]).await.unwrap_err();
        assert!(matches!(&error, EnvError::Grader { .. }), "{wrong}: {error}");
    }
}
