//! What a model needs before it can learn: words, weights, and somebody to imitate.
//!
//! | module | what lives there |
//! |---|---|
//! | [`vocabulary`] | a byte-pair tokenizer of the task's own texts |
//! | [`model`] | a folder with a random Llama of under two million parameters |
//! | [`teacher`] | plays the task in many ways, good ones and bad ones |
//! | [`demos`] | the teacher's rollouts, written as a run |
//! | [`plot`] | curves of runs, as SVG |
//!
//! The rest is done by `espalier sft` and `espalier train`: see the example's README.

pub mod demos;
pub mod model;
pub mod plot;
pub mod teacher;
pub mod vocabulary;

/// Whatever went wrong, in words.
pub type Failure = Box<dyn std::error::Error + Send + Sync>;

/// What the model is told; where there are copies to ask, a line about them follows.
pub const SYSTEM: &str = "`context` holds a text. Write a ```repl block, or FINAL(answer).\n";

/// Parameters of `rlm` in all of this example: few words, and output that fits the model's window.
pub fn environment() -> serde_json::Map<String, serde_json::Value> {
    let params = serde_json::json!({
        "prompt": "compact",
        "system_prompt": format!("{SYSTEM}{{custom_tools_section}}"),
        "sub_calls": false,
        "output_chars": 600,
    });
    match params {
        serde_json::Value::Object(params) => params,
        _ => serde_json::Map::new(),
    }
}
