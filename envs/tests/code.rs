//! `lcb` and `code`: what passes, what does not, and what tries to pass without being right.
#![allow(clippy::print_stderr, reason = "what was skipped")]

#[allow(dead_code, reason = "every test file uses a part")]
mod support;

use std::path::PathBuf;
use std::process::Command;

use espalier_envs::code::{answer, decimal, equality};
use espalier_envs::{EnvError, EnvRow, Step, make};
use espalier_process::{ProcessConfig, ProcessError, ProcessSandbox};
use futures::future::join_all;
use futures::stream::{self, StreamExt};
use proptest::prelude::*;
use serde_json::{Value, json};
use support::{alone, says};

/// Whether this host has the walls; says so where it has not.
fn can_run() -> bool {
    match ProcessSandbox::new(ProcessConfig::default()) {
        Ok(_) => true,
        Err(error @ ProcessError::Wall { .. }) => {
            eprintln!("skipped: {error}");
            false
        }
        Err(error) => panic!("{error}"),
    }
}

async fn play(env: &str, params: &Value, row: &EnvRow, response: &str) -> Step {
    let mut env = make(env, &params.as_object().cloned().unwrap(), row).unwrap();
    env.init(row.prompt.clone(), alone(1)).await.unwrap();
    let step = env.step(says(response)).await.unwrap();
    assert!(step.terminated && step.observations.is_empty());
    step
}

fn block(code: &str) -> String {
    format!("Here it is.\n```python\n{code}\n```\n")
}

fn programs(tests: &[(&str, &str)]) -> EnvRow {
    let tests: Vec<Value> = tests
        .iter()
        .map(|(input, output)| json!({"input": input, "output": output, "testtype": "stdin", "metadata": {}}))
        .collect();
    EnvRow::ask("Solve it.").with_truth(Value::Array(tests).to_string())
}

fn function(name: &str, tests: &[(&str, &str)]) -> EnvRow {
    let metadata = json!({"func_name": name});
    let tests: Vec<Value> = tests
        .iter()
        .map(
            |(input, output)| json!({"input": input, "output": output, "testtype": "functional", "metadata": metadata}),
        )
        .collect();
    EnvRow::ask("Solve it.").with_truth(Value::Array(tests).to_string())
}

async fn lcb(row: &EnvRow, code: &str) -> (f64, Value) {
    let step = play("lcb", &json!({"test_seconds": 2.0}), row, &block(code)).await;
    (step.reward, step.metadata.get("results").cloned().unwrap_or(Value::Null))
}

#[tokio::test]
async fn programs_are_compared_by_lines_and_numbers() {
    if !can_run() {
        return;
    }
    let row = programs(&[("3 4\n", "7\n"), ("1 2\n", "3.0")]);
    let adds = "a, b = map(int, input().split())\nprint(a + b)";
    assert_eq!(lcb(&row, adds).await, (1.0, json!([true, true])));
    let guarded = "def main():\n    import sys\n    print(sum(map(int, sys.stdin.read().split())), '')\n\
                   if __name__ == '__main__':\n    main()";
    assert_eq!(lcb(&row, guarded).await.0, 1.0);
    assert_eq!(lcb(&row, "print(sum(map(int, open(0).read().split())))\nexit()").await.0, 1.0);
    assert_eq!(lcb(&row, "print(7)").await, (0.0, json!([true, -2])));
    assert_eq!(lcb(&row, "print(7); raise ValueError").await, (0.0, json!([-4])));
    assert_eq!(lcb(&row, "def f(:").await, (0.0, json!([-4])));
    assert_eq!(lcb(&row, "while True: pass").await, (0.0, json!([-3])));
    let step = play("lcb", &json!({}), &row, "I do not know.").await;
    assert_eq!((step.reward, &step.metadata["parsed_code"]), (0.0, &Value::Null));
}

