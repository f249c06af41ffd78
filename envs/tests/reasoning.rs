//! `reasoning/*`, played for one turn, and its data sets.

#[allow(dead_code, reason = "every test file uses a part")]
mod support;

use espalier_datasets::{Builtins, Prompt, Source};
use espalier_envs::builtin::Builtin;
use espalier_envs::reasoning::{MIXED, id};
use espalier_envs::{EnvError, EnvRow, make};
use espalier_procedural::reasoning::Family;
use serde_json::{Map, Value, json};
use support::{alone, says};

fn params(value: Value) -> Map<String, Value> {
    value.as_object().cloned().unwrap()
}

fn rows(name: &str, given: Value) -> Vec<EnvRow> {
    let rows = Builtin.open(name, &params(given)).unwrap();
    rows.map(|row| EnvRow::from_row(row.unwrap()).unwrap()).collect()
}

fn text(answer: &Value) -> String {
    answer.as_str().map_or_else(|| answer.to_string(), str::to_owned)
}

async fn reward(env: &str, given: Value, row: &EnvRow, response: &str) -> f64 {
    let mut env = make(env, &params(given), row).unwrap();
    env.init(row.prompt.clone(), alone(1)).await.unwrap();
    let step = env.step(says(response)).await.unwrap();
    assert!(step.terminated && step.observations.is_empty());
    step.reward
}

#[tokio::test]
async fn every_family_is_played_under_its_id_and_under_mixed() {
    for family in Family::ALL {
        let name = id(family);
        assert_eq!(name, format!("reasoning/{}", family.name()));
        for row in rows(name, json!({"rows": 10, "levels": [1, 2, 3, 4, 5], "seed": 4})) {
            let truth = text(&row.reward_spec["ground_truth"]);
            for env in [name, MIXED] {
                assert_eq!(
                    reward(env, json!({}), &row, &format!("Hm.\nAnswer: {truth}<|im_end|>")).await,
                    1.0,
                    "{truth}"
                );
                assert_eq!(reward(env, json!({}), &row, "Answer: no idea").await, 0.0);
                assert_eq!(reward(env, json!({}), &row, "").await, 0.0);
            }
        }
    }
}

#[tokio::test]
async fn the_prompt_says_once_how_to_answer() {
    for (prompt, count) in [("How many?", 1), ("How many? Write Answer: N", 0)] {
        let mut row = rows("reasoning/maze", json!({"rows": 1})).remove(0);
        row.prompt[0].content = prompt.to_owned();
        let mut env = make("reasoning/maze", &Map::new(), &row).unwrap();
        let messages = env.init(row.prompt.clone(), alone(1)).await.unwrap();
        assert_eq!(messages.len(), 1);
        assert_eq!(messages[0].content.matches("Give the answer alone").count(), count, "{prompt}");
    }
}

#[tokio::test]
async fn partial_credit_is_asked_for() {
    let mut row = rows("reasoning/spell_backward", json!({"rows": 1})).remove(0);
    row.reward_spec.insert("facts".to_owned(), json!({"word": "abcd"}));
    assert_eq!(reward("reasoning/spell_backward", json!({}), &row, "dcbx").await, 0.0);
    assert_eq!(reward("reasoning/spell_backward", json!({"partial": true}), &row, "dcbx").await, 0.75);
    assert_eq!(reward("reasoning/spell_backward", json!({"partial": true}), &row, "dcba").await, 1.0);
}

#[tokio::test]
async fn an_episode_reports_what_was_answered() {
    let row = rows("reasoning/chain_sum", json!({"rows": 1})).remove(0);
    let truth = text(&row.reward_spec["ground_truth"]);
    let mut env = make("reasoning/chain_sum", &Map::new(), &row).unwrap();
    env.init(row.prompt.clone(), alone(1)).await.unwrap();
    env.step(says(&format!("Answer: {truth}"))).await.unwrap();
    let metrics = env.metrics();
    assert_eq!(metrics["correct"], json!(true));
    assert_eq!(metrics["final_answer"], json!(truth));
    assert_eq!(env.answer().unwrap().text, truth);
}

