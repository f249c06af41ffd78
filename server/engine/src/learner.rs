//! The thread that trains: every adapter over one frozen base, one operation after the other.
//!
//! Adapters that were not used for longest go to the disk when those in memory take more than [`LearnerOptions::memory`], and
//! come back, gradients included, when something is asked of them. An operation that fails leaves its adapter as it was; one
//! that panics costs its own adapter only. Every [`LearnerOptions::keep_after`] of work on a model it is kept on the disk,
//! with the place that it had reached; the server does the rest again.

use std::any::Any;
use std::collections::HashMap;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::{Duration, Instant};

use espalier_distributed::Group;
use espalier_tinker::ids::{ModelId, SessionId};
use espalier_tinker::operation::{ForwardBackward, Losses, TargetLogprobs};
use espalier_tinker::path::{CheckpointKind, TinkerPath};
use espalier_tinker::wire::training::{AdamParams, CreateModel, LoadWeights, LoraConfig as WireLora, OptimizerConfig};
use espalier_tinker::{Operation, OperationError, Outcome, Progress};
use espalier_trainer::adapter::{Adapter, Keep};
use espalier_trainer::head::HeadOptions;
use espalier_trainer::lora::{LAYER_TARGETS, LoraConfig, TargetModules};
use espalier_trainer::optimizer::{OptimizerConfig as AdamConfig, Schedule};
use espalier_trainer::packing::{AskedRow, MicroBatch, plan};
use espalier_trainer::{Kind, ModelOptions, TrainError, TrainModel, TrainPrecision};
use tch::Tensor;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use crate::losses::{Columns, Example, Loss};
use crate::shelf::Shelf;

/// Numerator of every adapter's scaling: the wire has none, and the service uses this one.
const ALPHA: f64 = 32.0;
/// Most targets of one request, and most numbers of its answer.
const MOST_TARGETS: usize = 1 << 20;
/// Largest weight of a checkpoint: the largest IEEE half, in which the engine keeps adapters.
const LARGEST: f64 = 65504.0;
/// Adapters of checkpoints that are kept ready to read prompts with.
const READERS: usize = 4;

/// How training goes.
#[derive(Clone, Debug)]
pub struct LearnerOptions {
    /// In which type the base computes.
    pub precision: TrainPrecision,
    /// Bytes of adapters with their gradients and moments in memory; what is more waits on the disk.
    pub memory: usize,
    /// Tokens that go through the model at once.
    pub micro_batch_tokens: usize,
    /// Layers are computed again in the backward pass instead of being remembered.
    pub gradient_checkpointing: bool,
    /// A model on which so much time was spent since it was kept last is kept on the disk: after a crash that much has to be
    /// done again at most, and what was being done.
    pub keep_after: Duration,
}

impl Default for LearnerOptions {
    fn default() -> Self {
        Self {
            precision: TrainPrecision::F32,
            memory: 4 << 30,
            micro_batch_tokens: 4096,
            gradient_checkpointing: false,
            keep_after: Duration::from_secs(20),
        }
    }
}

type Answer<T> = oneshot::Sender<Result<T, OperationError>>;

enum Job {
    Operation(Box<Operation>, CancellationToken, Answer<Outcome>),
    /// Log-probabilities of a prompt's tokens under a checkpoint, or the base.
    Read(Option<TinkerPath>, Vec<u32>, CancellationToken, Answer<Vec<Option<f32>>>),
    Ended(SessionId),
    /// A checkpoint is no more.
    Forget(TinkerPath),
}

/// The thread, as others see it. It ends when the last of these is gone.
#[derive(Clone)]
pub(crate) struct Learner {
    jobs: mpsc::Sender<Job>,
    shelf: Shelf,
    known: Known,
}

/// How far the thread is with its models, for everybody to see.
#[derive(Clone, Debug, Default)]
struct Known(Arc<Mutex<HashMap<ModelId, Progress>>>);