#[tokio::test]
async fn functions_are_compared_by_value() {
    if !can_run() {
        return;
    }
    let row = function("pair", &[("3\n4", "[3, 4]"), ("\"a\"\nnull", "[\"a\", null]")]);
    assert_eq!(lcb(&row, "def pair(a, b):\n    return (a, b)").await.0, 1.0);
    let class = "class Solution:\n    def pair(self, a: Optional[int], b) -> List:\n        return [a, b]";
    assert_eq!(lcb(&row, class).await.0, 1.0);
    assert_eq!(lcb(&row, "def pair(a, b):\n    print('noise')\n    return [b, a]").await, (0.0, json!([-2])));
    assert_eq!(lcb(&row, "def other(a, b):\n    return [a, b]").await, (0.0, json!([-4])));
    let row = function("nest", &[("1", "[[1, 2]]")]);
    assert_eq!(lcb(&row, "def nest(a):\n    return [(1, 2)]").await.0, 1.0);
    let compat = json!({"compat": "skyrl"});
    assert_eq!(play("lcb", &compat, &row, &block("def nest(a):\n    return [(1, 2)]")).await.reward, 0.0);
    assert_eq!(play("lcb", &compat, &row, &block("def nest(a):\n    return ([1, 2.0],)")).await.reward, 1.0);
}

#[tokio::test]
async fn integers_of_any_size_are_compared_exactly_wherever_they_stand() {
    if !can_run() {
        return;
    }
    let huge = "9".repeat(6000);
    let expected = format!("[[{huge}, -{huge}, 7], {{\"a\": {huge}}}, \"{huge}\", 1.5, \"integer 0\"]");
    let row = function("f", &[(&huge, &expected)]);
    let returns = |more: &str| {
        format!("def f(n):\n    x = n{more}\n    return [(x, -x, 7), {{'a': x}}, '9' * 6000, 1.5, 'integer 0']")
    };
    assert_eq!(lcb(&row, &returns("")).await, (1.0, json!([true])));
    assert_eq!(lcb(&row, &returns(" + 1")).await, (0.0, json!([-2])));
    assert_eq!(lcb(&row, &returns(" * -1")).await, (0.0, json!([-2])));
    let alone = function("f", &[(&huge, &format!("-{huge}"))]);
    assert_eq!(lcb(&alone, "def f(n):\n    return -n").await.0, 1.0);
}

#[tokio::test]
async fn a_part_of_the_tests_counts_where_it_is_asked_for() {
    if !can_run() {
        return;
    }
    let row = programs(&[("1", "1"), ("2", "no"), ("3", "3"), ("4", "4")]);
    let code = "n = int(input())\nwhile n == 3: pass\nprint(n)";
    let params = json!({"partial": true, "test_seconds": 1.0});
    let step = play("lcb", &params, &row, &block(code)).await;
    assert_eq!((step.reward, &step.metadata["results"]), (0.5, &json!([true, -2, -3, true])));
    assert_eq!(step.metadata["failed_test"], json!(1));
}

#[tokio::test]
async fn tests_do_not_see_each_other() {
    if !can_run() {
        return;
    }
    let row = function("count", &[("1", "1"), ("1", "1")]);
    let code = "seen = []\ndef count(x):\n    seen.append(x)\n    open('/tmp/work/mark', 'a').write('x')\n    return len(seen)";
    assert_eq!(lcb(&row, code).await.0, 1.0);
}

