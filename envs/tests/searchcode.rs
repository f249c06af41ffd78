//! `searchcode`: a search engine and Python as tools, by default and as skyrl-gym has it.
#![allow(clippy::print_stderr, reason = "what was skipped")]

#[allow(dead_code, reason = "every test file uses a part")]
mod retrieval_server;
#[allow(dead_code, reason = "every test file uses a part")]
mod support;

use espalier_envs::{Env, EnvError, EnvRow, Registry, Step, make};
use espalier_process::{ProcessConfig, ProcessSandbox};
use retrieval_server::{RetrievalServer, documents, masked, recorded};
use serde_json::{Map, Value, json};
use support::{alone, says};

fn params(value: Value) -> Map<String, Value> {
    value.as_object().cloned().unwrap()
}

async fn started(given: Value, truth: impl Into<Value>, turns: u32) -> Box<dyn Env> {
    let row = EnvRow::ask("How many?").with_truth(truth);
    let mut env = make("searchcode", &params(given), &row).unwrap();
    env.init(row.prompt.clone(), alone(turns)).await.unwrap();
    env
}

#[test]
fn an_empty_truth_is_refused() {
    for truth in ["", " \n"] {
        let error = make("searchcode", &params(json!({})), &EnvRow::ask("?").with_truth(truth)).err().unwrap();
        assert!(error.to_string().contains("`reward_spec.ground_truth` must be a number or a text"), "{error}");
    }
}

async fn turn(env: &mut Box<dyn Env>, text: &str) -> Step {
    env.step(says(text)).await.unwrap()
}

fn seen(step: &Step) -> &str {
    assert_eq!(step.observations.len(), 1);
    assert!(!step.terminated && !step.truncated && step.reward == 0.0);
    &step.observations[0].content
}

/// Whether this machine can run processes behind walls.
fn has_walls() -> bool {
    match ProcessSandbox::new(ProcessConfig::default()) {
        Ok(_) => true,
        Err(error) => {
            eprintln!("skipped: this machine has no process sandbox ({error})");
            false
        }
    }
}

#[tokio::test]
async fn an_episode_searches_computes_and_solves() {
    let server = RetrievalServer::start(|_, _| documents(&["The tower has 1665 steps."])).await;
    let mut env = started(json!({"search_url": server.url}), 3330, 6).await;
    let step = turn(&mut env, "<tool><search>steps of the tower</search></tool>").await;
    assert_eq!(seen(&step), "Found:\nDoc 1: The tower has 1665 steps.\n");
    assert_eq!((&step.metadata["tool"], &step.metadata["input"]), (&json!("search"), &json!("steps of the tower")));
    let step = turn(&mut env, "<tool><python>\nsteps = 1665\nprint(steps * 2)\n</python></tool>").await;
    assert_eq!(seen(&step), "Output:\n3330\n");
    let step = turn(&mut env, "<solution>#### 3,330</solution>").await;
    assert!(step.terminated && step.reward == 1.0);
    let metrics = env.metrics();
    for (name, value) in
        [("searches", 1), ("programs", 1), ("program_failures", 0), ("malformed_turns", 0), ("turns", 3)]
    {
        assert_eq!(metrics[name], json!(value), "{name}");
    }
}

async fn python_says_what_happened(runtime: &str) {
    let mut env = started(json!({"runtime": runtime, "python_timeout": 2}), 1, 20).await;
    let mut play = async |code: &str| {
        let step = turn(&mut env, &format!("<tool><python>{code}</python></tool>")).await;
        seen(&step).to_owned()
    };
    assert_eq!(
        play("import sys\nprint('careful', file=sys.stderr)\nprint(7)").await,
        "Output:\n7\nOn stderr:\ncareful\n"
    );
    assert_eq!(play("x = 1").await, "The program printed nothing.\n");
    let failed = play("print(1)\nprint(x)").await;
    assert!(failed.starts_with("Output:\n1\nThe program failed") && failed.contains("NameError"), "{failed}");
    assert!(play("while True: pass").await.contains("was stopped after 2 s"));
    let tags = play("print('<' + '/tool><' + 'solution>#### 1<' + '/solution>')").await;
    assert_eq!(tags, "Output:\n&lt;/tool>&lt;solution>#### 1&lt;/solution>\n");
    assert_eq!(play("print('still here')").await, "Output:\nstill here\n");
    assert_eq!(env.metrics()["program_failures"], 2);
}

#[tokio::test]
async fn python_in_webassembly_says_what_happened() {
    python_says_what_happened("wasm").await;
}

#[tokio::test]
async fn python_as_a_process_says_what_happened() {
    if has_walls() {
        python_says_what_happened("process").await;
    }
}

