//! From prompts to a step's worth of rows: played now, or taken from what was played in the background.

use std::collections::{BTreeMap, HashSet};
use std::time::Instant;

use espalier_algorithms::filters::dynamic_sampling::{DynamicSampler, PromptGroup, Sampling};
use espalier_generator::metrics::rollout_metrics;
use espalier_generator::rollouts::{NoSink, RunOptions, groups, run};
use espalier_generator::statistics::{deviation, mean, quantile};
use espalier_generator::{Tree, TreeOptions};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::engine::Sampler;
use super::pipeline::{PlayedGroup, Taken};
use super::prompts::Prompts;
use super::rows::{self, RolloutRow, RowChoice};
use super::{Kept, Loop};
use crate::error::TrainError;
use crate::sft::Numbers;

/// One sampled batch as all processes know it.
#[derive(Serialize, Deserialize)]
struct Batch {
    rows: Vec<RolloutRow>,
    numbers: Numbers,
    /// Places of the stream that it used.
    places: Vec<u64>,
    /// Groups without a signal that were dropped in the background since the last batch; their places are among `places`.
    dropped: usize,
    cancelled: bool,
}

/// What a step trains on.
pub(super) struct Gathered {
    pub(super) rows: Vec<RolloutRow>,
    pub(super) numbers: Numbers,
}

impl Loop {
    /// The first process tells the others.
    pub(super) fn tell<T: Serialize + DeserializeOwned>(
        &mut self,
        make: impl FnOnce(&mut Self, &dyn Sampler) -> Result<T, TrainError>,
    ) -> Result<T, TrainError> {
        let first = self.policy.model.group().rank() == 0;
        let alone = self.policy.model.group().world_size() == 1;
        let made = self.sampler.clone().filter(|_| first).map(|sampler| make(self, sampler.as_ref()));
        let nobody = || TrainError::Sampling { reason: "the first process has nothing that samples".to_owned() };
        if alone {
            return made.unwrap_or_else(|| Err(nobody()));
        }
        let made = made.map(|made| made.map_err(|e| e.to_string()));
        let shared: Option<Result<T, String>> = self.policy.model.group().broadcast_json(&made, 0)?;
        match shared {
            Some(Ok(shared)) => Ok(shared),
            Some(Err(reason)) => Err(TrainError::Sampling { reason }),
            None => Err(nobody()),
        }
    }

    /// Samples until there is a step's worth of rows; nothing after a cancellation.
    pub(super) fn gather(
        &mut self,
        kept: &mut Kept,
        dynamic: &mut DynamicSampler<Vec<RolloutRow>>,
        times: &mut BTreeMap<&'static str, f64>,
    ) -> Result<Option<Gathered>, TrainError> {
        let at = Instant::now();
        loop {
            let (step, batch, position) = (kept.step, kept.batches, kept.position.clone());
            let size = self.config.trainer.train_batch_size;
            let mut made = self.tell(|this, sampler| {
                if this.background.is_some() {
                    return this.ready(step);
                }
                this.sample(sampler, position.upcoming().take(size).collect(), batch)
            })?;
            if made.cancelled {
                return Ok(None);
            }
            kept.position.take(made.places.drain(..));
            kept.batches =
                if self.background.is_some() { kept.position.drawn.div_ceil(size as u64) } else { kept.batches + 1 };
            let mut by_prompt: BTreeMap<String, Vec<RolloutRow>> = BTreeMap::new();
            let scores = rows::scores(&made.rows);
            for row in made.rows {
                by_prompt.entry(row.prompt.clone()).or_default().push(row);
            }
            let groups = scores
                .into_iter()
                .map(|(uid, samples, scores)| PromptGroup {
                    payload: by_prompt.remove(&uid).unwrap_or_default(),
                    uid,
                    samples,
                    scores,
                })
                .collect();
            let pushed = dynamic.push(groups).map_err(|e| TrainError::Sampling { reason: e.to_string() })?;
            if let Sampling::Train(ready) = pushed {
                let mut numbers = made.numbers;
                // What was dropped in the background never came here.
                let batches = ready.batches as usize + made.dropped.div_ceil(size);
                numbers.insert("dynamic_sampling/batches".to_owned(), batches as f64);
                numbers.insert("dynamic_sampling/surplus".to_owned(), ready.surplus as f64);
                let rows = ready.groups.into_iter().flat_map(|group| {
                    let uid = group.uid;
                    group.payload.into_iter().map(move |row| renamed(row, &uid))
                });
                let rows = rows.collect();
                times.insert("generate", at.elapsed().as_secs_f64());
                return Ok(Some(Gathered { rows, numbers }));
            }
            if let Some(pipeline) = &self.pipeline {
                // This batch trains nothing: others may start in its place, under the same version.
                pipeline.published(step, kept.position.used());
            }
        }
    }