/// What forges a verdict of `lcb`, if anything does.
#[tokio::test]
async fn no_trick_passes_a_test_of_values() {
    if !can_run() {
        return;
    }
    let row = function("f", &[("1", "[41, 42]"), ("2", "[43, 44]")]);
    let tricks = [
        "class Same:\n    def __eq__(self, other): return True\n    def __repr__(self): return '[41, 42]'\ndef f(x): return Same()",
        "class Same(list):\n    def __eq__(self, other): return True\ndef f(x): return Same([0])",
        "import builtins\nbuiltins.all = lambda *a: True\nlist.__class__\ndef f(x): return True",
        "import os\ndef f(x):\n    os.write(1, b'{\"tag\": \"V\", \"text\": \"[41, 42]\"}\\n')\n    os._exit(0)",
        "import sys\ndef f(x):\n    print('[41, 42]')\n    sys.exit(0)",
        "import os, signal\ndef f(x): os.kill(os.getppid(), signal.SIGKILL)",
        "import os, signal\ndef f(x): os.kill(os.getppid(), signal.SIGSTOP)",
        "import atexit, os\natexit.register(lambda: os._exit(0))\ndef f(x): raise SystemExit(0)",
        "import os\nfor fd in range(256):\n    try: os.write(fd, b'{\"tag\": \"V\", \"text\": \"[41, 42]\", \"shown\": \"\", \"status\": 0, \"cut\": false}\\n')\n    except OSError: pass\ndef f(x): return 0",
        "import gc\ndef f(x):\n    for o in gc.get_objects():\n        if isinstance(o, (list, tuple)) and list(o)[:1] == [41]: return list(o)\n    return 0",
        "import os\ndef f(x):\n    found = [open(os.path.join(d, n), errors='replace').read() for d, _, ns in os.walk('/tmp') for n in ns]\n    return found",
        "def f(x):\n    import sys\n    frame = sys._getframe()\n    while frame:\n        for v in list(frame.f_locals.values()):\n            if isinstance(v, dict) and 'output' in v: return v['output']\n        frame = frame.f_back\n    return 0",
    ];
    let results = join_all(tricks.iter().map(|code| lcb(&row, code))).await;
    for (code, (reward, results)) in tricks.iter().zip(results) {
        assert_eq!(reward, 0.0, "{code}\n{results}");
    }
}

fn human_eval() -> EnvRow {
    let mut row = EnvRow::ask("from typing import List\n\ndef add(a: int, b: int) -> int:\n    \"\"\"Adds.\"\"\"\n");
    row.columns.insert("entry_point".to_owned(), json!("add"));
    let test = "def check(candidate):\n    assert candidate(2, 3) == 5\n    assert candidate(20, 30) == 50\n";
    row.columns.insert("test".to_owned(), json!(test));
    row
}

#[tokio::test]
async fn human_eval_takes_a_completion_or_a_program() {
    if !can_run() {
        return;
    }
    let row = human_eval();
    for response in ["    return a + b\n", &block("    return a + b"), &block("def add(a, b):\n    return a + b")] {
        let step = play("code", &json!({}), &row, response).await;
        assert_eq!(
            (step.reward, &step.metadata["verdict"]),
            (1.0, &json!("passed")),
            "{response}: {:?}",
            step.metadata
        );
    }
    let step = play("code", &json!({}), &row, &block("def add(a, b):\n    return 5")).await;
    assert_eq!(step.reward, 0.0);
    assert_eq!(step.metadata["reason"], json!("check: not true: check(add) "));
    let step = play("code", &json!({"seconds": 1.0}), &row, &block("def add(a, b):\n    while True: pass")).await;
    assert_eq!((step.reward, &step.metadata["verdict"]), (0.0, &json!("timed_out")));
    let step = play("code", &json!({}), &row, &block("def add(a, b)\n    return 1")).await;
    assert_eq!(step.metadata["verdict"], json!("no_candidate"));
}

#[tokio::test]
async fn what_crosses_between_candidate_and_tests_is_what_python_would_pass() {
    if !can_run() {
        return;
    }
    let mut row = EnvRow::ask("Write it.");
    row.columns.insert("test_setup_code".to_owned(), json!("root = Node(1)\nroot.left = Node(2)"));
    let tests = [
        "items = [3, 1, 2]\nassert order(items) is None and items == [1, 2, 3]",
        "assert apply(lambda x: x + 1, 4) == 5",
        "assert apply(max, [4, 7]) == 7",
        "assert list(numbers(3)) == [0, 1, 2]",
        "assert depth(root) == 2",
        "try:\n    fail()\n    assert False\nexcept ValueError as error:\n    assert str(error) == 'no'",
        "assert kinds() == ({1, 2}, frozenset({3}), (1, [2.5]), b'x', {'a': None}, 1 + 2j, 10 ** 40)",
        "assert counted('aab') == {'a': 2, 'b': 1}",
    ];
    row.columns.insert("test_list".to_owned(), json!(tests));
    let code = "import collections\nclass Node:\n    def __init__(self, value):\n        self.value = value\n        self.left = None\n\
                def depth(node):\n    return 0 if node is None else 1 + depth(node.left)\n\
                def order(items):\n    items.sort()\n\
                def apply(function, value):\n    return function(value)\n\
                def numbers(count):\n    yield from range(count)\n\
                def fail():\n    raise ValueError('no')\n\
                def kinds():\n    return {1, 2}, frozenset({3}), (1, [2.5]), b'x', {'a': None}, 1 + 2j, 10 ** 40\n\
                def counted(text):\n    return collections.Counter(text)";
    let step = play("code", &json!({}), &row, &block(code)).await;
    assert_eq!(step.reward, 1.0, "{:?}", step.metadata);
}

