//! [`LocalEngine`]: a model folder on this machine's CPU, as an [`InferenceEngine`].
//!
//! The engine owns one thread with the model (tensors can be sent, not shared). Callers encode and check their request,
//! put it into a bounded queue and wait; the thread batches. A request whose caller is gone is dropped within one step.
//!
//! Weights can change while requests run: [`LocalEngine::load_adapter`] and its neighbours prepare them on the caller's
//! thread and hand them to the engine's, which puts them in place between two steps.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc as sync_mpsc};
use std::thread::JoinHandle;

use async_trait::async_trait;
use espalier_inference::engine::LogprobKind;
use espalier_inference::{
    ChatTemplate, EngineError, EngineInfo, Fidelity, GenerateRequest, Generation, InferenceEngine, Prompt,
    TemplateError, TokenId, Tokenizer,
};
use tch::Tensor;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use crate::adapters::{AdapterError, AdapterWeights, PackedAdapter};
use crate::error::ModelError;
use crate::models::decoder::{Decoder, Precision};
use crate::models::update::BaseChange;
use crate::models::{ModelConfig, read_config};
use crate::policies::Policies;
use crate::sampling;
use crate::shim::BLOCK;
use crate::worker::{Submission, Worker, WorkerOptions};

/// Most samples of one request.
const MAX_SAMPLES: u32 = 1024;

/// How the engine runs. Every default is finite.
#[derive(Clone, Debug, PartialEq)]
pub struct EngineOptions {
    /// The model's name for messages and APIs; the folder's name where absent.
    pub name: Option<String>,
    /// How matrix weights are kept.
    pub precision: Precision,
    /// Memory of the KV cache in MiB, 32-bit floats; a quarter of the machine's (or container's) memory where absent.
    pub kv_cache_mb: Option<u64>,
    /// Threads of libtorch; one per CPU where absent.
    pub threads: Option<usize>,
    /// Most sequences decoded side by side.
    pub max_batch: usize,
    /// Most prompt tokens taken into one step, so that decoding goes on beside long prompts.
    pub prefill_chunk: usize,
    /// Most requests that wait or run at once; further ones are refused.
    pub max_requests: usize,
    /// Seeds requests that bring none, together with the request's number.
    pub seed: u64,
}

impl Default for EngineOptions {
    fn default() -> Self {
        Self {
            name: None,
            precision: Precision::default(),
            kv_cache_mb: None,
            threads: None,
            max_batch: 64,
            prefill_chunk: 256,
            max_requests: 4096,
            seed: 0,
        }
    }
}

/// What the engine has done since it started. Counts of tokens unless said otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EngineStats {
    /// Requests that ended, one way or another.
    pub requests: u64,
    /// Tokens of all prompts, once a request.
    pub prompt_tokens: u64,
    /// Of these, tokens whose keys and values were in the cache.
    pub cached_tokens: u64,
    /// Prompt tokens that went through the model, repeated ones included.
    pub prefilled_tokens: u64,
    /// Tokens sampled.
    pub sampled_tokens: u64,
    /// Tokens that an earlier turn of the same session had already computed, and that were computed again.
    pub reprefilled_tokens: u64,
    /// Tokens computed again because their sequence had to make room or to wait.
    pub recomputed_tokens: u64,
    /// How often a sequence had to make room (times).
    pub preemptions: u64,
    /// Cache blocks dropped to make room (blocks).
    pub evictions: u64,
    /// Cache blocks that hold something now (blocks).
    pub blocks_in_use: u64,
    /// Most cache blocks (blocks).
    pub blocks: u64,
    /// Sequences decoded side by side now (sequences).
    pub running: u64,
    /// Sequences that wait for room now (sequences).
    pub waiting: u64,
    /// Steps of the model (times).
    pub steps: u64,
    /// Adapters that are loaded now, or removed and still answering (adapters).
    pub adapters: u64,
    /// Changes of weights that were loaded before: of an adapter, of the base model, and of the base model under an
    /// adapter (times).
    pub weight_updates: u64,
}

/// What [`LocalEngine::generate_stream`] sends.
#[derive(Clone, Debug, PartialEq)]
pub enum StreamEvent {
    /// One sampled token.
    Token {
        /// Which sample.
        index: u32,
        /// The token.
        id: TokenId,
        /// Its log-probability.
        logprob: f32,
        /// The text that is now certain; empty while a character is incomplete.
        text: String,
    },
    /// The request ended; nothing follows.
    Done(Result<Vec<Generation>, EngineError>),
}

