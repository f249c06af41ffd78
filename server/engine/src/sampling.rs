//! The wire's prompts as an engine gets them, and its answers as the wire gets them.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use espalier_inference::{
    EngineError, Fidelity, GenerateRequest, Generation, InferenceEngine, Prompt, SamplingParams, StopReason,
};
use espalier_tinker::operation::{Sample, Sampled, Sequence};
use espalier_tinker::proto;
use espalier_tinker::wire::sampling::Stop;
use espalier_tinker::{Backend, BaseModel, Operation, OperationError, Outcome};
use thiserror::Error;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// An engine that cannot serve.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum UnfitEngine {
    /// It knows text only.
    #[error("`{0}`: expected an engine that takes and gives tokens, got one that knows text only")]
    Text(String),
    /// Nobody knows how much fits.
    #[error("`{0}`: expected an engine that says how many tokens its context holds")]
    Context(String),
}

/// An engine as the server sees it.
pub struct EngineBackend {
    engine: Arc<dyn InferenceEngine>,
    models: Vec<BaseModel>,
    context: u32,
    limit: Duration,
}

impl EngineBackend {
    /// Serves an engine under a name; a sample may take `limit` at most. Clients load the tokenizer of that name.
    pub fn new(engine: Arc<dyn InferenceEngine>, name: &str, limit: Duration) -> Result<Self, UnfitEngine> {
        let info = engine.info();
        if info.fidelity != Fidelity::Tokens {
            return Err(UnfitEngine::Text(info.model.clone()));
        }
        let context = info.context_tokens.ok_or_else(|| UnfitEngine::Context(info.model.clone()))?;
        let models = vec![BaseModel { name: name.to_owned(), context, trainable: false }];
        Ok(Self { engine, models, context, limit })
    }

    async fn sample(&self, sample: Sample, cancel: CancellationToken) -> Result<Outcome, OperationError> {
        if let Some(path) = &sample.weights {
            return Err(OperationError::user(format!("`model_path`: there is no checkpoint `{path}`")));
        }
        if sample.request.prompt_logprobs == Some(true) {
            return Err(missing("prompt_logprobs", "log-probabilities of the prompt"));
        }
        refuse_what_is_missing(&sample)?;
        let request = request(&sample, None, self.context, self.limit, cancel);
        let generations = self.engine.generate(request).await.map_err(failure)?;
        sampled(generations).map(Outcome::Sampled)
    }
}

/// A prompt as an engine gets it: `context` tokens fit, and it may take `limit`.
pub(crate) fn request(
    sample: &Sample,
    adapter: Option<String>,
    context: u32,
    limit: Duration,
    cancel: CancellationToken,
) -> GenerateRequest {
    let tokens = sample.request.prompt.tokens();
    let sampling = parameters(sample, context.saturating_sub(tokens.len() as u32).max(1));
    GenerateRequest {
        n: sample.request.num_samples,
        deadline: Instant::now() + limit,
        adapter,
        cancel,
        ..GenerateRequest::new(Prompt::Tokens(tokens), sampling)
    }
}

/// An engine's answers as the wire gets them.
pub(crate) fn sampled(generations: Vec<Generation>) -> Result<Sampled, OperationError> {
    let cached_tokens = generations.iter().map(|generation| generation.usage.cached_tokens).max().unwrap_or(0);
    let sequences = generations.into_iter().map(sequence).collect::<Result<_, _>>()?;
    Ok(Sampled { sequences, prompt_logprobs: None, cached_tokens })
}

/// What the request asks for that no engine gives yet.
pub(crate) fn refuse_what_is_missing(sample: &Sample) -> Result<(), OperationError> {
    let request = &sample.request;
    let asked = [
        ("target_prompt_logprobs", request.target_prompt_logprobs.is_some(), "log-probabilities of the prompt"),
        (
            "topk_prompt_logprobs",
            request.topk_prompt_logprobs > 0,
            "the most probable tokens of the prompt's positions",
        ),
        ("topk_sample_logprobs", request.topk_sample_logprobs > 0, "the most probable tokens of a sample's positions"),
        ("prompt_alt_tokens_k", request.prompt_alt_tokens_k > 0, "alternatives in the prompt"),
    ];
    match asked.into_iter().find(|(_, asked, _)| *asked) {
        Some((field, _, what)) => Err(missing(field, what)),
        None => Ok(()),
    }
}

fn missing(field: &str, what: &str) -> OperationError {
    OperationError::user(format!("`{field}`: {what} are not served yet"))
}

/// The wire's parameters as the engine's. Without stops, or with some, the model's own end of turn ends a sample too; an
/// empty list of stops means that nothing does.
fn parameters(sample: &Sample, room: u32) -> SamplingParams {
    let given = &sample.request.sampling_params;
    let (mut stop, mut stop_token_ids, mut ignore_eos) = (Vec::new(), Vec::new(), false);
    match &given.stop {
        None => {}
        Some(Stop::Texts(texts)) => stop.clone_from(texts),
        Some(Stop::Tokens(tokens)) => {
            ignore_eos = tokens.is_empty();
            stop_token_ids.clone_from(tokens);
        }
    }
    SamplingParams {
        temperature: given.temperature,
        top_p: given.top_p,
        top_k: u32::try_from(given.top_k).unwrap_or(0),
        max_tokens: given.max_tokens.unwrap_or(room),
        stop,
        stop_token_ids,
        ignore_eos,
        seed: given.seed,
        logprobs: true,
        ..SamplingParams::default()
    }
}

fn sequence(generation: Generation) -> Result<Sequence, OperationError> {
    let stop = match generation.stop {
        StopReason::EndOfTurn | StopReason::StopString => proto::StopReason::Stop,
        StopReason::MaxTokens | StopReason::ContextOverflow => proto::StopReason::Length,
        StopReason::Cancelled => return Err(OperationError::server("the sample was cut off before it was done")),
    };
    if generation.logprobs.len() != generation.tokens.len() {
        let (tokens, logprobs) = (generation.tokens.len(), generation.logprobs.len());
        let message = format!("the engine gave {logprobs} log-probabilities for {tokens} tokens");
        return Err(OperationError::server(message));
    }
    Ok(Sequence { tokens: generation.tokens, logprobs: generation.logprobs, stop })
}

/// Whose fault an engine's failure is.
pub(crate) fn failure(error: EngineError) -> OperationError {
    let message = error.to_string();
    match error {
        EngineError::Invalid { .. } | EngineError::ContextOverflow { .. } | EngineError::Cancelled => {
            OperationError::user(message)
        }
        EngineError::UnknownAdapter { .. } | EngineError::Deadline { .. } | EngineError::Failed { .. } => {
            OperationError::server(message)
        }
    }
}

#[async_trait]
impl Backend for EngineBackend {
    fn models(&self) -> &[BaseModel] {
        &self.models
    }

    async fn execute(&self, operation: Operation, cancel: CancellationToken) -> Result<Outcome, OperationError> {
        match operation {
            Operation::Sample(sample) => self.sample(sample, cancel).await,
            other => {
                let name = other.kind().name();
                Err(OperationError::user(format!("`{name}`: training is not served yet; this server only samples")))
            }
        }
    }
}