#[tokio::test]
async fn no_trick_passes_a_test_that_is_code() {
    if !can_run() {
        return;
    }
    let row = human_eval();
    let tricks = [
        "import sys\nsys.exit(0)",
        "import os\nos._exit(0)",
        "def add(a, b):\n    import os\n    os._exit(0)",
        "def add(a, b):\n    raise SystemExit(0)",
        "class Same:\n    def __eq__(self, other): return True\n    def __ne__(self, other): return False\n    def __bool__(self): return True\ndef add(a, b): return Same()",
        "class Same(int):\n    def __eq__(self, other): return True\n    __hash__ = int.__hash__\ndef add(a, b): return Same(0)",
        "import builtins\nbuiltins.AssertionError = type('Quiet', (Exception,), {})\nbuiltins.exec = lambda *a: None\ndef add(a, b): return 0",
        "import builtins\nbuiltins.print('{\"word\": \"w\", \"verdict\": \"passed\", \"text\": \"\"}')\ndef add(a, b): return 0",
        "import os\ndef add(a, b):\n    for fd in range(64):\n        try: os.write(fd, b'{\"word\": \"\", \"verdict\": \"passed\", \"text\": \"\"}\\n')\n        except OSError: pass\n    return 0",
        "import os\ndef add(a, b):\n    for name in ('reward', 'result.json', 'candidate.py', '/tmp/reward.txt'):\n        open(name, 'w').write('1.0')\n    return 0",
        "import atexit, os\natexit.register(os._exit, 0)\ndef add(a, b): return 0",
        "def check(candidate): pass\nadd = lambda a, b: 0",
        "import sys\nclass Stub:\n    def __getattr__(self, name): return lambda *a, **k: None\nsys.modules['json'] = sys.modules['os'] = Stub()\ndef add(a, b): return 0",
        "import os, signal\ndef add(a, b):\n    os.kill(os.getppid(), signal.SIGTERM)\n    return 0",
        "import sys\ndef add(a, b):\n    frame = sys._getframe()\n    while frame.f_back: frame = frame.f_back\n    peer = next((v for v in frame.f_globals.values() if hasattr(v, 'names')), None)\n    return frame.f_globals.get('word', 0)",
        "import gc\ndef add(a, b):\n    for o in gc.get_objects():\n        if type(o).__name__ == 'Peer':\n            o.send(['called', 0, []])\n            o.send(['value', 0])\n    return 0",
        "import gc\nfor o in gc.get_objects():\n    if type(o).__name__ == 'Peer':\n        o.send(['ready', ['add', 'check', 'candidate', 'len', '__builtins__']])\ndef add(a, b): return 0",
        "def add(a, b): return float('nan')",
        "def add(a, b): return True",
        "from candidate import *\nimport builtins\nbuiltins.AssertionError = Exception\ndef add(a, b): return 0",
        "import os\nfor name in ('random', 'copy', 'string'):\n    open(name + '.py', 'w').write('import os; os._exit(0)')\ndef add(a, b): return 0",
    ];
    let plays = tricks.iter().map(|code| async {
        let response = block(code);
        play("code", &json!({"seconds": 3.0}), &row, &response).await
    });
    for (code, step) in tricks.iter().zip(join_all(plays).await) {
        assert_eq!(step.reward, 0.0, "{code}\n{:?}", step.metadata);
    }
}

