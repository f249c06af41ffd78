//! A backend that samples and trains on this machine.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use espalier_engine::LocalEngine;
use espalier_inference::{EngineError, InferenceEngine as _};
use espalier_tinker::ids::{ModelId, SessionId};
use espalier_tinker::operation::Sample;
use espalier_tinker::path::TinkerPath;
use espalier_tinker::{Backend, BaseModel, Operation, OperationError, Outcome, Progress};
use espalier_trainer::TrainError;
use tokio_util::sync::CancellationToken;

use crate::learner::{Learner, LearnerOptions};
use crate::samplers::Samplers;
use crate::sampling::{failure, refuse_what_is_missing, request, sampled};
use crate::shelf::Shelf;

/// How a backend works.
#[derive(Clone, Debug)]
pub struct LocalOptions {
    /// What clients call the model; they load the tokenizer of that name.
    pub name: String,
    /// Where checkpoints lie, and adapters that wait.
    pub folder: PathBuf,
    /// How training goes.
    pub learner: LearnerOptions,
    /// Checkpoints that the engine holds at once.
    pub samplers: usize,
    /// Longest time for one sample.
    pub limit: Duration,
}

/// One base model, in an engine that samples and a thread that trains adapters of it.
pub struct LocalBackend {
    engine: Arc<LocalEngine>,
    learner: Learner,
    samplers: Samplers,
    shelf: Shelf,
    models: Vec<BaseModel>,
    context: u32,
    limit: Duration,
}

impl LocalBackend {
    /// Over an engine, and the folder that its model was loaded from. Loads that model a second time, to train: call it where
    /// waiting is allowed.
    pub fn start(engine: Arc<LocalEngine>, model: &Path, options: LocalOptions) -> Result<Self, TrainError> {
        let shelf = Shelf::new(&options.folder);
        let learner = Learner::start(model, &options.name, shelf.clone(), options.learner)?;
        let context = engine.config().decoder.context as u32;
        Ok(Self {
            samplers: Samplers::new(Arc::clone(&engine), shelf.clone(), options.samplers),
            models: vec![BaseModel { name: options.name, context, trainable: true }],
            engine,
            learner,
            shelf,
            context,
            limit: options.limit,
        })
    }

    async fn sample(&self, sample: Sample, cancel: CancellationToken) -> Result<Outcome, OperationError> {
        refuse_what_is_missing(&sample)?;
        let prompt = async {
            if sample.request.prompt_logprobs != Some(true) {
                return Ok(None);
            }
            let tokens = sample.request.prompt.tokens();
            let first =
                sample.request.prompt_logprobs_last_n.map_or(0, |last| tokens.len().saturating_sub(last as usize));
            let mut found = self.learner.read(sample.weights.clone(), tokens, cancel.clone()).await?;
            // Only of the last ones.
            found.iter_mut().take(first).for_each(|logprob| *logprob = None);
            Ok(Some(found))
        };
        let generations = async {
            let mut again = false;
            loop {
                let adapter = match &sample.weights {
                    None => None,
                    Some(path) => Some(self.samplers.name(path, again).await?),
                };
                let request = request(&sample, adapter, self.context, self.limit, cancel.clone());
                match self.engine.generate(request).await {
                    // It was unloaded between the two.
                    Err(EngineError::UnknownAdapter { .. }) if !again => again = true,
                    other => return other.map_err(failure),
                }
            }
        };
        // The prompt's length is checked by the engine before anything is read.
        let generations = generations.await?;
        let prompt_logprobs = prompt.await?;
        let mut sampled = sampled(generations)?;
        sampled.prompt_logprobs = prompt_logprobs;
        Ok(Outcome::Sampled(sampled))
    }
}

#[async_trait]
impl Backend for LocalBackend {
    fn models(&self) -> &[BaseModel] {
        &self.models
    }

    async fn execute(&self, operation: Operation, cancel: CancellationToken) -> Result<Outcome, OperationError> {
        match operation {
            Operation::Sample(sample) => self.sample(sample, cancel).await,
            other => self.learner.operation(other, cancel).await,
        }
    }

    fn progress(&self, model: &ModelId) -> Option<Progress> {
        self.learner.progress(model)
    }

    fn checkpoint_folder(&self, path: &TinkerPath) -> Option<PathBuf> {
        Some(self.shelf.checkpoint(path)).filter(|folder| folder.is_dir())
    }

    async fn delete_checkpoint(&self, path: &TinkerPath) -> Result<(), OperationError> {
        self.learner.forget(path);
        self.samplers.forget(path).await;
        let (shelf, path) = (self.shelf.clone(), path.clone());
        let removed = tokio::task::spawn_blocking(move || shelf.remove(&path)).await;
        let removed = removed.unwrap_or_else(|error| Err(std::io::Error::other(error)));
        removed.map_err(|error| OperationError::server(format!("the checkpoint's files cannot be removed: {error}")))
    }

    fn end_session(&self, session: &SessionId) {
        self.learner.end_session(session);
    }
}
