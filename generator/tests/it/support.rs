//! A scripted engine and small environments.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use espalier_envs::{Action, ChildRequest, Env, EnvContext, EnvError, Metrics, Step};
use espalier_generator::episode::LoopOptions;
use espalier_generator::player::{ModelTemplate, Player};
use espalier_generator::source::EnvSource;
use espalier_generator::{Players, TrajectoryId, Tree, TreeOptions, TreeTask, play_tree};
use espalier_inference::{
    ChatTemplate, EngineError, EngineInfo, Fidelity, GenerateRequest, Generation, InferenceEngine, Message, Prompt,
    SamplingParams, StopReason, TokenId, Tokenizer, Usage,
};
use espalier_sandbox::FinalAnswer;
use futures::future::BoxFuture;
use tokio_util::sync::CancellationToken;

/// ChatML's end of turn in the byte tokenizer.
pub(crate) const END: TokenId = 258;

/// What the scripted engine does with one request.
pub(crate) enum Reply {
    /// Writes a text and ends its turn.
    Say(String),
    /// Samples these very tokens.
    Tokens(Vec<TokenId>),
    /// Fails.
    Fail(EngineError),
    /// Says nothing until it is cancelled.
    Hang,
    /// Panics.
    Panic,
    /// Replies after some (virtual) time.
    After(Duration, Box<Reply>),
}

/// Says a text.
pub(crate) fn say(text: impl Into<String>) -> Reply {
    Reply::Say(text.into())
}

type Script = dyn Fn(&str, usize) -> Reply + Send + Sync;

/// An engine that replies by a function of the prompt's text and the request's number.
pub(crate) struct Scripted {
    info: EngineInfo,
    script: Box<Script>,
    requests: AtomicUsize,
    /// Requests that are with the engine.
    pub(crate) running: AtomicUsize,
    /// Most of them at once.
    pub(crate) most_running: AtomicUsize,
    /// Requests whose cancellation token fired, or that were dropped.
    pub(crate) abandoned: AtomicUsize,
    /// Every prompt it was sent.
    pub(crate) prompts: Mutex<Vec<Vec<TokenId>>>,
    /// Every `max_tokens` it was sent.
    pub(crate) max_tokens: Mutex<Vec<u32>>,
}

impl Scripted {
    pub(crate) fn new(script: impl Fn(&str, usize) -> Reply + Send + Sync + 'static) -> Self {
        Self {
            info: EngineInfo {
                model: "scripted".to_owned(),
                fidelity: Fidelity::Tokens,
                context_tokens: Some(100_000),
                logprobs: espalier_inference::engine::LogprobKind::Raw,
            },
            script: Box::new(script),
            requests: AtomicUsize::new(0),
            running: AtomicUsize::new(0),
            most_running: AtomicUsize::new(0),
            abandoned: AtomicUsize::new(0),
            prompts: Mutex::default(),
            max_tokens: Mutex::default(),
        }
    }

    pub(crate) fn context(mut self, tokens: u32) -> Self {
        self.info.context_tokens = Some(tokens);
        self
    }

    pub(crate) fn text_only(mut self) -> Self {
        self.info.fidelity = Fidelity::Text;
        self
    }

    pub(crate) fn requests(&self) -> usize {
        self.requests.load(Ordering::SeqCst)
    }
}

struct Running<'a> {
    engine: &'a Scripted,
    done: bool,
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.engine.running.fetch_sub(1, Ordering::SeqCst);
        if !self.done {
            self.engine.abandoned.fetch_add(1, Ordering::SeqCst);
        }
    }
}

#[async_trait]
impl InferenceEngine for Scripted {
    fn info(&self) -> &EngineInfo {
        &self.info
    }

