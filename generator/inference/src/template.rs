//! Chat templates: a conversation to the text that the model was trained on.
//!
//! | module | what lives there |
//! |---|---|
//! | this one | [`ChatTemplate`]: loading and rendering |
//! | `dialect` | what the templates' own dialect adds to Jinja, as Hugging Face's `transformers` defines it |
//! | `rendered` | [`Rendered`]: text that knows which of its special tokens came from messages |
//!
//! A template is the model's own: `chat_template.jinja`, or `chat_template` in `tokenizer_config.json` (a text, or a
//! list of named ones of which `tool_use` serves conversations with tools). What it sees is what `transformers` shows
//! it: `messages`, `tools`, `add_generation_prompt`, the special tokens by name, and keyword arguments such as
//! `enable_thinking`.
//!
//! Invariants: rendering is a function of its arguments (a template that asks for the date gets the one it was given);
//! it ends (steps are counted); what stood in a message never becomes a special token, unless the template itself
//! pieces one together from what it cut out of a message.

mod dialect;
mod rendered;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use minijinja::{Environment, ErrorKind, UndefinedBehavior};
use serde_json::{Map, Value, json};
use thiserror::Error;

pub(crate) use self::dialect::days_from_civil;
use self::rendered::Marker;
pub use self::rendered::Rendered;
use crate::tokenizer::files::ModelFolder;
use crate::tokenizer::{Tokenizer, TokenizerError};
use crate::{Message, TokenId};

/// Keyword arguments of a template (`enable_thinking`, ...).
pub type Kwargs = Map<String, Value>;

/// Steps that one rendering may take. A conversation of a thousand messages takes some hundred thousand.
const STEPS: u64 = 5_000_000;

/// Names that a template gets from us and that keyword arguments may not replace.
const RESERVED: [&str; 3] = ["messages", "tools", "add_generation_prompt"];

/// Why a template could not be loaded or rendered.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum TemplateError {
    /// The model's files cannot be read.
    #[error(transparent)]
    Files(#[from] TokenizerError),
    /// The model has no template.
    #[error(
        "the model folder `{folder}` has no chat template: neither `chat_template.jinja` nor `chat_template` in `tokenizer_config.json`"
    )]
    Missing {
        /// The folder.
        folder: String,
    },
    /// The template is not valid.
    #[error("the chat template of `{model}` does not compile: {reason}")]
    Syntax {
        /// Whose template.
        model: String,
        /// Where and what.
        reason: String,
    },
    /// The template refused the conversation (`raise_exception`).
    #[error("the chat template of `{model}` refuses the conversation: {message}")]
    Refused {
        /// Whose template.
        model: String,
        /// The template's words.
        message: String,
    },
    /// The template failed.
    #[error("the chat template of `{model}` failed: {reason}")]
    Failed {
        /// Whose template.
        model: String,
        /// Where and what.
        reason: String,
    },
    /// A keyword argument has a name that the template gets from us.
    #[error("`{name}` is not a keyword argument for chat templates: it is an argument of its own")]
    Reserved {
        /// The name.
        name: String,
    },
    /// Messages hold special tokens and every character that could tell these from the template's.
    #[error(
        "the messages hold special tokens and all 32 noncharacters U+FDD0 to U+FDEF; at least one of these must be free"
    )]
    Unmarkable,
}

/// A model's chat template. Cheap to clone.
#[derive(Clone)]
pub struct ChatTemplate(Arc<Inner>);

struct Inner {
    model: String,
    environment: Environment<'static>,
    variables: BTreeMap<String, String>,
    has_tool_template: bool,
}

impl std::fmt::Debug for ChatTemplate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ChatTemplate").field("model", &self.0.model).finish_non_exhaustive()
    }
}

/// ChatML, without a default system message.
const CHATML: &str = "{%- for message in messages -%}
{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{ '<|im_start|>assistant\\n' }}
{%- endif -%}";

/// The template for conversations with tools, in lists of named templates.
const TOOL_TEMPLATE: &str = "tool_use";
const DEFAULT_TEMPLATE: &str = "default";

