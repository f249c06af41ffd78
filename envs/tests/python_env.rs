//! Environments written in Python, through the registry and `trait Env`.

mod support;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use espalier_envs::grade::{GradeOptions, grade, said};
use espalier_envs::{
    ChildAnswer, ChildRequest, Env, EnvError, EnvRow, JudgeRequest, NoServices, Prepared, Registry, Services,
    SubCallError, SubQuery,
};
use espalier_inference::{Message, Role};
use serde_json::{Map, Value, json};
use support::{alone, context, says};
use tokio_util::sync::CancellationToken;

/// A file with this source, and its environment's id.
struct File {
    folder: tempfile::TempDir,
    id: String,
}

fn file(source: &str) -> File {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("my_env.py");
    std::fs::write(&path, source).expect("a file");
    File { id: format!("python:{}", path.display()), folder }
}

fn params(params: Value) -> Map<String, Value> {
    match params {
        Value::Object(params) => params,
        other => panic!("{other}"),
    }
}

impl File {
    fn prepare(&self, given: Value) -> Result<Prepared, EnvError> {
        Registry::standard().prepare(&self.id, &params(given))
    }

    /// What is wrong with it, without the folder's name.
    fn refused(&self, given: Value) -> String {
        let error = self.prepare(given).expect_err("it is wrong");
        assert!(matches!(error, EnvError::Invalid { .. }), "{error:?}");
        error.to_string().replace(&self.folder.path().display().to_string(), "")
    }

    fn env(&self, given: Value, row: &EnvRow) -> Box<dyn Env> {
        self.prepare(given).expect("it is right").make(row).expect("the row is right")
    }
}

fn example(name: &str) -> String {
    let path: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/python_env").join(name);
    format!("python:{}", path.display())
}

fn row() -> EnvRow {
    EnvRow::ask("What is 2 + 3?").with_truth("5")
}

/// One turn of an environment that is nothing but these lines of `step`.
async fn stepped(body: &str) -> Result<espalier_envs::Step, EnvError> {
    let source = format!("import math\n\ndef step(action):\n    {}\n", body.replace('\n', "\n    "));
    let mut env = file(&source).env(json!({}), &row());
    env.init(row().prompt, alone(5)).await.expect("it begins");
    env.step(says("my move")).await
}

async fn rewarded(body: &str) -> Result<f64, EnvError> {
    let source = format!("def reward(response, row):\n    {}\n", body.replace('\n', "\n    "));
    let mut env = file(&source).env(json!({}), &row());
    env.init(row().prompt, alone(5)).await.expect("it begins");
    Ok(env.step(says("it is 5")).await?.reward)
}

#[tokio::test]
async fn a_reward_alone_is_an_environment_of_one_turn() {
    let prepared = Registry::standard().prepare(&example("contains.py"), &Map::new()).unwrap();
    for (response, reward) in [("so it is 5.", 1.0), ("no idea", 0.0)] {
        let mut env = prepared.make(&row()).unwrap();
        let shown = env.init(row().prompt, alone(3)).await.unwrap();
        assert_eq!(shown, row().prompt);
        let step = env.step(says(response)).await.unwrap();
        assert_eq!((step.reward, step.terminated, step.truncated), (reward, true, false));
        assert_eq!(env.metrics()["reward"], json!(reward));
        assert_eq!(env.answer().unwrap().text, response);
        env.close().await;
    }
}

