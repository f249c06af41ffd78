//! How many tokens a data set's prompt has for a model: [`espalier_datasets::Source`]'s length limit counts with it.

use std::path::Path;

use espalier_datasets::{Prompt, TokenCounter};
use espalier_inference::template::Kwargs;
use espalier_inference::{ChatTemplate, Message, TemplateError, Tokenizer};
use serde_json::Value;

/// A model's tokenizer and chat template.
#[derive(Clone, Debug)]
pub struct PromptTokens {
    tokenizer: Tokenizer,
    /// None for models that know no roles; they are shown the texts alone.
    template: Option<ChatTemplate>,
}

impl PromptTokens {
    /// Those of a model folder; why there are none otherwise.
    pub fn from_dir(folder: impl AsRef<Path>) -> Result<Self, String> {
        let folder = folder.as_ref();
        let tokenizer = Tokenizer::from_dir(folder).map_err(|error| error.to_string())?;
        let template = match ChatTemplate::from_dir(folder) {
            Ok(template) => Some(template),
            Err(TemplateError::Missing { .. }) => None,
            Err(error) => return Err(error.to_string()),
        };
        Ok(Self { tokenizer, template })
    }
}

impl TokenCounter for PromptTokens {
    fn count(&self, prompt: &Prompt) -> Result<u64, String> {
        let messages: Vec<Message> = match prompt {
            Prompt::Text(text) => vec![Message::user(text.clone())],
            Prompt::Messages(messages) => messages
                .iter()
                .map(|message| {
                    serde_json::from_value(Value::Object(message.clone())).map_err(|error| error.to_string())
                })
                .collect::<Result<_, _>>()?,
        };
        let tokens = match &self.template {
            Some(template) => template
                .encode(&self.tokenizer, &messages, &[], true, &Kwargs::new())
                .map_err(|error| error.to_string())?,
            None => {
                let texts: Vec<&str> = messages.iter().map(|message| message.content.as_str()).collect();
                self.tokenizer.encode_untrusted(&texts.join("\n")).map_err(|error| error.to_string())?
            }
        };
        Ok(tokens.len() as u64)
    }
}
