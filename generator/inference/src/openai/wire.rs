//! Requests and answers as they go over the wire.

use serde_json::{Map, Value, json};

use super::config::{Api, Dialect, EndpointConfig};
use crate::engine::Usage;
use crate::{Prompt, SamplingParams, StopReason, TokenId};

/// Fields that this module writes and that `extra_body` may not replace.
pub(super) const OWN_FIELDS: [&str; 21] = [
    "model",
    "messages",
    "prompt",
    "token_ids",
    "sampling_params",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "max_tokens",
    "max_completion_tokens",
    "stop",
    "stop_token_ids",
    "ignore_eos",
    "seed",
    "n",
    "stream",
    "logprobs",
    "return_token_ids",
    "include_stop_str_in_output",
    "skip_special_tokens",
];

/// Whether ids come back, so that log-probabilities have something to belong to.
pub(super) fn gives_ids(config: &EndpointConfig) -> bool {
    match config.api {
        Api::Chat => false,
        Api::Completions => config.dialect == Dialect::Vllm,
        Api::Generate => true,
    }
}

/// The body for one sample. An error says which parameter the endpoint does not know.
pub(super) fn body(
    config: &EndpointConfig,
    prompt: &Prompt,
    sampling: &SamplingParams,
    adapter: Option<&str>,
    sample: u32,
) -> Result<Value, String> {
    if adapter.is_some() && config.dialect == Dialect::OpenRouter {
        return Err("OpenRouter knows no adapters; leave `adapter` out".to_owned());
    }
    let mut parameters = parameters(config, sampling, sample)?;
    let mut body = config.extra_body.clone();
    body.insert("model".to_owned(), Value::from(adapter.unwrap_or(&config.model)));
    body.insert("stream".to_owned(), Value::Bool(false));
    match (config.api, prompt) {
        (Api::Chat, Prompt::Messages(messages)) => {
            body.insert("messages".to_owned(), json!(messages));
        }
        // A sub-call is one question: a message of its own, not template text inside one.
        (Api::Chat, Prompt::Text(text)) => {
            body.insert("messages".to_owned(), json!([{"role": "user", "content": text}]));
        }
        (Api::Completions, Prompt::Text(text)) => {
            body.insert("prompt".to_owned(), Value::from(text.as_str()));
        }
        (Api::Completions, Prompt::Tokens(ids)) => {
            body.insert("prompt".to_owned(), json!(ids));
        }
        (Api::Generate, Prompt::Tokens(ids)) => {
            body.insert("token_ids".to_owned(), json!(ids));
        }
        (Api::Chat, Prompt::Tokens(_)) => {
            return Err("`/chat/completions` takes messages or text, not token ids".to_owned());
        }
        (Api::Completions | Api::Generate, _) => {
            return Err(
                "this endpoint takes no messages; give the engine the model's tokenizer and template".to_owned()
            );
        }
    }
    if config.api == Api::Generate {
        body.insert("sampling_params".to_owned(), Value::Object(parameters));
    } else {
        body.append(&mut parameters);
    }
    // What the configuration says of the format goes before the hint.
    if let Some(hint) = &sampling.json_schema
        && config.api == Api::Chat
        && !body.contains_key("response_format")
    {
        let schema = json!({"name": hint.name, "strict": true, "schema": hint.schema});
        body.insert("response_format".to_owned(), json!({"type": "json_schema", "json_schema": schema}));
    }
    Ok(Value::Object(body))
}

fn parameters(config: &EndpointConfig, sampling: &SamplingParams, sample: u32) -> Result<Map<String, Value>, String> {
    let vllm = config.dialect == Dialect::Vllm || config.api == Api::Generate;
    let some = vllm || config.dialect == Dialect::OpenRouter;
    let mut fields = Map::new();
    let mut put = |name: &str, value: Value| {
        fields.insert(name.to_owned(), value);
    };
    put("temperature", float(sampling.temperature));
    put("top_p", float(sampling.top_p));
    let max_tokens = if config.api == Api::Generate { "max_tokens" } else { config.max_tokens_field.as_str() };
    put(max_tokens, Value::from(sampling.max_tokens));
    if let Some(seed) = sampling.seed {
        // Endpoints read a signed number.
        put("seed", Value::from(seed.wrapping_add(u64::from(sample)) & (u64::MAX >> 1)));
    }
    if !sampling.stop.is_empty() {
        put("stop", json!(sampling.stop));
    }
    let extras = [
        ("top_k", sampling.top_k > 0, some, json!(sampling.top_k)),
        ("min_p", sampling.min_p > 0.0, some, float(sampling.min_p)),
        ("stop_token_ids", !sampling.stop_token_ids.is_empty(), vllm, json!(sampling.stop_token_ids)),
        ("ignore_eos", sampling.ignore_eos, vllm, Value::Bool(true)),
    ];
    for (name, wanted, known, value) in extras {
        if wanted && !known {
            return Err(format!(
                "the endpoint's dialect does not know `{name}`; leave it out, or set `dialect` if the endpoint does"
            ));
        }
        if wanted {
            put(name, value);
        }
    }
    if vllm {
        put("skip_special_tokens", Value::Bool(true));
        if !sampling.stop.is_empty() {
            put("include_stop_str_in_output", Value::Bool(true));
        }
        if config.api != Api::Generate {
            put("return_token_ids", Value::Bool(true));
        }
    }
    if sampling.logprobs && gives_ids(config) {
        put("logprobs", Value::from(1));
    }
    Ok(fields)
}