impl Known {
    fn all(&self) -> MutexGuard<'_, HashMap<ModelId, Progress>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Learner {
    /// Loads the base and starts the thread. `name` is what the base is called in checkpoints.
    pub(crate) fn start(folder: &Path, name: &str, shelf: Shelf, options: LearnerOptions) -> Result<Self, TrainError> {
        let (jobs, queue) = mpsc::channel();
        let (started, ready) = mpsc::channel();
        let (folder, name, known) = (folder.to_owned(), name.to_owned(), Known::default());
        let (own, seen) = (shelf.clone(), known.clone());
        let begun = std::thread::Builder::new().name("tinker-learner".to_owned()).spawn(move || {
            // Tensors do not leave the thread.
            match Learning::load(&folder, name, own, seen, options) {
                Ok(learning) => {
                    let _ = started.send(Ok(()));
                    learning.run(&queue);
                }
                Err(error) => {
                    let _ = started.send(Err(error));
                }
            }
        });
        begun.map_err(|error| TrainError::Settings(format!("no thread can be started: {error}")))?;
        match ready.recv() {
            Ok(Ok(())) => Ok(Self { jobs, shelf, known }),
            Ok(Err(error)) => Err(error),
            Err(_) => Err(TrainError::Settings("the thread that trains ended while it began".to_owned())),
        }
    }

    async fn ask<T>(&self, job: impl FnOnce(Answer<T>) -> Job) -> Result<T, OperationError> {
        let gone = || OperationError::server("the thread that trains is gone; restart the server");
        let (answer, answered) = oneshot::channel();
        self.jobs.send(job(answer)).map_err(|_| gone())?;
        answered.await.map_err(|_| gone())?
    }

    /// Does an operation of a model.
    pub(crate) async fn operation(
        &self,
        operation: Operation,
        cancel: CancellationToken,
    ) -> Result<Outcome, OperationError> {
        self.ask(|answer| Job::Operation(Box::new(operation), cancel, answer)).await
    }

    /// Log-probabilities of a prompt's tokens, `None` for the first.
    pub(crate) async fn read(
        &self,
        weights: Option<TinkerPath>,
        tokens: Vec<u32>,
        cancel: CancellationToken,
    ) -> Result<Vec<Option<f32>>, OperationError> {
        self.ask(|answer| Job::Read(weights, tokens, cancel, answer)).await
    }

    /// How far the thread is with a model, or a kept one would be.
    pub(crate) fn progress(&self, model: &ModelId) -> Option<Progress> {
        let known = self.known.all().get(model).copied();
        known.or_else(|| self.shelf.kept(model).map(|kept| Progress { reached: kept, kept }))
    }

    pub(crate) fn end_session(&self, session: &SessionId) {
        let _ = self.jobs.send(Job::Ended(session.clone()));
    }

    pub(crate) fn forget(&self, path: &TinkerPath) {
        let _ = self.jobs.send(Job::Forget(path.clone()));
    }
}

/// A model of the server.
enum Trained {
    Here { adapter: Box<Adapter>, used: u64 },
    Parked,
}

/// What the thread owns.
struct Learning {
    base: TrainModel,
    name: String,
    shelf: Shelf,
    options: LearnerOptions,
    models: HashMap<ModelId, Trained>,
    readers: HashMap<TinkerPath, (Box<Adapter>, u64)>,
    known: Known,
    /// Time spent on each model since it was kept last.
    spent: HashMap<ModelId, Duration>,
    clock: u64,
}

impl Learning {
    fn load(
        folder: &Path,
        name: String,
        shelf: Shelf,
        known: Known,
        options: LearnerOptions,
    ) -> Result<Self, TrainError> {
        let model = ModelOptions {
            precision: options.precision,
            gradient_checkpointing: options.gradient_checkpointing,
            ..ModelOptions::default()
        };
        let base = TrainModel::load_frozen(folder, model, Group::single())?;
        shelf.clear_parked().map_err(TrainError::io("remove", shelf.parked()))?;
        let (models, readers, spent) = (HashMap::new(), HashMap::new(), HashMap::new());
        Ok(Self { base, name, shelf, options, models, readers, known, spent, clock: 0 })
    }