    async fn generate(&self, request: GenerateRequest) -> Result<Vec<Generation>, EngineError> {
        let number = self.requests.fetch_add(1, Ordering::SeqCst);
        let now = self.running.fetch_add(1, Ordering::SeqCst) + 1;
        self.most_running.fetch_max(now, Ordering::SeqCst);
        let mut running = Running { engine: self, done: false };
        let (text, prompt_tokens) = match &request.prompt {
            Prompt::Tokens(ids) => {
                self.prompts.lock().unwrap().push(ids.clone());
                (Tokenizer::bytes().decode_with_special(ids), ids.len())
            }
            Prompt::Messages(messages) => {
                let texts: Vec<&str> = messages.iter().map(|message| message.content.as_str()).collect();
                let text = texts.join("\n");
                let tokens = text.len();
                (text, tokens)
            }
            Prompt::Text(text) => (text.clone(), text.len()),
        };
        self.max_tokens.lock().unwrap().push(request.sampling.max_tokens);
        let mut reply = (self.script)(&text, number);
        let answer = loop {
            match reply {
                Reply::After(time, then) => {
                    tokio::time::sleep(time).await;
                    reply = *then;
                }
                Reply::Fail(error) => break Err(error),
                Reply::Panic => panic!("the script says so"),
                Reply::Hang => {
                    request.cancel.cancelled().await;
                    return Err(EngineError::Cancelled);
                }
                Reply::Say(text) => {
                    let mut tokens: Vec<TokenId> = text.bytes().map(TokenId::from).collect();
                    tokens.push(END);
                    break Ok(tokens);
                }
                Reply::Tokens(tokens) => break Ok(tokens),
            }
        };
        running.done = true;
        answer.map(|tokens| vec![self.generation(&request.sampling, tokens, prompt_tokens)])
    }
}

impl Scripted {
    fn generation(&self, sampling: &SamplingParams, mut tokens: Vec<TokenId>, prompt_tokens: usize) -> Generation {
        let mut stop = StopReason::EndOfTurn;
        let mut text = Tokenizer::bytes().decode(&tokens);
        let found = sampling.stop.iter().filter_map(|s| text.find(s.as_str()).map(|at| at + s.len())).min();
        if let Some(end) = found {
            tokens.truncate(end);
            stop = StopReason::StopString;
        }
        if tokens.len() > sampling.max_tokens as usize {
            tokens.truncate(sampling.max_tokens as usize);
            stop = StopReason::MaxTokens;
        }
        text = Tokenizer::bytes().decode(&tokens);
        let usage =
            Usage { prompt_tokens: prompt_tokens as u32, cached_tokens: 0, completion_tokens: tokens.len() as u32 };
        if self.info.fidelity == Fidelity::Text {
            let (tokens, logprobs) = (Vec::new(), Vec::new());
            return Generation { text, tokens, logprobs, stop, versions: vec![], fidelity: Fidelity::Text, usage };
        }
        let logprobs = tokens.iter().map(|&id| -(id as f32) / 1000.0).collect();
        Generation { text, tokens, logprobs, stop, versions: vec![(0, 7)], fidelity: Fidelity::Tokens, usage }
    }
}

/// A player over the byte tokenizer.
pub(crate) fn player(engine: &Arc<Scripted>) -> Player {
    let template = ModelTemplate::new(Tokenizer::bytes(), ChatTemplate::chatml());
    let engine: Arc<dyn InferenceEngine> = engine.clone();
    let sampling = SamplingParams { max_tokens: 256, ..SamplingParams::default() };
    Player { engine, template: Some(Arc::new(template)), sampling, trained: true }
}

/// The ids of a text; `<|im_start|>` and `<|im_end|>` are special.
pub(crate) fn ids(text: &str) -> Vec<TokenId> {
    Tokenizer::bytes().encode(text).unwrap()
}

pub(crate) type StepResult = Result<Step, EnvError>;
type StepFn = dyn Fn(usize, Action, EnvContext) -> BoxFuture<'static, StepResult> + Send + Sync;

/// An environment whose steps are a function of the turn, the action and the context.
pub(crate) struct FnEnv {
    steps: Arc<StepFn>,
    turn: usize,
    context: Option<EnvContext>,
    answer: Option<String>,
}

#[async_trait]
impl Env for FnEnv {
    async fn init(&mut self, prompt: Vec<Message>, context: EnvContext) -> Result<Vec<Message>, EnvError> {
        self.context = Some(context);
        Ok(prompt)
    }

