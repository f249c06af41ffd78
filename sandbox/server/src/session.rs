//! One REPL and what it is doing.
//!
//! ```text
//!           execute                 a function is called
//!   idle ------------> running <---------------------------> calling
//!    ^  \                 |         answered, or given up
//!    |   \ bind, fork...  | the block ends
//!    |    `--> working    |
//!    +---------/----------+          any of them --> closed
//! ```
//!
//! What a REPL does, it does in a task of its own: requests start it and look at it, and may vanish. Invariants: the
//! REPL itself is in the phase `idle` or owned by exactly one task; a call's answer goes to that call or nowhere.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use axum::http::StatusCode;
use espalier_sandbox::{CallContext, CallError, HostCall, HostCalls, Limits, Repl, SandboxError, Value};
use futures::future::BoxFuture;
use serde_json::Value as Json;
use tokio::sync::{oneshot, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::error::ApiError;
use crate::ledger::Place;
use crate::wire::{self, Answer};

/// A REPL, by its id.
pub(crate) struct Session {
    pub(crate) id: String,
    pub(crate) owner: usize,
    pub(crate) limits: Limits,
    /// Its place in the order of creation.
    pub(crate) number: u64,
    closed: CancellationToken,
    changed: watch::Sender<()>,
    state: Mutex<State>,
}

struct State {
    phase: Phase,
    place: Option<Place>,
    /// What the last block did, until the next one begins.
    last: Option<Result<Answer, ApiError>>,
    /// What the client calls the last block.
    echo: Option<Json>,
    /// Requests that are looking at it.
    attached: usize,
    /// When the last request left.
    seen: Instant,
}

enum Phase {
    Idle(Box<Repl>),
    Working(&'static str),
    Running,
    Calling(Pending),
    Closed,
}

/// A call that waits for its answer.
struct Pending {
    block: u64,
    index: u32,
    function: String,
    /// How many prompts a batched call has.
    prompts: Option<usize>,
    shown: Answer,
    answer: oneshot::Sender<Result<Value, CallError>>,
}

/// What there is to say of a block.
pub(crate) enum Progress {
    /// It ended.
    Done(Answer),
    /// It waits for a call's answer.
    Call(Answer),
    /// It still runs.
    Running,
}

/// A request's hold on a REPL: while it is there the REPL is not idle.
pub(crate) struct Attached(Arc<Session>);

impl std::ops::Deref for Attached {
    type Target = Arc<Session>;

    fn deref(&self) -> &Arc<Session> {
        &self.0
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.attached -= 1;
        state.seen = Instant::now();
    }
}

tokio::task_local! {
    /// Whose block runs in this task. A fork shares its parent's host, so the host cannot know it by itself.
    static ASKING: Arc<Session>;
}

/// Puts calls to the client of the REPL whose block makes them.
pub(crate) struct ToClient;

#[async_trait]
impl HostCalls for ToClient {
    async fn call(&self, call: HostCall, context: CallContext) -> Result<Value, CallError> {
        let Ok(session) = ASKING.try_with(Arc::clone) else {
            return Err(CallError::runtime(format!("`{}` can be called by blocks only", call.function)));
        };
        session.ask(call, &context).await
    }
}

impl Session {
    pub(crate) fn new(id: String, owner: usize, number: u64, repl: Repl, limits: Limits, place: Place) -> Self {
        let state = State {
            phase: Phase::Idle(Box::new(repl)),
            place: Some(place),
            last: None,
            echo: None,
            attached: 0,
            seen: Instant::now(),
        };
        let (closed, changed) = (CancellationToken::new(), watch::Sender::new(()));
        Self { id, owner, limits, number, closed, changed, state: Mutex::new(state) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Holds on to it.
    pub(crate) fn attach(self: &Arc<Self>) -> Attached {
        self.state().attached += 1;
        Attached(Arc::clone(self))
    }

    /// How long nobody has looked at it.
    pub(crate) fn idle(&self) -> Option<Duration> {
        let state = self.state();
        (state.attached == 0).then(|| state.seen.elapsed())
    }

    /// What it is doing, in a word.
    pub(crate) fn activity(&self) -> &'static str {
        match self.state().phase {
            Phase::Idle(_) => "idle",
            Phase::Working(_) => "working",
            Phase::Running => "running",
            Phase::Calling(_) => "calling",
            Phase::Closed => "closed",
        }
    }

    /// A place as large as its own.
    pub(crate) fn another_place(&self) -> Result<Place, ApiError> {
        match &self.state().place {
            Some(place) => place.another(),
            None => Err(ApiError::no_repl(&self.id)),
        }
    }

    /// Bytes that are promised to it.
    pub(crate) fn promised(&self) -> u64 {
        self.state().place.as_ref().map_or(0, Place::memory)
    }

    /// Promises it more memory.
    pub(crate) fn grow(&self, memory: u64) -> Result<(), ApiError> {
        self.state().place.as_mut().map_or(Ok(()), |place| place.grow(memory))
    }

    /// Takes a promise back.
    pub(crate) fn shrink(&self, memory: u64) {
        if let Some(place) = self.state().place.as_mut() {
            place.shrink(memory);
        }
    }

    /// Ends it, whatever it is doing. Its place is free at once.
    pub(crate) fn close(&self) {
        let mut state = self.state();
        let phase = std::mem::replace(&mut state.phase, Phase::Closed);
        let place = state.place.take();
        state.last = None;
        drop(state);
        self.closed.cancel();
        drop((phase, place));
        self.changed.send_replace(());
    }

    /// Takes the REPL out of the phase `idle`.
    fn take(&self, next: Phase) -> Result<Box<Repl>, ApiError> {
        let mut state = self.state();
        let what = match &state.phase {
            Phase::Idle(_) => {
                let Phase::Idle(repl) = std::mem::replace(&mut state.phase, next) else {
                    return Err(ApiError::internal("a REPL changed while it was looked at"));
                };
                return Ok(repl);
            }
            Phase::Closed => return Err(ApiError::no_repl(&self.id)),
            Phase::Working(what) => format!("it is {what}"),
            Phase::Running => "it runs a block".to_owned(),
            Phase::Calling(Pending { block, index, function, .. }) => format!(
                "its block {block} waits for the answer to `{function}` (index {index}); `POST .../return` gives it"
            ),
        };
        let message = format!("REPL `{}` does one thing at a time, and {what}", self.id);
        Err(ApiError { retry_after: Some(1), ..ApiError::new(StatusCode::CONFLICT, "busy", message) })
    }

    /// Puts the REPL back, unless it was closed meanwhile.
    fn put_back(&self, repl: Box<Repl>, last: Option<Result<Answer, ApiError>>) {
        let mut state = self.state();
        if !matches!(state.phase, Phase::Closed) {
            state.phase = Phase::Idle(repl);
            if last.is_some() {
                state.last = last;
            }
        }
        drop(state);
        self.changed.send_replace(());
    }

    /// Does something with the REPL that is not a block, to its end even if nobody waits for it.
    pub(crate) async fn work<T: Send + 'static>(
        self: &Arc<Self>,
        what: &'static str,
        work: impl for<'a> FnOnce(&'a mut Repl) -> BoxFuture<'a, Result<T, SandboxError>> + Send + 'static,
    ) -> Result<T, ApiError> {
        let mut repl = self.take(Phase::Working(what))?;
        let session = Arc::clone(self);
        let task = tokio::spawn(async move {
            let done = tokio::select! {
                biased;
                () = session.closed.cancelled() => return None,
                done = work(&mut repl) => done,
            };
            session.put_back(repl, None);
            Some(done)
        });
        match task.await {
            Ok(Some(done)) => done.map_err(ApiError::from),
            Ok(None) => Err(ApiError::no_repl(&self.id)),
            Err(error) => {
                self.close();
                Err(ApiError::internal(format!("{what} failed: {error}")))
            }
        }
    }

    /// Starts a block.
    pub(crate) fn execute(self: &Arc<Self>, code: String, limits: Limits, echo: Option<Json>) -> Result<(), ApiError> {
        let mut repl = self.take(Phase::Running)?;
        {
            let mut state = self.state();
            state.last = None;
            state.echo = echo;
        }
        let session = Arc::clone(self);
        tokio::spawn(ASKING.scope(Arc::clone(self), async move {
            let executed = tokio::select! {
                biased;
                () = session.closed.cancelled() => return,
                executed = repl.execute_with(&code, &limits) => executed,
            };
            let last = match executed {
                Ok(execution) => {
                    let mut answer = wire::executed(&execution);
                    session.sign(&mut answer);
                    Ok(answer)
                }
                Err(error) => Err(error.into()),
            };
            session.put_back(repl, Some(last));
        }));
        Ok(())
    }

    /// Adds what tells an answer from others.
    fn sign(&self, answer: &mut Answer) {
        answer.insert("repl".to_owned(), self.id.clone().into());
        if let Some(echo) = &self.state().echo {
            answer.insert("id".to_owned(), echo.clone());
        }
    }

    /// What the last block came to, as far as it is known within `wait`.
    pub(crate) async fn progress(&self, wait: Duration) -> Result<Progress, ApiError> {
        let deadline = Instant::now() + wait;
        let mut changed = self.changed.subscribe();
        loop {
            changed.mark_unchanged();
            {
                let state = self.state();
                match (&state.phase, &state.last) {
                    (Phase::Closed, _) => return Err(ApiError::no_repl(&self.id)),
                    (Phase::Calling(pending), _) => return Ok(Progress::Call(pending.shown.clone())),
                    (Phase::Running, _) => {}
                    (_, Some(last)) => return last.clone().map(Progress::Done),
                    (_, None) => {
                        let message = format!("no block has run in REPL `{}` yet", self.id);
                        return Err(ApiError::new(StatusCode::CONFLICT, "no_block", message));
                    }
                }
            }
            match tokio::time::timeout_at(deadline, changed.changed()).await {
                Ok(Ok(())) => {}
                Ok(Err(_)) | Err(_) => return Ok(Progress::Running),
            }
        }
    }

    /// Answers the pending call. `which` is the call's block and index, where the client says them.
    pub(crate) fn answer(
        &self,
        which: (Option<u64>, Option<u32>),
        result: Result<Value, (String, String)>,
    ) -> Result<(), ApiError> {
        let no_call = |message: String| ApiError::new(StatusCode::CONFLICT, "no_call", message);
        let mut state = self.state();
        let pending = match &state.phase {
            Phase::Closed => return Err(ApiError::no_repl(&self.id)),
            Phase::Calling(pending) => pending,
            _ => return Err(no_call("no call is pending; its block may have ended while you worked".to_owned())),
        };
        let (block, index) = which;
        if block.is_some_and(|block| block != pending.block) || index.is_some_and(|index| index != pending.index) {
            return Err(no_call(format!(
                "this answers another call than the pending one, which is index {} of block {}",
                pending.index, pending.block
            )));
        }
        let Phase::Calling(pending) = std::mem::replace(&mut state.phase, Phase::Running) else {
            return Err(ApiError::internal("a call changed while it was looked at"));
        };
        drop(state);
        let result = result
            .map_err(|(type_name, message)| CallError { type_name, message })
            .and_then(|value| one_answer_per_prompt(&pending, value));
        // The receiver is gone only where the call was given up this very moment.
        let _ = pending.answer.send(result);
        Ok(())
    }

    /// Puts a call to the client and waits; dropping the future gives the call up.
    async fn ask(self: Arc<Self>, call: HostCall, context: &CallContext) -> Result<Value, CallError> {
        let (block, index) = (context.block, context.index);
        let mut shown = wire::call(&self.id, block, index, &call);
        self.sign(&mut shown);
        shown.remove("repl");
        let prompts = match call.args.first() {
            Some(Value::List(prompts)) if call.function.ends_with("_batched") => Some(prompts.len()),
            _ => None,
        };
        let (answer, answered) = oneshot::channel();
        let pending = Pending { block, index, function: call.function, prompts, shown, answer };
        {
            let mut state = self.state();
            if !matches!(state.phase, Phase::Running) {
                return Err(CallError::runtime("this REPL was closed"));
            }
            state.phase = Phase::Calling(pending);
        }
        self.changed.send_replace(());
        let _given_up = GivenUp(&self);
        answered.await.unwrap_or_else(|_| Err(CallError::runtime("this REPL was closed")))
    }
}

/// Takes a call back that nobody waits for any more.
struct GivenUp<'a>(&'a Session);

impl Drop for GivenUp<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state();
        if matches!(state.phase, Phase::Calling(_)) {
            state.phase = Phase::Running;
        }
    }
}

/// Answers pair with prompts by their place: one that is missing would shift all behind it.
fn one_answer_per_prompt(pending: &Pending, answer: Value) -> Result<Value, CallError> {
    match (pending.prompts, &answer) {
        (Some(asked), Value::List(answers)) if answers.len() != asked => {
            let (function, answered) = (&pending.function, answers.len());
            Err(CallError::runtime(format!("the client answered {answered} of {asked} prompts of {function}()")))
        }
        (Some(asked), other) if !matches!(other, Value::List(_)) => {
            let (function, got) = (&pending.function, other.type_name());
            Err(CallError::runtime(format!("the client answered {function}() with a {got}, not {asked} answers")))
        }
        _ => Ok(answer),
    }
}
