//! Dynamic sampling: every group that trains carries a signal.
//!
//! | kind | what happens to groups without a signal | source |
//! |---|---|---|
//! | none | they train | - |
//! | `filter` | they are dropped, and batches are sampled until enough others are there | DAPO, arXiv:2503.14476, eq. 11 |
//! | `replace` | copies of other groups take their place, if enough of the batch are such; else the batch is dropped | POLARIS, 2025 |
//!
//! [`DynamicSampler`] is a state machine: [`DynamicSampler::push`] a batch, and it says whether to train or to sample more.
//! Its state can be stored, so a checkpoint between two batches loses nothing. It never samples without end: after
//! `max_sample_batches` batches for one step it fails, and [`DynamicSampler::take`] gives what there is to whoever would
//! rather train on less.
//!
//! Names of groups stay unique: a copy, and a prompt that comes up twice for one step, get fresh uids, so no group grows by
//! accident.

use std::collections::HashSet;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::carries_signal;
use crate::config::{AlgorithmConfig, DynamicSamplingConfig, DynamicSamplingKind};
use crate::random::Stream;

/// The samples of one prompt.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PromptGroup<T> {
    /// The prompt's name.
    pub uid: String,
    /// How many samples there were to be, failed ones included.
    pub samples: usize,
    /// The score of each sample that did not fail: one for each trajectory, however many rows it is.
    pub scores: Vec<f64>,
    /// Whatever the caller trains on.
    pub payload: T,
}

/// What is remembered between batches.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SamplerState<T> {
    kept: Vec<PromptGroup<T>>,
    batches: u32,
    drawn: u64,
}

/// What to do after a batch.
#[derive(Clone, Debug, PartialEq)]
pub enum Sampling<T> {
    /// Train on these groups.
    Train(TrainGroups<T>),
    /// Sample another batch.
    SampleMore {
        /// Groups with a signal so far.
        kept: usize,
        /// Groups that a step needs.
        wanted: usize,
    },
}

/// The groups of a training step.
#[derive(Clone, Debug, PartialEq)]
pub struct TrainGroups<T> {
    /// The groups, names unique.
    pub groups: Vec<PromptGroup<T>>,
    /// Batches that were sampled for them.
    pub batches: u32,
    /// How many are copies.
    pub copies: usize,
    /// Groups with a signal that were not needed.
    pub surplus: usize,
}

/// Why there is nothing to train on.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum SamplingError {
    /// The bound on batches is reached.
    #[error(
        "{batches} batches gave {kept} of {wanted} groups whose rewards differ; raise \
         `trainer.algorithm.dynamic_sampling.max_sample_batches`, or choose prompts that are neither solved always nor never"
    )]
    Exhausted {
        /// Batches sampled.
        batches: u32,
        /// Groups with a signal.
        kept: usize,
        /// Groups that a step needs.
        wanted: usize,
    },
}

/// Decides after each batch whether to train or to sample more. See the module.
#[derive(Clone, Debug)]
pub struct DynamicSampler<T> {
    config: DynamicSamplingConfig,
    tolerance: f64,
    wanted: usize,
    seed: u64,
    state: SamplerState<T>,
}

impl<T: Clone> DynamicSampler<T> {
    /// A sampler for steps of `wanted` groups (`trainer.train_batch_size`). `seed` decides which groups are copied.
    pub fn new(config: &AlgorithmConfig, wanted: usize, seed: u64) -> Self {
        let state = SamplerState { kept: Vec::new(), batches: 0, drawn: 0 };
        Self { config: config.dynamic_sampling, tolerance: config.zero_variance_filter_tol, wanted, seed, state }
    }

    /// What is to be stored in a checkpoint.
    pub fn state(&self) -> &SamplerState<T> {
        &self.state
    }

    /// Goes on from what was stored.
    pub fn restore(&mut self, state: SamplerState<T>) {
        self.state = state;
    }

    /// Takes what there is and starts over.
    pub fn take(&mut self) -> Vec<PromptGroup<T>> {
        self.state.batches = 0;
        std::mem::take(&mut self.state.kept)
    }

