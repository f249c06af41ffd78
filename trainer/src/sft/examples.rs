//! Conversations to rows: which tokens a model sees, and which of them it learns.
//!
//! A conversation is laid out as a rollout of it would be: the prompt is encoded, each assistant turn is its own tokens
//! with the end of turn that the template writes behind it, and what lies between is the environment's. So a policy is
//! taught exactly the tokens that it will be asked to sample. Where a template rewrites history (it drops the thinking of
//! earlier turns), a new row starts.

use espalier_inference::conversation::Extension;
use espalier_inference::{ChatTemplate, Conversation, ConversationOptions, Message, Role, TokenId, Tokenizer};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Which assistant turns are learned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TrainOnWhat {
    /// The last one.
    #[default]
    LastAssistantMessage,
    /// All of them.
    AllAssistantMessages,
}

/// One row: tokens, and a weight for each. The first token's weight is 0: nothing predicts it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Example {
    /// Tokens.
    pub tokens: Vec<TokenId>,
    /// Weight of each token in the loss; 0 where it is not learned.
    pub weights: Vec<f32>,
}

impl Example {
    /// First token that is learned, if any is.
    pub fn first_learned(&self) -> Option<usize> {
        self.weights.iter().position(|w| *w != 0.0)
    }

    /// Sum of weights.
    pub fn weight(&self) -> f64 {
        self.weights.iter().map(|w| f64::from(*w)).sum()
    }

    fn push(&mut self, tokens: &[TokenId], weight: f32) {
        self.tokens.extend_from_slice(tokens);
        self.weights.resize(self.tokens.len(), weight);
    }
}

/// Lays conversations out.
#[derive(Clone)]
pub struct ChatEncoder {
    /// The model's tokenizer.
    pub tokenizer: Tokenizer,
    /// Its template.
    pub template: ChatTemplate,
    /// Which turns are learned.
    pub train_on: TrainOnWhat,
    /// Keyword arguments of the template.
    pub kwargs: Map<String, Value>,
}

impl ChatEncoder {
    /// A conversation's rows. At least one message must be the assistant's; what follows the last of those is left out.
    pub fn encode(&self, messages: &[Message], tools: &[Value]) -> Result<Vec<Example>, String> {
        let turns: Vec<usize> =
            messages.iter().enumerate().filter(|(_, m)| m.role == Role::Assistant).map(|(i, _)| i).collect();
        let (Some(first), Some(last)) = (turns.first().copied(), turns.last().copied()) else {
            return Err("expected at least one message with role `assistant`, found none".to_owned());
        };
        let options = ConversationOptions {
            tools: tools.to_vec(),
            kwargs: self.kwargs.clone(),
            ..ConversationOptions::default()
        };
        let failed = |e: espalier_inference::ConversationError| e.to_string();
        let mut conversation =
            Conversation::new(self.template.clone(), self.tokenizer.clone(), messages[..first].to_vec(), options)
                .map_err(failed)?;
        let mut rows = Vec::new();
        let mut row = Example::default();
        row.push(conversation.ids(), 0.0);
        for (n, at) in turns.iter().enumerate() {
            let learned = self.train_on == TrainOnWhat::AllAssistantMessages || *at == last;
            let said = self.turn_tokens(&messages[..=*at], tools)?;
            row.push(&said, f32::from(u8::from(learned)));
            conversation.push_assistant(&said, &messages[*at].content).map_err(failed)?;
            let Some(next) = turns.get(n + 1) else { break };
            match conversation.push_observations(messages[at + 1..*next].to_vec()).map_err(failed)? {
                Extension::Extended(given) => row.push(&given, 0.0),
                Extension::Fork(prompt) => {
                    rows.push(std::mem::take(&mut row));
                    row.push(&prompt, 0.0);
                }
            }
        }
        rows.push(row);
        rows.retain(|row| row.first_learned().is_some());
        Ok(rows)
    }

    /// What the last message is as sampled tokens: what the template writes of it, with the end of turn.
    fn turn_tokens(&self, messages: &[Message], tools: &[Value]) -> Result<Vec<TokenId>, String> {
        let Some((last, before)) = messages.split_last() else { return Ok(Vec::new()) };
        let render = |messages: &[Message], prompt: bool| {
            self.template.render(messages, tools, prompt, &self.kwargs).map_err(|e| e.to_string())
        };
        let mut tokens = None;
        // Calls and thinking are the template's to write; plain text is taken as it stands, special tokens in it as text.
        if !last.tool_calls.is_empty() || last.reasoning_content.is_some() {
            let (head, whole) = (render(before, true)?, render(messages, false)?);
            if let Some(said) = whole.strip_prefix(&head) {
                tokens = Some(self.tokenizer.encode(said).map_err(|e| e.to_string())?);
            }
        }
        let mut tokens = match tokens {
            Some(tokens) => tokens,
            None => self.tokenizer.encode_untrusted(&last.content).map_err(|e| e.to_string())?,
        };
        let ends = self.tokenizer.eos_ids();
        if let Some(end) = tokens.iter().rposition(|t| ends.contains(t)) {
            // What the template writes behind the end of turn belongs to nobody.
            tokens.truncate(end + 1);
        } else if let Some(end) = self.end_of_turn(messages, tools)? {
            tokens.push(end);
        }
        Ok(tokens)
    }

