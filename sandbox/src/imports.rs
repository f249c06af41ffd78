//! The functions that the guest imports: all of its powers.
//!
//! Every pointer and length comes from the guest and is checked against its memory; every text is decoded with
//! bounds. A guest that breaks the protocol is stopped.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, SystemTime};

use espalier_sandbox_protocol::abi;
use espalier_sandbox_protocol::{Decode, Encode, HostCall, HostReply};
use tokio::sync::oneshot;
use wasmtime::{Caller, Linker, Result};

use crate::instance::{Halt, State};
use crate::run::{Answer, Interrupt, Link, nanoseconds};

/// The virtual clock's start: 2025-01-01T00:00:00Z, nanoseconds since the Unix epoch.
const VIRTUAL_START: u64 = 1_735_689_600_000_000_000;
/// What a look at the virtual clock costs, nanoseconds.
const VIRTUAL_STEP: u64 = 1_000;
/// Bytes of an abort's text that are kept.
const MAX_ABORT_BYTES: usize = 4096;

/// Defines the imports.
pub(crate) fn define(linker: &mut Linker<State>) -> Result<()> {
    let module = abi::IMPORT_MODULE;
    linker.func_wrap(module, abi::IMPORT_WRITE, write)?;
    linker.func_wrap(module, abi::IMPORT_TAKE, take)?;
    linker.func_wrap(module, abi::IMPORT_CLOCK, clock)?;
    linker.func_wrap(module, abi::IMPORT_RANDOM, random)?;
    linker.func_wrap(module, abi::IMPORT_ABORT, abort)?;
    linker.func_wrap_async(module, abi::IMPORT_CALL, |caller, (pointer, length): (i32, i32)| {
        Box::new(call(caller, pointer, length))
    })?;
    linker.func_wrap_async(module, abi::IMPORT_SLEEP, |caller, (nanoseconds,): (i64,)| {
        Box::new(sleep(caller, nanoseconds))
    })?;
    Ok(())
}

/// The guest's bytes at `pointer`, beside the host's state.
fn memory<'a>(caller: &'a mut Caller<'_, State>, pointer: i32, length: i32) -> Result<(&'a mut [u8], &'a mut State)> {
    let memory = caller.data().memory()?;
    let (bytes, state) = memory.data_and_store_mut(caller);
    let start = pointer.cast_unsigned() as usize;
    let bytes = bytes
        .get_mut(start..)
        .and_then(|bytes| bytes.get_mut(..length.cast_unsigned() as usize))
        .ok_or(Halt::Protocol("a pointer outside its memory"))?;
    Ok((bytes, state))
}

fn write(mut caller: Caller<'_, State>, stream: i32, pointer: i32, length: i32) -> Result<()> {
    // A traceback is written while the interrupt is still up.
    if State::interrupt_word(&mut caller) == abi::INTERRUPT_MEMORY {
        caller.data_mut().run.memory_seen = true;
    }
    let (bytes, state) = memory(&mut caller, pointer, length)?;
    if !state.run.is_replay() {
        match stream {
            1 => state.run.stdout.write(bytes),
            2 => state.run.stderr.write(bytes),
            _ => return Err(Halt::Protocol("an unknown output stream").into()),
        }
    }
    Ok(())
}

async fn call(mut caller: Caller<'_, State>, pointer: i32, length: i32) -> Result<i32> {
    if let Some(reply) = caller.data_mut().run.replayed_reply() {
        return Ok(hand_over(caller.data_mut(), reply?));
    }
    let too_long = length.cast_unsigned() as usize > caller.data().run.max_call_bytes;
    let reply = if too_long {
        let limit = caller.data().run.max_call_bytes;
        raise("ValueError", format!("a host call's arguments may have {limit} bytes, these have {length}"))
    } else {
        let (bytes, state) = memory(&mut caller, pointer, length)?;
        let call = HostCall::from_bytes(bytes).map_err(|_| Halt::Protocol("a host call that does not decode"))?;
        let run = &mut state.run;
        if run.calls >= run.max_calls {
            raise("RuntimeError", format!("a block may make {} host calls, and this one has", run.max_calls))
        } else if run.spent.load(Ordering::Relaxed) >= run.max_spent {
            raise("RuntimeError", format!("this session may make {} host calls, and it has", run.max_spent))
        } else {
            run.spent.fetch_add(1, Ordering::Relaxed);
            let index = run.calls;
            run.calls += 1;
            let (sender, receiver) = oneshot::channel();
            let Link::Live(ask) = &run.link else { return Err(Halt::Protocol("a call outside a request").into()) };
            ask.call(call, index, sender);
            wait(&mut caller, receiver).await?
        }
    };
    let mut bytes = reply.to_bytes();
    let limit = caller.data().run.max_reply_bytes;
    if bytes.len() > limit {
        bytes = raise("ValueError", format!("a reply may have {limit} bytes, this one has {}", bytes.len())).to_bytes();
    }
    let bytes: Arc<[u8]> = bytes.into();
    let state = caller.data_mut();
    state.run.record.reply(Arc::clone(&bytes));
    Ok(hand_over(state, bytes))
}

