//! [`Repl`]: one persistent REPL.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use espalier_sandbox_protocol::{
    BlockEnd, Decode, Encode, Encoder, ExecuteReply, ExecuteRequest, FinalAnswer, Reply, Request, Value, VariableInfo,
};
use rand::SeedableRng as _;
use rand_chacha::ChaCha8Rng;

use crate::error::SnapshotError;
use crate::instance::Live;
use crate::job::{Ended, Finished, Stop, Task, lock, memory_limit};
use crate::journal::{HostState, WayBack};
use crate::operation::Operation;
use crate::run::Interrupt;
use crate::snapshot::{self, Saved};
use crate::{Context, Execution, Limits, Outcome, ReplOptions, Sandbox, SandboxError, Tool, names};

/// Largest size of all contexts of a REPL together, bytes.
const MAX_CONTEXT_BYTES: u64 = 1 << 30;
/// Bytes of a context that the guest is given a second more for.
const CONTEXT_BYTES_PER_SECOND: u64 = 4 << 20;

/// One persistent REPL. Dropping it at any moment, also in the middle of a block or host call, frees everything.
pub struct Repl {
    sandbox: Sandbox,
    options: ReplOptions,
    /// The guest; absent until it is needed, and after it had to be stopped.
    live: Option<Box<Live>>,
    back: Arc<Mutex<WayBack>>,
    spent: Arc<AtomicU64>,
    /// Blocks run.
    block: u64,
    contexts: Vec<Context>,
    /// Bytes of the guest's heap at which it raises `MemoryError`: as it was told when it was set up.
    soft_memory: u64,
    /// The model's variables, where they are known.
    variables: Option<Vec<VariableInfo>>,
}

impl Repl {
    pub(crate) async fn open(sandbox: Sandbox, options: ReplOptions) -> Result<Self, SandboxError> {
        let core = &sandbox.inner.core;
        let back = WayBack::new(Arc::clone(&core.booted), HostState::new(options.seed));
        let spent = Arc::new(AtomicU64::new(options.calls_spent));
        let mut repl = Self {
            sandbox,
            live: None,
            back: Arc::new(Mutex::new(back)),
            spent,
            block: 0,
            contexts: Vec::new(),
            soft_memory: u64::MAX,
            variables: Some(Vec::new()),
            options,
        };
        repl.set_up(repl.options.contexts.clone()).await?;
        Ok(repl)
    }

    pub(crate) async fn restore(
        sandbox: Sandbox,
        bytes: &[u8],
        mut options: ReplOptions,
    ) -> Result<Self, SandboxError> {
        let core = &sandbox.inner.core;
        let context_bytes = options.contexts.iter().map(|context| context.size() as u64).sum();
        let allowed = memory_limit(core, &options.limits, context_bytes) as u64;
        let (checkpoint, saved) = snapshot::read(core, bytes, allowed)?;
        options.limits = options.limits.stricter(&saved.limits);
        let allowed = memory_limit(core, &options.limits, context_bytes) as u64;
        if checkpoint.size() as u64 > allowed {
            return Err(SnapshotError::Memory { needed: checkpoint.size() as u64, allowed }.into());
        }
        let spent = Arc::new(AtomicU64::new(saved.spent.max(options.calls_spent)));
        let back = WayBack::new(Arc::new(checkpoint), saved.host);
        let contexts = options.contexts.clone();
        let mut repl = Self {
            live: None,
            back: Arc::new(Mutex::new(back)),
            spent,
            block: saved.block,
            contexts,
            soft_memory: saved.soft_memory,
            variables: None,
            options,
            sandbox,
        };
        match repl.variables().await {
            Ok(_) => Ok(repl),
            Err(error) => Err(SnapshotError::Refused(error.to_string()).into()),
        }
    }

    /// Runs a block. If the future is dropped before its end, the REPL goes on from before the block.
    pub async fn execute(&mut self, code: &str) -> Result<Execution, SandboxError> {
        let limits = self.options.limits.clone();
        self.execute_with(code, &limits).await
    }

