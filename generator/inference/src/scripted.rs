//! An engine that says what it is told to: for tests, examples and benches of everything around the model.
//!
//! What it says comes from a list of [`Reply`], from a JSONL file of them, or from a function of the request. It behaves
//! as a model would: replies are tokenized and cut by `max_tokens`, stop texts and stop tokens; log-probabilities are
//! made up but depend on the tokens alone; `n` samples, delays, failures and stalls work, and cancellation and
//! deadlines end each of them.
//!
//! ```jsonl
//! "Let me look.\n```repl\nprint(len(context))\n```"
//! {"text": "FINAL(42)", "delay_ms": 20}
//! {"when": "How many lines", "text": "7"}
//! {"fail": "the machine is gone"}
//! ```
//!
//! A list is played from its start by every session ([`GenerateRequest::session`]), so that a thousand rollouts side by
//! side each play the same script, whatever the order in which they run.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::engine::{
    EngineError, EngineInfo, Fidelity, GenerateRequest, Generation, InferenceEngine, LogprobKind, Prompt, Usage,
};
use crate::template::{ChatTemplate, Kwargs};
use crate::tokenizer::Tokenizer;
use crate::{SamplingParams, StopReason, TokenId};

/// The name under which a scripted engine introduces itself.
const MODEL: &str = "scripted";

/// What to say to one request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Reply {
    /// The text; it is tokenized, and followed by the end of turn.
    pub text: String,
    /// Exact ids in place of the text's own, taken as they are: the end of turn stands here or is not sampled.
    pub tokens: Option<Vec<TokenId>>,
    /// Leave out the end of turn: the reply ends as if `max_tokens` had been reached.
    pub unfinished: bool,
    /// Milliseconds until the reply comes.
    pub delay_ms: u64,
    /// Fail with this reason.
    pub fail: Option<String>,
    /// Never answer: the request ends by its deadline or by cancellation.
    pub stall: bool,
    /// Say this whenever the prompt's text contains this, whatever the place in the list. Such replies are looked at
    /// first, in order, and are not used up.
    pub when: Option<String>,
}

impl From<&str> for Reply {
    fn from(text: &str) -> Self {
        Self { text: text.to_owned(), ..Self::default() }
    }
}

impl From<String> for Reply {
    fn from(text: String) -> Self {
        Self { text, ..Self::default() }
    }
}

/// What a script's function sees.
#[derive(Clone, Copy, Debug)]
pub struct ScriptedRequest<'a> {
    /// The prompt as it was sent.
    pub prompt: &'a Prompt,
    /// The prompt as text, special tokens written out.
    pub text: &'a str,
    /// How many samples its session asked for before (all sessions together where it names none).
    pub index: u64,
    /// Which sample of this request.
    pub sample: u32,
    /// The sample's seed.
    pub seed: u64,
    /// The adapter that the request names, if it names one.
    pub adapter: Option<&'a str>,
    /// The session, if it has one.
    pub session: Option<&'a str>,
}

/// Why a script could not be read.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum ScriptError {
    /// The file could not be read.
    #[error("cannot read the script `{}`: {reason}", file.display())]
    Read {
        /// Which file.
        file: PathBuf,
        /// The system's words.
        reason: String,
    },
    /// A line is neither a text nor a reply.
    #[error("line {line} of the script `{}` is neither a JSON text nor a reply object: {reason}", file.display())]
    Line {
        /// Which file.
        file: PathBuf,
        /// Which line, from 1.
        line: usize,
        /// What is wrong.
        reason: String,
    },
    /// Nothing to say.
    #[error("the script `{}` holds no reply", file.display())]
    Empty {
        /// Which file.
        file: PathBuf,
    },
}

type Answer = dyn Fn(&ScriptedRequest<'_>) -> Result<Reply, EngineError> + Send + Sync;

enum Script {
    List { rules: Vec<Reply>, replies: Vec<Reply>, cycle: bool },
    Function(Box<Answer>),
}

/// An engine that says what it is told to. Cheap to clone; clones share their counters.
#[derive(Clone)]
pub struct ScriptedEngine(Arc<Inner>);

struct Inner {
    info: EngineInfo,
    script: Script,
    tokenizer: Tokenizer,
    template: ChatTemplate,
    counters: Mutex<HashMap<Option<String>, u64>>,
    seen: Option<Mutex<Vec<GenerateRequest>>>,
}

impl std::fmt::Debug for ScriptedEngine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ScriptedEngine").field("info", &self.0.info).finish_non_exhaustive()
    }
}

