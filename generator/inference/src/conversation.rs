//! A conversation as the tokens that were really sent and sampled.
//!
//! A [`Conversation`] grows turn by turn: what the model sampled is kept as the ids it sampled, and only what the
//! environment adds is encoded: the rest of the turn's end (`\n` after `<|im_end|>`), the next messages, the next
//! generation prompt. Nothing that was sampled is decoded and encoded again.
//!
//! Templates may rewrite history: Qwen3's drops the thinking of earlier turns, Llama 3's strips whitespace. After each
//! turn the whole conversation is rendered afresh (as text, which is cheap) and compared with what the ids so far say.
//! If it goes on from there, the rest is appended ([`Extension::Extended`]). If not, there is no honest way to append,
//! and the conversation starts over with freshly encoded ids ([`Extension::Fork`]): a new row for training.
//! [`History::Append`] chooses the other way round: the model goes on seeing exactly what it saw and said, whatever the
//! template would have made of it.
//!
//! Invariants: [`Conversation::ids`] is a prompt that was encoded once, then alternately what was given to
//! [`Conversation::push_assistant`] and what [`Conversation::push_observations`] gave out, since the last fork; under
//! [`History::Template`] their text is what the template renders.

use serde_json::Value;
use thiserror::Error;

use crate::template::{ChatTemplate, Kwargs, Rendered, TemplateError};
use crate::tokenizer::{Tokenizer, TokenizerError};
use crate::{Message, Prompt, TokenId};

/// What a conversation does where its template would rewrite earlier turns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum History {
    /// The template decides: where it rewrites, the conversation forks.
    #[default]
    Template,
    /// What was said stays as it was said. Forks only where the template leaves out the last turn altogether.
    Append,
}

/// How a conversation is rendered.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ConversationOptions {
    /// Tools that the template describes.
    pub tools: Vec<Value>,
    /// Keyword arguments of the template.
    pub kwargs: Kwargs,
    /// What happens where the template rewrites history.
    pub history: History,
}

/// How a conversation went on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Extension {
    /// These ids of the environment follow those so far (mask 0). Empty where only messages are known.
    Extended(Vec<TokenId>),
    /// The rendering does not go on from what was sent and sampled; this is the whole new prompt. A new row starts.
    Fork(Vec<TokenId>),
}

/// Whose turn it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// The model's: [`Conversation::push_assistant`] is next.
    Model,
    /// The environment's: [`Conversation::push_observations`] is next.
    Environment,
}

/// Why a conversation cannot go on.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum ConversationError {
    /// The template refused or failed.
    #[error(transparent)]
    Template(#[from] TemplateError),
    /// A text could not be encoded.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// Turns alternate.
    #[error("it is the {}'s turn to speak", match turn { Turn::Model => "model", Turn::Environment => "environment" })]
    OutOfTurn {
        /// Whose turn it is.
        turn: Turn,
    },
    /// The engine gave text where the conversation needs ids.
    #[error(
        "the engine gave no token ids for a text of {bytes} bytes; a conversation in tokens needs an engine that gives them"
    )]
    NoTokens {
        /// How long the text is.
        bytes: usize,
    },
}

/// A growing conversation.
#[derive(Clone, Debug)]
pub struct Conversation {
    messages: Vec<Message>,
    turn: Turn,
    tokens: Option<Tokens>,
}

#[derive(Clone, Debug)]
struct Tokens {
    template: ChatTemplate,
    tokenizer: Tokenizer,
    options: ConversationOptions,
    ids: Vec<TokenId>,
    /// The text of `ids`, special tokens written out.
    text: String,
}

impl Conversation {
    /// Starts a conversation in tokens; the model speaks next.
    pub fn new(
        template: ChatTemplate,
        tokenizer: Tokenizer,
        messages: Vec<Message>,
        options: ConversationOptions,
    ) -> Result<Self, ConversationError> {
        let mut tokens = Tokens { template, tokenizer, options, ids: Vec::new(), text: String::new() };
        let rendered = tokens.render(&messages)?;
        tokens.start(&rendered)?;
        Ok(Self { messages, turn: Turn::Model, tokens: Some(tokens) })
    }

    /// Starts a conversation for an engine that takes messages and gives text; ids are not known.
    pub fn text_only(messages: Vec<Message>) -> Self {
        Self { messages, turn: Turn::Model, tokens: None }
    }

    /// What to send: the ids so far, or the messages where ids are not known.
    pub fn prompt(&self) -> Prompt {
        match &self.tokens {
            Some(tokens) => Prompt::Tokens(tokens.ids.clone()),
            None => Prompt::Messages(self.messages.clone()),
        }
    }

    /// All ids so far. Empty where ids are not known.
    pub fn ids(&self) -> &[TokenId] {
        self.tokens.as_ref().map_or(&[], |tokens| &tokens.ids)
    }

    /// The conversation as messages.
    pub fn messages(&self) -> &[Message] {
        &self.messages
    }

    /// Whose turn it is.
    pub fn turn(&self) -> Turn {
        self.turn
    }