    /// Runs a block under other time limits than the REPL's own (`Limits` of the REPL bound them from above).
    ///
    /// An error means that no block ran; what a block does wrong is in the [`Execution`].
    pub async fn execute_with(&mut self, code: &str, limits: &Limits) -> Result<Execution, SandboxError> {
        let limits = self.options.limits.stricter(limits);
        if code.len() as u64 > limits.memory_bytes / 4 {
            let (needed, limit) = (code.len() as u64, limits.memory_bytes / 4);
            return Err(SandboxError::TooLarge { what: "the block's code".to_owned(), needed, limit });
        }
        self.block = self.block.saturating_add(1);
        let request = ExecuteRequest {
            code: code.to_owned(),
            block: self.block,
            echo: self.options.echo,
            max_host_calls: limits.calls_per_block,
        };
        let finished = self.perform(Task::Serve(Request::Execute(request).to_bytes()), limits.clone()).await?;
        let cpu = finished.cpu;
        let run = finished.run;
        let mut execution = Execution {
            stdout: run.stdout.finish(),
            stderr: run.stderr.finish(),
            outcome: Outcome::Completed,
            rolled_back: false,
            final_answer: None,
            variables: Vec::new(),
            cpu,
            waiting: run.waited,
            calls: run.calls,
        };
        // The soft limit was passed if linear memory, which never shrinks, is at least as large.
        let passed = self.live.as_ref().is_some_and(|live| live.size() as u64 >= self.soft_memory);
        let memory = finished.refused || run.memory_seen || passed;
        match finished.ended {
            Ended::Replied(bytes) => match Reply::from_bytes(&bytes) {
                Ok(Reply::Executed(reply)) => self.answered(reply, run.interrupt, memory, &mut execution),
                Ok(Reply::Refused(reason)) => execution.outcome = Outcome::HostError { reason },
                Ok(_) => self.broken(&mut execution, "the interpreter answered something else"),
                Err(error) => self.broken(&mut execution, &format!("the interpreter's answer: {error}")),
            },
            Ended::Stopped(stop) => {
                execution.rolled_back = true;
                execution.variables = match self.variables.clone() {
                    Some(variables) => variables,
                    None => self.variables().await.unwrap_or_default(),
                };
                execution.outcome = match &stop {
                    Stop::Memory => Outcome::MemoryExceeded,
                    stop => Outcome::Killed { reason: stop.reason(&limits, run.interrupt) },
                };
            }
            Ended::Lost(reason) => {
                execution.rolled_back = true;
                execution.outcome = Outcome::HostError { reason };
            }
            Ended::Checkpointed => execution.outcome = Outcome::HostError { reason: "nothing ran".to_owned() },
        }
        Ok(execution)
    }

    fn answered(&mut self, reply: ExecuteReply, interrupt: Option<Interrupt>, memory: bool, execution: &mut Execution) {
        execution.outcome = match reply.end {
            BlockEnd::Completed => Outcome::Completed,
            BlockEnd::Raised { .. } if interrupt.is_some() => Outcome::TimedOut,
            BlockEnd::Raised { type_name, .. } if memory && type_name == "MemoryError" => Outcome::MemoryExceeded,
            BlockEnd::Raised { type_name, message } => Outcome::Raised { type_name, message },
        };
        execution.final_answer = reply.final_answer;
        execution.variables.clone_from(&reply.variables);
        self.variables = Some(reply.variables);
    }

    /// The guest's answer makes no sense although it was served: its state is not to be trusted.
    fn broken(&mut self, execution: &mut Execution, reason: &str) {
        self.live = None;
        lock(&self.back).lost = Some(reason.to_owned());
        execution.outcome = Outcome::HostError { reason: reason.to_owned() };
    }

