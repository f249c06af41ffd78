//! One continuation on its way: tokens, cache blocks, text so far, and why it ends.

use std::collections::BTreeSet;

use espalier_inference::tokenizer::DecodeStream;
use espalier_inference::{EngineError, Fidelity, Generation, SamplingParams, StopReason, TokenId, Usage};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::local::StreamEvent;

/// What all samples of a request share. Lives in the worker.
pub(crate) struct Group {
    /// Whose weights answer; see [`Policy`](crate::worker::Policy).
    pub(crate) policy: u64,
    /// The policy's version when the request came.
    pub(crate) version: u64,
    pub(crate) params: SamplingParams,
    pub(crate) seed: u64,
    pub(crate) session: Option<String>,
    pub(crate) deadline: Instant,
    pub(crate) cancel: CancellationToken,
    pub(crate) prompt_tokens: usize,
    pub(crate) cached_tokens: usize,
    /// One place for each sample.
    pub(crate) done: Vec<Option<Generation>>,
    pub(crate) answer: Option<oneshot::Sender<Result<Vec<Generation>, EngineError>>>,
    pub(crate) stream: Option<mpsc::UnboundedSender<StreamEvent>>,
    /// Tokens that end the generation.
    pub(crate) ends: BTreeSet<TokenId>,
    /// The longest stop text, in bytes.
    pub(crate) longest_stop: usize,
}

impl Group {
    /// Sends the answer, if none was sent.
    pub(crate) fn answer(&mut self, result: Result<Vec<Generation>, EngineError>) {
        if let Some(stream) = self.stream.take() {
            let _ = stream.send(StreamEvent::Done(result.clone()));
        }
        if let Some(answer) = self.answer.take() {
            let _ = answer.send(result);
        }
    }
}

/// One sample of a request.
pub(crate) struct Sequence {
    /// The request's key in the worker.
    pub(crate) group: u64,
    /// Which sample.
    pub(crate) index: u32,
    /// Samples that will branch off when the prompt is done.
    pub(crate) siblings: u32,
    /// Prompt, then what was sampled.
    pub(crate) tokens: Vec<TokenId>,
    pub(crate) prompt: usize,
    /// Tokens whose keys and values are in `blocks`.
    pub(crate) computed: usize,
    pub(crate) blocks: Vec<i64>,
    /// The state of weights that computed all of `blocks`; nothing where several did, so that nobody else may use them.
    pub(crate) state: Option<u64>,
    /// The policy's version at each sampled token, as runs (first token, version).
    pub(crate) versions: Vec<(u32, u64)>,
    pub(crate) logprobs: Vec<f32>,
    pub(crate) text: String,
    pub(crate) decoder: DecodeStream,
    /// Highest number of tokens ever computed: what lies below is computed again after a preemption.
    pub(crate) reached: usize,
}

impl Sequence {
    pub(crate) fn new(group: u64, index: u32, tokens: Vec<TokenId>, decoder: DecodeStream) -> Self {
        Self {
            group,
            index,
            siblings: 0,
            prompt: tokens.len(),
            tokens,
            computed: 0,
            blocks: Vec::new(),
            state: None,
            versions: Vec::new(),
            logprobs: Vec::new(),
            text: String::new(),
            decoder,
            reached: 0,
        }
    }

    pub(crate) fn sampled(&self) -> usize {
        self.tokens.len() - self.prompt
    }

    /// Adds a token that a version of the policy sampled, tells the stream, and says whether the sequence ends.
    pub(crate) fn push(
        &mut self,
        (token, logprob): (TokenId, f32),
        version: u64,
        group: &Group,
        context: usize,
    ) -> Option<StopReason> {
        if self.versions.last().is_none_or(|(_, last)| *last != version) {
            self.versions.push((self.sampled() as u32, version));
        }
        self.tokens.push(token);
        if group.params.logprobs {
            self.logprobs.push(logprob);
        }
        let piece = self.decoder.push(token);
        let before = self.text.len();
        self.text.push_str(piece);
        let stop = self.stop_after(token, before, group, context);
        if stop.is_some() {
            self.text.push_str(self.decoder.finish());
        }
        if let Some(stream) = &group.stream {
            let event =
                StreamEvent::Token { index: self.index, id: token, logprob, text: self.text[before..].to_owned() };
            if stream.send(event).is_err() {
                // Nobody listens any more.
                group.cancel.cancel();
            }
        }
        stop
    }

    fn stop_after(&self, token: TokenId, before: usize, group: &Group, context: usize) -> Option<StopReason> {
        if group.ends.contains(&token) {
            return Some(StopReason::EndOfTurn);
        }
        if group.longest_stop > 0 && self.text.len() > before {
            // A stop text that ends in the new piece begins at most its own length before it.
            let mut from = before.saturating_sub(group.longest_stop);
            while !self.text.is_char_boundary(from) {
                from -= 1;
            }
            if group.params.stop.iter().any(|stop| self.text[from..].contains(stop)) {
                return Some(StopReason::StopString);
            }
        }
        if self.sampled() >= group.params.max_tokens as usize {
            return Some(StopReason::MaxTokens);
        }
        (self.tokens.len() >= context).then_some(StopReason::ContextOverflow)
    }

    /// The finished continuation.
    pub(crate) fn generation(&mut self, stop: StopReason, group: &Group) -> Generation {
        self.text.push_str(self.decoder.finish());
        if self.versions.is_empty() {
            self.versions.push((0, group.version));
        }
        Generation {
            text: std::mem::take(&mut self.text),
            tokens: self.tokens[self.prompt..].to_vec(),
            logprobs: std::mem::take(&mut self.logprobs),
            stop,
            versions: std::mem::take(&mut self.versions),
            fidelity: Fidelity::Tokens,
            usage: Usage {
                prompt_tokens: group.prompt_tokens as u32,
                cached_tokens: group.cached_tokens as u32,
                completion_tokens: self.sampled() as u32,
            },
        }
    }
}
