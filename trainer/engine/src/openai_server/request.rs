//! JSON bodies to checked requests.

use espalier_inference::{Message, Prompt, SamplingParams, TokenId};
use serde_json::{Map, Value};

use super::ApiError;

/// Which of the two endpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Api {
    Chat,
    Completions,
}

/// A checked request.
#[derive(Clone, Debug)]
pub(super) struct Call {
    pub(super) api: Api,
    pub(super) model: Option<String>,
    /// The adapter that `model` names; the server fills it in.
    pub(super) adapter: Option<String>,
    pub(super) prompts: Vec<Prompt>,
    pub(super) sampling: SamplingParams,
    pub(super) n: u32,
    pub(super) session: Option<String>,
    pub(super) stream: bool,
    pub(super) include_usage: bool,
    /// How many alternatives to show for each token, 0 or 1; `None` where log-probabilities are not asked for.
    pub(super) top_logprobs: Option<u32>,
    pub(super) include_stop: bool,
    pub(super) return_token_ids: bool,
}

/// Parameters that do nothing here and harm nothing.
const IGNORED: [&str; 5] = ["user", "metadata", "store", "service_tier", "parallel_tool_calls"];

/// Parameters that the engine does not do: only the values that ask for nothing pass.
fn asks_for_nothing(name: &str, value: &Value) -> Option<bool> {
    Some(match name {
        "presence_penalty" | "frequency_penalty" => value.as_f64() == Some(0.0),
        "repetition_penalty" => value.as_f64() == Some(1.0),
        "logit_bias" => value.as_object().is_some_and(Map::is_empty),
        "tools" | "functions" => value.as_array().is_some_and(Vec::is_empty),
        "tool_choice" | "function_call" => value == "none" || value == "auto",
        "response_format" => value.get("type").is_some_and(|t| t == "text"),
        "echo" => value == &Value::Bool(false),
        "best_of" => value.as_u64() == Some(1),
        "suffix" => value == "",
        "modalities" => value == &serde_json::json!(["text"]),
        _ => return None,
    })
}

/// The parameters not taken yet.
struct Fields(Map<String, Value>);

impl Fields {
    fn take(&mut self, name: &str) -> Option<Value> {
        self.0.shift_remove(name).filter(|v| !v.is_null())
    }

    fn float(&mut self, name: &str, default: f32) -> Result<f32, ApiError> {
        match self.take(name) {
            None => Ok(default),
            Some(value) => value.as_f64().map(|x| x as f32).ok_or_else(|| wrong(name, "a number", &value)),
        }
    }

    fn integer(&mut self, name: &str, least: i64, most: i64) -> Result<Option<i64>, ApiError> {
        let Some(value) = self.take(name) else { return Ok(None) };
        match value.as_i64().filter(|n| (least..=most).contains(n)) {
            Some(n) => Ok(Some(n)),
            None => Err(wrong(name, &format!("an integer from {least} to {most}"), &value)),
        }
    }

    fn flag(&mut self, name: &str) -> Result<bool, ApiError> {
        match self.take(name) {
            None => Ok(false),
            Some(value) => value.as_bool().ok_or_else(|| wrong(name, "true or false", &value)),
        }
    }

    fn text(&mut self, name: &str) -> Result<Option<String>, ApiError> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(value) => Err(wrong(name, "a text", &value)),
        }
    }
}

fn wrong(name: &str, expected: &str, found: &Value) -> ApiError {
    let mut shown = found.to_string();
    if let Some((end, _)) = shown.char_indices().nth(80) {
        shown.truncate(end);
        shown.push_str("...");
    }
    ApiError::invalid(name, format!("`{name}`: expected {expected}, got {shown}"))
}

