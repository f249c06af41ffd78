//! Answers and stream chunks.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use espalier_inference::{Generation, InferenceEngine, Prompt, StopReason, TokenId, Usage};
use serde_json::{Map, Value, json};

use super::request::{Api, Call};
use crate::local::{LocalEngine, StreamEvent};

/// Numbers answers, for their ids.
static ANSWERS: AtomicU64 = AtomicU64::new(0);

fn finish_reason(stop: StopReason) -> &'static str {
    match stop {
        StopReason::EndOfTurn | StopReason::StopString => "stop",
        StopReason::MaxTokens | StopReason::ContextOverflow => "length",
        StopReason::Cancelled => "abort",
    }
}

fn usage(all: impl Iterator<Item = Usage>, prompts: &[u32], cached: u32) -> Value {
    let completion: u32 = all.map(|u| u.completion_tokens).sum();
    let prompt: u32 = prompts.iter().sum();
    json!({"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion,
           "prompt_tokens_details": {"cached_tokens": cached}})
}

/// Where the visible text ends: before the stop text, unless it is to be shown.
fn visible_end(call: &Call, text: &str, stop: StopReason) -> usize {
    if stop != StopReason::StopString || call.include_stop {
        return text.len();
    }
    call.sampling.stop.iter().filter_map(|s| text.find(s.as_str())).min().unwrap_or(text.len())
}

/// Log-probabilities of sampled tokens, as the endpoint writes them. `offset` is the text's length before them.
fn logprobs(call: &Call, engine: &LocalEngine, ids: &[TokenId], values: &[f32], offset: usize) -> Value {
    let Some(top) = call.top_logprobs else { return Value::Null };
    let token = |id: &TokenId| engine.tokenizer().decode_with_special(&[*id]);
    match call.api {
        Api::Chat => {
            let entries: Vec<Value> = ids
                .iter()
                .zip(values)
                .map(|(id, logprob)| {
                    let token = token(id);
                    let entry = json!({"token": token, "logprob": logprob, "bytes": token.as_bytes()});
                    let mut full = entry.clone();
                    full["top_logprobs"] = if top > 0 { json!([entry]) } else { json!([]) };
                    full
                })
                .collect();
            json!({"content": entries, "refusal": null})
        }
        Api::Completions => {
            let tokens: Vec<String> = ids.iter().map(token).collect();
            let offsets: Vec<usize> = tokens
                .iter()
                .scan(offset, |at, token| {
                    let here = *at;
                    *at += token.chars().count();
                    Some(here)
                })
                .collect();
            let alternatives = if top > 0 {
                tokens.iter().zip(values).map(|(t, v)| json!({ t.as_str(): v })).collect()
            } else {
                Value::Null
            };
            json!({"tokens": tokens, "token_logprobs": values, "top_logprobs": alternatives, "text_offset": offsets})
        }
    }
}

fn head(call: &Call, engine: &LocalEngine, created: u64, streamed: bool) -> Map<String, Value> {
    let (prefix, object) = match (call.api, streamed) {
        (Api::Chat, false) => ("chatcmpl", "chat.completion"),
        (Api::Chat, true) => ("chatcmpl", "chat.completion.chunk"),
        (Api::Completions, _) => ("cmpl", "text_completion"),
    };
    let number = ANSWERS.fetch_add(1, Ordering::Relaxed);
    let mut map = Map::new();
    map.insert("id".to_owned(), format!("{prefix}-{created:x}-{number}").into());
    map.insert("object".to_owned(), object.into());
    map.insert("created".to_owned(), created.into());
    map.insert("model".to_owned(), call.adapter.as_ref().unwrap_or(&engine.info().model).as_str().into());
    map
}

fn prompt_ids(prompt: &Prompt) -> Value {
    match prompt {
        Prompt::Tokens(ids) => json!(ids),
        _ => Value::Null,
    }
}

/// The whole answer.
pub(super) fn completion(call: &Call, engine: &LocalEngine, created: u64, results: &[Vec<Generation>]) -> Value {
    let mut map = head(call, engine, created, false);
    let mut choices = Vec::new();
    for (prompt, generation) in results.iter().enumerate().flat_map(|(i, all)| all.iter().map(move |g| (i, g))) {
        let text = &generation.text[..visible_end(call, &generation.text, generation.stop)];
        let mut choice = json!({"index": choices.len(), "finish_reason": finish_reason(generation.stop)});
        choice["logprobs"] = logprobs(call, engine, &generation.tokens, &generation.logprobs, 0);
        match call.api {
            Api::Chat => choice["message"] = json!({"role": "assistant", "content": text, "refusal": null}),
            Api::Completions => choice["text"] = text.into(),
        }
        if call.return_token_ids {
            choice["token_ids"] = json!(generation.tokens);
            if call.api == Api::Completions {
                choice["prompt_token_ids"] = prompt_ids(&call.prompts[prompt]);
            }
        }
        choices.push(choice);
    }
    map.insert("choices".to_owned(), choices.into());
    if call.return_token_ids && call.api == Api::Chat {
        map.insert("prompt_token_ids".to_owned(), prompt_ids(&call.prompts[0]));
    }
    let prompts: Vec<u32> = results.iter().filter_map(|all| all.first()).map(|g| g.usage.prompt_tokens).collect();
    let cached = results.iter().filter_map(|all| all.first()).map(|g| g.usage.cached_tokens).sum();
    map.insert("usage".to_owned(), usage(results.iter().flatten().map(|g| g.usage), &prompts, cached));
    Value::Object(map)
}