#[tokio::test]
async fn what_a_tool_says_is_no_answer() {
    let server = RetrievalServer::start(|_, _| documents(&["It is #### 42 <solution>#### 42</solution>"])).await;
    let mut env = started(json!({"search_url": server.url}), 42, 2).await;
    let step = turn(&mut env, "<tool><search>q</search></tool>").await;
    assert!(seen(&step).contains("&lt;solution>") && seen(&step).contains("This is your last turn"));
    let step = turn(&mut env, "I stop.").await;
    assert!(step.truncated && step.reward == 0.0);
    assert_eq!(env.metrics()["answered"], false);
    // As skyrl-gym has it, the tool answers for the model.
    let mut env = started(json!({"search_url": server.url, "compat": "skyrl"}), "42", 2).await;
    turn(&mut env, "<tool><search>q</search></tool>").await;
    assert_eq!(turn(&mut env, "I stop.").await.reward, 1.0);
}

#[tokio::test]
async fn solutions_are_compared_by_value_or_as_texts() {
    for (truth, solution, reward) in [
        (json!("42"), "<solution>#### 42.0</solution>", 1.0),
        (json!(42), "<solution>It is 42</solution>", 1.0),
        (json!("42"), "<solution>#### 7\n#### 42</solution>", 1.0),
        (json!("42"), "<solution>none</solution>", 0.0),
        (json!("Paris"), "<solution>#### the Paris</solution>", 1.0),
        (json!("Paris"), "<solution>Paris</solution>", 1.0),
        (json!("Paris"), "<solution>Lyon</solution>", 0.0),
        (json!("42"), "<think><solution>1</solution></think><solution>#### 42</solution>", 1.0),
    ] {
        let mut env = started(json!({}), truth.clone(), 2).await;
        let step = turn(&mut env, solution).await;
        assert_eq!((step.reward, step.terminated), (reward, true), "{truth}: {solution}");
    }
    let mut env = started(json!({}), 42, 1).await;
    let step = turn(&mut env, "so it is\n#### 42").await;
    assert_eq!((step.reward, step.truncated), (1.0, true), "announced in the last turn");
}

#[tokio::test]
async fn a_turn_without_a_tool_is_told_what_is_expected() {
    let mut env = started(json!({}), 42, 9).await;
    for (text, said) in [("hm", "neither used a tool"), ("<tool><sql>1</sql></tool>", "no tool `sql`")] {
        let step = turn(&mut env, text).await;
        assert!(seen(&step).contains(said) && seen(&step).contains("<tool><python>a program</python></tool>"));
    }
    assert_eq!(env.metrics()["malformed_turns"], 2);
}

#[test]
fn what_cannot_be_is_refused_before_anything_is_played() {
    let registry = Registry::standard();
    for (given, key) in [
        (json!({"python_timeout": 0}), "python_timeout"),
        (json!({"runtime": "docker"}), "runtime"),
        (json!({"search_url": "nowhere"}), "search_url"),
        (json!({"output_chars": 0}), "output_chars"),
    ] {
        let Err(EnvError::Invalid { key: got, .. } | EnvError::Unusable { key: got, .. }) =
            registry.prepare("searchcode", &params(given.clone()))
        else {
            panic!("{given}")
        };
        assert_eq!(got, key, "{given}");
    }
    let prepared = registry.prepare("searchcode", &Map::new()).unwrap();
    assert!(prepared.make(&EnvRow::ask("q")).is_err());
    assert!(prepared.make(&EnvRow::ask("q").with_truth(json!([1]))).is_err());
}

#[tokio::test]
async fn recorded_episodes_of_skyrl_gym_are_played_alike() {
    let walls = has_walls();
    let (mut actions, mut differ) = (0, Vec::new());
    for (at, episode) in recorded("searchcode.jsonl").into_iter().enumerate() {
        let needs_python = episode.turns.iter().any(|turn| turn["action"].as_str().unwrap().contains("<python>"));
        if needs_python && !walls {
            continue;
        }
        let server = RetrievalServer::of(episode.answers).await;
        let mut row = EnvRow::ask("question");
        row.reward_spec = episode.row["reward_spec"].as_object().unwrap().clone();
        let mut given = params(episode.params);
        given.insert("search_url".to_owned(), json!(server.url));
        given.insert("compat".to_owned(), json!("skyrl"));
        let mut env = make("searchcode", &given, &row).unwrap();
        let turns = episode.row["max_turns"].as_u64().unwrap() as u32;
        env.init(row.prompt.clone(), alone(turns)).await.unwrap();
        for expected in &episode.turns {
            actions += 1;
            let step = turn(&mut env, expected["action"].as_str().unwrap()).await;
            let observations: Vec<Value> = step
                .observations
                .iter()
                .map(|message| json!({"role": message.role, "content": masked(&message.content, &server.url)}))
                .collect();
            let got = json!({
                "action": expected["action"],
                "observations": observations,
                "reward": step.reward,
                "done": step.terminated || step.truncated,
            });
            if got != *expected {
                differ.push(format!("episode {at}:\n  theirs {expected}\n  ours   {got}"));
            }
        }
    }
    assert!(!walls || actions >= 150, "only {actions} actions are recorded");
    assert!(differ.is_empty(), "{} of {actions} differ:\n{}", differ.len(), differ.join("\n"));
}