/// The number as it was written: 0.7, not 0.699999988079071.
fn float(number: f32) -> Value {
    number.to_string().parse::<f64>().map_or(Value::Null, Value::from)
}

/// What one answer says.
#[derive(Debug, PartialEq)]
pub(super) struct Answer {
    /// The text, if it came as text.
    pub(super) text: Option<String>,
    pub(super) tokens: Option<Vec<TokenId>>,
    /// The prompt as the endpoint saw it.
    pub(super) prompt_tokens: Option<Vec<TokenId>>,
    pub(super) logprobs: Option<Vec<f32>>,
    pub(super) stop: StopReason,
    pub(super) usage: Usage,
}

/// Reads an answer. An error says what was expected and what came.
pub(super) fn answer(config: &EndpointConfig, sampling: &SamplingParams, body: &Value) -> Result<Answer, String> {
    let choices = body.get("choices").and_then(Value::as_array);
    let choice = match choices.map(Vec::as_slice) {
        Some([choice]) => choice,
        Some(choices) => return Err(format!("one choice was expected, {} came", choices.len())),
        None => return Err("the answer has no `choices`".to_owned()),
    };
    let mut text = match config.api {
        Api::Chat => {
            let message = choice.get("message").ok_or("the choice has no `message`")?;
            match message.get("content") {
                Some(Value::String(text)) => Some(text.clone()),
                None | Some(Value::Null) => Some(String::new()),
                Some(_) => return Err("the message's `content` is not a text".to_owned()),
            }
        }
        Api::Completions => match choice.get("text") {
            Some(Value::String(text)) => Some(text.clone()),
            _ => return Err("the choice has no `text`".to_owned()),
        },
        Api::Generate => None,
    };
    let tokens = ids(choice.get("token_ids"), "token_ids")?;
    if config.api == Api::Generate && tokens.is_none() {
        return Err("the choice has no `token_ids`".to_owned());
    }
    let prompt = choice.get("prompt_token_ids").or_else(|| body.get("prompt_token_ids"));
    let usage = usage(body, tokens.as_ref().map(Vec::len));
    // vLLM names what stopped it: a stop text, a stop token, or nothing for the model's own end of turn.
    let stop_text = choice.get("stop_reason").and_then(Value::as_str);
    let stop = match choice.get("finish_reason").and_then(Value::as_str) {
        Some("stop") if stop_text.is_some() => StopReason::StopString,
        Some("stop" | "tool_calls" | "function_call" | "eos") => StopReason::EndOfTurn,
        Some("length") if (1..sampling.max_tokens).contains(&usage.completion_tokens) => StopReason::ContextOverflow,
        Some("length") => StopReason::MaxTokens,
        Some("abort") => StopReason::Cancelled,
        Some(other) => return Err(format!("the generation ended by `{other}`")),
        None => return Err("the choice has no `finish_reason`".to_owned()),
    };
    if let (Some(text), Some(stop_text)) = (&mut text, stop_text)
        && !text.ends_with(stop_text)
    {
        text.push_str(stop_text);
    }
    let logprobs = if sampling.logprobs && gives_ids(config) { logprobs(choice)? } else { None };
    if let (Some(tokens), Some(logprobs)) = (&tokens, &logprobs)
        && tokens.len() != logprobs.len()
    {
        return Err(format!("{} token ids came with {} log-probabilities", tokens.len(), logprobs.len()));
    }
    Ok(Answer { text, tokens, prompt_tokens: ids(prompt, "prompt_token_ids")?, logprobs, stop, usage })
}

