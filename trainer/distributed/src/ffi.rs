//! Safe wrappers over the C++ shim, and the one hook between fork and exec: the only place of this crate with `unsafe`.
//!
//! | item | what it is |
//! |---|---|
//! | [`Store`] | the key-value store through which ranks find each other |
//! | [`GlooGroup`] | a connected c10d process group on Gloo |
//! | [`end_with_launcher`] | makes a child process end when the thread that starts it does |
//!
//! Invariant: the C++ side checks layouts, kinds and sizes of its own arguments and turns every exception into an error.
//! What it cannot check is that the ranks agree: Gloo aborts the process when they do not. Callers compare first
//! (`wire.rs`).
#![allow(unsafe_code)]

use std::ffi::{CString, c_char, c_int, c_void};
use std::net::TcpListener;
use std::os::fd::IntoRawFd;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;
use std::{io, ptr};

use nix::sys::{prctl, signal::Signal};
use tch::Tensor;
use torch_sys::C_tensor;

use crate::Reduction;

unsafe extern "C" {
    fn espalier_c10d_last_error(out: *mut c_char, size: usize) -> usize;
    fn espalier_c10d_store_hash(out: *mut *mut c_void) -> c_int;
    fn espalier_c10d_store_tcp(
        host: *const c_char,
        port: u16,
        listener: c_int,
        timeout_ms: i64,
        out: *mut *mut c_void,
    ) -> c_int;
    fn espalier_c10d_store_free(store: *mut c_void);
    fn espalier_c10d_group_new(
        store: *const c_void,
        prefix: *const c_char,
        rank: c_int,
        world: c_int,
        timeout_ms: i64,
        devices: *const *const c_char,
        device_count: usize,
        by_address: c_int,
        out: *mut *mut c_void,
    ) -> c_int;
    fn espalier_c10d_group_free(group: *mut c_void);
    fn espalier_c10d_all_gather(
        group: *mut c_void,
        out: *const C_tensor,
        input: *const C_tensor,
        timeout_ms: i64,
    ) -> c_int;
    fn espalier_c10d_all_to_all(
        group: *mut c_void,
        out: *const C_tensor,
        input: *const C_tensor,
        timeout_ms: i64,
    ) -> c_int;
    fn espalier_c10d_all_reduce(
        group: *mut c_void,
        tensor: *const C_tensor,
        reduction: c_int,
        timeout_ms: i64,
    ) -> c_int;
    fn espalier_c10d_broadcast(group: *mut c_void, tensor: *const C_tensor, root: c_int, timeout_ms: i64) -> c_int;
}

/// What c10d, Gloo or the shim said.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct ShimError(pub(crate) String);

fn check(code: c_int) -> Result<(), ShimError> {
    if code == 0 {
        return Ok(());
    }
    let mut buffer = vec![0u8; 4096];
    // SAFETY: the buffer is writable for the size that is passed; the shim writes at most that much.
    let n = unsafe { espalier_c10d_last_error(buffer.as_mut_ptr().cast(), buffer.len()) };
    buffer.truncate(n);
    // The first line says what happened; what follows are hints for C++ programs.
    let text = String::from_utf8_lossy(&buffer);
    Err(ShimError(text.trim().lines().next().unwrap_or_default().to_owned()))
}

/// Rounded up, so that a timeout of c10d never comes before the deadline that it was computed from.
fn milliseconds(timeout: Duration) -> i64 {
    i64::try_from(timeout.as_millis()).unwrap_or(i64::MAX / 2_000_000).min(i64::MAX / 2_000_000) + 1
}

fn c_string(text: &str) -> Result<CString, ShimError> {
    CString::new(text).map_err(|_| ShimError(format!("expected text without NUL, got {text:?}")))
}

/// The key-value store through which ranks find each other.
#[derive(Debug)]
pub(crate) struct Store {
    raw: *mut c_void,
}

// SAFETY: the stores of c10d lock around every operation, and their reference counts are atomic.
unsafe impl Send for Store {}
// SAFETY: as above; a shared store is only used to build groups, which take a reference of their own.
unsafe impl Sync for Store {}

impl Store {
    /// A store inside this process.
    pub(crate) fn in_memory() -> Result<Self, ShimError> {
        let mut raw = ptr::null_mut();
        // SAFETY: `raw` is written only when the call succeeds.
        check(unsafe { espalier_c10d_store_hash(&raw mut raw) })?;
        Ok(Self { raw })
    }

    /// A client of the TCP store at `host:port`, and its server too where a listener bound to that port is given.
    pub(crate) fn tcp(
        host: &str,
        port: u16,
        listener: Option<TcpListener>,
        timeout: Duration,
    ) -> Result<Self, ShimError> {
        let host = c_string(host)?;
        let listener = listener.map_or(-1, IntoRawFd::into_raw_fd);
        let mut raw = ptr::null_mut();
        // SAFETY: `host` outlives the call; `raw` is written only when it succeeds; the descriptor is given away.
        check(unsafe { espalier_c10d_store_tcp(host.as_ptr(), port, listener, milliseconds(timeout), &raw mut raw) })?;
        Ok(Self { raw })
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        // SAFETY: `raw` came from the shim and is freed once.
        unsafe { espalier_c10d_store_free(self.raw) }
    }
}