#[test]
fn a_row_that_cannot_be_graded_is_refused() {
    let row = rows("reasoning/maze", json!({"rows": 1})).remove(0);
    let error = |env: &str, row: &EnvRow| -> String {
        let error: EnvError = make(env, &Map::new(), row).err().unwrap();
        error.to_string()
    };
    assert_eq!(
        error("reasoning/chain_sum", &row),
        "`reasoning/chain_sum`: `reward_spec.family` is `maze` in row `reasoning_maze-0-1-0`, which `reasoning/maze` \
         and `reasoning/mixed` play"
    );
    let mut other = row.clone();
    other.reward_spec.insert("family".to_owned(), json!("mazes"));
    assert_eq!(
        error(MIXED, &other),
        "`reasoning/mixed`: `reward_spec.family` must name a family, got `mazes` in row `reasoning_maze-0-1-0`; did \
         you mean `maze`?"
    );
    let mut other = row;
    other.reward_spec.insert("facts".to_owned(), json!({"grid": ["S#G"], "ask": "steps"}));
    assert_eq!(
        error(MIXED, &other),
        "`reasoning/mixed`: `reward_spec.facts` of row `reasoning_maze-0-1-0`: the facts are none of `maze`: `grid` \
         must have a way from S to G"
    );
}

#[test]
fn the_mixed_set_takes_families_and_levels_in_turn() {
    let seen: Vec<(String, u64)> = rows(MIXED, json!({"rows": 26, "levels": [1, 3]}))
        .iter()
        .map(|row| (text(&row.reward_spec["family"]), row.extra_info["level"].as_u64().unwrap()))
        .collect();
    assert_eq!(seen[0], ("chain_sum".to_owned(), 1));
    assert_eq!(seen[12], ("chain_sum".to_owned(), 3));
    assert_eq!(seen[24], ("chain_sum".to_owned(), 1));
    assert_eq!(seen[23], ("calendar_arithmetic".to_owned(), 3));
    let two = rows(MIXED, json!({"rows": 4, "families": ["maze", "countdown"]}));
    let families: Vec<String> = two.iter().map(|row| text(&row.reward_spec["family"])).collect();
    assert_eq!(families, ["maze", "countdown", "maze", "countdown"]);
}

#[test]
fn rows_are_seeded_and_survive_a_file() {
    let open = |seed: u64| -> Vec<_> {
        let source = Source::builtin(MIXED, params(json!({"rows": 24, "seed": seed, "level": 2})));
        source.rows(&Builtin).unwrap().map(Result::unwrap).collect()
    };
    assert_eq!(open(1), open(1));
    assert_ne!(open(1), open(2));
    for row in open(1) {
        let columns: Map<String, Value> = serde_json::from_str(&json!(row.columns).to_string()).unwrap();
        assert_eq!(columns, row.columns);
        assert!(matches!(row.prompt, Prompt::Text(_)));
    }
}

#[test]
fn parameters_that_are_wrong_are_named() {
    let error = |name: &str, given: Value| Builtin.open(name, &params(given)).err().unwrap().to_string();
    assert_eq!(
        error("reasoning/maze", json!({"level": 6})),
        "data source: `params.level` must be a level from 1 to 5, got 6"
    );
    assert_eq!(
        error("reasoning/maze", json!({"families": ["maze"]})),
        "data source: `params.families` is a parameter of `reasoning/mixed` only"
    );
    assert_eq!(
        error("reasoning/mixed", json!({"families": ["mase"]})),
        "data source: `params.families` holds `mase`, which is no family; did you mean `maze`?"
    );
    assert_eq!(
        error("reasoning/maz", json!({})),
        "data source: `builtin` no data set `reasoning/maz`; did you mean `reasoning/maze`?"
    );
    // One spelling or the other.
    assert_eq!(Builtin.open("reasoning_maze", &Map::new()).unwrap().count(), 16);
    assert_eq!(Builtin.open("long/needle", &Map::new()).unwrap().count(), 16);
}