/// A model on this machine's CPU.
pub struct LocalEngine {
    info: EngineInfo,
    model: ModelConfig,
    tokenizer: Tokenizer,
    template: Option<ChatTemplate>,
    context: usize,
    seed: u64,
    max_requests: usize,
    numbers: AtomicU64,
    open: Arc<AtomicUsize>,
    precision: Precision,
    pub(crate) policies: Policies,
    stats: Arc<Mutex<EngineStats>>,
    stopping: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl LocalEngine {
    /// Loads a model folder: `config.json`, weights, `tokenizer.json` and, where there is one, the chat template. Blocks
    /// until the weights are read.
    pub fn load(folder: &Path, options: EngineOptions) -> Result<Self, ModelError> {
        let broken = |reason: String| ModelError::Tokenizer { path: folder.to_owned(), reason };
        let tokenizer = Tokenizer::from_dir(folder).map_err(|e| broken(e.to_string()))?;
        let template = match ChatTemplate::from_dir(folder) {
            Ok(template) => Some(template),
            Err(TemplateError::Missing { .. }) => None,
            Err(e) => return Err(broken(e.to_string())),
        };
        Self::with_tokenizer(folder, tokenizer, template, options)
    }

    /// Loads the weights of a folder and takes the tokenizer and the template from the caller.
    pub fn with_tokenizer(
        folder: &Path,
        tokenizer: Tokenizer,
        template: Option<ChatTemplate>,
        options: EngineOptions,
    ) -> Result<Self, ModelError> {
        let bound = |option: &'static str, value: usize, most: usize| {
            if (1..=most).contains(&value) {
                return Ok(());
            }
            Err(ModelError::Option { option, expected: format!("1 to {most}"), found: value.to_string() })
        };
        bound("threads", options.threads.unwrap_or(1), 1024)?;
        bound("max_batch", options.max_batch, 4096)?;
        bound("prefill_chunk", options.prefill_chunk, 65536)?;
        bound("max_requests", options.max_requests, 1 << 20)?;
        let model = read_config(folder)?;
        let name = options.name.clone().unwrap_or_else(|| {
            folder.file_name().map_or_else(|| "local".to_owned(), |n| n.to_string_lossy().into_owned())
        });

        let block_bytes = Decoder::block_bytes(&model.decoder);
        let cache_mb = options.kv_cache_mb.unwrap_or_else(|| memory_mb() / 4);
        let blocks = (cache_mb.saturating_mul(1 << 20) / block_bytes).min(1 << 24) as usize;
        if blocks < 2 {
            return Err(ModelError::Option {
                option: "kv_cache_mb",
                expected: format!("at least {} for this model", (2 * block_bytes).div_ceil(1 << 20)),
                found: cache_mb.to_string(),
            });
        }
        // One block is kept apart for the copy of a partly filled one.
        let context = (model.decoder.context as usize).min((blocks - 1) * BLOCK);

        let stats = Arc::new(Mutex::new(EngineStats { blocks: blocks as u64, ..EngineStats::default() }));
        let stopping = Arc::new(AtomicBool::new(false));
        let open = Arc::new(AtomicUsize::new(0));
        let (queue, incoming) = sync_mpsc::channel();
        let (ready, loaded) = sync_mpsc::channel();
        let thread = {
            let folder: PathBuf = folder.to_owned();
            let (stats, stopping, model, name) = (stats.clone(), stopping.clone(), model.clone(), name.clone());
            let worker = WorkerOptions {
                name,
                context,
                blocks,
                max_batch: options.max_batch,
                prefill_chunk: options.prefill_chunk,
                eos: tokenizer.eos_ids().iter().chain(&model.eos).copied().collect(),
            };
            let (tokenizer, open) = (tokenizer.clone(), open.clone());
            let threads = options.threads.or_else(|| std::thread::available_parallelism().map(Into::into).ok());
            std::thread::Builder::new()
                .name("engine".to_owned())
                .spawn(move || {
                    // The number of threads belongs to the calling thread: it is set here, where the model runs.
                    tch::set_num_threads(threads.unwrap_or(1) as i32);
                    let decoder = match Decoder::load(&folder, &model.decoder, options.precision) {
                        Ok(decoder) => decoder,
                        Err(e) => return drop(ready.send(Err(e))),
                    };
                    match Worker::new(worker, decoder, tokenizer, incoming, stats, stopping, open) {
                        Ok(worker) => {
                            let _ = ready.send(Ok(()));
                            worker.run();
                        }
                        Err(e) => drop(ready.send(Err(e.into()))),
                    }
                })
                .map_err(|e| ModelError::Thread(e.to_string()))?
        };
        loaded.recv().map_err(|_| ModelError::Thread("it ended while loading".to_owned()))??;
        Ok(Self {
            info: EngineInfo {
                model: name,
                fidelity: Fidelity::Tokens,
                context_tokens: Some(context as u32),
                logprobs: LogprobKind::Raw,
            },
            model,
            tokenizer,
            template,
            context,
            seed: options.seed,
            max_requests: options.max_requests,
            numbers: AtomicU64::new(0),
            open,
            precision: options.precision,
            policies: Policies::new(queue),
            stats,
            stopping,
            thread: Some(thread),
        })
    }

