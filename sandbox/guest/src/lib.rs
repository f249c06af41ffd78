//! The Python interpreter inside the sandbox.
//!
//! | module | what lives there |
//! |---|---|
//! | [`boot`] | the interpreter, its modules, the policy's shape at boot |
//! | [`repl`] | one REPL: requests in, replies out |
//! | [`namespace`] | the model's names and their restoration after every block |
//! | [`scaffold`] | the functions the model finds there |
//! | [`convert`] | Python objects <-> protocol values |
//! | [`traceback`] | exceptions as text |
//! | [`heap`] | the allocator and its limits |
//! | [`host`] | imports |
//!
//! Invariants: nothing but the functions of `espalier_sandbox_protocol::abi` is imported; nothing is imported before
//! [`esp_boot`] has returned; after every block the scaffold stands as before it.

#![feature(alloc_error_hook)]

mod boot;
mod convert;
mod heap;
mod host;
mod namespace;
mod repl;
mod scaffold;
mod traceback;

use std::cell::{OnceCell, RefCell};

use espalier_sandbox_protocol::{Encode, abi};
use rustpython_vm::Interpreter;
use rustpython_vm::common::espalier;

struct Guest {
    interpreter: Interpreter,
}

thread_local! {
    static GUEST: OnceCell<Guest> = const { OnceCell::new() };
    static REPLY: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// See `abi::EXPORT_ABI`.
#[unsafe(no_mangle)]
pub extern "C" fn esp_abi() -> i32 {
    abi::ABI_VERSION as i32
}

/// See `abi::EXPORT_BOOT`.
#[unsafe(no_mangle)]
pub extern "C" fn esp_boot() {
    std::panic::set_hook(Box::new(|info| {
        host::abort(abi::ABORT_PANIC, &info.to_string());
    }));
    std::alloc::set_alloc_error_hook(heap::refused);
    GUEST.with(|guest| {
        let _ = guest.set(Guest { interpreter: boot::interpreter() });
    });
    espalier::start();
}

/// See `abi::EXPORT_INTERRUPT_WORD`.
#[unsafe(no_mangle)]
pub extern "C" fn esp_interrupt_word() -> *const u32 {
    espalier::INTERRUPT.as_ptr()
}

/// See `abi::EXPORT_ALLOC`.
#[unsafe(no_mangle)]
pub extern "C" fn esp_alloc(length: usize) -> *mut u8 {
    heap::exempt(|| Box::into_raw(vec![0u8; length].into_boxed_slice()).cast())
}

/// Bytes of the shadow stack that nothing uses.
const RESERVE: usize = 4 << 20;

/// Runs `work` with so much less of the shadow stack that it ends, with `RecursionError`, before the WebAssembly stack
/// does, which the guest cannot measure. The pages in between are not touched.
#[inline(never)]
fn with_less_stack<T>(work: impl FnOnce() -> T) -> T {
    let mut reserve = std::mem::MaybeUninit::<[u8; RESERVE]>::uninit();
    std::hint::black_box(reserve.as_mut_ptr());
    let result = work();
    std::hint::black_box(reserve.as_mut_ptr());
    result
}

/// See `abi::EXPORT_CALL`.
///
/// # Safety
/// `pointer` and `length` are a buffer of [`esp_alloc`] that was not yet handed over.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn esp_call(pointer: *mut u8, length: usize) -> u64 {
    // SAFETY: the caller's promise.
    let request = unsafe { Box::from_raw(std::ptr::slice_from_raw_parts_mut(pointer, length)) };
    let reply = GUEST.with(|guest| match guest.get() {
        Some(guest) => guest.interpreter.enter(|vm| with_less_stack(|| repl::serve(vm, request.into_vec()))),
        None => espalier_sandbox_protocol::Reply::Refused("the guest was not booted".to_owned()),
    });
    REPLY.with(|buffer| {
        let mut buffer = buffer.borrow_mut();
        *buffer = heap::exempt(|| reply.to_bytes());
        ((buffer.as_ptr() as u64) << 32) | buffer.len() as u64
    })
}