#[tokio::test]
async fn a_game_is_played_over_several_turns() {
    let prepared = Registry::standard().prepare(&example("guess.py"), &params(json!({"largest": 8}))).unwrap();
    let begin = EnvRow::ask("Begin.");
    let mut env = prepared.make(&begin).unwrap();
    let shown = env.init(begin.prompt.clone(), alone(10)).await.unwrap();
    assert_eq!(shown[0].role, Role::System);
    assert!(shown[0].content.contains("between 1 and 8"), "{shown:?}");
    assert_eq!(shown[1], begin.prompt[0]);
    let lost = env.step(says("hm")).await.unwrap();
    assert_eq!(lost.observations, [Message::user("Write a number.")]);
    let (mut low, mut high) = (1, 8);
    loop {
        let guess = i32::midpoint(low, high);
        let step = env.step(says(&format!("I say {guess}"))).await.unwrap();
        if step.terminated {
            assert_eq!(step.reward, 1.0);
            break;
        }
        assert_eq!(step.reward, 0.0);
        match step.observations[0].content.as_str() {
            "Higher." => low = guess + 1,
            "Lower." => high = guess - 1,
            other => panic!("{other}"),
        }
    }
    assert_eq!(env.metrics()["solved"], json!(true));
    let guesses = env.metrics()["guesses"].as_u64().unwrap();
    assert!((1..=4).contains(&guesses), "{guesses}");
    assert_eq!(env.metrics()["turns"], json!(guesses + 1));
}

#[tokio::test]
async fn episodes_share_nothing_and_draw_by_their_seed() {
    let source = "import random\nseen = []\ndef init(row):\n    return str(random.random())\ndef step(action):\n    \
                  seen.append(action)\n    return f'{seen} {random.random()}', 0, False\n";
    let prepared = file(source).prepare(json!({})).unwrap();
    let play = |seed: u64| {
        let prepared = prepared.clone();
        async move {
            let mut env = prepared.make(&row()).unwrap();
            let mut context = alone(5);
            context.seed = seed;
            let first = env.init(row().prompt, context).await.unwrap();
            let step = env.step(says(&format!("from {seed}"))).await.unwrap();
            format!("{} {}", first[0].content, step.observations[0].content)
        }
    };
    let many = futures::future::join_all((0..20).map(|index| play(index % 10))).await;
    for index in 0..10 {
        assert_eq!(many[index], many[index + 10], "the same seed, the same episode");
        assert!(many[index].contains(&format!("['from {index}']")), "{}", many[index]);
        assert!(many[..index].iter().all(|other| other.split(' ').next() != many[index].split(' ').next()));
    }
}

#[tokio::test]
async fn the_row_arrives_with_all_its_columns() {
    let source = "import json\ndef init(row):\n    text = row['extra_info'].pop('context_text')\n    \
                  return json.dumps(row, sort_keys=True) + f' {len(text)} {max_turns}'\ndef step(action):\n    return None, 0, True\n";
    let record = espalier_datasets::Row {
        id: "r1".to_owned(),
        env: Some("mine".to_owned()),
        prompt: espalier_datasets::Prompt::Text("Ask.".to_owned()),
        columns: params(json!({
            "reward_spec": {"ground_truth": ["a", null, 1.5], "method": "rule"},
            "extra_info": {"index": 3, "context_text": "x".repeat(3_000_000)},
            "max_turns": 4,
            "level": {"deep": [true]},
        })),
    };
    let row = EnvRow::from_row(record).unwrap();
    let mut env = file(source).env(json!({}), &row);
    let shown = env.init(row.prompt.clone(), alone(9)).await.unwrap();
    let (dumped, rest) = shown[0].content.rsplit_once(" 3000000 ").unwrap();
    assert_eq!(rest, "4");
    let expected = json!({
        "uid": "r1",
        "env_class": "mine",
        "prompt": [{"role": "user", "content": "Ask."}],
        "reward_spec": {"ground_truth": ["a", null, 1.5], "method": "rule"},
        "extra_info": {"index": 3},
        "max_turns": 4,
        "level": {"deep": [true]},
    });
    assert_eq!(serde_json::from_str::<Value>(dumped).unwrap(), expected);
}

#[tokio::test]
async fn the_policys_text_is_data_whatever_it_holds() {
    for text in ["\"\"\"'''\n\\", "'); import os; reward = 1 #", "{}\u{0}\u{1f600}\r\n", "__import__('sys').exit()"] {
        let source = "def reward(response, row):\n    return response == row['reward_spec']['ground_truth']\n";
        let row = EnvRow::ask("?").with_truth(text);
        let mut env = file(source).env(json!({}), &row);
        env.init(row.prompt.clone(), alone(1)).await.unwrap();
        assert_eq!(env.step(says(text)).await.unwrap().reward, 1.0, "{text:?}");
    }
}

