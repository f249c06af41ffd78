//! `math` and `gsm8k_multi_turn` through the public interface, and the published data through the graders.
#![allow(clippy::print_stderr, reason = "what was skipped")]

#[allow(dead_code, reason = "every test file uses a part")]
mod support;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use espalier_envs::grade::{GradeOptions, grade, said};
use espalier_envs::graders::math::{Truth, last_boxed};
use espalier_envs::graders::numeric;
use espalier_envs::{EnvError, EnvRow, NoServices, Registry, Step, make};
use serde_json::{Map, Value, json};
use support::{alone, says};
use tokio_util::sync::CancellationToken;

async fn play(env: &str, params: Value, row: &EnvRow, response: &str) -> Step {
    let params = params.as_object().cloned().unwrap();
    let mut env = make(env, &params, row).unwrap();
    env.init(row.prompt.clone(), alone(1)).await.unwrap();
    env.step(says(response)).await.unwrap()
}

#[tokio::test]
async fn the_last_box_is_compared_by_meaning() {
    let row = EnvRow::ask("How much?").with_truth(r"\frac{1}{2}");
    for response in [
        r"so \boxed{0.5}",
        r"\boxed{1}, no: \boxed{\dfrac{2}{4}}.",
        r"<think>\boxed{7}</think> It is $\boxed{1/2}$.",
        r"\boxed{x = \frac12}",
    ] {
        let step = play("math", json!({}), &row, response).await;
        assert!(step.terminated && step.observations.is_empty());
        assert_eq!((step.reward, &step.metadata["acc"]), (1.0, &json!(true)), "{response}");
    }
    for response in [r"\boxed{0.5} or \boxed{0.6}", "0.5", r"\boxed{0.5", r"<think>\boxed{0.5}</think> done"] {
        let step = play("math", json!({}), &row, response).await;
        assert_eq!((step.reward, &step.metadata["acc"]), (0.0, &json!(false)), "{response}");
    }
}

#[tokio::test]
async fn the_truth_may_be_a_whole_solution() {
    let row = EnvRow::ask("?").with_truth(r"We add $1+1$ and get $\boxed{2}$.");
    assert_eq!(play("math", json!({}), &row, r"\boxed{2.0}").await.reward, 1.0);
    let row = EnvRow::ask("?").with_truth(2);
    assert_eq!(play("math", json!({}), &row, r"\boxed{2}").await.reward, 1.0);
}

#[tokio::test]
async fn strict_compares_texts_and_fallback_reads_the_last_line() {
    let row = EnvRow::ask("?").with_truth(r"\frac{1}{2}");
    assert_eq!(play("math", json!({"strict": true}), &row, r"\boxed{ \frac{1}{2} }").await.reward, 1.0);
    assert_eq!(play("math", json!({"strict": true}), &row, r"\boxed{0.5}").await.reward, 0.0);
    let fallback = json!({"fallback": true});
    for response in ["Hence\n**Answer: 0.5**", "so the answer is $\\frac12$.", "we get x = 1/2"] {
        assert_eq!(play("math", fallback.clone(), &row, response).await.reward, 1.0, "{response}");
    }
    assert_eq!(play("math", fallback, &row, r"0.5 but \boxed{3}").await.reward, 0.0);
}

#[tokio::test]
async fn an_answer_over_its_budget_is_wrong_and_said_to_be() {
    let row = EnvRow::ask("?").with_truth("5");
    let hostile = format!(r"\boxed{{{}5{}}}", "(".repeat(10_000), ")".repeat(10_000));
    for response in [hostile.as_str(), r"\boxed{((x+1)^{31}+1)^{31}}"] {
        let step = play("math", json!({}), &row, response).await;
        assert_eq!(step.reward, 0.0);
        assert_eq!(step.metadata["over_budget"], json!(true));
        assert!(step.metadata["pred"].as_str().unwrap().chars().count() <= 300);
    }
    let step = play("math", json!({}), &row, r"\boxed{\frac{1}{}").await;
    assert!(step.reward == 0.0 && !step.metadata.contains_key("over_budget"));
}

#[tokio::test]
async fn a_truth_that_cannot_be_read_is_refused_before_play() {
    for truth in [json!(""), json!(r"\frac{1}{"), json!([1]), json!("(".repeat(500))] {
        let row = EnvRow::ask("?").with_truth(truth.clone());
        match make("math", &Map::new(), &row).err() {
            Some(EnvError::Invalid { key, reason, .. }) => {
                assert_eq!(key, "reward_spec.ground_truth");
                assert!(reason.contains("row `0`"), "{reason}");
            }
            other => panic!("{truth}: {other:?}"),
        }
    }
}

