//! `text2sql`: the protocol, what scores and what does not, real gold queries, and parity with skyrl-gym.

#![allow(clippy::print_stderr, reason = "what was skipped, and how many queries of a data set ran")]

#[path = "text2sql/databases.rs"]
mod databases;
#[allow(dead_code, reason = "every test file uses a part")]
mod support;

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use espalier_datasets::{Prompt, Row as DataRow};
use espalier_envs::{Action, Env, EnvError, EnvRow, Prepared, Registry, Step};
use espalier_inference::StopReason;
use espalier_sql::{Database, OpenOptions, Row, Value as Cell, order};
use serde_json::{Map, Value, json};
use support::{alone, says};

const THINK: &str = "<think>so</think>";

fn prepared(root: &Path, params: &Value) -> Prepared {
    let mut params: Map<String, Value> = params.as_object().cloned().unwrap();
    params.insert("db_path".to_owned(), json!(root));
    Registry::standard().prepare("text2sql", &params).unwrap()
}

fn row(db: &str, gold: impl Into<Value>) -> EnvRow {
    let mut row = EnvRow::ask("Which? End with <solution>").with_truth(gold);
    row.columns.insert("db_id".to_owned(), json!(db));
    row
}

async fn start(kind: &Prepared, row: &EnvRow, turns: u32) -> Box<dyn Env> {
    let mut env = kind.make(row).unwrap();
    env.init(row.prompt.clone(), alone(turns)).await.unwrap();
    env
}

fn solve(sql: &str) -> Action {
    says(&format!("{THINK}<solution>{sql}</solution>"))
}

fn look(sql: &str) -> Action {
    says(&format!("{THINK}<sql>{sql}</sql>"))
}

/// The reward of a solution in one turn, and why.
async fn score(kind: &Prepared, row: &EnvRow, sql: &str) -> (f64, String) {
    let step = start(kind, row, 3).await.step(solve(sql)).await.unwrap();
    assert!(step.terminated && step.observations.is_empty());
    (step.reward, step.metadata["verdict"].as_str().unwrap().to_owned())
}

fn seen(step: &Step) -> &str {
    assert_eq!(step.observations.len(), 1);
    assert!(!step.terminated && !step.truncated && step.reward == 0.0);
    &step.observations[0].content
}

#[tokio::test]
async fn an_episode_looks_and_solves() {
    let root = tempfile::tempdir().unwrap();
    databases::shop(root.path());
    let kind = prepared(root.path(), &json!({}));
    let row = row("shop", "SELECT name FROM item WHERE kind = 'wood'");
    let mut env = start(&kind, &row, 5).await;
    let step = env.step(look("SELECT id, name, price FROM item")).await.unwrap();
    let table =
        "id | name | price\n--- | --- | ---\n1 | nut | 0.5\n2 | bolt | 0.5\n3 | plank | 4.0\n4 | tag | NULL\n(4 rows)";
    assert_eq!(seen(&step), format!("<observation>\n{table}\n</observation>\n<reminder>4 turns are left.</reminder>"));
    let step = env.step(look("SELECT nam FROM item")).await.unwrap();
    assert!(seen(&step).contains("Error: no such column: nam"), "{step:?}");
    let step = env.step(says("hm")).await.unwrap();
    assert!(seen(&step).contains("There was no query"), "{step:?}");
    let step = env.step(solve("SELECT 'plank'")).await.unwrap();
    // The third turn did not begin with its thoughts.
    assert_eq!(step.reward, -1.0);

    let mut env = start(&kind, &row, 3).await;
    env.step(look("DELETE FROM item")).await.unwrap();
    let step = env.step(look("SELECT count(*) FROM item")).await.unwrap();
    assert!(seen(&step).contains("\n4\n") && seen(&step).contains("This is the last turn"), "{step:?}");
    let step = env.step(solve("SELECT 'plank'")).await.unwrap();
    assert_eq!((step.reward, step.terminated), (1.0, true));
    let expected = json!({
        "turns": 3, "queries": 2, "errors": 1, "timeouts": 0, "invalid": 0, "correct": true, "format": true
    });
    assert_eq!(json!(env.metrics()), expected);
}

#[tokio::test]
async fn the_turn_limit_without_a_solution_is_a_fault_of_the_format() {
    let root = tempfile::tempdir().unwrap();
    databases::shop(root.path());
    let kind = prepared(root.path(), &json!({}));
    let step = start(&kind, &row("shop", "SELECT 1"), 1).await.step(look("SELECT 1")).await.unwrap();
    assert_eq!((step.reward, step.terminated, step.truncated), (-1.0, false, true));
}