    /// Looks at the next batch.
    pub fn push(&mut self, batch: Vec<PromptGroup<T>>) -> Result<Sampling<T>, SamplingError> {
        self.state.batches = self.state.batches.saturating_add(1);
        match self.config.kind {
            None => {
                let batches = self.state.batches;
                self.state.batches = 0;
                let groups = unique(batch);
                Ok(Sampling::Train(TrainGroups { groups, batches, copies: 0, surplus: 0 }))
            }
            Some(DynamicSamplingKind::Filter) => self.filter(batch),
            Some(DynamicSamplingKind::Replace) => self.replace(batch),
        }
    }

    fn filter(&mut self, batch: Vec<PromptGroup<T>>) -> Result<Sampling<T>, SamplingError> {
        let good = batch.into_iter().filter(|group| carries_signal(group.samples, &group.scores, self.tolerance));
        let mut kept = std::mem::take(&mut self.state.kept);
        kept.extend(good);
        self.state.kept = unique(kept);
        let kept = self.state.kept.len();
        if kept < self.wanted {
            return self.sample_more(kept, self.wanted);
        }
        let batches = self.state.batches;
        let mut groups = self.take();
        groups.truncate(self.wanted);
        Ok(Sampling::Train(TrainGroups { groups, batches, copies: 0, surplus: kept - self.wanted }))
    }

    fn replace(&mut self, batch: Vec<PromptGroup<T>>) -> Result<Sampling<T>, SamplingError> {
        let mut groups = unique(batch);
        let (good, bad): (Vec<usize>, Vec<usize>) = (0..groups.len())
            .partition(|&place| carries_signal(groups[place].samples, &groups[place].scores, self.tolerance));
        if good.is_empty() || good.len() as f64 <= self.config.min_replace_ratio * groups.len() as f64 {
            return self.sample_more(good.len(), groups.len());
        }
        let sources = self.draw(&good, bad.len());
        let mut taken: HashSet<String> = groups.iter().map(|group| group.uid.clone()).collect();
        for (&place, source) in bad.iter().zip(sources) {
            let mut copy = groups[source].clone();
            // The copy gets the fresh name, wherever it stands: its original keeps its own.
            copy.uid = fresh(&copy.uid, &mut taken);
            groups[place] = copy;
        }
        let batches = self.state.batches;
        self.state.batches = 0;
        Ok(Sampling::Train(TrainGroups { groups: unique(groups), batches, copies: bad.len(), surplus: 0 }))
    }

    /// Draws `count` of `from`: different ones while there are enough.
    fn draw(&mut self, from: &[usize], count: usize) -> Vec<usize> {
        let mut stream = Stream::new(self.seed, &mut self.state.drawn);
        if count > from.len() {
            return (0..count).map(|_| from[stream.below(from.len())]).collect();
        }
        let mut pool = from.to_vec();
        (0..count).map(|_| pool.swap_remove(stream.below(pool.len()))).collect()
    }

    fn sample_more(&mut self, kept: usize, wanted: usize) -> Result<Sampling<T>, SamplingError> {
        let batches = self.state.batches;
        if batches >= self.config.max_sample_batches {
            return Err(SamplingError::Exhausted { batches, kept, wanted });
        }
        Ok(Sampling::SampleMore { kept, wanted })
    }
}

/// Gives every group that has the name of an earlier one a fresh name.
fn unique<T>(mut groups: Vec<PromptGroup<T>>) -> Vec<PromptGroup<T>> {
    let mut taken: HashSet<String> = groups.iter().map(|group| group.uid.clone()).collect();
    let mut seen = HashSet::new();
    for group in &mut groups {
        if seen.insert(group.uid.clone()) {
            continue;
        }
        group.uid = fresh(&group.uid, &mut taken);
        seen.insert(group.uid.clone());
    }
    groups
}

/// A name that nobody has: `NAME#2`, `NAME#3` and so on.
fn fresh(name: &str, taken: &mut HashSet<String>) -> String {
    let mut copy = 2_usize;
    loop {
        let candidate = format!("{name}#{copy}");
        if taken.insert(candidate.clone()) {
            return candidate;
        }
        copy += 1;
    }
}