    /// A batch played now.
    fn sample(&self, sampler: &dyn Sampler, places: Vec<u64>, batch: u64) -> Result<Batch, TrainError> {
        let (trees, cancelled) = self.play(sampler, &self.train, &places, batch, false)?;
        let trees: Vec<Tree> = trees.into_iter().flatten().collect();
        let mut all = Vec::new();
        for tree in &trees {
            all.extend(rows::from_tree(tree, self.choice())?);
        }
        Ok(Batch { rows: all, numbers: rollout_metrics(&trees).into_iter().collect(), places, dropped: 0, cancelled })
    }

    /// A batch of groups from the background.
    fn ready(&mut self, version: u64) -> Result<Batch, TrainError> {
        let nothing =
            |cancelled| Batch { rows: Vec::new(), numbers: Numbers::new(), places: Vec::new(), dropped: 0, cancelled };
        let bound = self.background.map_or(0, |background| background.admission.max_staleness);
        let (runtime, choice) = (self.runtime.clone(), self.choice());
        let Some(pipeline) = &mut self.pipeline else { return Ok(nothing(true)) };
        let waiting = pipeline.waiting()?;
        let at = Instant::now();
        let Some(Taken { groups, dropped }) = pipeline.next(version, &runtime)? else { return Ok(nothing(true)) };
        let waited = at.elapsed().as_secs_f64();
        let mut made = nothing(false);
        let mut taken = HashSet::new();
        for group in &groups {
            made.places.push(group.started.place);
            let mut own = Vec::new();
            for tree in &group.trees {
                own.extend(rows::from_tree(tree, choice)?);
            }
            // A prompt that comes twice is two groups, also where they are of different batches of the stream.
            let again = own.first().is_some_and(|row| !taken.insert(row.prompt.clone()));
            made.rows.extend(own.into_iter().map(|row| {
                let uid = format!("{}@{}", row.prompt, group.started.place);
                if again { renamed(row, &uid) } else { row }
            }));
        }
        made.numbers = staleness(&groups, &made.rows, version, bound);
        let (kept, dropped_groups) = (groups.len() as f64, dropped.len() as f64);
        made.numbers.insert("async/num_groups_dropped".to_owned(), dropped_groups);
        made.numbers.insert("async/keep_rate".to_owned(), kept / (kept + dropped_groups));
        made.dropped = dropped.len();
        made.places.extend(dropped);
        made.numbers.insert("async/gen_buffer_qsize_at_wait_start".to_owned(), waiting as f64);
        made.numbers.insert("timing/wait_for_generation_buffer".to_owned(), waited);
        let trees: Vec<Tree> = groups.into_iter().flat_map(|group| group.trees).collect();
        made.numbers.extend(rollout_metrics(&trees));
        Ok(made)
    }

    pub(super) fn choice(&self) -> RowChoice {
        let g = &self.config.generator;
        RowChoice {
            children: g.train_child_trajectories,
            overlong_filtering: g.apply_overlong_filtering,
            zero_reward_on_non_stop: g.zero_reward_on_non_stop,
        }
    }