    fn run(mut self, queue: &mpsc::Receiver<Job>) {
        while let Ok(job) = queue.recv() {
            match job {
                Job::Operation(operation, cancel, answer) => {
                    if !cancel.is_cancelled() {
                        let _ = answer.send(self.guarded(&operation, &cancel));
                    }
                }
                Job::Read(weights, tokens, cancel, answer) => {
                    if !cancel.is_cancelled() {
                        let read = AssertUnwindSafe(|| self.read(weights.as_ref(), &tokens));
                        let _ = answer.send(catch_unwind(read).unwrap_or_else(|panic| Err(panicked(&*panic))));
                    }
                }
                Job::Ended(session) => {
                    self.known.all().retain(|model, _| model.session != session);
                    self.shelf.drop_kept(&session);
                    let ended: Vec<ModelId> = self.models.keys().filter(|id| id.session == session).cloned().collect();
                    for model in ended {
                        self.models.remove(&model);
                        self.spent.remove(&model);
                        self.shelf.unpark(&model);
                    }
                }
                Job::Forget(path) => drop(self.readers.remove(&path)),
            }
        }
    }

    fn guarded(&mut self, operation: &Operation, cancel: &CancellationToken) -> Result<Outcome, OperationError> {
        let done = catch_unwind(AssertUnwindSafe(|| self.execute(operation, cancel)));
        done.unwrap_or_else(|panic| {
            // Nobody knows what state it was left in.
            if let Some(model) = operation.model() {
                self.models.remove(&model);
                self.known.all().remove(&model);
            }
            Err(panicked(&*panic))
        })
    }

    fn execute(&mut self, operation: &Operation, cancel: &CancellationToken) -> Result<Outcome, OperationError> {
        self.clock += 1;
        let Some(model) = operation.model() else {
            return Err(OperationError::server("samples are not for the thread that trains"));
        };
        // The place before is finished for everybody when the next is begun: only then may its effect be kept.
        if self.spent.get(&model).is_some_and(|spent| *spent > self.options.keep_after) {
            self.try_to_keep(&model);
        }
        let begun = Instant::now();
        let done = self.perform(operation, cancel);
        if operation.changes_model() {
            *self.spent.entry(model.clone()).or_default() += begun.elapsed();
        }
        if self.models.contains_key(&model) {
            let kept = self.progress_of(&model).map_or(-1, |progress| progress.kept);
            self.known.all().insert(model.clone(), Progress { reached: operation.seq(), kept });
            // The checkpoint may be gone when this would have to be done again; doing it twice changes nothing.
            if matches!(operation, Operation::LoadWeights(_)) && done.is_ok() {
                self.try_to_keep(&model);
            }
        }
        // What was done is done: a disk that takes nothing is no failure of this operation, or of this model.
        if let Err(error) = self.make_room(&model) {
            tracing::error!(%error, "adapters that do not fit stay in memory");
        }
        done
    }

    fn try_to_keep(&mut self, model: &ModelId) {
        if let Err(error) = self.keep(model) {
            tracing::error!(%error, %model, "a model was not kept: after a crash more has to be done again");
        }
    }

    fn progress_of(&self, model: &ModelId) -> Option<Progress> {
        self.known.all().get(model).copied()
    }

    /// Writes a model to the disk as it is after the last place that it reached.
    fn keep(&mut self, model: &ModelId) -> Result<(), OperationError> {
        let Some(Progress { reached, .. }) = self.progress_of(model) else { return Ok(()) };
        let (folder, base) = (self.shelf.kept_at(model, reached), self.name.clone());
        remove(&folder)?;
        self.adapter(model)?.save(&folder, &base, Keep::Gradients).map_err(failure)?;
        self.shelf.drop_kept_before(model, reached);
        self.known.all().insert(model.clone(), Progress { reached, kept: reached });
        self.spent.remove(model);
        Ok(())
    }

    fn perform(&mut self, operation: &Operation, cancel: &CancellationToken) -> Result<Outcome, OperationError> {
        Ok(match operation {
            Operation::CreateModel(request) => self.create(request)?,
            Operation::ForwardBackward(request) => self.forward_backward(request, cancel)?,
            Operation::OptimStep(request) => {
                let Some(adam) = request.adam_params else {
                    return Err(OperationError::user("`optimizer_params`: only AdamW is served; send `adam_params`"));
                };
                optimize(self.adapter(&request.model_id)?, &adam)?
            }
            Operation::SaveWeights(_) | Operation::SaveWeightsForSampler(_) | Operation::SaveWeightsExternal(_) => {
                let saves = operation.saves().map_err(|error| OperationError::user(format!("`path`: {error}")))?;
                match saves {
                    Some((path, _)) => self.save(path)?,
                    None => return Err(OperationError::server("a checkpoint without a path")),
                }
            }
            Operation::LoadWeights(request) => self.load_weights(request)?,
            Operation::Sample(_) => return Err(OperationError::server("samples are not for the thread that trains")),
        })
    }