#[tokio::test]
async fn what_a_database_holds_cannot_score() {
    let root = tempfile::tempdir().unwrap();
    databases::shop(root.path());
    let row = row("shop", "SELECT 1");
    // The model only shows a cell that holds a whole solution, and stops.
    let show = look("SELECT kind FROM item WHERE id = 4");
    for (params, reward) in [(json!({}), -1.0), (json!({"compat": "skyrl"}), 1.0)] {
        let mut compat_row = row.clone();
        compat_row.columns.insert("data".to_owned(), json!("spider"));
        let folder = root.path().join("spider/database/shop");
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::copy(root.path().join("shop.sqlite"), folder.join("shop.sqlite")).unwrap();
        let kind = prepared(root.path(), &params);
        let mut env = start(&kind, &compat_row, 2).await;
        let step = env.step(show.clone()).await.unwrap();
        assert_eq!(seen(&step).contains("</observation><think>"), reward > 0.0, "{step:?}");
        let step = env.step(says("<think>done</think>")).await.unwrap();
        assert_eq!(step.reward, reward, "{params}");
    }
}

#[tokio::test]
async fn results_are_compared_with_multiplicity_and_by_value() {
    let root = tempfile::tempdir().unwrap();
    databases::shop(root.path());
    let kind = prepared(root.path(), &json!({}));
    for (gold, right, wrong) in [
        (
            "SELECT name FROM item WHERE price = 0.5",
            vec!["SELECT name AS other FROM item WHERE price < 1 ORDER BY name", "VALUES ('bolt'), ('nut')"],
            vec![
                "SELECT name FROM item WHERE price = 0.5 UNION ALL SELECT 'nut'",
                "SELECT 'nut'",
                "SELECT name, id FROM item WHERE price = 0.5",
                "SELECT upper(name) FROM item WHERE price = 0.5",
                "SELECT * FROM item WHERE",
                "DELETE FROM item",
                "DELETE FROM item RETURNING name",
                "PRAGMA table_info(item)",
                "EXPLAIN SELECT 1",
                "SELECT 'nut'; SELECT 'bolt'",
                "",
                "-- nothing",
            ],
        ),
        ("SELECT 1", vec!["SELECT 1.0", "SELECT 1.0000000000001"], vec!["SELECT '1'", "SELECT 1.00001", "SELECT NULL"]),
        ("SELECT 0.1 + 0.2", vec!["SELECT 0.3"], vec!["SELECT '0.3'"]),
        ("SELECT 1, 2", vec!["SELECT 1 AS b, 2 AS a"], vec!["SELECT 2, 1"]),
        ("SELECT id FROM item WHERE 0", vec!["SELECT 7 WHERE 0"], vec!["", "SELECT 7, 8 WHERE 0", "DELETE FROM item"]),
        (
            // nut and bolt tie, and the tag has no price.
            "SELECT name FROM item ORDER BY price",
            vec!["VALUES ('tag'), ('bolt'), ('nut'), ('plank')", "VALUES ('tag'), ('nut'), ('bolt'), ('plank')"],
            vec!["VALUES ('bolt'), ('tag'), ('nut'), ('plank')", "SELECT name FROM item ORDER BY price DESC"],
        ),
        (
            "SELECT name, count(*) AS many FROM item GROUP BY kind ORDER BY 2 DESC, upper(kind) LIMIT 2",
            vec!["SELECT min(name), 2 FROM item WHERE id = 1 UNION ALL SELECT 'tag', 1"],
            vec!["SELECT 'tag', 1 UNION ALL SELECT 'nut', 2"],
        ),
        (
            "SELECT DISTINCT kind FROM item ORDER BY length(kind)",
            vec!["SELECT DISTINCT kind FROM item ORDER BY kind DESC"],
            vec!["SELECT kind FROM item ORDER BY length(kind)"],
        ),
    ] {
        let row = row("shop", gold);
        for sql in right {
            assert_eq!(score(&kind, &row, sql).await, (1.0, "correct".to_owned()), "{gold}: {sql}");
        }
        for sql in wrong {
            let (reward, reason) = score(&kind, &row, sql).await;
            assert!(reward == 0.0 && !reason.is_empty() && reason != "correct", "{gold}: {sql}: {reason}");
        }
    }
    let any = row("shop", json!(["SELECT 1", "SELECT 1, 2 UNION SELECT 3, 4"]));
    for (sql, reward) in [("SELECT 1", 1.0), ("VALUES (3, 4), (1, 2)", 1.0), ("SELECT 3, 4", 0.0)] {
        assert_eq!(score(&kind, &any, sql).await.0, reward, "{sql}");
    }
}