impl ChatTemplate {
    /// Reads a model folder's template.
    pub fn from_dir(dir: impl AsRef<Path>) -> Result<Self, TemplateError> {
        let folder = ModelFolder::open(dir.as_ref())?;
        let variables = folder.special_tokens()?;
        let templates = match folder.text("chat_template.jinja")? {
            Some(text) => vec![(DEFAULT_TEMPLATE.to_owned(), text)],
            None => match folder.object("tokenizer_config.json")?.remove("chat_template") {
                None | Some(Value::Null) => return Err(TemplateError::Missing { folder: folder.name() }),
                Some(template) => named_templates(template).ok_or_else(|| {
                    let reason = "has a `chat_template` that is neither a text nor a list of `{\"name\", \"template\"}`, one of them `default`";
                    folder.malformed("tokenizer_config.json", reason.to_owned())
                })?,
            },
        };
        Self::build(&folder.name(), templates, variables)
    }

    /// Takes a template's text. `special_tokens` are those it knows by name (`bos_token`, ...).
    pub fn from_source(
        model: &str,
        source: &str,
        special_tokens: BTreeMap<String, String>,
    ) -> Result<Self, TemplateError> {
        Self::build(model, vec![(DEFAULT_TEMPLATE.to_owned(), source.to_owned())], special_tokens)
    }

    /// ChatML as [`Tokenizer::bytes`] speaks it: for tests, and for models that have no template of their own.
    pub fn chatml() -> Self {
        static CHATML_TEMPLATE: OnceLock<ChatTemplate> = OnceLock::new();
        #[expect(clippy::expect_used, reason = "the template is fixed; every test of this crate runs through it")]
        CHATML_TEMPLATE
            .get_or_init(|| {
                Self::from_source("chatml", CHATML, BTreeMap::new()).expect("the built-in template compiles")
            })
            .clone()
    }

    /// The same template at another time: what `strftime_now` answers, in seconds since 1970 (UTC). Templates that ask
    /// for the date get 26 July 2024 otherwise (the date that Llama 3's template falls back to), so that results do not
    /// depend on the day.
    #[must_use]
    pub fn with_time(&self, unix_seconds: i64) -> Self {
        let mut environment = self.0.environment.clone();
        dialect::set_time(&mut environment, unix_seconds);
        Self(Arc::new(Inner {
            model: self.0.model.clone(),
            environment,
            variables: self.0.variables.clone(),
            has_tool_template: self.0.has_tool_template,
        }))
    }

    fn build(
        model: &str,
        templates: Vec<(String, String)>,
        variables: BTreeMap<String, String>,
    ) -> Result<Self, TemplateError> {
        let mut environment = Environment::new();
        environment.set_trim_blocks(true);
        environment.set_lstrip_blocks(true);
        environment.set_undefined_behavior(UndefinedBehavior::Lenient);
        environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
        environment.set_fuel(Some(STEPS));
        dialect::install(&mut environment);
        dialect::set_time(&mut environment, dialect::DEFAULT_TIME);
        let mut has_tool_template = false;
        for (name, source) in templates {
            has_tool_template |= name == TOOL_TEMPLATE;
            environment
                .add_template_owned(name, dialect::without_generation_tags(&source))
                .map_err(|error| TemplateError::Syntax { model: model.to_owned(), reason: describe(&error) })?;
        }
        Ok(Self(Arc::new(Inner { model: model.to_owned(), environment, variables, has_tool_template })))
    }

    /// Whose template this is, for messages.
    pub fn model(&self) -> &str {
        &self.0.model
    }

    /// Renders a conversation as text, as `transformers`' `apply_chat_template(tokenize=False)` does. For people and for
    /// engines that take text; for tokens use [`ChatTemplate::encode`], which does not mistake what stands in messages
    /// for structure.
    pub fn render(
        &self,
        messages: &[Message],
        tools: &[Value],
        add_generation_prompt: bool,
        kwargs: &Kwargs,
    ) -> Result<String, TemplateError> {
        let messages = messages.iter().map(message_value).collect();
        self.run(messages, tools.to_vec(), add_generation_prompt, kwargs)
    }

    /// Renders a conversation and notes which special tokens in the text came from messages or tools.
    pub fn render_marked(
        &self,
        tokenizer: &Tokenizer,
        messages: &[Message],
        tools: &[Value],
        add_generation_prompt: bool,
        kwargs: &Kwargs,
    ) -> Result<Rendered, TemplateError> {
        let mut messages: Vec<_> = messages.iter().map(message_value).collect();
        let mut tools = tools.to_vec();
        let marker = Marker::mark(tokenizer.specials(), &mut messages, &mut tools)?;
        let text = self.run(messages, tools, add_generation_prompt, kwargs)?;
        Ok(marker.unmark(text))
    }

