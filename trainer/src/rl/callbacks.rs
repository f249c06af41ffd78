//! What a program may hook into the loop.

use std::path::Path;

use espalier_generator::Tree;

use super::TrainReport;
use super::rows::RolloutRow;
use crate::sft::Numbers;

/// What a callback asks for at the end of a step, beside what the intervals bring.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Control {
    /// A checkpoint after this step.
    pub should_save: bool,
    /// An evaluation after this step.
    pub should_evaluate: bool,
}

/// Hears of what the loop does. Every method does nothing unless it is written. With several processes each has its own
/// callbacks and calls them at the same moments; what one process asks for is done by all.
pub trait Callback: Send {
    /// The run begins after `step` finished steps.
    fn on_train_start(&mut self, step: u64) {
        let _ = step;
    }

    /// A step begins, counted from 1.
    fn on_step_begin(&mut self, step: u64) {
        let _ = step;
    }

    /// What a step is about to train on.
    fn on_rollouts(&mut self, step: u64, rows: &[RolloutRow]) {
        let _ = (step, rows);
    }

    /// A step ended and its weights are with the sampler; its numbers so far.
    fn on_step_end(&mut self, step: u64, numbers: &Numbers) -> Control {
        let _ = (step, numbers);
        Control::default()
    }

    /// An evaluation begins.
    fn on_eval_begin(&mut self, step: u64) {
        let _ = step;
    }

    /// An evaluation ended. The first process has the trees, the others an empty list.
    fn on_eval(&mut self, step: u64, numbers: &Numbers, trees: &[Tree]) {
        let _ = (step, numbers, trees);
    }

    /// A checkpoint was written.
    fn on_save(&mut self, step: u64, path: &Path) {
        let _ = (step, path);
    }

    /// The numbers of a step, evaluation included, go to the trackers.
    fn on_log(&mut self, step: u64, numbers: &Numbers) {
        let _ = (step, numbers);
    }

    /// The run ended.
    fn on_train_end(&mut self, report: &TrainReport) {
        let _ = report;
    }
}
