//! `gsm8k` and `long`, played for one turn.

#[allow(dead_code, reason = "every test file uses a part")]
mod support;

use espalier_datasets::{Prompt, Row};
use espalier_envs::long::{LongParams, LongTask, tasks};
use espalier_envs::{EnvRow, make};
use serde_json::{Map, Value, json};
use support::{alone, says};

async fn reward(env: &str, params: Value, row: &EnvRow, response: &str) -> f64 {
    let params = params.as_object().cloned().unwrap();
    let mut env = make(env, &params, row).unwrap();
    env.init(row.prompt.clone(), alone(1)).await.unwrap();
    let step = env.step(says(response)).await.unwrap();
    assert!(step.terminated && step.observations.is_empty());
    step.reward
}

#[tokio::test]
async fn gsm8k_compares_numbers_by_value() {
    let row = EnvRow::ask("How many?").with_truth("1200");
    for response in ["so #### 1,200", "#### $1200.00", "#### 1200.", "#### 7\nwrong, it is\n#### 1200"] {
        assert_eq!(reward("gsm8k", json!({}), &row, response).await, 1.0, "{response}");
    }
    for response in ["1200", "#### 1200\n#### 12", "####"] {
        assert_eq!(reward("gsm8k", json!({}), &row, response).await, 0.0, "{response}");
    }
    assert_eq!(reward("gsm8k", json!({"flexible": true}), &row, "that makes 1200").await, 1.0);
}

#[tokio::test]
async fn gsm8k_under_compat_keeps_the_strict_grader() {
    let row = EnvRow::ask("How many?").with_truth("42");
    let compat = json!({"compat": "skyrl"});
    for (response, expected) in
        [("#### 42", 1.0), ("#### 42.", 0.0), ("#### 42.0", 0.0), ("#### 7\n#### 42", 0.0), ("#### 42\n#### 7", 1.0)]
    {
        assert_eq!(reward("gsm8k", compat.clone(), &row, response).await, expected, "{response}");
    }
}

#[tokio::test]
async fn gsm8k_says_what_an_answer_looks_like_once() {
    for (prompt, count) in [("How many?", 1), ("How many? Answer after ####.", 0)] {
        let row = EnvRow::ask(prompt).with_truth(1);
        let mut env = make("gsm8k", &Map::new(), &row).unwrap();
        let messages = env.init(row.prompt.clone(), alone(1)).await.unwrap();
        assert_eq!(messages.len(), 1);
        assert_eq!(messages[0].content.matches("Think step by step").count(), count, "{prompt}");
    }
}

#[tokio::test]
async fn a_generated_question_is_asked_with_its_text_in_the_prompt() {
    for task in LongTask::ALL {
        let data = tasks::row(task, &LongParams { size: 1024, ..LongParams::default() }, 0);
        let row = EnvRow::from_row(data).unwrap();
        let mut env = make("long", &Map::new(), &row).unwrap();
        let messages = env.init(row.prompt.clone(), alone(1)).await.unwrap();
        assert!(messages[0].content.len() > 1024 && messages[0].content.contains(&row.question()));
        let truth = row.reward_spec["ground_truth"].to_string();
        assert_eq!(reward("long", json!({}), &row, &format!("I count.\nAnswer: {truth}.")).await, 1.0, "{truth}");
        assert_eq!(reward("long", json!({}), &row, &truth).await, 1.0, "{truth}");
        assert_eq!(reward("long", json!({}), &row, "Answer: 99999999").await, 0.0);
        assert_eq!(reward("long", json!({}), &row, &format!("It is {truth}\nor so")).await, 0.0);
    }
}

#[test]
fn a_message_whose_text_stands_under_another_key_is_refused() {
    let row = |message: Value| {
        let messages = vec![message.as_object().cloned().unwrap()];
        EnvRow::from_row(Row { id: "7".into(), env: None, prompt: Prompt::Messages(messages), columns: Map::new() })
    };
    let error = row(json!({"role": "user", "text": "How many?"})).unwrap_err().to_string();
    let expected = "`row 7`: `prompt[0].content` is missing: the text of the message; it has `role`, `text`";
    assert_eq!(error, expected);
    assert!(row(json!({"role": "user", "content": ""})).is_ok());
    let call = json!({"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}});
    assert!(row(json!({"role": "assistant", "tool_calls": [call]})).is_ok());
}