/// Puts a [`ScriptedEngine`] together.
pub struct ScriptedBuilder {
    script: Script,
    tokenizer: Tokenizer,
    template: ChatTemplate,
    context_tokens: Option<u32>,
    fidelity: Fidelity,
    records: bool,
}

impl ScriptedBuilder {
    /// The tokenizer, and the template for prompts that are messages. Without this: one token per byte, and ChatML.
    #[must_use]
    pub fn vocabulary(mut self, tokenizer: Tokenizer, template: ChatTemplate) -> Self {
        self.tokenizer = tokenizer;
        self.template = template;
        self
    }

    /// How many tokens of prompt and output together fit. Without this there is no bound.
    #[must_use]
    pub fn context_tokens(mut self, tokens: u32) -> Self {
        self.context_tokens = Some(tokens);
        self
    }

    /// Start the list again when it is used up. Without this the next request fails.
    #[must_use]
    pub fn cycle(mut self) -> Self {
        if let Script::List { cycle, .. } = &mut self.script {
            *cycle = true;
        }
        self
    }

    /// Give text only, as an engine does that knows no ids.
    #[must_use]
    pub fn text_only(mut self) -> Self {
        self.fidelity = Fidelity::Text;
        self
    }

    /// Keep every request for [`ScriptedEngine::requests`].
    #[must_use]
    pub fn recording(mut self) -> Self {
        self.records = true;
        self
    }

    /// The engine.
    pub fn build(self) -> ScriptedEngine {
        let info = EngineInfo {
            model: MODEL.to_owned(),
            fidelity: self.fidelity,
            context_tokens: self.context_tokens,
            logprobs: LogprobKind::Raw,
        };
        ScriptedEngine(Arc::new(Inner {
            info,
            script: self.script,
            tokenizer: self.tokenizer,
            template: self.template,
            counters: Mutex::default(),
            seen: self.records.then(Mutex::default),
        }))
    }
}

impl ScriptedEngine {
    /// Says these replies, one after the other.
    pub fn replies<R: Into<Reply>>(replies: impl IntoIterator<Item = R>) -> ScriptedBuilder {
        let (rules, replies) = replies.into_iter().map(Into::into).partition(|reply: &Reply| reply.when.is_some());
        builder(Script::List { rules, replies, cycle: false })
    }