    /// The model's tokenizer.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// The model's chat template, if it has one.
    pub fn template(&self) -> Option<&ChatTemplate> {
        self.template.as_ref()
    }

    /// The model's configuration.
    pub fn config(&self) -> &ModelConfig {
        &self.model
    }

    /// What the engine has done so far.
    pub fn stats(&self) -> EngineStats {
        *self.stats.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// As [`InferenceEngine::generate`], token by token. At most `n * max_tokens + 1` events are buffered; dropping the
    /// receiver cancels the request.
    pub async fn generate_stream(
        &self,
        request: GenerateRequest,
    ) -> Result<mpsc::UnboundedReceiver<StreamEvent>, EngineError> {
        let (stream, events) = mpsc::unbounded_channel();
        let cancel = request.cancel.child_token();
        self.submit(request, cancel, None, Some(stream)).await?;
        Ok(events)
    }

    /// The tokens of a prompt, as this engine would send them to the model.
    pub async fn encode(&self, prompt: &Prompt) -> Result<Vec<TokenId>, EngineError> {
        let invalid = |reason: String| EngineError::Invalid { model: self.info.model.clone(), reason };
        let size = match prompt {
            Prompt::Tokens(tokens) => return Ok(tokens.clone()),
            Prompt::Text(text) => text.len(),
            Prompt::Messages(messages) => messages.iter().map(|m| m.content.len()).sum(),
        };
        let (tokenizer, template, prompt) = (self.tokenizer.clone(), self.template.clone(), prompt.clone());
        let work = move || match prompt {
            Prompt::Tokens(tokens) => Ok(tokens),
            Prompt::Text(text) => tokenizer.encode(&text).map_err(|e| format!("`prompt`: {e}")),
            Prompt::Messages(messages) => template
                .ok_or("`messages`: the model has no chat template; send a prompt of text or tokens".to_owned())?
                .encode(&tokenizer, &messages, &[], true, &serde_json::Map::new())
                .map_err(|e| format!("`messages`: {e}")),
        };
        // Long texts take milliseconds: not on a thread that serves others.
        let result = if size > 4096 {
            tokio::task::spawn_blocking(work).await.unwrap_or_else(|e| Err(e.to_string()))
        } else {
            work()
        };
        result.map_err(invalid)
    }

    async fn submit(
        &self,
        request: GenerateRequest,
        cancel: CancellationToken,
        answer: Option<oneshot::Sender<Result<Vec<Generation>, EngineError>>>,
        stream: Option<mpsc::UnboundedSender<StreamEvent>>,
    ) -> Result<(), EngineError> {
        let invalid = |reason: String| Err(EngineError::Invalid { model: self.info.model.clone(), reason });
        let vocab = self.model.decoder.vocab as u32;
        if let Err(reason) = sampling::check(&request.sampling, vocab) {
            return invalid(reason);
        }
        if !(1..=MAX_SAMPLES).contains(&request.n) {
            return invalid(format!("`n`: expected 1 to {MAX_SAMPLES}, got {}", request.n));
        }
        let tokens = self.encode(&request.prompt).await?;
        if tokens.is_empty() {
            return invalid("`prompt`: expected at least one token, got none".to_owned());
        }
        if let Some((at, id)) = tokens.iter().enumerate().find(|(_, id)| **id >= vocab) {
            return invalid(format!("`prompt`: expected token ids below {vocab}, got {id} at position {at}"));
        }
        if tokens.len() >= self.context {
            return Err(EngineError::ContextOverflow {
                model: self.info.model.clone(),
                prompt_tokens: tokens.len() as u32,
                context_tokens: self.context as u32,
            });
        }
        let failed = |reason: &str| EngineError::Failed { model: self.info.model.clone(), reason: reason.to_owned() };
        if self.open.fetch_add(1, Ordering::Relaxed) >= self.max_requests {
            self.open.fetch_sub(1, Ordering::Relaxed);
            return Err(failed(&format!("{} requests are open already, the most that may be", self.max_requests)));
        }
        let number = self.numbers.fetch_add(1, Ordering::Relaxed);
        let adapter = request.adapter;
        let seed = request.sampling.seed.unwrap_or_else(|| sampling::mix(self.seed ^ sampling::mix(number)));
        let submission = |policy| Submission {
            policy,
            tokens,
            params: request.sampling,
            seed,
            n: request.n,
            session: request.session,
            deadline: request.deadline,
            cancel,
            answer,
            stream,
        };
        let sent = self.policies.submit(adapter.as_deref(), submission);
        sent.map_err(|refusal| {
            self.open.fetch_sub(1, Ordering::Relaxed);
            match refusal {
                AdapterError::Unknown { name: adapter, known } => {
                    EngineError::UnknownAdapter { model: self.info.model.clone(), adapter, known }
                }
                other => failed(&other.to_string()),
            }
        })
    }

    /// Loads an adapter under a name of its own, and gives its version. Requests that name it afterwards are answered by
    /// it; what runs goes on. As [`Self::update_adapter`] it waits for the step that is running, so that the weights are in
    /// place when it returns.
    pub fn load_adapter(&self, name: &str, weights: &AdapterWeights) -> Result<u64, AdapterError> {
        if name.is_empty() || name == self.info.model {
            let expected = format!("a name other than the model's, `{}`", self.info.model);
            return Err(AdapterError::Name { name: name.to_owned(), expected });
        }
        self.policies.load(name, PackedAdapter::new(weights, &self.model.decoder, self.precision)?)
    }

    /// Gives a loaded adapter new weights, of whatever ranks and modules, and gives its new version. Its running requests
    /// go on with them: nothing is dropped, each token says under which version it was sampled
    /// ([`Generation::versions`]). Keys and values that older weights computed are kept by the sequences that have them and
    /// reused by no other.
    pub fn update_adapter(&self, name: &str, weights: &AdapterWeights) -> Result<u64, AdapterError> {
        self.policies.update(name, PackedAdapter::new(weights, &self.model.decoder, self.precision)?)
    }

    /// Takes an adapter away: new requests that name it are refused, those that it has are still answered by it. The name
    /// is free at once; versions of an adapter that gets it are higher.
    pub fn remove_adapter(&self, name: &str) -> Result<(), AdapterError> {
        self.policies.remove(name)
    }

    /// The adapters that requests can name, with their versions.
    pub fn adapters(&self) -> Vec<(String, u64)> {
        self.policies.adapters()
    }

    /// Replaces weights of the base model, under the rules of [`Self::update_adapter`], and gives the base's new version;
    /// every adapter's version counts one up as well. Tensors are named as in the model's checkpoint; those that are not
    /// given stay. All of them are checked before any is replaced.
    pub fn update_base(&self, tensors: impl IntoIterator<Item = (String, Tensor)>) -> Result<u64, ModelError> {
        let change = BaseChange::new(&self.model.decoder, self.precision, tensors)?;
        self.policies.change_base(change)
    }
}

#[async_trait]
impl InferenceEngine for LocalEngine {
    fn info(&self) -> &EngineInfo {
        &self.info
    }