    fn create(&mut self, request: &CreateModel) -> Result<Outcome, OperationError> {
        if let OptimizerConfig::Dimuon { .. } = request.optimizer_config {
            return Err(OperationError::user(
                "`optimizer_config.type`: expected `adamw`, got `dimuon`, which is not served",
            ));
        }
        let model = request.model_id();
        let seed = request.lora_config.seed.map_or_else(|| seed_of(&model), |seed| seed as u64);
        let adapter = Adapter::new(&self.base, lora(&request.lora_config), seed).map_err(failure)?;
        self.models.insert(model, Trained::Here { adapter: Box::new(adapter), used: self.clock });
        Ok(Outcome::ModelCreated)
    }

    /// A model's adapter, brought back where it was parked.
    fn adapter(&mut self, model: &ModelId) -> Result<&mut Adapter, OperationError> {
        if !self.models.contains_key(model)
            && let Some(kept) = self.shelf.kept(model)
        {
            let adapter =
                Adapter::open(&self.base, &self.shelf.kept_at(model, kept), Keep::Gradients).map_err(failure)?;
            self.models.insert(model.clone(), Trained::Here { adapter: Box::new(adapter), used: self.clock });
            self.known.all().insert(model.clone(), Progress { reached: kept, kept });
        }
        let Some(found) = self.models.get_mut(model) else {
            return Err(OperationError::server(format!("the model `{model}` is not there; load a checkpoint of it")));
        };
        if matches!(found, Trained::Parked) {
            let folder = self.shelf.parked_model(model);
            let adapter = Adapter::open(&self.base, &folder, Keep::Gradients).map_err(failure)?;
            self.shelf.unpark(model);
            *found = Trained::Here { adapter: Box::new(adapter), used: self.clock };
        }
        match found {
            Trained::Here { adapter, used } => {
                *used = self.clock;
                Ok(adapter)
            }
            Trained::Parked => unreachable!("brought back above"),
        }
    }

    /// Parks what was not used for longest until the rest fits; never the one that is at work.
    fn make_room(&mut self, current: &ModelId) -> Result<(), OperationError> {
        loop {
            let here = |(id, model): (&ModelId, &Trained)| match model {
                Trained::Here { adapter, used } => Some((*used, id.clone(), adapter.resident_bytes())),
                Trained::Parked => None,
            };
            let here: Vec<_> = self.models.iter().filter_map(here).collect();
            let total: usize = here.iter().map(|(_, _, bytes)| bytes).sum();
            let oldest = here.into_iter().filter(|(_, id, _)| id != current).min();
            let Some((_, id, _)) = oldest.filter(|_| total > self.options.memory) else { return Ok(()) };
            if let Some(Trained::Here { adapter, .. }) = self.models.get(&id) {
                adapter.save(&self.shelf.parked_model(&id), &self.name, Keep::Gradients).map_err(failure)?;
            }
            self.models.insert(id, Trained::Parked);
        }
    }

