//! Names and numbers of the WebAssembly boundary.
//!
//! The guest is a `wasm32-unknown-unknown` module. It exports its memory, its stack pointer and the functions below,
//! and imports the functions below from module [`IMPORT_MODULE`] and nothing else.
//!
//! A request is bytes: the host calls [`EXPORT_ALLOC`] for a buffer, writes an encoded
//! [`Request`](crate::message::Request) into it and calls [`EXPORT_CALL`], which takes the buffer over and answers
//! `(pointer << 32) | length` of an encoded [`Reply`](crate::message::Reply). That reply stays valid until the next
//! [`EXPORT_CALL`].

/// Version of everything in this crate. A host refuses a guest, and a snapshot, of another version.
pub const ABI_VERSION: u32 = 1;

/// Module name of every import.
pub const IMPORT_MODULE: &str = "espalier";

/// `write(stream: i32, ptr: i32, len: i32)`: output of the block; stream 1 is stdout, 2 is stderr.
pub const IMPORT_WRITE: &str = "write";
/// `call(ptr: i32, len: i32) -> i32`: one encoded [`HostCall`](crate::message::HostCall). The host may suspend the
/// guest for as long as it likes. Answers the length of an encoded [`HostReply`](crate::message::HostReply), which
/// the guest then fetches with [`IMPORT_TAKE`].
pub const IMPORT_CALL: &str = "call";
/// `take(ptr: i32)`: copies the reply of the last `call` to guest memory at `ptr` (which must hold its length).
pub const IMPORT_TAKE: &str = "take";
/// `clock(kind: i32) -> i64`: nanoseconds; kind 0 is since the Unix epoch, 1 monotonic, 2 CPU time of this REPL.
pub const IMPORT_CLOCK: &str = "clock";
/// `random(ptr: i32, len: i32)`: fills guest memory from the REPL's seeded generator.
pub const IMPORT_RANDOM: &str = "random";
/// `sleep(nanoseconds: i64)`: suspends the guest; counts as waiting, not as execution.
pub const IMPORT_SLEEP: &str = "sleep";
/// `abort(kind: i32, ptr: i32, len: i32)`: the guest is about to trap and says why ([`ABORT_PANIC`],
/// [`ABORT_MEMORY`], UTF-8 text). The guest executes `unreachable` right after.
pub const IMPORT_ABORT: &str = "abort";

/// The interpreter panicked.
pub const ABORT_PANIC: i32 = 1;
/// An allocation was refused.
pub const ABORT_MEMORY: i32 = 2;

/// `memory`
pub const EXPORT_MEMORY: &str = "memory";
/// The mutable global that holds the shadow stack's pointer: together with memory it is the whole state of a guest
/// that is not executing.
pub const EXPORT_STACK_POINTER: &str = "__stack_pointer";
/// `esp_abi() -> i32`: [`ABI_VERSION`].
pub const EXPORT_ABI: &str = "esp_abi";
/// `esp_boot()`: boots the interpreter and imports the common modules. Called once, at build time, by the
/// pre-initialiser; it calls no import.
pub const EXPORT_BOOT: &str = "esp_boot";
/// `esp_interrupt_word() -> i32`: address of the 32-bit word that the interpreter looks at before every instruction.
/// While it is not [`INTERRUPT_NONE`], every instruction raises, so no handler of the block can swallow it. The
/// guest clears it when the block's own frame has unwound.
pub const EXPORT_INTERRUPT_WORD: &str = "esp_interrupt_word";
/// `esp_alloc(len: i32) -> i32`: a buffer for a request, exempt from the single-allocation limit.
pub const EXPORT_ALLOC: &str = "esp_alloc";
/// `esp_call(ptr: i32, len: i32) -> i64`
pub const EXPORT_CALL: &str = "esp_call";

/// Nothing is pending.
pub const INTERRUPT_NONE: u32 = 0;
/// The host: the block's execution time is over. Raises `TimeoutError`.
pub const INTERRUPT_TIMEOUT: u32 = 1;
/// The guest's allocator: the soft memory limit is reached. Raises `MemoryError`.
pub const INTERRUPT_MEMORY: u32 = 2;
/// The host: the waiting time is over, or the budget of host calls is spent, or the rollout was cancelled. Raises
/// `TimeoutError`.
pub const INTERRUPT_WAIT: u32 = 3;