    async fn generate(&self, request: GenerateRequest) -> Result<Vec<Generation>, EngineError> {
        let (answer, result) = oneshot::channel();
        // Dropping this future cancels the request: its slot is free within one step.
        let cancel = request.cancel.child_token();
        let _on_drop = cancel.clone().drop_guard();
        self.submit(request, cancel, Some(answer), None).await?;
        result.await.unwrap_or_else(|_| {
            Err(EngineError::Failed {
                model: self.info.model.clone(),
                reason: "the engine's thread has ended".to_owned(),
            })
        })
    }
}

impl Drop for LocalEngine {
    fn drop(&mut self) {
        self.stopping.store(true, Ordering::Relaxed);
        self.policies.close();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Memory of the machine, or of the container where that is less, in MiB.
fn memory_mb() -> u64 {
    let machine = std::fs::read_to_string("/proc/meminfo").ok().and_then(|text| {
        let line = text.lines().find(|l| l.starts_with("MemTotal:"))?;
        line.split_whitespace().nth(1)?.parse::<u64>().ok().map(|kb| kb >> 10)
    });
    let container = std::fs::read_to_string("/sys/fs/cgroup/memory.max")
        .ok()
        .and_then(|text| text.trim().parse::<u64>().ok().map(|bytes| bytes >> 20));
    machine.into_iter().chain(container).min().unwrap_or(4096)
}