    /// Says what a function answers. The function must depend on its argument alone where runs are to be repeatable.
    pub fn function(
        answer: impl Fn(&ScriptedRequest<'_>) -> Result<Reply, EngineError> + Send + Sync + 'static,
    ) -> ScriptedBuilder {
        builder(Script::Function(Box::new(answer)))
    }

    /// Says what a JSONL file holds: each line a text, or an object with the fields of [`Reply`]. Blank lines are
    /// skipped.
    pub fn from_file(file: impl AsRef<Path>) -> Result<ScriptedBuilder, ScriptError> {
        let file = file.as_ref();
        let text = std::fs::read_to_string(file)
            .map_err(|error| ScriptError::Read { file: file.to_owned(), reason: error.to_string() })?;
        let mut replies = Vec::new();
        for (index, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
            let reply = if line.trim_start().starts_with('"') {
                serde_json::from_str::<String>(line).map(Reply::from)
            } else {
                serde_json::from_str::<Reply>(line)
            };
            replies.push(reply.map_err(|error| ScriptError::Line {
                file: file.to_owned(),
                line: index + 1,
                reason: error.to_string(),
            })?);
        }
        if replies.is_empty() {
            return Err(ScriptError::Empty { file: file.to_owned() });
        }
        Ok(Self::replies(replies))
    }

    /// All requests so far, if they are recorded.
    pub fn requests(&self) -> Vec<GenerateRequest> {
        let seen = self.0.seen.as_ref();
        seen.map_or_else(Vec::new, |seen| seen.lock().unwrap_or_else(PoisonError::into_inner).clone())
    }

    /// Numbers the samples of a session.
    fn count(&self, session: Option<&String>, samples: u32) -> u64 {
        let mut counters = self.0.counters.lock().unwrap_or_else(PoisonError::into_inner);
        let next = counters.entry(session.cloned()).or_default();
        let first = *next;
        *next += u64::from(samples);
        first
    }

    fn failed(&self, reason: String) -> EngineError {
        EngineError::Failed { model: self.0.info.model.clone(), reason }
    }

    /// The prompt as text, and how many tokens it has.
    fn read(&self, prompt: &Prompt) -> Result<(String, u32), EngineError> {
        let Inner { info, tokenizer, template, .. } = &*self.0;
        let invalid = |reason: String| EngineError::Invalid { model: info.model.clone(), reason };
        let (text, length) = match prompt {
            Prompt::Tokens(ids) => {
                if let Some(id) = ids.iter().find(|&&id| id as usize >= tokenizer.vocab_size()) {
                    let size = tokenizer.vocab_size();
                    return Err(invalid(format!("the prompt holds token {id}; the vocabulary has {size}")));
                }
                (tokenizer.decode_with_special(ids), ids.len())
            }
            Prompt::Text(text) => {
                let ids = tokenizer.encode_untrusted(text).map_err(|error| invalid(error.to_string()))?;
                (text.clone(), ids.len())
            }
            Prompt::Messages(messages) => {
                let rendered = template
                    .render_marked(tokenizer, messages, &[], true, &Kwargs::new())
                    .map_err(|error| invalid(error.to_string()))?;
                let ids = tokenizer.encode_rendered(&rendered).map_err(|error| invalid(error.to_string()))?;
                (rendered.text().to_owned(), ids.len())
            }
        };
        Ok((text, u32::try_from(length).unwrap_or(u32::MAX)))
    }

    fn choose(&self, request: &ScriptedRequest<'_>) -> Result<Reply, EngineError> {
        match &self.0.script {
            Script::Function(answer) => answer(request),
            Script::List { rules, replies, cycle } => {
                let rule = rules.iter().find(|rule| rule.when.as_ref().is_some_and(|when| request.text.contains(when)));
                if let Some(rule) = rule {
                    return Ok(rule.clone());
                }
                let length = replies.len() as u64;
                let place = if *cycle && length > 0 { request.index % length } else { request.index };
                replies.get(usize::try_from(place).unwrap_or(usize::MAX)).cloned().ok_or_else(|| {
                    self.failed(format!("the script has {length} replies, and this is request {}", request.index + 1))
                })
            }
        }
    }

    /// Ids as a model would sample them, one after the other, until something ends them.
    fn sample(
        &self,
        reply: &Reply,
        sampling: &SamplingParams,
        prompt_tokens: u32,
    ) -> Result<(Vec<TokenId>, StopReason), EngineError> {
        let Inner { info, tokenizer, .. } = &*self.0;
        let ids = if let Some(ids) = &reply.tokens {
            ids.clone()
        } else {
            let encoded = tokenizer.encode_untrusted(&reply.text);
            let mut ids = encoded.map_err(|error| self.failed(error.to_string()))?;
            if !reply.unfinished {
                ids.extend(tokenizer.eos_ids().first());
            }
            ids
        };
        let room = info.context_tokens.map_or(u32::MAX, |context| context.saturating_sub(prompt_tokens));
        let mut stream = tokenizer.stream(true);
        let mut text = String::new();
        let mut sampled = Vec::with_capacity(ids.len());
        for id in ids {
            if sampled.len() >= sampling.max_tokens as usize {
                return Ok((sampled, StopReason::MaxTokens));
            }
            if sampled.len() >= room as usize {
                return Ok((sampled, StopReason::ContextOverflow));
            }
            sampled.push(id);
            let ends =
                (tokenizer.eos_ids().contains(&id) && !sampling.ignore_eos) || sampling.stop_token_ids.contains(&id);
            if ends {
                return Ok((sampled, StopReason::EndOfTurn));
            }
            if !sampling.stop.is_empty() {
                let longest = sampling.stop.iter().map(String::len).max().unwrap_or(0);
                let new = stream.push(id);
                let mut from = text.len().saturating_sub(longest);
                text.push_str(new);
                while !text.is_char_boundary(from) {
                    from -= 1;
                }
                if sampling.stop.iter().any(|stop| !stop.is_empty() && text[from..].contains(stop.as_str())) {
                    return Ok((sampled, StopReason::StopString));
                }
            }
        }
        Ok((sampled, StopReason::MaxTokens))
    }

    async fn one(
        &self,
        request: &ScriptedRequest<'_>,
        from: &GenerateRequest,
        prompt_tokens: u32,
    ) -> Result<Generation, EngineError> {
        let reply = self.choose(request)?;
        if reply.stall {
            std::future::pending::<()>().await;
        }
        if reply.delay_ms > 0 {
            tokio::time::sleep(Duration::from_millis(reply.delay_ms)).await;
        }
        if let Some(reason) = reply.fail {
            return Err(self.failed(reason));
        }
        let (tokens, stop) = self.sample(&reply, &from.sampling, prompt_tokens)?;
        let text = self.0.tokenizer.decode(&tokens);
        let completion_tokens = tokens.len() as u32;
        let usage = Usage { prompt_tokens, cached_tokens: 0, completion_tokens };
        let fidelity = self.0.info.fidelity;
        if fidelity == Fidelity::Text {
            let (tokens, logprobs) = (Vec::new(), Vec::new());
            return Ok(Generation { text, tokens, logprobs, stop, versions: vec![(0, 0)], fidelity, usage });
        }
        let logprobs = if from.sampling.logprobs { logprobs(prompt_tokens, &tokens) } else { Vec::new() };
        Ok(Generation { text, tokens, logprobs, stop, versions: vec![(0, 0)], fidelity, usage })
    }

    async fn all(&self, request: &GenerateRequest) -> Result<Vec<Generation>, EngineError> {
        let (text, prompt_tokens) = self.read(&request.prompt)?;
        if let Some(context_tokens) = self.0.info.context_tokens.filter(|&context| prompt_tokens >= context) {
            let model = self.0.info.model.clone();
            return Err(EngineError::ContextOverflow { model, prompt_tokens, context_tokens });
        }
        let first = self.count(request.session.as_ref(), request.n);
        let samples: Vec<_> = (0..request.n)
            .map(|sample| ScriptedRequest {
                prompt: &request.prompt,
                text: &text,
                index: first + u64::from(sample),
                sample,
                seed: request.sampling.seed.unwrap_or(0).wrapping_add(u64::from(sample)),
                adapter: request.adapter.as_deref(),
                session: request.session.as_deref(),
            })
            .collect();
        futures::future::try_join_all(samples.iter().map(|sample| self.one(sample, request, prompt_tokens))).await
    }
}

fn builder(script: Script) -> ScriptedBuilder {
    ScriptedBuilder {
        script,
        tokenizer: Tokenizer::bytes(),
        template: ChatTemplate::chatml(),
        context_tokens: None,
        fidelity: Fidelity::Tokens,
        records: false,
    }
}

/// Made-up log-probabilities between -4 and 0 that depend on the token, the one before it and its place.
fn logprobs(prompt_tokens: u32, tokens: &[TokenId]) -> Vec<f32> {
    let mut before = 0_u64;
    let mut place = u64::from(prompt_tokens);
    tokens
        .iter()
        .map(|&id| {
            // SplitMix64's finaliser over the three.
            let mut mixed = (before << 32 | u64::from(id)) ^ place.wrapping_mul(0x9E37_79B9_7F4A_7C15);
            mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
            mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
            before = u64::from(id);
            place += 1;
            -((mixed >> 40) as f32 / (1_u64 << 22) as f32)
        })
        .collect()
}

#[async_trait]
impl InferenceEngine for ScriptedEngine {
    fn info(&self) -> &EngineInfo {
        &self.0.info
    }

    async fn generate(&self, request: GenerateRequest) -> Result<Vec<Generation>, EngineError> {
        if let Some(seen) = &self.0.seen {
            seen.lock().unwrap_or_else(PoisonError::into_inner).push(request.clone());
        }
        tokio::select! {
            biased;
            () = request.cancel.cancelled() => Err(EngineError::Cancelled),
            answer = self.all(&request) => answer,
            () = tokio::time::sleep_until(request.deadline) => {
                Err(EngineError::Deadline { model: self.0.info.model.clone() })
            }
        }
    }

    fn finish_session(&self, session: &str) {
        let mut counters = self.0.counters.lock().unwrap_or_else(PoisonError::into_inner);
        counters.remove(&Some(session.to_owned()));
    }
}