impl Call {
    pub(super) fn parse(api: Api, body: &[u8], max_prompts: usize) -> Result<Self, ApiError> {
        let value: Value = serde_json::from_slice(body).map_err(|e| ApiError {
            param: None,
            ..ApiError::invalid("", format!("the body is not valid JSON: {e}"))
        })?;
        let Value::Object(map) = value else {
            return Err(ApiError { param: None, ..ApiError::invalid("", "the body: expected an object") });
        };
        let mut fields = Fields(map);
        let prompts = match api {
            Api::Chat => vec![messages(fields.take("messages"))?],
            Api::Completions => prompts(fields.take("prompt"), max_prompts)?,
        };
        let defaults = SamplingParams::default();
        let most = fields.integer("max_tokens", 1, i64::from(u32::MAX))?;
        let max_tokens = match api {
            // A chat answer may fill the context; a completion has OpenAI's small default.
            Api::Chat => {
                fields.integer("max_completion_tokens", 1, i64::from(u32::MAX))?.or(most).unwrap_or(i64::from(u32::MAX))
            }
            Api::Completions => most.unwrap_or(16),
        };
        let top_logprobs = match api {
            Api::Chat => {
                let asked = fields.flag("logprobs")?;
                let top = fields.integer("top_logprobs", 0, 1)?;
                if top.is_some() && !asked {
                    return Err(ApiError::invalid(
                        "top_logprobs",
                        "`top_logprobs`: expected `logprobs` to be true as well",
                    ));
                }
                asked.then(|| top.unwrap_or(0))
            }
            Api::Completions => fields.integer("logprobs", 0, 1)?,
        };
        let sampling = SamplingParams {
            temperature: fields.float("temperature", defaults.temperature)?,
            top_p: fields.float("top_p", defaults.top_p)?,
            min_p: fields.float("min_p", defaults.min_p)?,
            // vLLM writes -1 for "keep all".
            top_k: fields.integer("top_k", -1, i64::from(u32::MAX))?.unwrap_or(0).max(0) as u32,
            max_tokens: max_tokens as u32,
            stop: stops(fields.take("stop"))?,
            stop_token_ids: match fields.take("stop_token_ids") {
                None => Vec::new(),
                Some(value) => ids("stop_token_ids", &value)?,
            },
            ignore_eos: fields.flag("ignore_eos")?,
            seed: fields.integer("seed", i64::MIN, i64::MAX)?.map(|seed| seed as u64),
            logprobs: top_logprobs.is_some(),
            json_schema: None,
        };
        let mut include_usage = false;
        let stream = fields.flag("stream")?;
        if let Some(options) = fields.take("stream_options") {
            let Some(map) = options.as_object() else { return Err(wrong("stream_options", "an object", &options)) };
            include_usage = map.get("include_usage").and_then(Value::as_bool).unwrap_or(false);
        }
        let call = Self {
            api,
            model: fields.text("model")?,
            adapter: None,
            prompts,
            sampling,
            n: fields.integer("n", 1, 1024)?.unwrap_or(1) as u32,
            session: fields.text("session_id")?,
            stream,
            include_usage,
            top_logprobs: top_logprobs.map(|n| n as u32),
            include_stop: fields.flag("include_stop_str_in_output")?,
            return_token_ids: fields.flag("return_token_ids")?,
        };
        for (name, value) in fields.0 {
            if value.is_null() || IGNORED.contains(&name.as_str()) {
                continue;
            }
            match asks_for_nothing(&name, &value) {
                Some(true) => {}
                Some(false) => {
                    return Err(ApiError::invalid(
                        &name,
                        format!("`{name}`: this engine does not do that; leave it out"),
                    ));
                }
                None => return Err(ApiError::invalid(&name, format!("unknown parameter `{name}`"))),
            }
        }
        Ok(call)
    }
}

/// Chat messages; content may be a text, or a list of text parts.
fn messages(value: Option<Value>) -> Result<Prompt, ApiError> {
    let Some(Value::Array(list)) = value else {
        return Err(wrong("messages", "a list of messages", &value.unwrap_or(Value::Null)));
    };
    if list.is_empty() {
        return Err(ApiError::invalid("messages", "`messages`: expected at least one message, got none"));
    }
    let mut all = Vec::new();
    for (i, mut message) in list.into_iter().enumerate() {
        if let Some(content) = message.get_mut("content") {
            match content {
                Value::Null => *content = Value::String(String::new()),
                Value::Array(parts) => {
                    let mut text = String::new();
                    for part in parts.iter() {
                        match (part.get("type").and_then(Value::as_str), part.get("text").and_then(Value::as_str)) {
                            (Some("text"), Some(piece)) => text.push_str(piece),
                            _ => {
                                return Err(wrong(&format!("messages[{i}].content"), "text parts only", part));
                            }
                        }
                    }
                    *content = Value::String(text);
                }
                _ => {}
            }
        }
        let parsed: Message = serde_json::from_value(message)
            .map_err(|e| ApiError::invalid(&format!("messages[{i}]"), format!("`messages[{i}]`: {e}")))?;
        all.push(parsed);
    }
    Ok(Prompt::Messages(all))
}

/// A text, a list of texts, a list of token ids, or a list of such lists.
fn prompts(value: Option<Value>, most: usize) -> Result<Vec<Prompt>, ApiError> {
    let expected = "a text, token ids, or a list of either";
    let prompts = match value {
        Some(Value::String(text)) => vec![Prompt::Text(text)],
        Some(Value::Array(list)) if list.first().is_some_and(Value::is_number) => {
            vec![Prompt::Tokens(ids("prompt", &Value::Array(list))?)]
        }
        Some(Value::Array(list)) => list
            .into_iter()
            .map(|item| match item {
                Value::String(text) => Ok(Prompt::Text(text)),
                Value::Array(_) => Ok(Prompt::Tokens(ids("prompt", &item)?)),
                other => Err(wrong("prompt", expected, &other)),
            })
            .collect::<Result<_, _>>()?,
        other => return Err(wrong("prompt", expected, &other.unwrap_or(Value::Null))),
    };
    if prompts.is_empty() || prompts.len() > most {
        return Err(ApiError::invalid(
            "prompt",
            format!("`prompt`: expected 1 to {most} prompts, got {}", prompts.len()),
        ));
    }
    Ok(prompts)
}

fn ids(name: &str, value: &Value) -> Result<Vec<TokenId>, ApiError> {
    let expected = "a list of token ids";
    let list = value.as_array().ok_or_else(|| wrong(name, expected, value))?;
    list.iter()
        .map(|id| id.as_u64().and_then(|id| TokenId::try_from(id).ok()).ok_or_else(|| wrong(name, expected, id)))
        .collect()
}

fn stops(value: Option<Value>) -> Result<Vec<String>, ApiError> {
    match value {
        None => Ok(Vec::new()),
        Some(Value::String(text)) => Ok(vec![text]),
        Some(Value::Array(list)) => list
            .into_iter()
            .map(|item| match item {
                Value::String(text) => Ok(text),
                other => Err(wrong("stop", "a text or a list of texts", &other)),
            })
            .collect(),
        Some(other) => Err(wrong("stop", "a text or a list of texts", &other)),
    }
}