    /// Adds the next context; answers its index.
    pub async fn bind_context(&mut self, context: Context) -> Result<u32, SandboxError> {
        let index = self.contexts.len() as u32;
        let bytes = self.context_bytes().saturating_add(context.size() as u64);
        if bytes > MAX_CONTEXT_BYTES {
            let what = "the contexts together".to_owned();
            return Err(SandboxError::TooLarge { what, needed: bytes, limit: MAX_CONTEXT_BYTES });
        }
        let request = bind_context_request(index, context.value());
        let size = context.size() as u64;
        self.contexts.push(context);
        let limits = self.set_up_limits(Duration::from_secs(size / CONTEXT_BYTES_PER_SECOND));
        let bound = self.ask(&format!("binding context {index}"), request, limits).await;
        let bound = bound.and_then(|reply| match reply {
            Reply::Done => Ok(index),
            Reply::Refused(reason) => Err(SandboxError::Name { name: format!("context_{index}"), reason }),
            _ => Err(unexpected()),
        });
        match bound {
            // As the guest did.
            Ok(_) => self.soft_memory = self.soft_memory.saturating_add(size.saturating_mul(3)),
            Err(_) => {
                self.contexts.pop();
            }
        }
        bound
    }

    /// Binds a variable. Names of the scaffold and of Python's builtins are refused.
    pub async fn bind(&mut self, name: &str, value: Value) -> Result<(), SandboxError> {
        names::check(name)?;
        let request = Request::Bind { name: name.to_owned(), value }.to_bytes();
        let limit = self.options.limits.memory_bytes / 4;
        if request.len() as u64 > limit {
            return Err(SandboxError::TooLarge { what: format!("`{name}`"), needed: request.len() as u64, limit });
        }
        self.variables = None;
        match self.ask(&format!("binding `{name}`"), request, self.options.limits.clone()).await? {
            Reply::Done => Ok(()),
            Reply::Refused(reason) => Err(SandboxError::Name { name: name.to_owned(), reason }),
            _ => Err(unexpected()),
        }
    }

    /// Reads a variable.
    pub async fn get(&mut self, name: &str) -> Result<Value, SandboxError> {
        let request = Request::Get { name: name.to_owned() }.to_bytes();
        match self.ask(&format!("reading `{name}`"), request, self.options.limits.clone()).await? {
            Reply::Value(value) => Ok(value),
            // What the guest says decides nothing but which of two errors it is.
            Reply::Refused(reason) if reason.starts_with("there is no variable") => {
                Err(SandboxError::NoVariable(name.to_owned()))
            }
            Reply::Refused(reason) => Err(SandboxError::Unreadable { name: name.to_owned(), reason }),
            _ => Err(unexpected()),
        }
    }

    /// What `FINAL_VAR(name)` written as text means.
    pub async fn final_var(&mut self, name: &str) -> Result<FinalAnswer, SandboxError> {
        let request = Request::FinalVar { name: name.to_owned() }.to_bytes();
        match self.ask(&format!("reading `{name}`"), request, self.options.limits.clone()).await? {
            Reply::Answer(answer) => Ok(answer),
            Reply::Refused(_) => Err(SandboxError::NoVariable(name.to_owned())),
            _ => Err(unexpected()),
        }
    }

    /// The model's variables.
    pub async fn variables(&mut self) -> Result<Vec<VariableInfo>, SandboxError> {
        let request = Request::Variables.to_bytes();
        match self.ask("listing the variables", request, self.options.limits.clone()).await? {
            Reply::Variables(variables) => {
                self.variables = Some(variables.clone());
                Ok(variables)
            }
            _ => Err(unexpected()),
        }
    }