#[tokio::test]
async fn what_the_tests_use_is_not_the_candidates() {
    if !can_run() {
        return;
    }
    let mut row = EnvRow::ask("Write near.");
    let tests = ["assert set(near(1)) == {1, 2}", "assert math.isclose(near(1)[0], 1.0)"];
    row.columns.insert("test_list".to_owned(), json!(tests));
    let right = "import math\ndef near(x):\n    return [x, math.ceil(x + 0.5)]";
    let step = play("code", &json!({}), &row, &block(right)).await;
    assert_eq!(step.reward, 1.0, "{:?}", step.metadata);
    for trick in [
        "def near(x): return [0]\ndef set(x): return {1, 2}\nclass math:\n    def isclose(a, b): return True",
        "from operator import not_ as set\ndef near(x): return []",
        "from operator import not_ as set, add as near",
        "class Module:\n    isclose = lambda *a: True\nmath = Module()\ndef near(x): return [2, 1]",
    ] {
        let step = play("code", &json!({}), &row, &block(trick)).await;
        assert_eq!(step.reward, 0.0, "{trick}: {:?}", step.metadata);
    }
    // A helper of the prompt is the prompt's, whatever the response makes of it.
    let mut row =
        EnvRow::ask("def encode(x):\n    return x[::-1] + 'x'\n\ndef decode(x):\n    \"\"\"Undoes encode.\"\"\"\n");
    row.columns.insert("entry_point".to_owned(), json!("decode"));
    let test = "def check(candidate):\n    assert candidate(encode('abc')) == 'abc'";
    row.columns.insert("test".to_owned(), json!(test));
    let fake = "def encode(x): return x\ndef decode(x): return x";
    assert_eq!(play("code", &json!({}), &row, &block(fake)).await.reward, 0.0);
    assert_eq!(play("code", &json!({}), &row, &block("    return x[:-1][::-1]")).await.reward, 1.0);
}

#[tokio::test]
async fn tests_that_cannot_be_run_are_no_wrong_answer() {
    if !can_run() {
        return;
    }
    let mut row = EnvRow::ask("Write f.");
    row.columns.insert("test_list".to_owned(), json!(["assert f( == 1"]));
    let mut env = make("code", &serde_json::Map::new(), &row).unwrap();
    env.init(row.prompt.clone(), alone(1)).await.unwrap();
    let error = env.step(says(&block("def f(): return 1"))).await.unwrap_err();
    assert!(matches!(error, EnvError::Grader { .. }), "{error}");
}

#[tokio::test]
async fn the_wasm_runtime_grades_too() {
    let row = human_eval();
    let params = json!({"runtime": "wasm"});
    for (code, reward) in [
        ("def add(a, b):\n    return a + b", 1.0),
        ("def add(a, b):\n    return 5", 0.0),
        ("def add(a, b):\n    raise SystemExit(0)", 0.0),
        ("print('passed')\ndef add(a, b):\n    return 0", 0.0),
        // The instance is the grader's own: what a REPL keeps from models is there.
        ("def add(a, b):\n    return eval('a + b')", 1.0),
        (
            "exec(compile('def sum_of(a, b): return a + b', 'x', 'exec'), globals())\ndef add(a, b):\n    return sum_of(a, b)",
            1.0,
        ),
        ("def add(a, b):\n    return eval('a - b')", 0.0),
        // Names of the tests are looked up in builtins that the candidate never had.
        ("import builtins\nbuiltins.exec = builtins.compile = lambda *a: None\ndef add(a, b):\n    return 0", 0.0),
        ("__builtins__['exec'] = lambda *a: None\ndef add(a, b):\n    return 0", 0.0),
        ("def add(a, b):\n    return 0\nadd.__globals__['check'] = lambda f: None", 0.0),
    ] {
        let step = play("code", &params, &row, &block(code)).await;
        assert_eq!(step.reward, reward, "{code}: {:?}", step.metadata);
    }
}

