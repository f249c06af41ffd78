//! Linear memory that the host owns.
//!
//! | module | what lives there |
//! |---|---|
//! | [`image`] | memory in a sealed file that REPLs map privately: the booted interpreter's, or a template's |
//! | [`mapping`] | one guest's address range, and wasmtime's two memory traits over it |
//! | [`region`] | address ranges, and those that wait for their next guest |
//! | [`pagemap`] | which pages of a mapping were written |
//! | [`stack`] | the native stacks on which guests run |
//! | [`checkpoint`] | a state to come back to, shared by the REPLs that started from it |
//!
//! A guest's memory is `[image | heap | nothing]`: the image's part is always a private mapping of the image; the
//! heap beyond it is anonymous while small, then a file of its own, which a checkpoint freezes into a [`Layer`] that
//! others map privately, without copying. That is at most five kernel mappings for a REPL, its native stack included
//! (six once it grew beyond a layer): `vm.max_map_count` is 65,530 by default.
//!
//! Invariant: nothing here reads or writes a guest's memory while that guest runs. Callers hold the guest's store
//! exclusively; this module is private to the crate and its functions are called from there only.

pub(crate) mod checkpoint;
pub(crate) mod image;
pub(crate) mod mapping;
pub(crate) mod pagemap;
mod region;
pub(crate) mod stack;

pub(crate) use checkpoint::{Checkpoint, Layer};
pub(crate) use image::Image;
pub(crate) use mapping::{Creator, Mapping, Seed, page_size};
pub(crate) use stack::{Stack, Stacks};

/// Bytes of a kernel page. Loading refuses a machine with another size.
pub(crate) const PAGE: usize = 4096;
/// Bytes of a WebAssembly page.
pub(crate) const WASM_PAGE: usize = 65536;