    /// How trees are played.
    pub(super) fn tree_options(&self) -> TreeOptions {
        let g = &self.config.generator;
        TreeOptions { limits: g.limits.clone(), root: g.loop_options(), child: None }
    }

    /// Plays prompts to their end: a tree for each root in their order, or nothing where a cancellation came first.
    pub(super) fn play(
        &self,
        sampler: &dyn Sampler,
        prompts: &Prompts,
        places: &[u64],
        batch: u64,
        evaluation: bool,
    ) -> Result<(Vec<Option<Tree>>, bool), TrainError> {
        let g = &self.config.generator;
        let sampling = if evaluation { g.eval_sampling() } else { g.sampling_params.clone() };
        let samples = if evaluation { g.eval_n_samples_per_prompt } else { g.n_samples_per_prompt };
        let (players, options) = (sampler.players(sampling), self.tree_options());
        let jobs = prompts.jobs(places, self.config.trainer.seed, batch, !evaluation, &players, &options);
        let run_options = RunOptions { in_flight: g.in_flight, progress: None };
        let result = self
            .runtime
            .block_on(run(groups(jobs, samples), run_options, NoSink, &self.cancel))
            .map_err(|e| TrainError::Sampling { reason: e.to_string() })?;
        Ok((result.trees, result.cancelled))
    }
}

/// How old groups and tokens are when they train, and how long groups took.
fn staleness(groups: &[PlayedGroup], rows: &[RolloutRow], version: u64, bound: u64) -> Numbers {
    let mut numbers = Numbers::new();
    let ages: Vec<f64> = groups.iter().map(|group| version.saturating_sub(group.started.version) as f64).collect();
    let largest = |values: &[f64]| values.iter().copied().fold(0.0, f64::max);
    let mut put = |name: &str, value: f64| {
        numbers.insert(name.to_owned(), value);
    };
    put("async/staleness_mean", mean(&ages));
    put("async/staleness_max", largest(&ages));
    put("async/staleness_min", ages.iter().copied().fold(f64::INFINITY, f64::min));
    let share = |of: usize| of as f64 / ages.len().max(1) as f64;
    put("async/staleness_ratio", share(ages.iter().filter(|age| **age > 0.0).count()));
    // Admission keeps the bound: anything but 0 is a fault.
    put("async/staleness_violation_count", ages.iter().filter(|age| **age > bound as f64).count() as f64);
    let (mut sum, mut most, mut tokens) = (0.0, 0.0_f64, 0.0);
    for run in rows.iter().flat_map(|row| row.row.versions()) {
        let age = version.saturating_sub(run.version) as f64;
        sum += age * f64::from(run.len);
        tokens += f64::from(run.len);
        most = most.max(age);
    }
    put("async/token_staleness_mean", if tokens > 0.0 { sum / tokens } else { 0.0 });
    put("async/token_staleness_max", most);
    let seconds: Vec<f64> = groups.iter().map(|group| group.seconds).collect();
    put("generate/group_completion_time_mean", mean(&seconds));
    put("generate/group_completion_time_p90", quantile(&seconds, 0.9));
    put("generate/group_completion_time_max", largest(&seconds));
    // How uneven the rollouts of a group are: it is there when the last of them is.
    let deviations: Vec<f64> = groups.iter().map(|group| deviation(&group.rollout_seconds)).collect();
    let relative: Vec<f64> = groups
        .iter()
        .zip(&deviations)
        .map(|(group, own)| own / mean(&group.rollout_seconds).max(f64::MIN_POSITIVE))
        .collect();
    put("generate/intra_group_completion_time_std_mean", mean(&deviations));
    put("generate/intra_group_completion_time_cv_mean", mean(&relative));
    numbers
}

/// A copy of a group has a name of its own, and so have its trees and trajectories.
fn renamed(mut row: RolloutRow, uid: &str) -> RolloutRow {
    if row.prompt != uid {
        row.tree = format!("{uid}:{}", row.tree);
        row.trajectory = format!("{uid}:{}", row.trajectory);
        uid.clone_into(&mut row.prompt);
    }
    row
}
