//! An engine that computes nothing: what it answers follows from what it is asked.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use async_trait::async_trait;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::backend::{Backend, BaseModel, OperationError, Progress};
use crate::ids::ModelId;
use crate::operation::{Losses, Operation, Outcome, Sampled, Sequence, TargetLogprobs};
use crate::path::TinkerPath;
use crate::proto::StopReason;
use crate::wire::sampling::Stop;

/// An engine for tests. It does every operation at once, in a way that follows from the request alone, and keeps a log of
/// what it did.
///
/// - A sample's tokens count up from the prompt's last, plus one for each sample before it.
/// - A target's log-probability is minus its token over 100.
/// - What it did is forgotten when it is dropped, as an engine forgets that lives in memory.
/// - A prompt that begins with token 13 fails, as does a loss named `fail`; one that begins with token 14 makes it panic.
/// - A checkpoint is a folder with two small files, where a folder for checkpoints was given, and nothing otherwise.
pub struct ScriptedBackend {
    models: Vec<BaseModel>,
    log: Mutex<Vec<String>>,
    file: Option<PathBuf>,
    checkpoints: Option<PathBuf>,
    deaf: bool,
    open: watch::Sender<bool>,
    busy: Mutex<HashSet<String>>,
    crowded: AtomicBool,
    reached: Mutex<HashMap<ModelId, i64>>,
}

impl ScriptedBackend {
    /// With one model of that name, whose context is 4096 tokens.
    pub fn new(model: &str) -> Self {
        Self {
            models: vec![BaseModel { name: model.to_owned(), context: 4096, trainable: true }],
            log: Mutex::default(),
            file: None,
            checkpoints: None,
            deaf: false,
            open: watch::Sender::new(true),
            busy: Mutex::default(),
            crowded: AtomicBool::new(false),
            reached: Mutex::default(),
        }
    }

    /// Every operation's name and place is also appended to a file, one a line, before it is done.
    #[must_use]
    pub fn log_to(mut self, file: PathBuf) -> Self {
        self.file = Some(file);
        self
    }

    /// Checkpoints are written into a folder: `adapter_config.json`, which holds its own path, and
    /// `weights/adapter_model.safetensors`, which holds 100,000 bytes that count up.
    #[must_use]
    pub fn checkpoints_in(mut self, folder: PathBuf) -> Self {
        self.checkpoints = Some(folder);
        self
    }

    /// What is cancelled is done all the same.
    #[must_use]
    pub fn deaf(mut self) -> Self {
        self.deaf = true;
        self
    }

    /// From now on nothing ends, until [`Self::release`].
    pub fn hold(&self) {
        self.open.send_replace(false);
    }

    /// What is held ends.
    pub fn release(&self) {
        self.open.send_replace(true);
    }

    /// What was begun, in order: a model or sampler, a place, an operation's name.
    pub fn log(&self) -> Vec<String> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether two operations of one model ever ran side by side.
    pub fn was_crowded(&self) -> bool {
        self.crowded.load(Ordering::Relaxed)
    }

    fn note(&self, operation: &Operation) {
        let lane = match operation {
            Operation::Sample(sample) => sample.request.sampling_session_id.to_string(),
            other => other.model().map(|model| model.to_string()).unwrap_or_default(),
        };
        let line = format!("{lane} {} {}", operation.seq(), operation.kind().name());
        if let Some(file) = &self.file {
            use std::io::Write as _;
            let opened = std::fs::OpenOptions::new().create(true).append(true).open(file);
            let _ = opened.and_then(|mut file| writeln!(file, "{line}"));
        }
        self.log.lock().unwrap_or_else(PoisonError::into_inner).push(line);
    }

    fn place(&self, path: &TinkerPath) -> Option<PathBuf> {
        let model = path.model.to_string();
        Some(self.checkpoints.as_ref()?.join(model).join(path.kind.segment()).join(path.name.as_str()))
    }

    /// Writes a checkpoint; answers its bytes.
    fn save(&self, path: &TinkerPath) -> std::io::Result<u64> {
        let Some(folder) = self.place(path) else { return Ok(0) };
        std::fs::create_dir_all(folder.join("weights"))?;
        let config = serde_json::json!({"path": path}).to_string();
        let weights: Vec<u8> = (0..100_000u32).map(|byte| byte as u8).collect();
        std::fs::write(folder.join("adapter_config.json"), &config)?;
        std::fs::write(folder.join("weights/adapter_model.safetensors"), &weights)?;
        Ok((config.len() + weights.len()) as u64)
    }

