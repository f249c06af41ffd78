//! Tests of the generator, through its public interface, with small environments and a scripted engine of their own.

mod budgets;
mod episodes;
mod export;
mod masks;
mod modes;
mod output;
mod python;
mod rollouts;
mod rows;
mod statistics;
mod suite;
mod support;
mod trees;
mod view;
