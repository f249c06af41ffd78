//! The server from outside: over HTTP, with a scripted engine.

mod access;
mod bad_input;
mod checkpoints;
mod harness;
mod order;
mod parsers;
mod restart;
mod results;
mod sampling;
mod sdk;
mod sessions;
mod transcripts;