#[tokio::test]
async fn a_problem_is_told_what_an_answer_looks_like_once() {
    for (prompt, count) in [("How many?", 1), (r"How many? Put it in \boxed{}.", 0)] {
        let row = EnvRow::ask(prompt).with_truth(1);
        let mut env = make("math", &Map::new(), &row).unwrap();
        let messages = env.init(row.prompt.clone(), alone(1)).await.unwrap();
        assert_eq!(messages[0].content.matches("Think step by step").count(), count, "{prompt}");
    }
}

#[tokio::test]
async fn many_answers_are_graded_at_once() {
    let row = EnvRow::ask("?").with_truth(r"\frac{\sqrt3}{2}");
    let hostile = [r"\boxed{9^{9^{9^{9}}}}".to_owned(), format!(r"\boxed{{{}}}", "((x+1)".repeat(900))];
    let mut tasks = tokio::task::JoinSet::new();
    for index in 0..64_usize {
        let (row, hostile) = (row.clone(), hostile[index % 2].clone());
        tasks.spawn(async move {
            let wrong = play("math", json!({}), &row, &hostile).await.reward;
            let right = play("math", json!({}), &row, r"\boxed{\sin 60^\circ}").await.reward;
            (wrong, right)
        });
    }
    while let Some(rewards) = tasks.join_next().await {
        assert_eq!(rewards.unwrap(), (0.0, 1.0));
    }
}

#[tokio::test]
async fn gsm8k_in_turns_pays_for_the_format_and_ends_when_right() {
    let row = EnvRow::ask("How many?").with_truth("1200");
    let mut env = make("gsm8k_multi_turn", &Map::new(), &row).unwrap();
    env.init(row.prompt.clone(), alone(10)).await.unwrap();
    let wrong = env.step(says("#### 7")).await.unwrap();
    assert_eq!(wrong.reward, 0.2 / 5.0);
    assert!(!wrong.terminated && wrong.observations.len() == 1);
    let none = env.step(says("let me think")).await.unwrap();
    assert_eq!(none.reward, 0.0);
    let right = env.step(says("#### 7, or rather #### $1,200.00")).await.unwrap();
    assert_eq!(right.reward, 1.0 - 0.2 / 5.0);
    assert!(right.terminated && right.observations.is_empty());
    assert_eq!(env.metrics()["steps"], json!(3));
}

#[tokio::test]
async fn gsm8k_in_turns_pays_no_more_for_wrong_answers_first() {
    let row = EnvRow::ask("How many?").with_truth("42");
    for wrong in 0..5 {
        let mut env = make("gsm8k_multi_turn", &Map::new(), &row).unwrap();
        env.init(row.prompt.clone(), alone(10)).await.unwrap();
        let mut total = 0.0;
        for _ in 0..wrong {
            total += env.step(says("#### 7")).await.unwrap().reward;
        }
        total += env.step(says("#### 42")).await.unwrap().reward;
        assert_eq!(total, 1.0, "{wrong} wrong turns");
    }
}

#[tokio::test]
async fn gsm8k_in_turns_ends_at_its_own_limit() {
    let mut row = EnvRow::ask("How many?").with_truth(42);
    row.extra_info.insert("max_turns".to_owned(), json!(2));
    let mut env = make("gsm8k_multi_turn", &Map::new(), &row).unwrap();
    env.init(row.prompt.clone(), alone(10)).await.unwrap();
    let first = env.step(says("#### 1")).await.unwrap();
    assert_eq!(first.reward, 0.1);
    assert!(first.observations[0].content.contains("last turn"), "{}", first.observations[0].content);
    let last = env.step(says("#### 2")).await.unwrap();
    assert!(last.truncated && !last.terminated && last.observations.is_empty());
    // A rollout that has fewer turns says so in time.
    let mut env = make("gsm8k_multi_turn", &Map::new(), &row).unwrap();
    env.init(row.prompt.clone(), alone(1)).await.unwrap();
    assert!(env.step(says("#### 2")).await.unwrap().truncated);
}

#[tokio::test]
async fn gsm8k_in_turns_under_compat_takes_the_rollouts_turns_and_the_first_answer() {
    let mut row = EnvRow::ask("How many?").with_truth("42");
    row.extra_info.insert("max_turns".to_owned(), json!(2));
    let params = json!({"compat": "skyrl"}).as_object().cloned().unwrap();
    let mut env = make("gsm8k_multi_turn", &params, &row).unwrap();
    env.init(row.prompt.clone(), alone(4)).await.unwrap();
    assert_eq!(env.step(says("#### 42.")).await.unwrap().reward, 0.2 / 4.0);
    assert_eq!(env.step(says("#### 7 #### 42")).await.unwrap().reward, 0.2 / 4.0);
    assert_eq!(env.step(says("####42")).await.unwrap().reward, 0.0);
    assert_eq!(env.step(says("#### 42")).await.unwrap().reward, 1.0);
}