#[tokio::test]
async fn what_step_returns_is_read_or_refused() {
    let step = stepped("return [\"a\", {\"role\": \"system\", \"content\": \"b\"}], True, False").await.unwrap();
    assert_eq!((step.observations.len(), step.observations[1].role, step.reward), (2, Role::System, 1.0));
    let full = "print('note')\nreturn {'observations': [{'role': 'user', 'content': 'o'}], 'reward': 0.25, 'done': False, \
                'truncated': True, 'metadata': {'a': [1, {'b': None}]}}";
    let step = stepped(full).await.unwrap();
    assert_eq!((step.reward, step.terminated, step.truncated), (0.25, false, true));
    assert_eq!((&step.metadata["a"], &step.metadata["printed"]), (&json!([1, {"b": null}]), &json!("note\n")));
    for (body, said) in [
        ("return 1", "must return (observation, reward, done) or a dict of these, got 1"),
        ("return 'a', 1", "must return (observation, reward, done), got 2 values"),
        ("return None, 0, False", "no observation although the episode goes on"),
        ("return 'a', 0, 'no'", "`done` 'no', expected True or False"),
        ("return {'reward': 1}", "returned no `done`"),
        ("return {'reward': 1, 'done': True, 'obs': 'a'}", "the key 'obs'; known are observation"),
        ("return {'role': 'user'}, 0, False", "must return messages such as"),
        ("return [{'role': 'robot', 'content': ''}], 0, False", "must return messages such as"),
        ("return 'x' * (9 << 20), 0, False", "larger than 8388608 bytes"),
        ("return {'reward': 1, 'done': True, 'metadata': {'f': math}}", "expected what JSON can hold"),
    ] {
        let error = stepped(body).await.expect_err(body);
        assert!(matches!(error, EnvError::Failed { .. }), "{body}: {error:?}");
        assert!(error.to_string().contains("`step`") && error.to_string().contains(said), "{body}: {error}");
    }
}

#[tokio::test]
async fn a_reward_that_is_none_is_a_failed_grader() {
    for body in ["return True", "return 1", "from fractions import Fraction\nreturn Fraction(2, 2)"] {
        assert_eq!(rewarded(body).await.unwrap(), 1.0, "{body}");
    }
    for (body, said) in [
        ("return float('nan')", "returned nan, expected a finite number"),
        ("return -1e999", "returned -inf"),
        ("return '1.0'", "returned '1.0'"),
        ("return None", "returned None"),
        ("pass", "returned None"),
        ("return 10 ** 400", "expected a finite number"),
        ("return [1]", "returned [1]"),
        ("return row['reward_spec']['missing']", "raised KeyError: 'missing'"),
    ] {
        let error = rewarded(body).await.expect_err(body);
        assert!(matches!(error, EnvError::Grader { .. }), "{body}: {error:?}");
        assert!(error.to_string().contains("`reward` ") && error.to_string().contains(said), "{body}: {error}");
    }
    let error = stepped("return 'a', math.inf, True").await.unwrap_err();
    assert!(matches!(error, EnvError::Grader { .. }), "{error:?}");
    assert!(error.to_string().contains("`step` returned the reward inf"), "{error}");
}

#[tokio::test]
async fn an_exception_shows_the_files_own_lines() {
    let source =
        "\n\ndef halve(text):\n    return int(text) / 2\n\n\ndef step(action):\n    return halve(action), 0, False\n";
    let mut env = file(source).env(json!({}), &row());
    env.init(row().prompt, alone(5)).await.unwrap();
    let error = env.step(says("no number")).await.unwrap_err();
    let EnvError::Failed { reason, .. } = &error else { panic!("{error:?}") };
    assert_eq!(
        reason,
        "`step` raised ValueError: invalid literal for int() with base 10: 'no number'\n  File \"my_env.py\", line 8, in \
         step\n    return halve(action), 0, False\n  File \"my_env.py\", line 4, in halve\n    return int(text) / 2"
    );
    let cause = stepped("try:\n    1 / 0\nexcept Exception as error:\n    raise KeyError('k') from error").await;
    let said = cause.unwrap_err().to_string();
    assert!(said.contains("raised KeyError: 'k'") && said.contains("after raised ZeroDivisionError"), "{said}");
    let deep = stepped("return step(action)").await.unwrap_err().to_string();
    assert!(deep.contains("RecursionError") && deep.len() < 2000, "{deep}");
    let left = stepped("raise SystemExit(3)").await.unwrap_err();
    assert!(matches!(left, EnvError::Failed { .. }) && left.to_string().contains("SystemExit: 3"), "{left}");
}