    /// Takes what the model sampled: `ids` as they came, the end of turn included if it was sampled, and their `text`
    /// without special tokens. Why the generation stopped does not matter here: an end of turn that was not sampled is
    /// added with the next observations.
    pub fn push_assistant(&mut self, ids: &[TokenId], text: &str) -> Result<(), ConversationError> {
        self.expect(Turn::Model)?;
        if let Some(tokens) = &mut self.tokens {
            if ids.is_empty() && !text.is_empty() {
                return Err(ConversationError::NoTokens { bytes: text.len() });
            }
            tokens.ids.extend_from_slice(ids);
            tokens.text.push_str(&tokens.tokenizer.decode_with_special(ids));
        }
        self.messages.push(Message::assistant(text));
        self.turn = Turn::Environment;
        Ok(())
    }

    /// Takes what the environment answers (nothing is an answer too: the model is asked to go on). The ids given back
    /// are in [`Conversation::ids`] already. After an error the conversation is as it was.
    pub fn push_observations(&mut self, observations: Vec<Message>) -> Result<Extension, ConversationError> {
        self.expect(Turn::Environment)?;
        let before = self.messages.len();
        self.messages.extend(observations);
        let extension = match &mut self.tokens {
            None => Ok(Extension::Extended(Vec::new())),
            Some(tokens) => match tokens.options.history {
                History::Template => tokens.follow(&self.messages),
                History::Append => tokens.append(&self.messages, before),
            },
        };
        match extension {
            Ok(_) => self.turn = Turn::Model,
            Err(_) => self.messages.truncate(before),
        }
        extension
    }

    /// Replaces the history (an environment that takes back an instruction, a summary in place of old turns). Extends
    /// where the new history happens to go on from the ids so far. After an error the conversation is as it was.
    pub fn rewrite(&mut self, messages: Vec<Message>) -> Result<Extension, ConversationError> {
        let extension = match &mut self.tokens {
            None => Extension::Extended(Vec::new()),
            Some(tokens) => tokens.follow(&messages)?,
        };
        self.messages = messages;
        self.turn = Turn::Model;
        Ok(extension)
    }

    fn expect(&self, turn: Turn) -> Result<(), ConversationError> {
        if self.turn == turn { Ok(()) } else { Err(ConversationError::OutOfTurn { turn: self.turn }) }
    }
}

impl Tokens {
    fn render(&self, messages: &[Message]) -> Result<Rendered, ConversationError> {
        let ConversationOptions { tools, kwargs, .. } = &self.options;
        Ok(self.template.render_marked(&self.tokenizer, messages, tools, true, kwargs)?)
    }

    fn start(&mut self, rendered: &Rendered) -> Result<(), ConversationError> {
        self.ids = self.tokenizer.encode_rendered(rendered)?;
        rendered.text().clone_into(&mut self.text);
        Ok(())
    }

    fn fork(&mut self, rendered: &Rendered) -> Result<Extension, ConversationError> {
        self.start(rendered)?;
        Ok(Extension::Fork(self.ids.clone()))
    }

    fn follow(&mut self, messages: &[Message]) -> Result<Extension, ConversationError> {
        let rendered = self.render(messages)?;
        if !rendered.text().starts_with(&self.text) {
            return self.fork(&rendered);
        }
        self.extend(&rendered, self.text.len())
    }

    /// Goes on with what the template writes behind the last turn, found by a placeholder in its place.
    fn append(&mut self, messages: &[Message], observed: usize) -> Result<Extension, ConversationError> {
        let Some(last) = observed.checked_sub(1) else { return self.follow(messages) };
        let mut placed = messages.to_vec();
        let mut number = 0_u32;
        let placeholder = loop {
            let placeholder = format!("what-the-model-said-{number}");
            if !messages.iter().any(|message| message.content.contains(&placeholder)) {
                break placeholder;
            }
            number += 1;
        };
        placed[last].content.clone_from(&placeholder);
        let rendered = self.render(&placed)?;
        let Some(found) = rendered.text().rfind(&placeholder) else {
            let rendered = self.render(messages)?;
            return self.fork(&rendered);
        };
        let mut at = found + placeholder.len();
        if let Some(end) = self.last_special()
            && rendered.text()[at..].starts_with(&end)
        {
            at += end.len();
        }
        self.extend(&rendered, at)
    }

    /// The text of the last id, if that is a special token.
    fn last_special(&self) -> Option<String> {
        let id = *self.ids.last()?;
        if self.tokenizer.is_special(id) { self.tokenizer.token(id) } else { None }
    }

    /// Appends what `rendered` says from `at` on.
    fn extend(&mut self, rendered: &Rendered, at: usize) -> Result<Extension, ConversationError> {
        // A special token may swallow whitespace that follows it, so the last one is encoded along and left out again.
        let lead = self.last_special().unwrap_or_default();
        let Some(tail) = rendered.tail(at, &lead) else { return self.fork(rendered) };
        let mut ids = self.tokenizer.encode_inside(&tail)?;
        if !lead.is_empty() && ids.first() == self.ids.last() {
            ids.remove(0);
        } else if !lead.is_empty() {
            let Some(tail) = rendered.tail(at, "") else { return self.fork(rendered) };
            ids = self.tokenizer.encode_inside(&tail)?;
        }
        self.text.push_str(&tail.text()[lead.len()..]);
        self.ids.extend_from_slice(&ids);
        Ok(Extension::Extended(ids))
    }
}