#[test]
fn steps_are_averaged_under_their_published_name() {
    let prepared = Registry::standard().prepare("gsm8k_multi_turn", &Map::new()).unwrap();
    let episode = |steps: u32| {
        [("steps".to_owned(), json!(steps)), ("correct".to_owned(), json!(steps == 1))].into_iter().collect()
    };
    let means = prepared.aggregate(&[episode(1), episode(4)]);
    assert_eq!((&means["avg_steps"], &means["correct"]), (&json!(2.5), &json!(0.5)));
}

/// The lines of a file of the public data, where there is such a folder.
fn data(file: &str) -> Option<Vec<Value>> {
    let Ok(folder) = std::env::var("ESPALIER_DATA") else {
        eprintln!("skipped: ESPALIER_DATA names no folder with {file}");
        return None;
    };
    let text = std::fs::read_to_string(PathBuf::from(folder).join(file)).unwrap();
    Some(text.lines().map(|line| serde_json::from_str(line).unwrap()).collect())
}

#[test]
fn every_answer_of_math_is_itself() {
    let Some(rows) = data("math/math_test.json") else { return };
    assert_eq!(rows.len(), 5000);
    for row in &rows {
        let solution = row["solution"].as_str().unwrap();
        let answer = last_boxed(solution).unwrap_or_else(|| panic!("no box: {solution}"));
        let truth = Truth::read(answer).unwrap_or_else(|error| panic!("{error}"));
        assert!(truth.check(answer).equal);
        // Wrapped and spaced, so that the texts differ and the meaning has to be compared.
        let other = format!(r"$ {answer} $");
        assert!(truth.check(&other).equal, "{answer}");
        let verdict = truth.check(&format!("{answer} + 987654321"));
        assert!(!verdict.equal, "{answer}: {verdict:?}");
    }
}

#[test]
fn every_answer_of_aime_and_gsm8k_is_read() {
    let Some(aime) = data("aime/aime24.jsonl") else { return };
    assert_eq!(aime.len(), 30);
    for row in &aime {
        let answer = match &row["answer"] {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        let number: i64 = answer.parse().unwrap();
        assert!(Truth::read(&answer).unwrap().check(&number.to_string()).equal, "{answer}");
    }
    let mut count = 0;
    for file in ["gsm8k/train.jsonl", "gsm8k/test.jsonl"] {
        for row in data(file).unwrap_or_default() {
            let answer = row["answer"].as_str().unwrap();
            let announced = numeric::worked_answer(answer, false).unwrap_or_else(|| panic!("{answer}"));
            let text = answer.rsplit("#### ").next().unwrap().trim();
            assert_eq!(numeric::parse(text), Some(announced), "{text}");
            assert!(Truth::read(text).unwrap().check(&text.replace(',', "")).equal, "{text}");
            count += 1;
        }
    }
    assert_eq!(count, 8792);
}

/// What keeps the grader of mathematics busy until its budget is spent.
fn busy() -> String {
    let factors: String = (2..120).map(|n| format!("(x+1/{n})")).collect();
    format!(r"\boxed{{{factors}}}")
}

fn options(deadline: Duration, cancel: &CancellationToken) -> GradeOptions {
    GradeOptions { services: Arc::new(NoServices), seed: 0, deadline, cancel: cancel.clone() }
}

#[tokio::test]
async fn a_deadline_does_not_wait_for_a_grader_that_computes() {
    let row = EnvRow::ask("?").with_truth("x+1");
    for env in ["math", "aime"] {
        let prepared = Registry::standard().prepare(env, &Map::new()).unwrap();
        let response = format!("{}\nAnswer: {}", busy(), busy());
        let soon = options(Duration::from_millis(1), &CancellationToken::new());
        let error = grade(&prepared, &row, &[said(&response)], &soon).await.unwrap_err().to_string();
        assert!(error.contains("no verdict within 0.001 s"), "{error}");
        // With time enough the verdict is the budget's.
        let later = options(Duration::from_mins(5), &CancellationToken::new());
        let graded = grade(&prepared, &row, &[said(&response)], &later).await.unwrap();
        assert_eq!((graded.metadata["grading"].as_str(), graded.reward < 0.5), (Some("over_budget"), true));
    }
}

#[tokio::test]
async fn a_cancellation_does_not_wait_for_a_grader_that_computes() {
    let row = EnvRow::ask("?").with_truth("x+1");
    let prepared = Registry::standard().prepare("math", &Map::new()).unwrap();
    let cancel = CancellationToken::new();
    let options = options(Duration::from_mins(5), &cancel);
    let actions = [said(busy())];
    let (graded, ()) = tokio::join!(grade(&prepared, &row, &actions, &options), async { cancel.cancel() });
    assert!(graded.unwrap_err().to_string().contains("cancelled"));
}
