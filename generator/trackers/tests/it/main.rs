//! Tests of the trackers, through their public interface.

mod console;
mod fan_out;
mod golden;
mod jsonl;
mod logger;
mod official;
mod protobuf;
mod support;
mod tensorboard;
mod wandb;
mod wandb_log;