fn raise(type_name: &str, message: String) -> HostReply {
    HostReply::Raise { type_name: type_name.to_owned(), message }
}

fn hand_over(state: &mut State, reply: Arc<[u8]>) -> i32 {
    let length = reply.len() as i32;
    state.run.pending = Some(reply);
    length
}

/// Suspends the guest until the awaiting side answers. Holds no thread.
async fn wait(caller: &mut Caller<'_, State>, receiver: oneshot::Receiver<Answer>) -> Result<HostReply> {
    let answer = receiver.await.map_err(|_| Halt::Cancelled)?;
    let state = caller.data_mut();
    state.run.waited += answer.waited;
    if answer.over {
        state.run.interrupt(Interrupt::Wait);
        State::raise_interrupt(&mut *caller, abi::INTERRUPT_WAIT)?;
    }
    Ok(answer.reply)
}

async fn sleep(mut caller: Caller<'_, State>, duration: i64) -> Result<()> {
    let duration = Duration::from_nanos(u64::try_from(duration).unwrap_or(0));
    let state = caller.data_mut();
    if state.run.deterministic {
        state.host.clock = state.host.clock.saturating_add(nanoseconds(duration));
        return Ok(());
    }
    if state.run.is_replay() || duration.is_zero() {
        return Ok(());
    }
    let Link::Live(ask) = &state.run.link else { return Err(Halt::Protocol("a sleep outside a request").into()) };
    let (sender, receiver) = oneshot::channel();
    ask.sleep(duration, sender);
    wait(&mut caller, receiver).await?;
    Ok(())
}

fn take(mut caller: Caller<'_, State>, pointer: i32) -> Result<()> {
    let reply = caller.data_mut().run.pending.take().ok_or(Halt::Protocol("it takes a reply that is not there"))?;
    let (bytes, _) = memory(&mut caller, pointer, reply.len() as i32)?;
    bytes.copy_from_slice(&reply);
    Ok(())
}

fn clock(mut caller: Caller<'_, State>, kind: i32) -> Result<i64> {
    let state = caller.data_mut();
    if state.run.deterministic {
        state.host.clock = state.host.clock.saturating_add(VIRTUAL_STEP);
        let start = if kind == 0 { VIRTUAL_START } else { 0 };
        return Ok(i64::try_from(start.saturating_add(state.host.clock)).unwrap_or(i64::MAX));
    }
    if let Some(reading) = state.run.replayed_clock() {
        return Ok(reading?);
    }
    let reading = match kind {
        0 => SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, nanoseconds),
        1 => nanoseconds(START.elapsed()),
        _ => state.host.processor_time.saturating_add(state.run.used()),
    };
    let reading = i64::try_from(reading).unwrap_or(i64::MAX);
    state.run.record.clock(reading);
    Ok(reading)
}

/// Start of the monotonic clock.
static START: std::sync::LazyLock<Instant> = std::sync::LazyLock::new(Instant::now);

/// Sets the monotonic clock's start.
pub(crate) fn start_clock() {
    std::sync::LazyLock::force(&START);
}

fn random(mut caller: Caller<'_, State>, pointer: i32, length: i32) -> Result<()> {
    let (bytes, state) = memory(&mut caller, pointer, length)?;
    state.host.fill(bytes);
    Ok(())
}

fn abort(mut caller: Caller<'_, State>, kind: i32, pointer: i32, length: i32) {
    let text = memory(&mut caller, pointer, length.clamp(0, MAX_ABORT_BYTES as i32))
        .map(|(bytes, _)| String::from_utf8_lossy(bytes).into_owned())
        .unwrap_or_default();
    caller.data_mut().run.abort = Some((kind, text));
}
