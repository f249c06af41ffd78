//! A conversation with a player, in tokens where the player's tokens are known, in messages where not.

use espalier_inference::{Conversation, ConversationError, Extension, Fidelity, Generation, Message, Prompt, TokenId};

use crate::player::Player;

/// A conversation that knows whether its ids are known.
pub(crate) struct Dialogue {
    conversation: Conversation,
    exact: bool,
}

impl Dialogue {
    /// Shows a player its first messages.
    pub(crate) fn start(player: &Player, messages: Vec<Message>) -> Result<Self, ConversationError> {
        let template = player.template.as_ref().filter(|_| player.fidelity() == Fidelity::Tokens);
        let conversation = match template {
            Some(model) => {
                Conversation::new(model.template.clone(), model.tokenizer.clone(), messages, model.options.clone())?
            }
            None => Conversation::text_only(messages),
        };
        Ok(Self { conversation, exact: template.is_some() })
    }

    /// The prompt's ids, where they are known.
    pub(crate) fn prompt_ids(&self) -> Option<&[TokenId]> {
        self.exact.then(|| self.conversation.ids())
    }

    /// What to send.
    pub(crate) fn prompt(&self) -> Prompt {
        self.conversation.prompt()
    }

    /// How exactly the ids are known.
    pub(crate) fn fidelity(&self) -> Fidelity {
        if self.exact { Fidelity::Tokens } else { Fidelity::Text }
    }

    /// The length of the messages' texts.
    pub(crate) fn text_bytes(&self) -> usize {
        self.conversation.messages().iter().map(|message| message.content.len()).sum()
    }

    /// Takes what the player said.
    pub(crate) fn push_turn(&mut self, generation: &Generation) -> Result<(), ConversationError> {
        self.conversation.push_assistant(&generation.tokens, &generation.text)
    }

    /// Takes what the environment answers. An end of turn that was not sampled is part of what follows.
    pub(crate) fn push_observations(&mut self, messages: Vec<Message>) -> Result<Extension, ConversationError> {
        self.conversation.push_observations(messages)
    }

    /// Replaces the history.
    pub(crate) fn rewrite(&mut self, messages: Vec<Message>) -> Result<Extension, ConversationError> {
        self.conversation.rewrite(messages)
    }
}