fn ids(value: Option<&Value>, name: &str) -> Result<Option<Vec<TokenId>>, String> {
    let list = match value {
        None | Some(Value::Null) => return Ok(None),
        Some(Value::Array(list)) => list,
        Some(_) => return Err(format!("`{name}` is not a list")),
    };
    let id = |id: &Value| id.as_u64().and_then(|id| TokenId::try_from(id).ok());
    let ids = list.iter().map(id).collect::<Option<Vec<_>>>();
    ids.map(Some).ok_or_else(|| format!("`{name}` holds something that is not a token id"))
}

fn usage(body: &Value, tokens: Option<usize>) -> Usage {
    let count = |path: &str| {
        let number = body.pointer(path).and_then(Value::as_u64).unwrap_or(0);
        u32::try_from(number).unwrap_or(u32::MAX)
    };
    let completion_tokens = match tokens {
        Some(tokens) => u32::try_from(tokens).unwrap_or(u32::MAX),
        None => count("/usage/completion_tokens"),
    };
    Usage {
        prompt_tokens: count("/usage/prompt_tokens"),
        cached_tokens: count("/usage/prompt_tokens_details/cached_tokens"),
        completion_tokens,
    }
}

/// Endpoints write this for a log-probability of minus infinity or none at all; a token that was sampled has neither.
const STAND_IN: f64 = -9999.0;

/// Log-probabilities of sampled tokens, in the form of chat (`content`) or of completions (`token_logprobs`).
fn logprobs(choice: &Value) -> Result<Option<Vec<f32>>, String> {
    let object = match choice.get("logprobs") {
        None | Some(Value::Null) => return Ok(None),
        Some(object) => object,
    };
    let content = object.get("content").and_then(Value::as_array);
    let list: Vec<Option<&Value>> = match (content, object.get("token_logprobs").and_then(Value::as_array)) {
        (Some(content), _) => content.iter().map(|entry| entry.get("logprob")).collect(),
        (None, Some(list)) => list.iter().map(Some).collect(),
        (None, None) => return Err("`logprobs` has neither `content` nor `token_logprobs`".to_owned()),
    };
    let mut logprobs = Vec::with_capacity(list.len());
    for (place, value) in list.into_iter().enumerate() {
        match value.and_then(Value::as_f64) {
            // A little above 0 is rounding.
            Some(number) if number > STAND_IN && number < 1e-3 => logprobs.push(number.min(0.0) as f32),
            Some(number) => return Err(format!("the log-probability of token {place} is {number}")),
            None => return Err(format!("token {place} has no finite log-probability")),
        }
    }
    Ok(Some(logprobs))
}

/// Reads `(context, prompt)` from a refusal because of a prompt that is too long. Endpoints say this in words only:
/// "This model's maximum context length is 4096 tokens. However, you requested 5000 tokens (4500 in the messages, ...".
pub(super) fn overflow(refusal: &str) -> Option<(u32, u32)> {
    let at = refusal.find("maximum context length")?;
    let mut numbers = refusal[at..]
        .split(|c: char| !c.is_ascii_digit())
        .filter_map(|digits| digits.parse::<u32>().ok())
        .filter(|&number| number > 0);
    let context = numbers.next()?;
    Some((context, numbers.next().unwrap_or(context)))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{JsonSchema, Message};

    #[test]
    fn a_schema_goes_to_chats_alone_and_never_in_place_of_the_configuration() {
        let hint = JsonSchema { name: "verdict".to_owned(), schema: json!({"type": "object"}) };
        let sampling = SamplingParams { json_schema: Some(Arc::new(hint)), ..SamplingParams::default() };
        let mut config = EndpointConfig::new("http://localhost/v1", "m");
        let chat = Prompt::Messages(vec![Message::user("hi")]);
        let sent = body(&config, &chat, &sampling, None, 0).unwrap();
        let format = json!({"name": "verdict", "strict": true, "schema": {"type": "object"}});
        assert_eq!(sent["response_format"], json!({"type": "json_schema", "json_schema": format}));
        assert!(body(&config, &chat, &SamplingParams::default(), None, 0).unwrap().get("response_format").is_none());
        config.extra_body.insert("response_format".to_owned(), json!({"type": "json_object"}));
        assert_eq!(
            body(&config, &chat, &sampling, None, 0).unwrap()["response_format"],
            json!({"type": "json_object"})
        );
        config = EndpointConfig { api: Api::Completions, ..EndpointConfig::new("http://localhost/v1", "m") };
        let text = Prompt::Text("hi".to_owned());
        assert!(body(&config, &text, &sampling, None, 0).unwrap().get("response_format").is_none());
    }
}
