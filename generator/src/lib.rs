//! Agent loop, rollout trees, trajectories and evaluation suites.
//!
//! | module | what lives there |
//! |---|---|
//! | [`row`], [`trajectory`] | what a rollout leaves: rows of one length, trajectories, trees |
//! | [`player`], [`episode`], [`agent_loop`] | one environment played by one engine, token in and token out |
//! | [`budget`], [`tree`] | a root with everything it spawns, under one budget |
//! | [`source`] | where a tree's environments come from |
//! | [`rollouts`] | many roots at once |
//! | [`output`] | Parquet and JSONL, reader, resume, export |
//! | [`metrics`], [`statistics`] | numbers; `espalier-trackers` takes them where they go |
//! | [`suite`] | evaluation suites: tasks x models x ways to play |
//! | [`tree_view`] | trees and rows for people |
//! | [`seed`] | seeds that follow from seeds |
//!
//! Invariants: tokens are the truth and text is a view of them; the mask is set exactly on tokens that the policy being
//! trained sampled; one bad rollout is one bad rollout; every wait ends; the same seeds give the same ids, order and
//! numbers.

pub mod agent_loop;
pub mod budget;
mod dialogue;
pub mod episode;
pub mod metrics;
pub mod output;
pub mod player;
pub mod rollouts;
pub mod row;
pub mod seed;
mod services;
pub mod source;
pub mod statistics;
pub mod suite;
pub mod trajectory;
pub mod tree;
pub mod tree_view;

pub use budget::TreeLimits;
pub use episode::{LoopOptions, RowMode};
pub use player::Player;
pub use row::{Row, RowParts};
pub use trajectory::{RolloutStop, Trajectory, TrajectoryId, Tree};
pub use tree::{Players, Service, TreeOptions, TreeTask, play_tree};
