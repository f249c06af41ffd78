//! Connections and request bodies with bounds, for every server of the workspace.
//!
//! | module | what lives there |
//! |---|---|
//! | [`listener`] | [`Bounded`]: so many connections at once, none of which is silent for ever |
//! | [`bodies`] | [`Bodies`]: so many bytes in one body and in all, none of which stands still for ever |
//!
//! Invariant: no peer holds memory, a connection or a body longer than the bounds allow.

pub mod bodies;
pub mod listener;

pub use bodies::{Bodies, BodyError, Read};
pub use listener::Bounded;
