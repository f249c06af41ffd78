//! `aime` through the public interface: by equivalence, and as skyrl-gym grades.

#[allow(dead_code, reason = "every test file uses a part")]
mod support;

use espalier_envs::graders::aime::normalised;
use espalier_envs::{EnvRow, Step, make};
use serde_json::{Map, Value, json};
use support::{alone, says};

async fn play(params: Value, row: &EnvRow, response: &str) -> Step {
    let params = params.as_object().cloned().unwrap();
    let mut env = make("aime", &params, row).unwrap();
    env.init(row.prompt.clone(), alone(1)).await.unwrap();
    let step = env.step(says(response)).await.unwrap();
    assert!(step.terminated && step.observations.is_empty());
    step
}

#[tokio::test]
async fn the_last_answer_line_of_the_whole_response_counts() {
    let row = EnvRow::ask("?").with_truth("34");
    let long = format!("Answer: 34\n{}", "and so on. ".repeat(60));
    for response in
        ["Answer: 34", "answer : 34.0", "Answer: 1\nno\nAnswer: $34$", "**Answer:** 34", r"Answer: \boxed{34}", &long]
    {
        let step = play(json!({}), &row, response).await;
        assert_eq!((step.reward, &step.metadata["acc"]), (1.0, &json!(true)), "{response}");
    }
    for response in ["34", "Answer: 35", "Answer: 34\nAnswer: 35", ""] {
        let step = play(json!({}), &row, response).await;
        assert_eq!((step.reward, &step.metadata["acc"]), (-1.0, &json!(false)), "{response}");
    }
    assert_eq!(play(json!({}), &row, "34").await.metadata["pred"], json!("[INVALID]"));
}

#[tokio::test]
async fn answers_that_are_written_otherwise_are_right() {
    let row = EnvRow::ask("?").with_truth(r"\frac{\sqrt{3}}{3}");
    let step = play(json!({}), &row, r"Answer: 1/\sqrt{3}").await;
    assert_eq!((step.reward, &step.metadata["grading"]), (1.0, &json!("exact")));
    assert_eq!(play(json!({"compat": "skyrl"}), &row, r"Answer: 1/\sqrt{3}").await.reward, -1.0);
}

#[tokio::test]
async fn the_truth_may_stand_in_either_column() {
    let mut row = EnvRow::ask("?");
    row.columns.insert("reward_model".to_owned(), json!({"ground_truth": "25", "style": "rule"}));
    assert_eq!(play(json!({}), &row, "Answer: 25").await.reward, 1.0);
    assert_eq!(play(json!({"compat": "skyrl"}), &row, "Answer: 25").await.reward, 1.0);
    let row = EnvRow::ask("?").with_truth(25);
    assert_eq!(play(json!({"compat": "skyrl"}), &row, "Answer: 25").await.reward, 1.0);
    let missing = make("aime", &Map::new(), &EnvRow::ask("?")).err().unwrap();
    assert!(missing.to_string().contains("ground_truth"), "{missing}");
}

#[tokio::test]
async fn two_truths_that_differ_are_refused() {
    let both = |own: Value, other: Value| {
        let mut row = EnvRow::ask("?").with_truth(other);
        row.columns.insert("reward_model".to_owned(), json!({"ground_truth": own}));
        row
    };
    let refused = make("aime", &Map::new(), &both(json!("25"), json!("26"))).err().unwrap().to_string();
    for part in ["reward_model.ground_truth", "reward_spec.ground_truth", "`25`", "`26`"] {
        assert!(refused.contains(part), "{refused}");
    }
    assert_eq!(play(json!({}), &both(json!("25"), json!(25)), "Answer: 25").await.reward, 1.0);
    assert_eq!(play(json!({}), &both(json!("25"), Value::Null), "Answer: 25").await.reward, 1.0);
    // skyrl-gym never looks at the other.
    assert_eq!(play(json!({"compat": "skyrl"}), &both(json!("25"), json!("26")), "Answer: 25").await.reward, 1.0);
}

#[tokio::test]
async fn compat_reads_three_hundred_characters_and_compares_texts() {
    let row = EnvRow::ask("?").with_truth("34");
    let compat = json!({"compat": "skyrl"});
    let far = format!("Answer: 34\n{}", "x".repeat(300));
    let near = format!("Answer: 34\n{}", "x".repeat(280));
    for (response, reward, pred) in [
        ("Answer: 34", 1.0, "34"),
        ("Answer: $34$.", 1.0, "34"),
        ("Answer: x = 34 dollars", 1.0, "34"),
        ("ANSWER:34<|im_end|>", 1.0, "34"),
        ("Answer: 34.0", -1.0, "34.0"),
        ("34", -1.0, "[INVALID]"),
        (far.as_str(), -1.0, "[INVALID]"),
        (near.as_str(), 1.0, "34"),
    ] {
        let step = play(compat.clone(), &row, response).await;
        assert_eq!((step.reward, &step.metadata["pred"]), (reward, &json!(pred)), "{response}");
    }
}

#[tokio::test]
async fn strict_box_wants_the_same_text_near_the_end() {
    let row = EnvRow::ask("?").with_truth("34");
    let strict = json!({"strict_box": true});
    let far = format!(r"\boxed{{34}}{}", "x".repeat(100));
    for (response, reward) in [
        (r"so \boxed{34}.", 1.0),
        (r"\boxed{34.0}", -1.0),
        (r"\boxed{34", -1.0),
        ("Answer: 34", -1.0),
        (far.as_str(), -1.0),
    ] {
        assert_eq!(play(strict.clone(), &row, response).await.reward, reward, "{response}");
    }
}

#[test]
fn the_normaliser_keeps_every_published_step() {
    for (written, normal) in [
        ("x = 5", "5"),
        ("the answer is an integer", "theanswerisinteger"),
        (r"\$1,234", "1234"),
        ("1,2", "12"),
        ("1,x", "1,x"),
        (r"so $x^2$ it is", "x^2"),
        (r"\text{yes}", "yes"),
        (r"\boxed{12}", "12"),
        (r"\frac12", r"\frac{1}{2}"),
        (r"\frac{a}{b}", r"\frac{a}{b}"),
        (r"\sqrt3", r"\sqrt{3}"),
        (r"90^\circ", "90"),
        (r"5\text{ cm}", "5"),
        (r"10\%", r"10\%"),
        ("3 square units", "3"),
        (r"1,\!000", "1000"),
        ("[INVALID]", "[INVALID]"),
    ] {
        assert_eq!(normalised(written), normal, "{written}");
    }
}