    fn forward_backward(
        &mut self,
        request: &ForwardBackward,
        cancel: &CancellationToken,
    ) -> Result<Outcome, OperationError> {
        let config = self.base.config();
        let (vocab, context) = (config.vocab as u32, config.context as u32);
        let loss = Loss::read(&request.loss_fn, &request.config).map_err(OperationError::user)?;
        let read = |(index, datum)| Example::read(datum, index, loss, vocab, context);
        let examples: Vec<Example> =
            request.data.iter().enumerate().map(read).collect::<Result<_, _>>().map_err(OperationError::user)?;
        let mut targets = 0;
        for (index, example) in examples.iter().enumerate() {
            targets += example.places();
            if targets > MOST_TARGETS {
                let reason =
                    format!("expected at most {MOST_TARGETS} targets in a request, those that are not named included");
                return Err(OperationError::user(format!("`data[{index}].loss_fn_inputs.target_tokens`: {reason}")));
            }
        }
        let tokens = self.options.micro_batch_tokens;
        let adapter = self.adapter(&request.model_id)?;
        // What is there already stays apart, so that a request that fails takes nothing along.
        let before = adapter.model.take_gradients();
        let mut done = batches(&mut adapter.model, &examples, loss, tokens, request.forward_only, cancel);
        if done.is_ok() && !request.forward_only {
            // Found here, where it can be said whose it is, and not at the step.
            let norm = adapter.model.gradient_norm().map_err(failure)?;
            if !norm.is_finite() {
                let reason =
                    format!("`data`: the gradients of this request have the norm {norm}: its numbers are too large");
                done = Err(OperationError::user(reason));
            }
        }
        if done.is_err() || request.forward_only {
            adapter.model.zero_gradients();
        }
        adapter.model.add_taken(before).map_err(failure)?;
        done.map(Outcome::ForwardBackward)
    }

    /// Writes a checkpoint. One that lies there already is replaced: whether that is allowed was decided before, and one that
    /// was written right before the process ended may be written again.
    fn save(&mut self, path: TinkerPath) -> Result<Outcome, OperationError> {
        let (folder, draft) = (self.shelf.checkpoint(&path), self.shelf.draft(&path));
        let keep = if path.kind == CheckpointKind::Training { Keep::Moments } else { Keep::Weights };
        let base = self.name.clone();
        let adapter = self.adapter(&path.model)?;
        let largest = adapter.largest().map_err(failure)?;
        if largest.is_nan() || largest > LARGEST {
            let reason = format!(
                "expected weights up to {LARGEST}, which is what a sampler can hold, got {largest}: load a checkpoint \
                                  from before, and train with smaller steps"
            );
            return Err(OperationError::user(reason));
        }
        remove(&draft)?;
        let size = adapter.save(&draft, &base, keep).map_err(failure)?;
        remove(&folder)?;
        fs::rename(&draft, &folder).map_err(|error| failure(TrainError::io("rename", &draft)(error)))?;
        self.readers.remove(&path);
        Ok(Outcome::Saved { path, size: Some(size) })
    }

    fn load_weights(&mut self, request: &LoadWeights) -> Result<Outcome, OperationError> {
        if request.path.kind != CheckpointKind::Training {
            let reason =
                format!("`path`: expected a checkpoint to train on (`.../weights/NAME`), got `{}`", request.path);
            return Err(OperationError::user(reason));
        }
        let folder = self.existing(&request.path)?;
        let keep = if request.optimizer { Keep::Moments } else { Keep::Weights };
        let adapter = Adapter::open(&self.base, &folder, keep).map_err(failure)?;
        let Some(model) = request.creates().or_else(|| request.model_id.clone()) else {
            return Err(OperationError::user("`model_id`: is missing"));
        };
        if request.creates().is_none() {
            let current = self.adapter(&model)?.lora();
            if current != adapter.lora() {
                let reason = format!(
                    "`path`: its adapter has rank {} over {}, the model's has rank {} over {}",
                    adapter.lora().rank,
                    modules(adapter.lora()),
                    current.rank,
                    modules(current)
                );
                return Err(OperationError::user(reason));
            }
        }
        self.models.insert(model, Trained::Here { adapter: Box::new(adapter), used: self.clock });
        Ok(Outcome::Loaded)
    }

    fn existing(&self, path: &TinkerPath) -> Result<PathBuf, OperationError> {
        let folder = self.shelf.checkpoint(path);
        if folder.is_dir() { Ok(folder) } else { Err(OperationError::user(format!("there is no checkpoint `{path}`"))) }
    }

