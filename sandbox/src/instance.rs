//! One live guest: its store, its memory and the two functions that serve requests.

use std::sync::{Arc, Weak};

use espalier_sandbox_protocol::abi;
use futures::FutureExt as _;
use thiserror::Error;
use wasmtime::{
    AsContextMut, Engine, Global, Instance, InstancePre, Memory, ResourceLimiter, Result, Store, StoreContextMut,
    TypedFunc, UpdateDeadline, Val,
};

use crate::journal::HostState;
use crate::memory::{Checkpoint, Creator, Image, Mapping, Stack};
use crate::run::{Interrupt, Run};

/// Length of a slice, nanoseconds: how long a guest runs before others get its thread.
pub(crate) const SLICE: u64 = 5_000_000;

/// Execution time of a request after which its stack is worth trimming, nanoseconds.
const TRIM_FROM: u64 = 500_000;

/// Why the host stopped a guest.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub(crate) enum Halt {
    /// Its execution time and the grace are over.
    #[error("it did not unwind within the grace after its time limit")]
    Time,
    /// Nobody awaits it any more.
    #[error("nobody awaits it")]
    Cancelled,
    /// It broke the protocol.
    #[error("it broke the protocol: {0}")]
    Protocol(&'static str),
    /// A replay went another way than what it repeats.
    #[error("serving a request again went another way: {0}")]
    Diverged(&'static str),
}

/// What all guests share.
pub(crate) struct Core {
    pub(crate) engine: Engine,
    pub(crate) pre: InstancePre<State>,
    pub(crate) image: Arc<Image>,
    /// The booted interpreter.
    pub(crate) booted: Arc<Checkpoint>,
    /// Address of the interrupt word.
    pub(crate) word: usize,
    /// Bytes of heap that the interpreter uses before the model's first variable.
    pub(crate) heap: u64,
    /// Hash of the artifact.
    pub(crate) hash: [u8; 32],
}

/// What the host keeps beside a guest.
pub(crate) struct State {
    pub(crate) host: HostState,
    pub(crate) limiter: Limiter,
    pub(crate) run: Run,
    memory: Option<Memory>,
    word: usize,
}

impl State {
    /// The guest's memory.
    pub(crate) fn memory(&self) -> Result<Memory, Halt> {
        self.memory.ok_or(Halt::Protocol("it has no memory yet"))
    }

    /// Writes `value` into the guest's interrupt word.
    pub(crate) fn raise_interrupt(store: &mut impl AsContextMut<Data = Self>, value: u32) -> Result<(), Halt> {
        let mut store = store.as_context_mut();
        let (memory, word) = (store.data().memory()?, store.data().word);
        memory
            .write(&mut store, word, &value.to_le_bytes())
            .map_err(|_| Halt::Protocol("its interrupt word lies outside its memory"))
    }

    /// What the guest's interrupt word holds.
    pub(crate) fn interrupt_word(store: &mut impl AsContextMut<Data = Self>) -> u32 {
        let store = store.as_context_mut();
        let Ok(memory) = store.data().memory() else { return 0 };
        let mut bytes = [0; 4];
        match memory.read(&store, store.data().word, &mut bytes) {
            Ok(()) => u32::from_le_bytes(bytes),
            Err(_) => 0,
        }
    }
}

/// Bounds the guest's memory.
pub(crate) struct Limiter {
    /// Bytes of linear memory.
    pub(crate) limit: usize,
    /// Growth was refused since the flag was last cleared.
    pub(crate) refused: bool,
}

impl ResourceLimiter for Limiter {
    fn memory_growing(&mut self, _current: usize, desired: usize, _maximum: Option<usize>) -> Result<bool> {
        let allowed = desired <= self.limit;
        self.refused |= !allowed;
        Ok(allowed)
    }

    fn table_growing(&mut self, _current: usize, desired: usize, _maximum: Option<usize>) -> Result<bool> {
        Ok(desired <= 1 << 20)
    }
}

/// A live guest that serves one request at a time.
pub(crate) struct Live {
    /// Its native stack, once it ran. Dropped before the store, which gives the stack back for others.
    stack: Option<Stack>,
    store: Store<State>,
    instance: Instance,
    memory: Memory,
    stack_pointer: Global,
    alloc: TypedFunc<u32, u32>,
    call: TypedFunc<(u32, u32), u64>,
    mapping: Arc<Mapping>,
}

impl Live {
    /// A guest in the state of `checkpoint` that may use `limit` bytes of linear memory.
    pub(crate) fn open(core: &Core, checkpoint: &Checkpoint, host: HostState, limit: usize) -> Result<Self> {
        let state = State {
            host,
            limiter: Limiter { limit: limit.max(checkpoint.size()), refused: false },
            run: Run::idle(),
            memory: None,
            word: core.word,
        };
        let mut store = Store::new(&core.engine, state);
        store.limiter(|state| &mut state.limiter);
        store.epoch_deadline_callback(tick);
        store.set_epoch_deadline(1);
        // Nothing in making an instance waits: the module has no start function.
        let (instance, mapping) =
            Creator::with(checkpoint.seed(), || core.pre.instantiate_async(&mut store).now_or_never());
        let instance = instance.ok_or_else(|| wasmtime::Error::msg("making an instance waited"))??;
        let mapping = mapping.ok_or_else(|| wasmtime::Error::msg("the module has no memory of its own"))?;
        let missing = |name: &str| wasmtime::Error::msg(format!("the module does not export `{name}`"));
        let memory = instance.get_memory(&mut store, abi::EXPORT_MEMORY).ok_or_else(|| missing(abi::EXPORT_MEMORY))?;
        let stack_pointer = instance
            .get_global(&mut store, abi::EXPORT_STACK_POINTER)
            .ok_or_else(|| missing(abi::EXPORT_STACK_POINTER))?;
        let alloc = instance.get_typed_func(&mut store, abi::EXPORT_ALLOC)?;
        let call = instance.get_typed_func(&mut store, abi::EXPORT_CALL)?;
        checkpoint.fill(&mapping);
        if let Some(pointer) = checkpoint.stack_pointer {
            stack_pointer.set(&mut store, Val::I32(pointer))?;
        }
        store.data_mut().memory = Some(memory);
        Ok(Self { stack: None, store, instance, memory, stack_pointer, alloc, call, mapping })
    }

    /// The host's state beside the guest.
    pub(crate) fn state(&mut self) -> &mut State {
        self.store.data_mut()
    }

    /// Bytes of linear memory.
    pub(crate) fn size(&self) -> usize {
        self.mapping.size()
    }

    /// Takes a checkpoint that replaces `previous`; `sole` says that nobody but this guest's way back holds that.
    pub(crate) fn checkpoint(&mut self, previous: &Checkpoint, sole: bool) -> std::io::Result<Checkpoint> {
        let stack_pointer = self.stack_pointer.get(&mut self.store).i32();
        Checkpoint::take(&self.mapping, previous, stack_pointer, sole)
    }

    /// The state as one to start many guests from. The guest must have started from the booted interpreter.
    pub(crate) fn template(&mut self) -> std::io::Result<Checkpoint> {
        let stack_pointer = self.stack_pointer.get(&mut self.store).i32();
        Checkpoint::template(&self.mapping, stack_pointer)
    }

    /// What every guest writes that starts as this one did, from `start`, becomes known to `start`.
    pub(crate) fn teach(&self, start: &mut Checkpoint) -> std::io::Result<()> {
        start.learn(&self.mapping)
    }

    /// Serves `request` under `run`, whose bookkeeping is then in [`State::run`]; answers the guest's bytes.
    pub(crate) async fn serve(&mut self, request: &[u8], run: Run) -> Result<Vec<u8>> {
        self.mapping.begin();
        let state = self.store.data_mut();
        state.run = run;
        state.run.begin();
        state.limiter.refused = false;
        let max_reply = state.run.max_reply_bytes;
        self.store.set_epoch_deadline(1);
        let length = u32::try_from(request.len()).map_err(|_| Halt::Protocol("a request beyond 4 GiB"))?;
        let pointer = {
            // The first call makes the stack, on the thread that polls first.
            let mut call = std::pin::pin!(self.alloc.call_async(&mut self.store, length));
            let stack = &mut self.stack;
            let _ = stack.is_none().then(Stack::made);
            std::future::poll_fn(|context| {
                let polled = call.as_mut().poll(context);
                if stack.is_none() {
                    *stack = Stack::made();
                }
                polled
            })
            .await?
        };
        self.memory
            .write(&mut self.store, pointer as usize, request)
            .map_err(|_| Halt::Protocol("a request's buffer lies outside its memory"))?;
        let packed = self.call.call_async(&mut self.store, (pointer, length)).await?;
        let (pointer, length) = ((packed >> 32) as usize, (packed & u64::from(u32::MAX)) as usize);
        if length > max_reply {
            return Err(Halt::Protocol("a reply beyond the limit").into());
        }
        let reply = self
            .memory
            .data(&self.store)
            .get(pointer..)
            .and_then(|bytes| bytes.get(..length))
            .ok_or(Halt::Protocol("a reply outside its memory"))?
            .to_vec();
        if self.store.data().run.interrupt.is_some() {
            State::raise_interrupt(&mut self.store, abi::INTERRUPT_NONE)?;
        }
        Ok(reply)
    }

    /// The guest's memory, to be looked at when it has rested for a while. `None` where it will be anyway.
    pub(crate) fn park(&self) -> Option<Weak<Mapping>> {
        self.mapping.end().then(|| Arc::downgrade(&self.mapping))
    }

    /// Ends the request's bookkeeping.
    pub(crate) fn finish(&mut self) -> Run {
        let state = self.store.data_mut();
        let used = state.run.used();
        if used >= TRIM_FROM
            && let Some(stack) = &self.stack
        {
            stack.trim();
        }
        state.host.processor_time = state.host.processor_time.saturating_add(used);
        std::mem::replace(&mut state.run, Run::idle())
    }

    /// Calls an exported function without parameters that answers a number, for checks at load time.
    pub(crate) async fn number(&mut self, name: &str) -> Result<i32> {
        let state = self.store.data_mut();
        state.run = Run::idle();
        state.run.begin();
        let function: TypedFunc<(), i32> = self.instance.get_typed_func(&mut self.store, name)?;
        function.call_async(&mut self.store, ()).await
    }
}

/// Looks at a running guest, once a tick. Never calls into it.
fn tick(mut store: StoreContextMut<'_, State>) -> Result<UpdateDeadline> {
    let run = &mut store.data_mut().run;
    if run.is_gone() {
        return Err(Halt::Cancelled.into());
    }
    let used = run.used();
    if used >= run.hard {
        return Err(Halt::Time.into());
    }
    let yields = run.meter.slice() >= SLICE;
    if used >= run.soft && !run.is_replay() {
        run.interrupt(Interrupt::Time);
        State::raise_interrupt(&mut store, abi::INTERRUPT_TIMEOUT)?;
    } else if State::interrupt_word(&mut store) == abi::INTERRUPT_MEMORY {
        store.data_mut().run.memory_seen = true;
    }
    Ok(if yields { UpdateDeadline::Yield(1) } else { UpdateDeadline::Continue(1) })
}