    /// The end-of-turn token that the template writes behind the last message, else the tokenizer's own.
    fn end_of_turn(&self, messages: &[Message], tools: &[Value]) -> Result<Option<TokenId>, String> {
        let text = self.template.render(messages, tools, false, &self.kwargs).map_err(|e| e.to_string())?;
        let ends = self.tokenizer.eos_ids();
        let found = ends.iter().filter_map(|id| Some((*id, text.rfind(&self.tokenizer.token(*id)?)?)));
        Ok(found.max_by_key(|(_, at)| *at).map(|(id, _)| id).or(ends.first().copied()))
    }
}

/// Columns of a record that hold the conversation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Columns {
    /// Chat messages.
    pub messages: String,
    /// Descriptions of tools.
    pub tools: String,
    /// A system prompt to put before the messages.
    pub system: String,
}

impl Default for Columns {
    fn default() -> Self {
        Self { messages: "messages".to_owned(), tools: "tools".to_owned(), system: "system".to_owned() }
    }
}

/// A record as it was found.
#[derive(Clone, Debug, PartialEq)]
pub enum Found {
    /// A conversation and its tools.
    Chat(Vec<Message>, Vec<Value>),
    /// Tokens with their weights.
    Tokens(Example),
}

/// Reads a record: chat messages; `prompt` and `completion` (or `response`); `instruction`, `input` and `output`; or
/// tokens as `input_ids` with `loss_mask`, `weights` or `labels` (-100 is not learned).
pub fn read_record(record: &Map<String, Value>, columns: &Columns) -> Result<Found, String> {
    let text = |name: &str| match record.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.clone())),
        Some(other) => Err(format!("column `{name}`: expected a text, found {other}")),
    };
    if let Some(ids) = record.get("input_ids") {
        return tokens(ids, record).map(Found::Tokens);
    }
    let mut messages = Vec::new();
    if let Some(system) = text(&columns.system)?.filter(|s| !s.is_empty()) {
        messages.push(Message::system(system));
    }
    if let Some(value) = record.get(&columns.messages).filter(|v| !v.is_null()) {
        let listed: Vec<Message> = serde_json::from_value(value.clone())
            .map_err(|e| format!("column `{}`: expected chat messages: {e}", columns.messages))?;
        messages.extend(listed);
    } else if let Some(instruction) = text("instruction")? {
        let Some(output) = text("output")? else { return Err("column `output` is missing".to_owned()) };
        let input = text("input")?.filter(|s| !s.is_empty());
        messages.push(Message::user(input.map_or(instruction.clone(), |input| format!("{instruction}\n\n{input}"))));
        messages.push(Message::assistant(output));
    } else {
        let said = text("completion")?.or(text("response")?);
        let asked = match record.get("prompt") {
            Some(Value::String(prompt)) => Some(vec![Message::user(prompt.clone())]),
            Some(value @ Value::Array(_)) => Some(
                serde_json::from_value(value.clone())
                    .map_err(|e| format!("column `prompt`: expected a text or chat messages: {e}"))?,
            ),
            _ => None,
        };
        let (Some(asked), Some(said)) = (asked, said) else {
            return Err(format!(
                "expected `{}`, or `prompt` and `completion`, or `instruction` and `output`, or `input_ids`; found columns {}",
                columns.messages,
                record.keys().map(|k| format!("`{k}`")).collect::<Vec<_>>().join(", ")
            ));
        };
        messages.extend(asked);
        messages.push(Message::assistant(said));
    }
    let tools = match record.get(&columns.tools) {
        None | Some(Value::Null) => Vec::new(),
        Some(Value::Array(tools)) => tools.clone(),
        Some(Value::String(json)) => {
            serde_json::from_str(json).map_err(|e| format!("column `{}`: expected a JSON list: {e}", columns.tools))?
        }
        Some(other) => return Err(format!("column `{}`: expected a list, found {other}", columns.tools)),
    };
    Ok(Found::Chat(messages, tools))
}

fn tokens(ids: &Value, record: &Map<String, Value>) -> Result<Example, String> {
    let numbers = |name: &str, value: &Value| -> Result<Vec<f64>, String> {
        let all = value.as_array().and_then(|all| all.iter().map(Value::as_f64).collect::<Option<Vec<f64>>>());
        all.ok_or_else(|| format!("column `{name}`: expected a list of numbers"))
    };
    let ids: Vec<TokenId> = numbers("input_ids", ids)?
        .into_iter()
        .map(|id| {
            let whole = (0.0..=f64::from(TokenId::MAX)).contains(&id) && id.fract() == 0.0;
            whole.then_some(id as TokenId).ok_or_else(|| format!("column `input_ids`: {id} is no token id"))
        })
        .collect::<Result<_, _>>()?;
    let column = |name: &'static str| record.get(name).filter(|v| !v.is_null()).map(|v| (name, v));
    let Some((name, value)) = column("loss_mask").or(column("weights")).or(column("labels")) else {
        return Err("expected `loss_mask`, `weights` or `labels` beside `input_ids`, found none".to_owned());
    };
    let values = numbers(name, value)?;
    if values.len() != ids.len() {
        return Err(format!("column `{name}`: {} entries, `input_ids` has {}", values.len(), ids.len()));
    }
    let mut weights: Vec<f32> =
        values.into_iter().map(|v| if name == "labels" { f32::from(u8::from(v >= 0.0)) } else { v as f32 }).collect();
    if let Some(at) = weights.iter().position(|w| !w.is_finite()) {
        return Err(format!("column `{name}`: entry {at} is not finite"));
    }
    if let Some(at) = weights.iter().position(|w| *w < 0.0) {
        return Err(format!("column `{name}`: expected 0 or more, entry {at} is {}", weights[at]));
    }
    if let Some(first) = weights.first_mut() {
        *first = 0.0;
    }
    Ok(Example { tokens: ids, weights })
}