    fn read(&mut self, weights: Option<&TinkerPath>, tokens: &[u32]) -> Result<Vec<Option<f32>>, OperationError> {
        self.clock += 1;
        let model = match weights {
            None => &self.base,
            Some(path) => {
                if !self.readers.contains_key(path) {
                    let adapter = Adapter::open(&self.base, &self.existing(path)?, Keep::Weights).map_err(failure)?;
                    while self.readers.len() >= READERS {
                        let oldest =
                            self.readers.iter().min_by_key(|(_, (_, used))| *used).map(|(path, _)| path.clone());
                        self.readers.retain(|path, _| Some(path) != oldest.as_ref());
                    }
                    self.readers.insert(path.clone(), (Box::new(adapter), self.clock));
                }
                match self.readers.get_mut(path) {
                    Some((adapter, used)) => {
                        *used = self.clock;
                        &adapter.model
                    }
                    None => unreachable!("read above"),
                }
            }
        };
        let asked: Vec<(usize, u32)> = tokens.iter().skip(1).copied().enumerate().collect();
        let batch = MicroBatch::asked(&[AskedRow { tokens, asked: &asked }], &[0]).map_err(torch)?;
        let found = model.predict(&batch, HeadOptions::default()).map_err(failure)?;
        Ok(std::iter::once(None).chain(floats(&found.logprobs)?.into_iter().map(Some)).take(tokens.len()).collect())
    }
}

fn remove(folder: &Path) -> Result<(), OperationError> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(failure(TrainError::io("remove", folder)(error)))
        }
        _ => Ok(()),
    }
}

/// Runs examples through a model in micro-batches; gradients add up in the model.
fn batches(
    model: &mut TrainModel,
    examples: &[Example],
    loss: Loss,
    max_tokens: usize,
    forward_only: bool,
    cancel: &CancellationToken,
) -> Result<Losses, OperationError> {
    let rows: Vec<AskedRow<'_>> = examples.iter().map(|e| AskedRow { tokens: &e.tokens, asked: &e.asked }).collect();
    // A token that is asked for many targets costs as many rows of the output layer.
    let lengths: Vec<usize> = examples.iter().map(|e| e.tokens.len().max(e.asked.len())).collect();
    let mut logprobs: Vec<TargetLogprobs> =
        examples.iter().map(|_| TargetLogprobs { values: Vec::new(), targets: 0 }).collect();
    let mut total = 0.0;
    for group in plan(&lengths, max_tokens, 1).into_iter().flatten() {
        if cancel.is_cancelled() {
            return Err(OperationError::user("the request was cancelled, or its session ended"));
        }
        let batch = MicroBatch::asked(&rows, &group).map_err(torch)?;
        let columns = Columns::new(batch.rows.iter().map(|row| &examples[*row]).collect());
        let mut kept = None;
        if forward_only {
            let found = model.predict(&batch, HeadOptions::default()).map_err(|e| at_datum(e, &batch))?.logprobs;
            let value = columns.loss(loss, &found).and_then(|value| value.f_double_value(&[])).map_err(torch)?;
            if !value.is_finite() {
                return Err(not_finite(&batch, &floats(&found)?, value));
            }
            total += value;
            kept = Some(found);
        } else {
            let mut objective = |found: &espalier_trainer::head::Predictions| -> Result<Tensor, TrainError> {
                kept = Some(found.logprobs.f_detach()?);
                Ok(columns.loss(loss, &found.logprobs)?)
            };
            let value = model.forward_backward(&batch, HeadOptions::default(), &mut objective);
            total += value.map_err(|error| at_datum(error, &batch))?;
        }
        let kept = floats(&kept.unwrap_or_default())?;
        for (place, row) in batch.rows.iter().enumerate() {
            let (from, to) = (batch.offsets[place] as usize, batch.offsets[place + 1] as usize);
            let example = &examples[*row];
            let values = example.output(kept.get(from..to).unwrap_or_default());
            logprobs[*row] = TargetLogprobs { values, targets: example.width as u32 };
        }
    }
    Ok(Losses { logprobs, metrics: [("loss:sum".to_owned(), total)].into() })
}

fn not_finite(batch: &MicroBatch, logprobs: &[f32], value: f64) -> OperationError {
    let at = logprobs.iter().position(|x| !x.is_finite()).unwrap_or(0) as i64;
    let place = batch.offsets.iter().rposition(|offset| *offset <= at).unwrap_or(0);
    let row = batch.rows.get(place).copied().unwrap_or(0);
    OperationError::user(format!("`data[{row}]`: the loss of it, or of an example beside it, is {value}"))
}

