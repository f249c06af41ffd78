//! What the sandbox's host and its guest interpreter say to each other.
//!
//! Both sides compile this crate: the host natively, the guest to WebAssembly. It knows neither wasmtime nor
//! RustPython, so the seam between them is tested and fuzzed natively, and a second guest (another Python compiled
//! to WebAssembly) joins by speaking it.
//!
//! | module | what lives there |
//! |---|---|
//! | [`value`] | [`value::Value`], the typed data that crosses the seam |
//! | [`codec`] | bytes <-> values and messages; bounded in depth and size, never panics on any input |
//! | [`literal`] | Python literals in text, as `ast.literal_eval` reads them |
//! | [`message`] | [`message::Request`], [`message::Reply`], [`message::HostCall`], [`message::HostReply`] |
//! | [`abi`] | names and numbers of the WebAssembly imports and exports |
//! | [`policy`] | what the model's code may import, call and rebind |
//! | [`repr`] | values as Python prints them |
//!
//! Invariant: whatever bytes a guest sends, decoding ends in a value or a typed error, within
//! [`codec::MAX_DEPTH`] stack frames and memory proportional to the bytes that came.

pub mod abi;
pub mod codec;
pub mod literal;
pub mod message;
pub mod policy;
pub mod repr;
pub mod value;

pub use codec::{Decode, DecodeError, Decoder, Encode, Encoder};
pub use message::{
    BlockEnd, ExecuteReply, ExecuteRequest, FinalAnswer, HostCall, HostReply, ReplConfig, Reply, Request, VariableInfo,
};
pub use value::Value;
