//! Sampling parameters and stop reasons.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::TokenId;

/// A JSON schema that an answer should have.
#[derive(Clone, Debug, PartialEq)]
pub struct JsonSchema {
    /// What the answer is called: letters, digits, `_` and `-`.
    pub name: String,
    /// The schema.
    pub schema: serde_json::Value,
}

/// How tokens are drawn. Names and meanings are those of vLLM and the OpenAI API.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SamplingParams {
    /// Divides the logits; 0 is greedy.
    pub temperature: f32,
    /// Keep the smallest set of tokens whose probability reaches this; 1 keeps all.
    pub top_p: f32,
    /// Keep this many most probable tokens; 0 keeps all.
    pub top_k: u32,
    /// Drop tokens less probable than this times the most probable one's; 0 drops none.
    pub min_p: f32,
    /// Most tokens to generate.
    pub max_tokens: u32,
    /// Texts that end the generation; the text that ended it is part of the output.
    pub stop: Vec<String>,
    /// Tokens that end the generation besides the model's own end of turn.
    pub stop_token_ids: Vec<TokenId>,
    /// Go on past the model's own end-of-turn token.
    pub ignore_eos: bool,
    /// Same seed, same prompt, same parameters: same tokens.
    pub seed: Option<u64>,
    /// Ask for the log-probability of each sampled token.
    pub logprobs: bool,
    /// The schema that the text should have, as a hint: an engine that can hold the model to it does, and any other
    /// leaves it alone. Whoever asks for it says so in the prompt too and checks what comes. No configuration names it.
    #[serde(skip)]
    pub json_schema: Option<Arc<JsonSchema>>,
}

impl Default for SamplingParams {
    fn default() -> Self {
        Self {
            temperature: 1.0,
            top_p: 1.0,
            top_k: 0,
            min_p: 0.0,
            max_tokens: 1024,
            stop: Vec::new(),
            stop_token_ids: Vec::new(),
            ignore_eos: false,
            seed: None,
            logprobs: true,
            json_schema: None,
        }
    }
}

impl SamplingParams {
    /// Refuses what no engine takes: the parameter, what was expected and what came. An engine may ask for more.
    pub fn check(&self) -> Result<(), (&'static str, String)> {
        let wrong = |name, expected: &str, got: String| Err((name, format!("must be {expected}, got {got}")));
        if !(self.temperature >= 0.0 && self.temperature.is_finite()) {
            return wrong("temperature", "a number from 0", self.temperature.to_string());
        }
        if !(self.top_p > 0.0 && self.top_p <= 1.0) {
            return wrong("top_p", "a number above 0, up to 1", self.top_p.to_string());
        }
        if !(0.0..=1.0).contains(&self.min_p) {
            return wrong("min_p", "a number from 0 to 1", self.min_p.to_string());
        }
        if self.max_tokens == 0 {
            return wrong("max_tokens", "at least 1", "0".to_owned());
        }
        if self.stop.iter().any(String::is_empty) {
            return wrong("stop", "a list of texts that are not empty", "an empty one".to_owned());
        }
        Ok(())
    }
}

/// Why a generation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StopReason {
    /// The model ended its turn (an end-of-turn token, or one of `stop_token_ids`).
    EndOfTurn,
    /// One of the stop texts came.
    StopString,
    /// `max_tokens` was reached.
    MaxTokens,
    /// The context window was full.
    ContextOverflow,
    /// The request was cancelled or its deadline passed; what was sampled so far is returned.
    Cancelled,
}