/// Errors name rows; the wire has data.
fn at_datum(error: TrainError, batch: &MicroBatch) -> OperationError {
    match error {
        TrainError::NonFinite { value, row, token, logprob } if logprob.is_finite() => {
            let beside: Vec<String> = batch.rows.iter().map(|row| format!("data[{row}]")).take(8).collect();
            let _ = (row, token);
            OperationError::user(format!("the loss of `{}` is {value}: its numbers are too large", beside.join("`, `")))
        }
        TrainError::NonFinite { value, row, token, logprob } => OperationError::user(format!(
            "`data[{row}]`: the loss is {value}: the log-probability of target {token} is {logprob}"
        )),
        TrainError::Row { row, reason } => OperationError::user(format!("`data[{row}]`: {reason}")),
        other => failure(other),
    }
}

fn optimize(adapter: &mut Adapter, adam: &AdamParams) -> Result<Outcome, OperationError> {
    // As torch does with parameters that have no gradient.
    if !adapter.model.has_gradients() {
        return Ok(Outcome::OptimStep([("grad_norm:mean".to_owned(), 0.0)].into()));
    }
    let config = AdamConfig {
        lr: adam.learning_rate,
        adam_betas: [adam.beta1, adam.beta2],
        eps: adam.eps,
        weight_decay: adam.weight_decay,
        max_grad_norm: adam.grad_clip_norm,
        num_warmup_steps: 0,
        scheduler: Schedule::ConstantWithWarmup,
        groups: Vec::new(),
    };
    adapter.optimizer.set_config(config).map_err(failure)?;
    let step = adapter.optimizer.step(&mut adapter.model, 0).map_err(failure)?;
    // Each request's gradients were finite; their sum may not be. It is left out, and counted.
    if step.skipped {
        return Ok(Outcome::OptimStep([("skipped_steps:sum".to_owned(), 1.0)].into()));
    }
    Ok(Outcome::OptimStep([("grad_norm:mean".to_owned(), step.grad_norm)].into()))
}

fn lora(given: &WireLora) -> LoraConfig {
    let chosen = [(given.train_attn, &LAYER_TARGETS[..4]), (given.train_mlp, &LAYER_TARGETS[4..])];
    let mut names: Vec<String> = chosen
        .iter()
        .filter(|(on, _)| *on)
        .flat_map(|(_, names)| names.iter().map(|name| (*name).to_owned()))
        .collect();
    if given.train_unembed {
        names.push("lm_head".to_owned());
    }
    LoraConfig {
        rank: i64::from(given.rank),
        alpha: ALPHA,
        target_modules: TargetModules::List(names),
        ..LoraConfig::default()
    }
}

fn modules(lora: &LoraConfig) -> String {
    match &lora.target_modules {
        TargetModules::Pattern(pattern) => pattern.clone(),
        TargetModules::List(names) => names.join(", "),
    }
}

/// A seed for those who name none: FNV-1a of the model's name, which nobody chose.
fn seed_of(model: &ModelId) -> u64 {
    model
        .to_string()
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

fn floats(tensor: &Tensor) -> Result<Vec<f32>, OperationError> {
    Vec::<f32>::try_from(tensor.f_to_kind(Kind::Float).map_err(torch)?).map_err(torch)
}

fn torch(error: tch::TchError) -> OperationError {
    OperationError::server(format!("torch failed: {error}"))
}

/// Whose fault an error is. What the client chose is named by the learner itself before. What names files of this machine is
/// for its log.
fn failure(error: TrainError) -> OperationError {
    match &error {
        TrainError::Config { .. } => OperationError::user(error.to_string()),
        TrainError::Io { .. } | TrainError::Exists { .. } | TrainError::Model(_) => {
            tracing::error!(%error, "an operation failed");
            OperationError::server("the server's disk failed; its log says more")
        }
        TrainError::File { reason, .. } => {
            tracing::error!(%error, "an operation failed");
            OperationError::server(format!("a file of the checkpoint cannot be used: {reason}"))
        }
        _ => OperationError::server(error.to_string()),
    }
}

fn panicked(panic: &(dyn Any + Send)) -> OperationError {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
    tracing::error!(%text, "an operation panicked");
    OperationError::server("the trainer failed: it panicked")
}