    /// A REPL that continues from the same state; budgets already spent stay spent in both. `reseed` gives it other
    /// randomness.
    pub async fn fork(&mut self, reseed: Option<u64>) -> Result<Self, SandboxError> {
        self.checkpoint().await?;
        let back = {
            let back = lock(&self.back);
            let mut host = back.host.clone();
            if let Some(seed) = reseed {
                host.random = ChaCha8Rng::seed_from_u64(seed);
            }
            WayBack::new(Arc::clone(&back.checkpoint), host)
        };
        let mut options = self.options.clone();
        options.seed = reseed.unwrap_or(options.seed);
        let mut fork = Self {
            sandbox: self.sandbox.clone(),
            options,
            live: None,
            back: Arc::new(Mutex::new(back)),
            spent: Arc::new(AtomicU64::new(self.spent.load(Ordering::Relaxed))),
            block: self.block,
            contexts: self.contexts.clone(),
            soft_memory: self.soft_memory,
            variables: self.variables.clone(),
        };
        if let Some(seed) = reseed {
            let request = Request::Reseed { seed }.to_bytes();
            fork.ask("seeding anew", request, fork.options.limits.clone()).await?;
        }
        Ok(fork)
    }

    /// The whole state as bytes, for [`Sandbox::restore`].
    pub async fn snapshot(&mut self) -> Result<Vec<u8>, SandboxError> {
        self.checkpoint().await?;
        let (checkpoint, host) = {
            let back = lock(&self.back);
            (Arc::clone(&back.checkpoint), back.host.clone())
        };
        let saved = Saved {
            host,
            limits: self.options.limits.clone(),
            block: self.block,
            spent: self.spent.load(Ordering::Relaxed),
            soft_memory: self.soft_memory,
        };
        let core = Arc::clone(&self.sandbox.inner.core);
        let written = tokio::task::spawn_blocking(move || snapshot::write(&core, &checkpoint, &saved)).await;
        match written {
            Ok(Ok(bytes)) => Ok(bytes),
            Ok(Err(error)) => Err(SandboxError::Guest(format!("its state could not be read: {error}"))),
            Err(error) => Err(SandboxError::Guest(format!("writing the snapshot failed: {error}"))),
        }
    }

    /// Back to how it was set up: contexts bound anew from the host's copies, variables gone, budgets kept.
    pub async fn reset(&mut self) -> Result<(), SandboxError> {
        self.live = None;
        let core = &self.sandbox.inner.core;
        let mut back = WayBack::new(Arc::clone(&core.booted), HostState::new(self.options.seed));
        back.generation = lock(&self.back).generation.wrapping_add(1);
        // An operation that was given up keeps the old way back.
        self.back = Arc::new(Mutex::new(back));
        self.variables = Some(Vec::new());
        let contexts = std::mem::take(&mut self.contexts);
        self.set_up(contexts).await
    }

    /// Host calls spent in this REPL's life, those of its parent before a fork included.
    pub fn calls_spent(&self) -> u64 {
        self.spent.load(Ordering::Relaxed)
    }

    /// Bytes of the guest's linear memory, while it is live; nearly all of it is shared with the other REPLs.
    pub fn memory_bytes(&self) -> Option<u64> {
        self.live.as_ref().map(|live| live.size() as u64)
    }

    async fn set_up(&mut self, contexts: Vec<Context>) -> Result<(), SandboxError> {
        names::check_tools(&self.options.tools)?;
        let inner = &self.sandbox.inner;
        let config = self.options.config(inner.core.heap);
        self.soft_memory = config.soft_memory_bytes;
        let request = match inner.templates.get(&inner.core, &inner.pool, &config).await {
            Some(template) => {
                lock(&self.back).checkpoint = template;
                Request::Reseed { seed: self.options.seed }
            }
            None => Request::Configure(config),
        };
        let request = request.to_bytes();
        match self.ask("setting up", request, self.set_up_limits(Duration::ZERO)).await? {
            Reply::Done => {}
            Reply::Refused(reason) => {
                // Which one it was is in the reason, where there are several.
                let mut sources = self.options.tools.iter().filter_map(|tool| match tool {
                    Tool::Python { name, .. } => Some(name.clone()),
                    Tool::Host { .. } => None,
                });
                let name = match (sources.next(), sources.next()) {
                    (Some(only), None) => only,
                    _ => "a tool".to_owned(),
                };
                return Err(SandboxError::Name { name, reason: reason.trim_end().to_owned() });
            }
            _ => return Err(unexpected()),
        }
        for context in contexts {
            self.bind_context(context).await?;
        }
        Ok(())
    }