#[tokio::test]
async fn a_fence_is_no_part_of_a_query_unless_the_original_is_asked_for() {
    let root = tempfile::tempdir().unwrap();
    databases::shop(root.path());
    let folder = root.path().join("spider/database/shop");
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::copy(root.path().join("shop.sqlite"), folder.join("shop.sqlite")).unwrap();
    let mut row = row("shop", "SELECT '</think>'");
    row.columns.insert("data".to_owned(), json!("spider"));
    let fenced = "```sql\nSELECT '</think>'\n```";
    let kind = prepared(root.path(), &json!({}));
    assert_eq!(score(&kind, &row, fenced).await.0, 1.0);
    let mut env = start(&kind, &row, 3).await;
    let step = env.step(look("```sql\nSELECT count(*) FROM item\n```")).await.unwrap();
    assert!(seen(&step).contains("\n4\n"), "{step:?}");
    // What is thought solves nothing.
    let step = env.step(says("<think>perhaps <solution>SELECT 1</solution></think>")).await.unwrap();
    assert!(seen(&step).contains("There was no query"), "{step:?}");
    let original = prepared(root.path(), &json!({"compat": "skyrl"}));
    assert!(score(&original, &row, fenced).await.0 < 1.0);
}

#[tokio::test]
async fn a_gold_query_that_fails_is_an_error() {
    let root = tempfile::tempdir().unwrap();
    databases::shop(root.path());
    let kind = prepared(root.path(), &json!({"grade_timeout": 0.05}));
    let endless = "WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c) SELECT count(*) FROM c";
    for gold in ["SELECT nam\nFROM item", endless, "DELETE FROM item"] {
        let row = row("shop", gold);
        let error = start(&kind, &row, 2).await.step(solve("SELECT 1")).await.unwrap_err();
        assert!(matches!(error, EnvError::Grader { .. }), "{gold}: {error}");
        let message = error.to_string();
        for part in ["reward_spec.ground_truth", &row.id, gold.split_whitespace().last().unwrap()] {
            assert!(message.contains(part) && !message.contains('\n'), "{message}");
        }
    }
    let (reward, reason) = score(&kind, &row("shop", "SELECT 1"), endless).await;
    assert_eq!((reward, reason.as_str()), (0.0, "the query did not end within 50 ms"));
}

#[tokio::test]
async fn a_raw_question_gets_the_schema_and_the_format() {
    let root = tempfile::tempdir().unwrap();
    databases::shop(root.path());
    let kind = prepared(root.path(), &json!({}));
    let mut row = row("shop", "SELECT 1");
    row.prompt = EnvRow::ask("How many items are there?").prompt;
    let mut env = kind.make(&row).unwrap();
    let messages = env.init(row.prompt.clone(), alone(2)).await.unwrap();
    assert_eq!(messages.len(), 1);
    for part in ["How many items", "CREATE TABLE item", "<solution>"] {
        assert!(messages[0].content.contains(part), "{part}");
    }
}

#[tokio::test]
async fn a_row_or_a_parameter_that_is_wrong_is_refused() {
    let root = tempfile::tempdir().unwrap();
    databases::shop(root.path());
    let kind = prepared(root.path(), &json!({}));
    let refused = |row: &EnvRow, kind: &Prepared| match kind.make(row) {
        Err(EnvError::Invalid { key, reason, .. }) => (key, reason),
        other => panic!("{:?}", other.map(|_| ())),
    };
    for id in ["", "..", "../shop", "a/b", "a\\b", "/etc/passwd", "a\0b", "absent"] {
        assert_eq!(refused(&row(id, "SELECT 1"), &kind).0, "db_id", "{id}");
    }
    let mut wrong = row("shop", "SELECT 1");
    wrong.columns.insert("data".to_owned(), json!("spidr"));
    let (key, reason) = refused(&wrong, &kind);
    assert!(key == "data" && reason.contains("did you mean `spider`?"), "{reason}");
    wrong.columns.insert("data".to_owned(), json!("bird"));
    assert!(refused(&wrong, &kind).1.contains("bird/train/train_databases/shop/shop.sqlite"));
    for gold in [json!(7), json!(""), json!(" -- nothing"), json!(["SELECT 1", ";"])] {
        assert_eq!(refused(&row("shop", gold), &kind).0, "reward_spec.ground_truth");
    }
    let compat = prepared(root.path(), &json!({"compat": "skyrl"}));
    assert_eq!(refused(&row("shop", "SELECT 1"), &compat).0, "data");
    for params in [json!({}), json!({"db_path": "/no/such/folder"}), json!({"db_path": "/", "query_timeout": 0})] {
        let params = params.as_object().unwrap();
        assert!(Registry::standard().prepare("text2sql", params).is_err(), "{params:?}");
    }
}

