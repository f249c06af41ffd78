//! Side by side with skyrl-gym: what it answered to recorded actions (`tests/parity/`), and what we answer.
//!
//! Under `compat = "skyrl"` every observation, reward and end is the same. By default they differ exactly where the
//! original is wrong; the snapshot lists these differences, `docs/parity.md` explains them.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use espalier_datasets::{Prompt, Row};
use espalier_envs::{Action, EnvContext, EnvRow, NoServices, Prepared, Registry};
use espalier_inference::StopReason;
use serde_json::{Map, Value, json};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// What a turn came to.
#[derive(Clone, Debug, PartialEq)]
struct Turn {
    action: String,
    observations: Value,
    reward: f64,
    done: bool,
    metadata: Option<Value>,
}

struct Recorded {
    row: EnvRow,
    max_turns: u32,
    turns: Vec<Turn>,
}

fn recorded(env: &str) -> Vec<Recorded> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/parity").join(format!("{env}.jsonl"));
    let text = std::fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    text.lines()
        .enumerate()
        .map(|(number, line)| {
            let episode: Value = serde_json::from_str(line).expect("one object per line");
            assert_eq!(episode["env"], json!(env));
            let mut columns: Map<String, Value> = episode["row"].as_object().expect("a row").clone();
            let prompt =
                columns.remove("prompt").and_then(|prompt| Some(prompt.as_str()?.to_owned())).expect("a prompt");
            let own = columns.get("max_turns").or_else(|| columns.get("extra_info")?.get("max_turns"));
            let max_turns = own.and_then(Value::as_u64).unwrap_or(5) as u32;
            let row = Row { id: number.to_string(), prompt: Prompt::Text(prompt), env: None, columns };
            let turns = episode["turns"].as_array().expect("turns").iter().map(|turn| Turn {
                action: turn["action"].as_str().expect("an action").to_owned(),
                observations: turn["observations"].clone(),
                reward: turn["reward"].as_f64().expect("a reward"),
                done: turn["done"].as_bool().expect("an end or none"),
                metadata: turn.get("metadata").cloned(),
            });
            Recorded { row: EnvRow::from_row(row).expect("a row"), max_turns, turns: turns.collect() }
        })
        .collect()
}

async fn play(prepared: &Prepared, episode: &Recorded) -> Vec<Turn> {
    let mut env = prepared.make(&episode.row).expect("an environment");
    let context = EnvContext {
        services: Arc::new(NoServices),
        seed: 0,
        deadline: Instant::now() + Duration::from_mins(10),
        cancel: CancellationToken::new(),
        max_turns: episode.max_turns,
        depth: 0,
    };
    env.init(episode.row.prompt.clone(), context).await.expect("a start");
    let mut turns = Vec::new();
    for turn in &episode.turns {
        let action = Action { text: turn.action.clone(), tokens: Vec::new(), stop: StopReason::EndOfTurn };
        let step = env.step(action).await.expect("a step");
        let metadata = turn.metadata.as_ref().map(|recorded| {
            let keys = recorded.as_object().expect("an object").keys();
            keys.map(|key| (key.clone(), step.metadata.get(key).cloned().unwrap_or(Value::Null))).collect()
        });
        let observations =
            step.observations.iter().map(|message| json!({"role": message.role, "content": message.content}));
        let done = step.terminated || step.truncated;
        turns.push(Turn {
            action: turn.action.clone(),
            observations: observations.collect(),
            reward: step.reward,
            done,
            metadata,
        });
        if done {
            break;
        }
    }
    env.close().await;
    turns
}

fn prepared(env: &str, params: Value) -> Prepared {
    let params = params.as_object().expect("an object").clone();
    Registry::standard().prepare(env, &params).expect("an environment")
}

async fn is_the_same_under_compat(env: &str, at_least: usize) {
    let prepared = prepared(env, json!({"compat": "skyrl"}));
    let mut actions = 0;
    for (number, episode) in recorded(env).iter().enumerate() {
        let ours = play(&prepared, episode).await;
        actions += ours.len();
        for (ours, theirs) in ours.iter().zip(&episode.turns) {
            assert!((ours.reward - theirs.reward).abs() < 1e-12, "{env} {number}: {ours:?}\nrecorded: {theirs:?}");
            assert_eq!(Turn { reward: theirs.reward, ..ours.clone() }, *theirs, "{env} {number}");
        }
        assert_eq!(ours.len(), episode.turns.len(), "{env} {number}");
    }
    assert!(actions >= at_least, "{env}: {actions} recorded actions");
}

#[tokio::test]
async fn gsm8k_is_the_same_under_compat() {
    is_the_same_under_compat("gsm8k", 320).await;
}

#[tokio::test]
async fn gsm8k_multi_turn_is_the_same_under_compat() {
    is_the_same_under_compat("gsm8k_multi_turn", 200).await;
}

#[tokio::test]
async fn aime_is_the_same_under_compat() {
    is_the_same_under_compat("aime", 330).await;
}

#[tokio::test]
async fn lcb_is_the_same_under_compat() {
    is_the_same_under_compat("lcb", 50).await;
}

/// Every kind of difference that the defaults make, with one action that shows it.
async fn differences(env: &str) -> String {
    let prepared = prepared(env, json!({}));
    let mut kinds: BTreeMap<String, (usize, String)> = BTreeMap::new();
    let (mut actions, mut same) = (0, 0);
    for episode in recorded(env) {
        for (ours, theirs) in play(&prepared, &episode).await.iter().zip(&episode.turns) {
            actions += 1;
            if ours.reward == theirs.reward && ours.done == theirs.done {
                same += 1;
                continue;
            }
            let truth = ["reward_spec", "reward_model"].iter().find_map(|key| match *key {
                "reward_spec" => episode.row.reward_spec.get("ground_truth"),
                key => episode.row.columns.get(key)?.get("ground_truth"),
            });
            let truth: String = truth.map(ToString::to_string).unwrap_or_default().chars().take(40).collect();
            let tail: String = ours.action.chars().skip(ours.action.chars().count().saturating_sub(60)).collect();
            let kind = format!("{:.2} -> {:.2}", theirs.reward, ours.reward);
            let entry = kinds.entry(kind).or_insert((0, format!("{tail:?} for {truth}")));
            entry.0 += 1;
            // After an end that the original did not see, the rest of the episode is another one.
            if ours.done != theirs.done {
                break;
            }
        }
    }
    let mut text = format!("{env}: {same} of {actions} actions as recorded\n");
    for (kind, (count, example)) in kinds {
        let _ = writeln!(text, "  {kind}: {count}, such as {example}");
    }
    text
}

#[tokio::test]
async fn by_default_only_the_originals_faults_differ() {
    let mut all = String::new();
    for env in ["gsm8k", "gsm8k_multi_turn", "aime", "lcb"] {
        all += &differences(env).await;
    }
    insta::assert_snapshot!(all);
}