#[tokio::test]
async fn a_row_without_tests_is_refused() {
    let error = |env: &str, row: &EnvRow| make(env, &serde_json::Map::new(), row).err().unwrap().to_string();
    let row = EnvRow::ask("?");
    assert!(error("code", &row).contains("`test` is missing in row `0`"), "{}", error("code", &row));
    assert!(error("lcb", &row).contains("`reward_spec.ground_truth` is missing"));
    assert!(error("lcb", &row.clone().with_truth("[]")).contains("has no test"));
    assert!(error("lcb", &row.clone().with_truth("{")).contains("must be a JSON list"));
    let bad = json!([{"input": "1", "output": 3, "testtype": "stdin"}]);
    assert!(
        error("lcb", &row.clone().with_truth(bad)).contains("ground_truth[0].output` must be a text, got a number")
    );
    let mut bad = row;
    bad.columns.insert("test_list".to_owned(), json!([1]));
    assert!(error("code", &bad).contains("`test_list[0]` must be a text, got a number"));
}

fn data(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("ESPALIER_DATA").map(|folder| PathBuf::from(folder).join("code").join(name));
    let found = path.filter(|path| path.exists());
    if found.is_none() {
        eprintln!("skipped: ESPALIER_DATA names no folder with code/{name}");
    }
    found
}

fn lines(text: &str) -> Vec<serde_json::Map<String, Value>> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Plays rows with their reference solutions; the ids of those that fail, and why.
async fn failures(rows: Vec<(EnvRow, String)>, runtime: &str) -> Vec<String> {
    let params = json!({"seconds": 60.0, "runtime": runtime});
    let plays = rows.into_iter().map(|(row, response)| {
        let params = params.clone();
        async move {
            let step = play("code", &params, &row, &response).await;
            (step.reward < 1.0).then(|| format!("{}: {:?}", row.id, step.metadata.get("reason")))
        }
    });
    stream::iter(plays).buffer_unordered(16).filter_map(|failure| async { failure }).collect().await
}

/// HumanEval's problems with their reference solutions.
fn human_evals() -> Option<Vec<(EnvRow, String)>> {
    let unpacked = Command::new("gzip").arg("-dc").arg(data("HumanEval.jsonl.gz")?).output().unwrap();
    let rows = lines(&String::from_utf8(unpacked.stdout).unwrap());
    assert_eq!(rows.len(), 164);
    let rows = rows.into_iter().map(|mut columns| {
        let mut text = |name: &str| columns.remove(name).unwrap().as_str().unwrap().to_owned();
        let (id, prompt, solution) = (text("task_id"), text("prompt"), text("canonical_solution"));
        let mut row = EnvRow::ask(prompt);
        (row.id, row.columns) = (id, columns);
        (row, block(&solution))
    });
    Some(rows.collect())
}