    async fn step(&mut self, action: Action) -> Result<Step, EnvError> {
        let turn = self.turn;
        self.turn += 1;
        let text = action.text.clone();
        let step = (self.steps)(turn, action, self.context.clone().unwrap()).await?;
        if step.terminated {
            self.answer = Some(text);
        }
        Ok(step)
    }

    fn metrics(&self) -> Metrics {
        Metrics::from([("turns_used".to_owned(), self.turn.into())])
    }

    fn answer(&self) -> Option<FinalAnswer> {
        self.answer.clone().map(|text| FinalAnswer { value: espalier_sandbox::Value::Str(text.clone()), text })
    }
}

/// Makes [`FnEnv`]s; children get the same steps.
#[derive(Clone)]
pub(crate) struct Source {
    steps: Arc<StepFn>,
}

impl Source {
    pub(crate) fn new<F, R>(steps: F) -> Self
    where
        F: Fn(usize, Action, EnvContext) -> R + Send + Sync + 'static,
        R: Future<Output = StepResult> + Send + 'static,
    {
        Self { steps: Arc::new(move |turn, action, context| Box::pin(steps(turn, action, context))) }
    }

    fn make(&self) -> Box<dyn Env> {
        Box::new(FnEnv { steps: Arc::clone(&self.steps), turn: 0, context: None, answer: None })
    }
}

impl EnvSource for Source {
    fn env_id(&self) -> &'static str {
        "test"
    }

    fn root(&self) -> Result<Box<dyn Env>, EnvError> {
        Ok(self.make())
    }

    fn child(&self, request: &ChildRequest, _depth: u32) -> Result<(Box<dyn Env>, Vec<Message>), EnvError> {
        Ok((self.make(), vec![Message::user(request.prompt.clone())]))
    }
}

/// A step that goes on with one observation.
pub(crate) fn observe(text: &str, reward: f64) -> Step {
    Step { observations: vec![Message::user(text)], reward, ..Step::default() }
}

/// A step that ends the episode.
pub(crate) fn done(reward: f64) -> Step {
    Step { reward, terminated: true, ..Step::default() }
}

/// Steps from a list, whatever the action.
pub(crate) fn steps(list: Vec<Step>) -> Source {
    Source::new(move |turn, _, _| {
        let step = list.get(turn).cloned().unwrap_or_else(|| done(0.0));
        async move { Ok(step) }
    })
}

/// Replies from a list, whatever the prompt; the last one again when it is over.
pub(crate) fn replies(list: &[&str]) -> Arc<Scripted> {
    let list: Vec<String> = list.iter().map(|text| (*text).to_owned()).collect();
    Arc::new(Scripted::new(move |_, number| say(list.get(number).or(list.last()).unwrap().clone())))
}

/// Replies from a list of token lists.
pub(crate) fn token_replies(list: Vec<Vec<TokenId>>) -> Arc<Scripted> {
    let list = Mutex::new(VecDeque::from(list));
    Arc::new(Scripted::new(move |_, _| Reply::Tokens(list.lock().unwrap().pop_front().unwrap())))
}

pub(crate) fn task(instance: &str, prompt: &str, source: impl EnvSource + 'static) -> TreeTask {
    TreeTask {
        id: TrajectoryId { instance_id: instance.to_owned(), repetition_id: 0 },
        seed: 1,
        source: Arc::new(source),
        prompt: vec![Message::user(prompt)],
    }
}

pub(crate) fn options(root: LoopOptions) -> TreeOptions {
    TreeOptions { root, ..TreeOptions::default() }
}

/// Plays one root with one engine.
pub(crate) async fn play(engine: &Arc<Scripted>, source: Source, root: LoopOptions) -> Tree {
    play_with(engine, source, options(root)).await
}

/// Plays one root with one engine under limits.
pub(crate) async fn play_with(engine: &Arc<Scripted>, source: Source, options: TreeOptions) -> Tree {
    let cancel = CancellationToken::new();
    play_tree(task("1", "hi", source), Players::policy(player(engine)), options, &cancel).await
}
