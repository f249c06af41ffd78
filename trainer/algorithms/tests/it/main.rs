//! The algorithms through their public interface.

mod advantages;
mod batch;
mod config;
mod filters;
mod gradients;
mod kl;
mod losses;
mod off_policy;
mod properties;
mod reduction;
mod reference;
mod reward_metrics;
mod tree;
mod value_and_entropy;