#[tokio::test]
async fn a_stop_text_that_the_engine_left_out_is_understood() {
    let root = tempfile::tempdir().unwrap();
    databases::shop(root.path());
    let kind = prepared(root.path(), &json!({}));
    let cut = |text: &str| Action { stop: StopReason::StopString, ..says(text) };
    let mut env = start(&kind, &row("shop", "SELECT 4"), 3).await;
    let step = env.step(cut("<think>a</think><sql>SELECT count(*) FROM item")).await.unwrap();
    assert!(seen(&step).contains("\n4\n"));
    let step = env.step(cut("<think>a</think><solution>SELECT 4")).await.unwrap();
    assert_eq!((step.reward, step.terminated), (1.0, true));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sixty_four_episodes_at_once_do_not_disturb_each_other() {
    let root = tempfile::tempdir().unwrap();
    databases::shop(root.path());
    let file = root.path().join("shop.sqlite");
    let before = std::fs::read(&file).unwrap();
    let kind = prepared(root.path(), &json!({"query_timeout": 0.2}));
    let hostile = [
        "WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c) SELECT count(*) FROM c",
        "DELETE FROM item",
        "SELECT randomblob(1000000000)",
        "ATTACH 'x' AS y",
    ];
    let episodes = (0..64_usize).map(|number| {
        let kind = kind.clone();
        tokio::spawn(async move {
            let row = row("shop", format!("SELECT {number}, count(*) FROM item"));
            let mut env = start(&kind, &row, 4).await;
            env.step(look(hostile[number % hostile.len()])).await.unwrap();
            let step = env.step(look("SELECT count(*) FROM item")).await.unwrap();
            assert!(seen(&step).contains("\n4\n"), "{step:?}");
            env.step(solve(&format!("SELECT {number}, 4"))).await.unwrap().reward
        })
    });
    for episode in futures::future::join_all(episodes).await {
        assert_eq!(episode.unwrap(), 1.0);
    }
    assert_eq!(std::fs::read(&file).unwrap(), before);
}

#[tokio::test]
async fn a_cancelled_rollout_ends_its_query() {
    let root = tempfile::tempdir().unwrap();
    databases::shop(root.path());
    let kind = prepared(root.path(), &json!({"query_timeout": 86400}));
    let endless = "WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c) SELECT count(*) FROM c";
    let row = row("shop", "SELECT 1");
    let context = alone(3);
    let cancel = context.cancel.clone();
    let mut env = kind.make(&row).unwrap();
    env.init(row.prompt.clone(), context).await.unwrap();
    let (step, ()) = tokio::join!(env.step(look(endless)), async {
        tokio::task::yield_now().await;
        cancel.cancel();
    });
    assert!(matches!(step, Err(EnvError::Failed { .. })), "{step:?}");
    // The rollout's deadline ends a query too.
    let mut context = alone(3);
    context.deadline = tokio::time::Instant::now() + Duration::from_millis(20);
    let mut env = kind.make(&row).unwrap();
    env.init(row.prompt.clone(), context).await.unwrap();
    let step = env.step(look(endless)).await.unwrap();
    assert!(seen(&step).contains("did not end within"), "{step:?}");
}

/// Rows as a query of their own.
fn literal(rows: &[Row]) -> String {
    let cell = |cell: &Cell| match cell {
        Cell::Null => "NULL".to_owned(),
        Cell::Integer(integer) => integer.to_string(),
        Cell::Real(real) => format!("{real:?}"),
        Cell::Text(text) => format!("'{}'", text.replace('\'', "''")),
        Cell::Blob(_) => unreachable!("no blob in these databases"),
    };
    let rows: Vec<String> =
        rows.iter().map(|row| format!("({})", row.iter().map(cell).collect::<Vec<_>>().join(", "))).collect();
    format!("VALUES {}", rows.join(", "))
}

#[tokio::test]
async fn real_gold_queries_equal_themselves_and_nothing_less() {
    let Some(data) = databases::data() else { return };
    let root = tempfile::tempdir().unwrap();
    for name in ["academic", "geography", "restaurants", "yelp"] {
        databases::defog(&data, name, &root.path().join(format!("{name}.sqlite")));
    }
    let kind = prepared(root.path(), &json!({}));
    let questions = databases::questions(&data);
    assert_eq!(questions.len(), 105);
    let mut skipped: BTreeMap<String, u32> = BTreeMap::new();
    let (mut valid, mut empty, mut ordered, mut mutants) = (0, 0, 0, 0);
    for (name, queries) in questions {
        let database = Database::open(&root.path().join(format!("{name}.sqlite")), OpenOptions::default()).unwrap();
        for sql in queries {
            let gold = match order::gold(&database, &sql, &espalier_sql::Request::default()) {
                Ok(gold) => gold,
                Err(error) => {
                    *skipped.entry(error.to_string()).or_default() += 1;
                    continue;
                }
            };
            valid += 1;
            let row = row(&name, sql.clone());
            assert_eq!(score(&kind, &row, &sql).await.0, 1.0, "{name}: {sql}");
            let rows = &gold.table.rows;
            if rows.is_empty() {
                empty += 1;
                assert_eq!(score(&kind, &row, "").await.0, 0.0, "{sql}");
                continue;
            }
            let mut wrong = vec![literal(&[rows.as_slice(), &rows[..1]].concat())];
            if rows.len() > 1 {
                wrong.push(literal(&rows[1..]));
            }
            let reversed: Vec<Row> = rows.iter().rev().cloned().collect();
            match &gold.ties {
                Some(ties) if ties.len() > 1 => {
                    ordered += 1;
                    wrong.push(literal(&reversed));
                }
                _ => assert_eq!(score(&kind, &row, &literal(&reversed)).await.0, 1.0, "{sql}"),
            }
            for mutant in wrong {
                mutants += 1;
                assert_eq!(score(&kind, &row, &mutant).await.0, 0.0, "{name}: {sql}: {mutant}");
            }
        }
    }
    eprintln!(
        "{valid} gold queries run ({empty} have no rows, {ordered} are ordered), {mutants} mutants; skipped: {skipped:?}"
    );
    assert_eq!((valid, skipped.len()), (165, 0), "the data set, whose dialect is SQLite's");
    assert!(mutants > valid && ordered > 20, "{mutants} {ordered}");
}

/// The lines of a message, whose rows come in no particular order; of a cut table only how many there are.
fn lines(text: &str) -> Vec<String> {
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    if text.contains(espalier_sql::pandas::TRUNCATED) {
        lines = vec![format!("{} lines", lines.len())];
    }
    lines.sort();
    lines
}

#[tokio::test]
async fn recorded_episodes_are_as_in_skyrl_gym() {
    let Some(data) = databases::data() else { return };
    let root = tempfile::tempdir().unwrap();
    let folder = root.path().join("spider/database");
    databases::defog(&data, "academic", &folder.join("academic/academic.sqlite"));
    std::fs::create_dir_all(folder.join("chinook")).unwrap();
    std::fs::write(folder.join("chinook/chinook.sqlite"), std::fs::read(data.join("chinook.sqlite")).unwrap()).unwrap();
    let mut actions = 0;
    for (number, line) in include_str!("../../tests/parity/text2sql.jsonl").lines().enumerate() {
        let episode: Value = serde_json::from_str(line).unwrap();
        let columns = episode["row"].as_object().cloned().unwrap();
        let turns = u32::try_from(columns["max_turns"].as_u64().unwrap()).unwrap();
        let row =
            EnvRow::from_row(DataRow { id: number.to_string(), env: None, prompt: Prompt::Text("?".into()), columns });
        let row = row.unwrap();
        let mut env = start(&prepared(root.path(), &episode["params"]), &row, turns).await;
        for turn in episode["turns"].as_array().unwrap() {
            actions += 1;
            let step = env.step(says(turn["action"].as_str().unwrap())).await.unwrap();
            let what = format!("episode {number}: {}", turn["action"]);
            assert_eq!(Some(step.reward), turn["reward"].as_f64(), "{what}");
            assert_eq!(step.terminated || step.truncated, turn["done"] == true, "{what}");
            let expected = turn["observations"].as_array().unwrap();
            assert_eq!(step.observations.len(), expected.len(), "{what}");
            for (message, expected) in step.observations.iter().zip(expected) {
                let content = message.content.replace(root.path().to_str().unwrap(), "{root}");
                assert_eq!(lines(&content), lines(expected["content"].as_str().unwrap()), "{what}");
                assert_eq!(json!(message.role), expected["role"], "{what}");
            }
        }
    }
    assert!(actions >= 150, "{actions}");
}
