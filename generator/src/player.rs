//! Who plays: an engine, how it is prompted, and whether it is the policy being trained.

use std::sync::Arc;

use espalier_inference::{ChatTemplate, ConversationOptions, Fidelity, InferenceEngine, SamplingParams, Tokenizer};

/// How a model's conversations become tokens.
#[derive(Clone, Debug)]
pub struct ModelTemplate {
    /// Its tokenizer.
    pub tokenizer: Tokenizer,
    /// Its chat template.
    pub template: ChatTemplate,
    /// Tools, keyword arguments, and what happens where the template rewrites history.
    pub options: ConversationOptions,
}

impl ModelTemplate {
    /// A tokenizer and a template, without tools and keyword arguments.
    pub fn new(tokenizer: Tokenizer, template: ChatTemplate) -> Self {
        Self { tokenizer, template, options: ConversationOptions::default() }
    }
}

/// An engine with everything needed to let it play.
#[derive(Clone)]
pub struct Player {
    /// What samples.
    pub engine: Arc<dyn InferenceEngine>,
    /// The model's tokenizer and chat template; without them conversations go to the engine as messages, and only
    /// text is known.
    pub template: Option<Arc<ModelTemplate>>,
    /// How tokens are drawn.
    pub sampling: SamplingParams,
    /// Whether this is the policy being trained: only then is the mask of its tokens set.
    pub trained: bool,
}

impl Player {
    /// How exactly this player's tokens are known.
    pub fn fidelity(&self) -> Fidelity {
        if self.template.is_some() { self.engine.info().fidelity } else { Fidelity::Text }
    }

    /// The same player, frozen: nothing it samples is trained on.
    #[must_use]
    pub fn frozen(mut self) -> Self {
        self.trained = false;
        self
    }
}