    /// Renders a conversation and encodes it; special tokens that stood in messages or tools stay ordinary text.
    pub fn encode(
        &self,
        tokenizer: &Tokenizer,
        messages: &[Message],
        tools: &[Value],
        add_generation_prompt: bool,
        kwargs: &Kwargs,
    ) -> Result<Vec<TokenId>, TemplateError> {
        let rendered = self.render_marked(tokenizer, messages, tools, add_generation_prompt, kwargs)?;
        Ok(tokenizer.encode_rendered(&rendered)?)
    }

    fn run(
        &self,
        messages: Vec<Value>,
        tools: Vec<Value>,
        add_generation_prompt: bool,
        kwargs: &Kwargs,
    ) -> Result<String, TemplateError> {
        if let Some(name) = RESERVED.iter().find(|name| kwargs.contains_key(**name)) {
            return Err(TemplateError::Reserved { name: (*name).to_owned() });
        }
        let name = if self.0.has_tool_template && !tools.is_empty() { TOOL_TEMPLATE } else { DEFAULT_TEMPLATE };
        let mut variables = Map::new();
        for (name, token) in &self.0.variables {
            variables.insert(name.clone(), Value::from(token.as_str()));
        }
        for (name, value) in kwargs {
            variables.insert(name.clone(), value.clone());
        }
        variables.insert("messages".to_owned(), Value::Array(messages));
        // `transformers` gives `none` where there are no tools; templates tell it from an empty list.
        variables.insert("tools".to_owned(), if tools.is_empty() { Value::Null } else { Value::Array(tools) });
        variables.insert("add_generation_prompt".to_owned(), Value::Bool(add_generation_prompt));
        let rendered = self.0.environment.get_template(name).and_then(|template| template.render(&variables));
        rendered.map_err(|error| self.failure(&error))
    }

    fn failure(&self, error: &minijinja::Error) -> TemplateError {
        let model = self.0.model.clone();
        if let Some(message) = dialect::raised(error) {
            return TemplateError::Refused { model, message };
        }
        let reason = match error.kind() {
            ErrorKind::OutOfFuel => format!("it was not done after {STEPS} steps"),
            _ => describe(error),
        };
        TemplateError::Failed { model, reason }
    }
}

/// One line: what, and in which line of the template.
fn describe(error: &minijinja::Error) -> String {
    let mut text = error.kind().to_string();
    if let Some(detail) = error.detail() {
        text = format!("{text}: {detail}");
    }
    if let Some(line) = error.line() {
        text = format!("{text} (line {line})");
    }
    text
}

fn named_templates(value: Value) -> Option<Vec<(String, String)>> {
    match value {
        Value::String(text) => Some(vec![(DEFAULT_TEMPLATE.to_owned(), text)]),
        Value::Array(list) => {
            let mut templates = Vec::new();
            for entry in &list {
                let text = |key| entry.get(key).and_then(Value::as_str).map(str::to_owned);
                templates.push((text("name")?, text("template")?));
            }
            templates.iter().any(|(name, _)| name == DEFAULT_TEMPLATE).then_some(templates)
        }
        _ => None,
    }
}

/// A message as templates see it: absent fields left out, arguments of tool calls as objects.
fn message_value(message: &Message) -> Value {
    let mut object = Map::new();
    object.insert("role".to_owned(), json!(message.role));
    object.insert("content".to_owned(), Value::from(message.content.as_str()));
    if let Some(reasoning) = &message.reasoning_content {
        object.insert("reasoning_content".to_owned(), Value::from(reasoning.as_str()));
    }
    if !message.tool_calls.is_empty() {
        let calls = message.tool_calls.iter().map(|call| {
            // Templates write arguments with `tojson`; text would come out quoted twice. What is not an object (a
            // model's broken JSON) stays text.
            let arguments = match serde_json::from_str(&call.function.arguments) {
                Ok(Value::Object(object)) => Value::Object(object),
                _ => Value::from(call.function.arguments.as_str()),
            };
            json!({"id": call.id, "type": call.kind, "function": {"name": call.function.name, "arguments": arguments}})
        });
        object.insert("tool_calls".to_owned(), Value::Array(calls.collect()));
    }
    if let Some(id) = &message.tool_call_id {
        object.insert("tool_call_id".to_owned(), Value::from(id.as_str()));
    }
    if let Some(name) = &message.name {
        object.insert("name".to_owned(), Value::from(name.as_str()));
    }
    Value::Object(object)
}