/// How Gloo reaches the other ranks.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Devices {
    /// Names of network interfaces.
    Interfaces(Vec<String>),
    /// An address of this machine.
    Address(String),
}

/// A connected process group. Collectives block, and return at the latest after their timeout.
#[derive(Debug)]
pub(crate) struct GlooGroup {
    raw: *mut c_void,
}

// SAFETY: c10d groups may be used from any thread; `!Sync` keeps the order of collectives defined.
unsafe impl Send for GlooGroup {}

impl GlooGroup {
    /// Connects to all other ranks through the keys of `store` that begin with `prefix`.
    pub(crate) fn connect(
        store: &Store,
        prefix: &str,
        rank: usize,
        world: usize,
        devices: &Devices,
        timeout: Duration,
    ) -> Result<Self, ShimError> {
        let number = |n: usize| c_int::try_from(n).map_err(|_| ShimError(format!("{n} ranks are too many")));
        let prefix = c_string(prefix)?;
        let (names, by_address) = match devices {
            Devices::Interfaces(names) => (names.as_slice(), 0),
            Devices::Address(address) => (std::slice::from_ref(address), 1),
        };
        let names: Vec<CString> = names.iter().map(|n| c_string(n)).collect::<Result<_, _>>()?;
        let pointers: Vec<*const c_char> = names.iter().map(|n| n.as_ptr()).collect();
        let mut raw = ptr::null_mut();
        // SAFETY: the store, the prefix and the names outlive the call; `raw` is written only when it succeeds.
        check(unsafe {
            espalier_c10d_group_new(
                store.raw,
                prefix.as_ptr(),
                number(rank)?,
                number(world)?,
                milliseconds(timeout),
                pointers.as_ptr(),
                pointers.len(),
                by_address,
                &raw mut raw,
            )
        })?;
        Ok(Self { raw })
    }

    /// `out`, of `world` times as many elements, becomes the inputs of all ranks in the order of ranks.
    pub(crate) fn all_gather(&self, out: &Tensor, input: &Tensor, timeout: Duration) -> Result<(), ShimError> {
        // SAFETY: c10d takes references of its own to both tensors; the shim checks them.
        check(unsafe { espalier_c10d_all_gather(self.raw, out.as_ptr(), input.as_ptr(), milliseconds(timeout)) })
    }

    /// Both of one dimension: block `i` of `input` goes to rank `i`, block `i` of `out` comes from rank `i`.
    pub(crate) fn all_to_all(&self, out: &Tensor, input: &Tensor, timeout: Duration) -> Result<(), ShimError> {
        // SAFETY: c10d takes references of its own to both tensors; the shim checks them.
        check(unsafe { espalier_c10d_all_to_all(self.raw, out.as_ptr(), input.as_ptr(), milliseconds(timeout)) })
    }

    /// Reduces in place.
    pub(crate) fn all_reduce(&self, tensor: &Tensor, by: Reduction, timeout: Duration) -> Result<(), ShimError> {
        // SAFETY: c10d takes a reference of its own to the tensor; the shim checks it.
        check(unsafe { espalier_c10d_all_reduce(self.raw, tensor.as_ptr(), by as c_int, milliseconds(timeout)) })
    }

    /// The root's values in every rank's tensor.
    pub(crate) fn broadcast(&self, tensor: &Tensor, root: usize, timeout: Duration) -> Result<(), ShimError> {
        let root = c_int::try_from(root).unwrap_or(-1); // the shim refuses -1
        // SAFETY: c10d takes a reference of its own to the tensor; the shim checks it.
        check(unsafe { espalier_c10d_broadcast(self.raw, tensor.as_ptr(), root, milliseconds(timeout)) })
    }
}

impl Drop for GlooGroup {
    fn drop(&mut self) {
        // SAFETY: `raw` came from the shim and is freed once.
        unsafe { espalier_c10d_group_free(self.raw) }
    }
}

/// Has the kernel send SIGTERM to the child when the thread that starts it ends, however that happens.
pub(crate) fn end_with_launcher(command: &mut Command) {
    let launcher = nix::unistd::getpid();
    let hook = move || {
        prctl::set_pdeathsig(Signal::SIGTERM)?;
        if nix::unistd::getppid() == launcher {
            return Ok(());
        }
        Err(io::ErrorKind::NotFound.into()) // the launcher ended before the kernel was told
    };
    // SAFETY: the hook makes two system calls; it allocates nothing and takes no lock.
    unsafe { command.pre_exec(hook) };
}