#[tokio::test]
async fn every_reference_solution_of_human_eval_passes() {
    let Some(rows) = human_evals() else { return };
    if can_run() {
        assert_eq!(failures(rows, "process").await, Vec::<String>::new());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_reference_solution_of_human_eval_passes_in_web_assembly() {
    let Some(rows) = human_evals() else { return };
    assert_eq!(failures(rows, "wasm").await, Vec::<String>::new());
}

// All of them take more than a minute of a machine with two cores.
#[tokio::test]
async fn every_third_reference_program_of_mbpp_passes() {
    let Some(path) = data("mbpp.jsonl") else { return };
    if !can_run() {
        return;
    }
    let rows = lines(&std::fs::read_to_string(path).unwrap());
    assert_eq!(rows.len(), 974);
    let rows = rows.into_iter().step_by(3).map(|mut columns| {
        let text = columns.remove("text").unwrap();
        let code = columns.remove("code").unwrap();
        let mut row = EnvRow::ask(text.as_str().unwrap());
        row.id = columns["task_id"].to_string();
        row.columns = columns;
        (row, block(&code.as_str().unwrap().replace("\r\n", "\n")))
    });
    assert_eq!(failures(rows.collect(), "process").await, Vec::<String>::new());
}

#[tokio::test]
async fn many_graders_with_a_hog_among_them_all_end() {
    if !can_run() {
        return;
    }
    let row = human_eval();
    let hog = "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass\n    bytearray(1 << 20)";
    let plays = (0..512).map(|number| {
        let row = row.clone();
        tokio::spawn(async move {
            let code = if number == 100 { hog } else { "def add(a, b):\n    return a + b" };
            // A grader's time runs from its start, not from its place in the queue.
            play("code", &json!({"seconds": 5.0, "site_packages": false}), &row, &block(code)).await
        })
    });
    for (number, play) in join_all(plays).await.into_iter().enumerate() {
        let step = play.unwrap();
        assert_eq!(step.reward, if number == 100 { 0.0 } else { 1.0 }, "{number}: {:?}", step.metadata);
    }
}

#[tokio::test]
async fn what_ends_after_the_main_program_counts() {
    if !can_run() {
        return;
    }
    let row = programs(&[("3\n", "3"), ("4\n", "4")]);
    for code in [
        "import threading, time\ndef main():\n    time.sleep(0.2)\n    print(input())\nthreading.Thread(target=main).start()",
        "import atexit\nout = []\natexit.register(lambda: print(*out))\nout.append(input())",
        "import sys\nprint(input())\nsys.stdout.close()",
        "import os\nif not os.path.exists('mark'): print(input())\nopen('mark', 'w').close()",
    ] {
        assert_eq!(lcb(&row, code).await, (1.0, json!([true, true])), "{code}");
    }
    let long = format!("1{}", "0".repeat(5000));
    let row = function("power", &[("5000", long.as_str())]);
    assert_eq!(lcb(&row, "def power(x):\n    return 10 ** x").await.0, 1.0);
}

#[tokio::test]
async fn an_exception_that_ends_loops_does_not_end_those_of_the_tests() {
    if !can_run() {
        return;
    }
    let mut row = EnvRow::ask("Write f.");
    row.columns.insert("test_list".to_owned(), json!(["for found in map(f, [1, 2]):\n    assert found == 3"]));
    for (code, reward) in [("raise StopIteration", 0.0), ("raise StopAsyncIteration", 0.0), ("return 3", 1.0)] {
        let step = play("code", &json!({}), &row, &block(&format!("def f(x):\n    {code}"))).await;
        assert_eq!(step.reward, reward, "{code}: {:?}", step.metadata);
    }
}

#[tokio::test]
async fn tests_behind_the_guard_of_a_main_program_run() {
    if !can_run() {
        return;
    }
    let guarded = "if __name__ == '__main__':\n    assert f(1) == 2";
    let unit = "import unittest\nclass Case(unittest.TestCase):\n    def test_f(self):\n        self.assertEqual(f(1), 2)\n\
                if __name__ == '__main__':\n    unittest.main()";
    let shared = "class Node:\n    value = 2\n    def get(self): return self.value\nassert f(Node()) == 2";
    for (test, right) in [(guarded, "return 2"), (unit, "return 2"), (shared, "return x.get()")] {
        let mut row = EnvRow::ask("Write f.");
        row.columns.insert("test".to_owned(), json!(test));
        for (body, reward) in [(right, 1.0), ("return 3", 0.0)] {
            let step = play("code", &json!({}), &row, &block(&format!("def f(x): {body}"))).await;
            assert_eq!(step.reward, reward, "{test}\n{body}: {:?}", step.metadata);
        }
    }
}

#[tokio::test]
async fn half_a_surrogate_pair_is_a_wrong_answer() {
    if !can_run() {
        return;
    }
    let mut row = EnvRow::ask("Write f.");
    row.columns.insert("test_list".to_owned(), json!(["assert f() == 1, f()"]));
    let step = play("code", &json!({}), &row, &block("def f(): return '\\ud800'")).await;
    assert_eq!((step.reward, &step.metadata["verdict"]), (0.0, &json!("failed")));
}

#[test]
fn tests_that_test_nothing_are_refused() {
    let error = |env: &str, row: &EnvRow| make(env, &serde_json::Map::new(), row).err().unwrap().to_string();
    let with = |name: &str, value: Value| {
        let mut row = EnvRow::ask("Write f.");
        row.columns.insert(name.to_owned(), value);
        row
    };
    let uncalled = error("code", &with("test", json!("def check(candidate):\n    assert candidate(1) == 2")));
    assert!(uncalled.contains("`entry_point` is missing"), "{uncalled}");
    let mut empty = with("test_list", json!(["", "# none"]));
    empty.columns.insert("test_setup_code".to_owned(), json!("import math"));
    let empty = error("code", &empty);
    assert!(empty.contains("`test_list` is empty"), "{empty}");
    for answer in ["5", "'five'", "[1, 2]\n# that is it", "True", "pass"] {
        let stated = error("code", &EnvRow::ask("How many?").with_truth(answer));
        assert!(stated.contains("`test` only states a value in row"), "{stated}");
    }
    for test in ["assert f() == 5", "f()", "5\nassert f() == 5"] {
        assert!(make("code", &serde_json::Map::new(), &EnvRow::ask("?").with_truth(test)).is_ok(), "{test}");
    }
}

#[test]
fn tests_of_an_unknown_type_or_of_two_are_refused() {
    let row = |types: [&str; 2]| {
        let metadata = json!({"func_name": "f"});
        let test = |kind: &str| json!({"input": "1", "output": "1", "testtype": kind, "metadata": metadata});
        EnvRow::ask("?").with_truth(json!(types.map(test)))
    };
    for (types, place) in [
        (["call", "call"], "[0].testtype"),
        (["stdin", "functional"], "[1].testtype"),
        (["functional", "x"], "[1].testtype"),
    ] {
        let error = make("lcb", &serde_json::Map::new(), &row(types)).err().unwrap().to_string();
        assert!(error.contains(place), "{error}");
        let compat = json!({"compat": "skyrl"});
        assert!(make("lcb", compat.as_object().unwrap(), &row(types)).is_ok(), "{types:?}");
    }
}

proptest! {
    /// A number is equal to itself however it is written, and to no other.
    #[test]
    fn a_decimal_has_one_value(number in -1_000_000_i64..1_000_000, zeros in 0_usize..30, shift in 0_usize..6) {
        let power = 10_i64.pow(shift as u32);
        let sign = if number < 0 { "-" } else { "" };
        let (whole, part) = (number.abs() / power, number.abs() % power);
        let written = if shift == 0 {
            format!("{sign}{}{whole}.{}", "0".repeat(zeros), "0".repeat(zeros))
        } else {
            format!("{sign}{whole}.{part:0shift$}{}", "0".repeat(zeros))
        };
        let scientific = format!("{number}e-{shift}");
        prop_assert!(decimal::same_numbers(&written, &scientific), "{} {}", written, scientific);
        let other = format!("{}e-{shift}", number + 1);
        prop_assert!(!decimal::same_numbers(&written, &other), "{} {}", written, other);
    }

    #[test]
    fn any_text_is_read_to_an_end(text in "[`~ a\n]{0,60}", line in "[-+0-9.eE_inaf ]{0,20}") {
        if let Some(block) = answer::last_block(&text) {
            prop_assert!(text.contains(block.lines().next().unwrap_or_default()));
        }
        let _ = answer::last_block_original(&text);
        prop_assert_eq!(decimal::same_output(&line, &line), true);
        let _ = decimal::parse(&line);
    }

    /// Integers as floats are equal to the integers that they are.
    #[test]
    fn a_float_is_equal_to_its_integer(number in -(1_i64 << 53)..(1_i64 << 53), other in any::<i64>()) {
        let read = |text: &str| equality::from_json_text(text).unwrap();
        let float = read(&format!("[{number}.0]"));
        let (same, another) = (read(&format!("[{number}]")), read(&format!("[{other}]")));
        prop_assert!(equality::equal(&float, &same, false));
        prop_assert_eq!(equality::equal(&float, &another, false), other == number);
    }
}