#[tokio::test]
async fn time_and_memory_end_an_episode_and_nothing_else() {
    let source = "PARAMS = {'what': 'loop'}\ndef step(action):\n    if params['what'] == 'loop':\n        while True:\n            try:\n                \
                  x = 1\n            except BaseException:\n                pass\n    if params['what'] == 'wait':\n        return judge('?'), 0, False\n    \
                  held = []\n    while True:\n        held.append('x' * 100_000)\n";
    let file = file(source);
    for (given, said) in [
        (json!({"timeout_s": 0.1}), "`step`: it ran longer than 100ms (`timeout_s`)"),
        (json!({"what": "memory", "memory_mb": 32}), "`step`: it used more than 32 MiB of memory (`memory_mb`)"),
        (json!({"what": "wait", "wait_s": 0.1}), "`step`: it waited longer than 100ms for models (`wait_s`)"),
    ] {
        let mut env = file.env(given, &row());
        env.init(row().prompt, context(Arc::new(Model { judge: true, stalls: true }), 5)).await.unwrap();
        let error = env.step(says("go")).await.unwrap_err();
        assert!(matches!(error, EnvError::Failed { .. }) && error.to_string().contains(said), "{said}: {error}");
    }
}

#[tokio::test]
async fn what_is_wrong_with_a_file_is_found_before_anything_is_played() {
    for (source, said) in [
        ("x = 1\n", "defines neither `reward(response, row)` nor `step(action)`"),
        ("", "defines neither"),
        ("x = 1\ndef step(action)\n    pass\n", "raised SyntaxError: expected ':'\n  File \"my_env.py\", line 2"),
        ("def step(action): pass\ndef reward(a, b): pass\n", "`reward` and `step` exclude each other"),
        ("def reward(response): pass\n", "`reward` must take (response, row), and takes (response)"),
        ("def step(): pass\n", "`step` must take (action)"),
        ("def step(action): pass\ndef init(): pass\n", "`init` must take (row)"),
        ("def step(action): pass\ndef metrics(x): pass\n", "`metrics` must take ()"),
        ("async def step(action): pass\n", "`step` must be a plain function"),
        ("def step(action):\n    yield 1\n", "`step` must be a plain function"),
        ("step = 3\n", "`step` must be a function, got int"),
        ("import numpy\n", "raised ModuleNotFoundError"),
        ("def f():\n    return 1 / 0\nf()\n", "line 2, in f\n    return 1 / 0"),
        ("params = {}\ndef step(action): pass\n", "declare them as `PARAMS ="),
        ("PARAMS = [1]\ndef step(action): pass\n", "`PARAMS` must be a dict"),
        ("PARAMS = {'timeout_s': 1}\ndef step(action): pass\n", "`PARAMS` holds `timeout_s`"),
        ("PARAMS = {'f': print}\ndef step(action): pass\n", "`PARAMS` holds <built-in function print>"),
        ("COLUMNS = [1]\ndef step(action): pass\n", "`COLUMNS` must hold texts, got 1"),
        ("held = []\nwhile True: held.append('x' * 1_000_000)\n", "it used more than 256 MiB of memory"),
        ("llm_query('?')\ndef step(action): pass\n", "not while the file is loaded"),
    ] {
        let message = file(source).refused(json!({}));
        assert!(message.contains(said), "{source}: {message}");
        assert!(message.starts_with("`python:/my_env.py`: `"), "{message}");
    }
    let registry = Registry::standard();
    let missing = registry.prepare("python:no/such.py", &Map::new()).unwrap_err().to_string();
    assert!(missing.contains("`no/such.py` cannot be read: No such file"), "{missing}");
    assert!(registry.prepare("python:", &Map::new()).unwrap_err().to_string().contains("names no file"));
    let folder = tempfile::tempdir().unwrap();
    let id = format!("python:{}", folder.path().display());
    assert!(registry.prepare(&id, &Map::new()).unwrap_err().to_string().contains("is no file"));
    let bytes = folder.path().join("bytes.py");
    std::fs::write(&bytes, b"x = 1\ny = '\xff'\n").unwrap();
    let error = registry.prepare(&format!("python:{}", bytes.display()), &Map::new()).unwrap_err().to_string();
    assert!(error.contains("is not UTF-8 (line 2)"), "{error}");
}