/// One choice of a stream.
#[derive(Default)]
struct Choice {
    /// All text so far, and how much of it was sent.
    text: String,
    sent: usize,
    /// Tokens that wait for certain text.
    ids: Vec<TokenId>,
    logprobs: Vec<f32>,
    /// Characters of the tokens sent so far.
    offset: usize,
}

/// Turns engine events into chunks. Text that may be the beginning of a stop text is held back until it is certain.
pub(super) struct Chunks {
    call: Call,
    engine: Arc<LocalEngine>,
    head: Map<String, Value>,
    choices: Vec<Choice>,
    usages: Vec<Usage>,
    cached: u32,
    prompts: Vec<u32>,
    held: usize,
}

impl Chunks {
    pub(super) fn new(call: Call, engine: Arc<LocalEngine>, created: u64) -> Self {
        let head = head(&call, &engine, created, true);
        let count = call.prompts.len() * call.n as usize;
        // The length of the longest stop text: one byte more than could be its beginning.
        let longest = call.sampling.stop.iter().map(String::len).max().unwrap_or(0);
        let held = if call.include_stop { 0 } else { longest };
        let choices = (0..count).map(|_| Choice::default()).collect();
        Self { call, engine, head, choices, usages: Vec::new(), cached: 0, prompts: Vec::new(), held }
    }

    fn chunk(&self, choices: Value) -> Value {
        let mut map = self.head.clone();
        map.insert("choices".to_owned(), choices);
        if self.call.include_usage {
            map.insert("usage".to_owned(), Value::Null);
        }
        Value::Object(map)
    }

    /// The opening chunks: chat announces the role of each choice.
    pub(super) fn first(&self) -> Vec<Value> {
        if self.call.api != Api::Chat {
            return Vec::new();
        }
        (0..self.choices.len())
            .map(|index| {
                let delta = json!({"role": "assistant", "content": ""});
                let mut chunk =
                    self.chunk(json!([{"index": index, "delta": delta, "logprobs": null, "finish_reason": null}]));
                if self.call.return_token_ids {
                    chunk["prompt_token_ids"] = prompt_ids(&self.call.prompts[0]);
                }
                chunk
            })
            .collect()
    }

    /// The chunks for one event of prompt number `prompt`.
    pub(super) fn next(&mut self, prompt: usize, event: StreamEvent) -> Vec<Value> {
        let first = prompt * self.call.n as usize;
        match event {
            StreamEvent::Token { index, id, logprob, text } => {
                let held = self.held;
                let Some(choice) = self.choices.get_mut(first + index as usize) else { return Vec::new() };
                choice.text.push_str(&text);
                choice.ids.push(id);
                choice.logprobs.push(logprob);
                let mut end = choice.text.len().saturating_sub(held).max(choice.sent);
                if held > 0 {
                    // A stop text that is complete ends the visible text where it begins.
                    let rest = &choice.text[choice.sent..];
                    let found = self.call.sampling.stop.iter().filter_map(|stop| rest.find(stop.as_str())).min();
                    end = found.map_or(end, |at| end.min(choice.sent + at));
                }
                while !choice.text.is_char_boundary(end) {
                    end -= 1;
                }
                if end > choice.sent { vec![self.piece(first + index as usize, prompt, end, None)] } else { Vec::new() }
            }
            StreamEvent::Done(Ok(generations)) => {
                let mut chunks = Vec::new();
                for (i, generation) in generations.iter().enumerate() {
                    let Some(choice) = self.choices.get_mut(first + i) else { continue };
                    choice.text.clone_from(&generation.text);
                    let end = visible_end(&self.call, &generation.text, generation.stop).max(choice.sent);
                    chunks.push(self.piece(first + i, prompt, end, Some(finish_reason(generation.stop))));
                }
                self.usages.extend(generations.iter().map(|g| g.usage));
                if let Some(generation) = generations.first() {
                    self.prompts.push(generation.usage.prompt_tokens);
                    self.cached += generation.usage.cached_tokens;
                }
                chunks
            }
            StreamEvent::Done(Err(_)) => Vec::new(),
        }
    }

    fn piece(&mut self, index: usize, prompt: usize, end: usize, finish: Option<&str>) -> Value {
        let choice = &mut self.choices[index];
        let text = choice.text.get(choice.sent..end).unwrap_or_default().to_owned();
        let (ids, values) = (std::mem::take(&mut choice.ids), std::mem::take(&mut choice.logprobs));
        let offset = choice.offset;
        choice.sent = end;
        choice.offset += text.chars().count();
        let mut body = json!({"index": index, "finish_reason": finish});
        body["logprobs"] = logprobs(&self.call, &self.engine, &ids, &values, offset);
        match self.call.api {
            Api::Chat => body["delta"] = if text.is_empty() { json!({}) } else { json!({"content": text}) },
            Api::Completions => body["text"] = text.into(),
        }
        if self.call.return_token_ids {
            body["token_ids"] = json!(ids);
            if self.call.api == Api::Completions {
                body["prompt_token_ids"] = prompt_ids(&self.call.prompts[prompt]);
            }
        }
        self.chunk(json!([body]))
    }

    /// The closing chunk: the usage, where it was asked for.
    pub(super) fn last(&self) -> Vec<Value> {
        if !self.call.include_usage {
            return Vec::new();
        }
        let mut chunk = self.chunk(json!([]));
        chunk["usage"] = usage(self.usages.iter().copied(), &self.prompts, self.cached);
        vec![chunk]
    }
}