    /// The REPL's limits, with the time for what its author sets up in the place of a block's.
    fn set_up_limits(&self, more: Duration) -> Limits {
        let limits = &self.options.limits;
        Limits { block: limits.set_up.saturating_add(more), ..limits.clone() }
    }

    fn context_bytes(&self) -> u64 {
        self.contexts.iter().map(|context| context.size() as u64).sum()
    }

    /// Makes a checkpoint stand for the whole state.
    async fn checkpoint(&mut self) -> Result<(), SandboxError> {
        if lock(&self.back).is_current() {
            return Ok(());
        }
        let finished = self.perform(Task::Checkpoint, self.options.limits.clone()).await?;
        match finished.ended {
            Ended::Checkpointed => Ok(()),
            Ended::Lost(reason) => Err(SandboxError::Lost(reason)),
            Ended::Stopped(_) | Ended::Replied(_) => Err(unexpected()),
        }
    }

    /// Serves a request that is not a block.
    async fn ask(&mut self, what: &str, request: Vec<u8>, limits: Limits) -> Result<Reply, SandboxError> {
        let finished = self.perform(Task::Serve(request), limits.clone()).await?;
        match finished.ended {
            Ended::Replied(bytes) => match Reply::from_bytes(&bytes) {
                Ok(Reply::Refused(_)) if finished.run.interrupt.is_some() => {
                    let reason = format!("its execution time of {:?} was over", limits.block);
                    Err(SandboxError::Stopped { what: what.to_owned(), reason })
                }
                Ok(reply) => Ok(reply),
                Err(error) => Err(SandboxError::Guest(format!("{what}: {error}"))),
            },
            Ended::Stopped(stop) => {
                let reason = stop.reason(&limits, finished.run.interrupt);
                Err(SandboxError::Stopped { what: what.to_owned(), reason })
            }
            Ended::Lost(reason) => Err(SandboxError::Lost(reason)),
            Ended::Checkpointed => Err(unexpected()),
        }
    }

    async fn perform(&mut self, task: Task, limits: Limits) -> Result<Box<Finished>, SandboxError> {
        if let Some(reason) = lock(&self.back).lost.clone() {
            return Err(SandboxError::Lost(reason));
        }
        let operation = Operation {
            sandbox: &self.sandbox,
            host: &*self.options.host,
            back: &self.back,
            spent: &self.spent,
            block: self.block,
            context_bytes: self.context_bytes(),
            soft_memory: self.soft_memory,
            deterministic: self.options.deterministic,
            limits,
        };
        let mut finished = operation.perform(self.live.take(), task).await?;
        self.live = finished.live.take();
        if let Some(resting) = self.live.as_ref().and_then(|live| live.park()) {
            self.sandbox.inner.pool.park(resting);
        }
        Ok(finished)
    }
}

impl std::fmt::Debug for Repl {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Repl").field("block", &self.block).field("live", &self.live.is_some()).finish_non_exhaustive()
    }
}

fn unexpected() -> SandboxError {
    SandboxError::Guest("it answered something else than was asked".to_owned())
}

/// [`Request::BindContext`], encoded from a borrowed value: a context may be large.
fn bind_context_request(index: u32, value: &Value) -> Vec<u8> {
    let mut out = Encoder::default();
    out.byte(2);
    index.encode(&mut out);
    value.encode(&mut out);
    out.into_bytes()
}

#[cfg(test)]
mod tests {
    use espalier_sandbox_protocol::{Encode, Request, Value};

    #[test]
    fn a_context_is_encoded_as_the_protocol_says() {
        let value = Value::List(vec![Value::from("text"), Value::Int(7)]);
        let expected = Request::BindContext { index: 3, value: value.clone() }.to_bytes();
        assert_eq!(super::bind_context_request(3, &value), expected);
    }
}