#[tokio::test]
async fn parameters_are_the_files_own_and_keep_their_types() {
    let source = "PARAMS = {'turns': 3, 'scale': 0.5, 'word': 'a', 'any': None}\ndef init(row):\n    return repr(params)\n\
                  def step(action):\n    return None, 0, True\n";
    let file = file(source);
    let shown = async |given: Value| {
        let mut env = file.env(given, &row());
        env.init(row().prompt, alone(1)).await.unwrap()[0].content.clone()
    };
    assert_eq!(shown(json!({})).await, "{'turns': 3, 'scale': 0.5, 'word': 'a', 'any': None}");
    let given = json!({"scale": 2, "any": [1], "turns": 4, "timeout_s": 3});
    assert_eq!(shown(given).await, "{'turns': 4, 'scale': 2.0, 'word': 'a', 'any': [1]}");
    for (given, said) in [
        (json!({"turn": 1}), "`turn` is no parameter; did you mean `turns`?"),
        (json!({"turns": 1.5}), "`turns` must be like its default `3`, got `1.5`"),
        (json!({"turns": "1"}), "`turns` must be like its default `3`"),
        (json!({"word": 1}), "`word` must be like its default `\"a\"`"),
        (json!({"timeout_s": 0}), "`timeout_s` must be a number above 0"),
        (json!({"memory_mb": "much"}), "`memory_mb` must be a number above 0"),
    ] {
        let message = file.refused(given);
        assert!(message.contains(said), "{message}");
    }
}

#[tokio::test]
async fn its_description_is_what_the_file_says() {
    let spec = Registry::standard().spec(&example("guess.py")).unwrap();
    assert!(spec.summary.starts_with("Guess the hidden number; every answer says"), "{}", spec.summary);
    let names: Vec<_> = spec.params.iter().map(|param| (param.name, param.default)).collect();
    assert_eq!(names[..2], [("largest", "100"), ("guesses", "7")]);
    assert!(names.iter().any(|(name, _)| *name == "timeout_s"));
}

#[tokio::test]
async fn a_row_without_a_declared_column_is_refused() {
    let source = "COLUMNS = ['reward_spec.ground_truth', 'extra_info.level', 'kind']\ndef step(action): pass\n";
    let prepared = file(source).prepare(json!({})).unwrap();
    let mut row = row();
    let missing = |row: &EnvRow| prepared.make(row).map(drop).unwrap_err().to_string();
    assert!(missing(&row).contains("`extra_info.level` is missing in row `0`"), "{}", missing(&row));
    row.extra_info.insert("level".to_owned(), json!(1));
    assert!(missing(&row).contains("`kind` is missing"));
    row.columns.insert("kind".to_owned(), json!("a"));
    prepared.make(&row).map(drop).unwrap();
}

#[tokio::test]
async fn turns_end_where_the_row_says() {
    let source = "def step(action):\n    return 'more', 0.5, False\n";
    let mut row = row();
    row.max_turns = Some(2);
    let mut env = file(source).env(json!({}), &row);
    env.init(row.prompt.clone(), alone(5)).await.unwrap();
    assert!(!env.step(says("1")).await.unwrap().truncated);
    let last = env.step(says("2")).await.unwrap();
    assert!(last.truncated && !last.terminated);
    assert_eq!(env.metrics()["reward"], json!(1.0));
}