    fn answer(&self, operation: &Operation) -> Result<Outcome, OperationError> {
        let saves = operation.saves().map_err(|error| OperationError::user(format!("`path`: {error}")))?;
        if let Some((path, _)) = saves {
            let size = self.save(&path).map_err(|error| OperationError::server(error.to_string()))?;
            return Ok(Outcome::Saved { path, size: Some(size) });
        }
        match operation {
            Operation::CreateModel(_) => Ok(Outcome::ModelCreated),
            Operation::ForwardBackward(request) if request.loss_fn == "fail" => {
                Err(OperationError::user("`loss_fn`: the script fails here"))
            }
            Operation::ForwardBackward(request) => {
                let logprobs: Vec<TargetLogprobs> = request.data.iter().map(targets).collect();
                let loss = -logprobs.iter().flat_map(|datum| &datum.values).map(|x| f64::from(*x)).sum::<f64>();
                let metrics = BTreeMap::from([("loss:sum".to_owned(), loss)]);
                Ok(Outcome::ForwardBackward(Losses { logprobs, metrics }))
            }
            Operation::OptimStep(_) => Ok(Outcome::OptimStep(BTreeMap::from([("grad_norm:mean".to_owned(), 1.0)]))),
            Operation::LoadWeights(_) => Ok(Outcome::Loaded),
            Operation::SaveWeights(_) | Operation::SaveWeightsForSampler(_) | Operation::SaveWeightsExternal(_) => {
                unreachable!("what saves is answered above")
            }
            Operation::Sample(sample) => {
                let prompt = sample.request.prompt.tokens();
                if prompt.first() == Some(&13) {
                    return Err(OperationError::user("`prompt`: the script fails here"));
                }
                assert_ne!(prompt.first(), Some(&14), "the script panics here");
                Ok(Outcome::Sampled(continuation(sample, &prompt)))
            }
        }
    }
}

fn targets(datum: &crate::datum::Datum) -> TargetLogprobs {
    let tensor = &datum.loss_inputs["target_tokens"];
    let count: usize = tensor.shape.iter().product();
    let mut values = vec![0.0; count];
    if let crate::tensor::Numbers::I64(tokens) = &tensor.numbers {
        for (value, token) in values.iter_mut().zip(tokens) {
            *value = -(*token as f32) / 100.0;
        }
    }
    TargetLogprobs { values, targets: tensor.shape.get(1).map_or(0, |targets| *targets as u32) }
}

fn continuation(sample: &crate::operation::Sample, prompt: &[u32]) -> Sampled {
    let params = &sample.request.sampling_params;
    let most = params.max_tokens.unwrap_or(4);
    let stops: &[u32] = match &params.stop {
        Some(Stop::Tokens(tokens)) => tokens,
        _ => &[],
    };
    let sequence = |index: u32| {
        let first = prompt.last().copied().unwrap_or(0) + 1 + index;
        let mut tokens = Vec::new();
        let mut stop = StopReason::Length;
        for token in (first..).take(most as usize) {
            tokens.push(token);
            if stops.contains(&token) {
                stop = StopReason::Stop;
                break;
            }
        }
        let logprobs = tokens.iter().map(|token| -(*token as f32) / 100.0).collect();
        Sequence { tokens, logprobs, stop }
    };
    let logprobs = |index: usize| (index > 0).then(|| -(prompt[index] as f32) / 100.0);
    Sampled {
        sequences: (0..sample.request.num_samples).map(sequence).collect(),
        prompt_logprobs: (sample.request.prompt_logprobs == Some(true))
            .then(|| (0..prompt.len()).map(logprobs).collect()),
        cached_tokens: 0,
    }
}

/// A model that is at work.
struct Busy<'a>(&'a ScriptedBackend, String);

impl<'a> Busy<'a> {
    fn new(backend: &'a ScriptedBackend, model: String) -> Self {
        if !backend.busy.lock().unwrap_or_else(PoisonError::into_inner).insert(model.clone()) {
            backend.crowded.store(true, Ordering::Relaxed);
        }
        Self(backend, model)
    }
}

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.0.busy.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.1);
    }
}

#[async_trait]
impl Backend for ScriptedBackend {
    fn models(&self) -> &[BaseModel] {
        &self.models
    }

    async fn execute(&self, operation: Operation, cancel: CancellationToken) -> Result<Outcome, OperationError> {
        self.note(&operation);
        let _busy = operation.model().map(|model| Busy::new(self, model.to_string()));
        let mut open = self.open.subscribe();
        tokio::select! {
            _ = open.wait_for(|open| *open) => {}
            () = cancel.cancelled(), if !self.deaf => return Err(OperationError::user("the request was cancelled")),
        }
        let answer = self.answer(&operation);
        if let Some(model) = operation.model() {
            self.reached.lock().unwrap_or_else(PoisonError::into_inner).insert(model, operation.seq());
        }
        answer
    }

    fn progress(&self, model: &ModelId) -> Option<Progress> {
        let reached = self.reached.lock().unwrap_or_else(PoisonError::into_inner).get(model).copied()?;
        Some(Progress { reached, kept: -1 })
    }

    fn checkpoint_folder(&self, path: &TinkerPath) -> Option<PathBuf> {
        self.place(path).filter(|folder| folder.is_dir())
    }

    async fn delete_checkpoint(&self, path: &TinkerPath) -> Result<(), OperationError> {
        let Some(folder) = self.place(path) else { return Ok(()) };
        match std::fs::remove_dir_all(&folder) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(OperationError::server(error.to_string()))
            }
            _ => Ok(()),
        }
    }
}