/// A model that says what it was asked, and a judge.
struct Model {
    judge: bool,
    stalls: bool,
}

#[async_trait]
impl Services for Model {
    fn has_llm(&self) -> bool {
        true
    }

    fn has_children(&self) -> bool {
        false
    }

    async fn llm_query(&self, queries: Vec<SubQuery>, _: CancellationToken) -> Vec<Result<String, SubCallError>> {
        let answer = |query: SubQuery| match query.prompt.as_str() {
            "fail" => Err(SubCallError::Failed("the machine is gone".to_owned())),
            prompt => Ok(format!("{prompt}!")),
        };
        queries.into_iter().map(answer).collect()
    }

    async fn rlm_query(&self, _: Vec<ChildRequest>, _: CancellationToken) -> Vec<Result<ChildAnswer, SubCallError>> {
        Vec::new()
    }

    fn has_judge(&self) -> bool {
        self.judge
    }

    async fn judge(&self, request: JudgeRequest, _: CancellationToken) -> Result<String, SubCallError> {
        if self.stalls {
            std::future::pending::<()>().await;
        }
        Ok(format!("{} {}", request.messages.len(), request.max_tokens))
    }
}

#[tokio::test]
async fn models_can_be_asked_and_their_failures_raise() {
    let source = "def step(action):\n    if action == 'both':\n        messages = [{'role': 'system', 'content': 's'}, {'role': 'user', 'content': 'u'}]\n        \
                  return f\"{llm_query('a')} {llm_query_batched(['b', 'c'])} {judge(messages, max_tokens=9)}\", 0, False\n    \
                  return llm_query(action), 0, False\n";
    let file = file(source);
    let mut env = file.env(json!({}), &row());
    env.init(row().prompt, context(Arc::new(Model { judge: true, stalls: false }), 5)).await.unwrap();
    let step = env.step(says("both")).await.unwrap();
    assert_eq!(step.observations[0].content, "a! ['b!', 'c!'] 2 9");
    let error = env.step(says("fail")).await.unwrap_err().to_string();
    assert!(error.contains("RuntimeError: the machine is gone") && error.contains("line 5, in step"), "{error}");
    let mut env = file.env(json!({}), &row());
    env.init(row().prompt, context(Arc::new(NoServices), 5)).await.unwrap();
    let error = env.step(says("x")).await.unwrap_err().to_string();
    assert!(error.contains("no model serves `llm_query` for this environment"), "{error}");
    let judged = "def reward(response, row):\n    return float(judge(response))\n";
    let mut env = self::file(judged).env(json!({}), &row());
    env.init(row().prompt, context(Arc::new(NoServices), 5)).await.unwrap();
    let error = env.step(says("x")).await.unwrap_err();
    assert!(matches!(error, EnvError::Grader { .. }), "a judge that is away is no verdict: {error:?}");
}

#[tokio::test]
async fn recorded_responses_are_graded_by_it() {
    let prepared = Registry::standard().prepare(&example("contains.py"), &Map::new()).unwrap();
    let options = GradeOptions {
        services: Arc::new(NoServices),
        seed: 0,
        deadline: std::time::Duration::from_mins(1),
        cancel: CancellationToken::new(),
    };
    let graded = grade(&prepared, &row(), &[said("it is 5")], &options).await.unwrap();
    assert_eq!((graded.reward, graded.ended, graded.turns), (1.0, true, 1));
}

#[tokio::test]
async fn a_reward_that_a_rollout_refuses_is_no_reward_of_a_recorded_response_either() {
    let file = file("def reward(response, row):\n    return 1e300\n");
    let prepared = Registry::standard().prepare(&file.id, &Map::new()).unwrap();
    let options = GradeOptions {
        services: Arc::new(NoServices),
        seed: 0,
        deadline: std::time::Duration::from_mins(1),
        cancel: CancellationToken::new(),
    };
    let error = grade(&prepared, &row(), &[said("x")], &options).await.unwrap_err();
    assert!(matches!(&error, EnvError::Grader { .. }), "{error:?}");
    assert!(error.to_string().contains("a reward of 1e300, expected a finite 32-bit number"), "{error}");
}
