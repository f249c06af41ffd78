//! Reinforcement learning over rollout trees.
//!
//! | module | what lives there |
//! |---|---|
//! | [`config`] | what `espalier train` reads |
//! | [`rows`] | from trees to rows with advantages |
//! | [`prompts`] | what is played next: seeded order, resumable |
//! | [`engine`] | whatever samples, and how new weights reach it |
//! | [`meter`] | how long it was at work |
//! | this one | the loop: sample, judge, update, publish, evaluate, save |
//!
//! With several processes the first one samples and tells the others what came of it; all train.
//!
//! Invariants: one failed rollout never stops a step; a step's rows come from whole trees; weights are published after
//! every update and before the next sample; what a checkpoint holds leads to the same next step.

pub mod config;
pub mod engine;
pub mod meter;
pub mod prompts;
pub mod rows;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use espalier_algorithms::advantages::{self, AdvantageEstimator};
use espalier_algorithms::config::AlgorithmConfig;
use espalier_algorithms::filters::dynamic_sampling::{DynamicSampler, PromptGroup, SamplerState, Sampling};
use espalier_algorithms::kl::{KlController, penalize_rewards};
use espalier_algorithms::metrics::{Metric, Metrics};
use espalier_generator::metrics::rollout_metrics;
use espalier_generator::rollouts::{NoSink, RunOptions, groups, run};
use espalier_generator::{Tree, TreeOptions};
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

use self::config::TrainConfig;
use self::engine::Sampler;
use self::meter::{Meter, Metered};
use self::prompts::Prompts;
use self::rows::{RolloutRow, RowChoice, Sampled};
use crate::checkpoint::CheckpointStore;
use crate::error::TrainError;
use crate::sft::{Numbers, Watch};
use crate::update::{Policy, UpdateOptions, UpdateRow, needs_reference};

/// What a checkpoint keeps of the loop.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Kept {
    /// Finished steps.
    step: u64,
    /// Prompts drawn so far.
    drawn: u64,
    /// Batches sampled so far: they seed rollouts.
    batches: u64,
    /// The coefficient of a KL in the reward.
    kl: KlController,
    /// What dynamic sampling has gathered for the next step.
    gathered: SamplerState<Vec<RolloutRow>>,
}

/// How a run of the loop ended.
#[derive(Clone, Debug, PartialEq)]
pub struct TrainReport {
    /// Finished steps.
    pub steps: u64,
    /// Mean reward of the last training batch.
    pub last_reward: f64,
    /// Mean score of the last evaluation.
    pub last_eval: Option<f64>,
    /// Whether all steps were done.
    pub finished: bool,
}

/// Everything a run of the loop needs.
pub struct TrainRun {
    /// Settings, checked.
    pub config: TrainConfig,
    /// The policy.
    pub policy: Policy,
    /// What samples; the first process has one.
    pub sampler: Option<Arc<dyn Sampler>>,
    /// Prompts to train on.
    pub train: Prompts,
    /// Prompts to evaluate on.
    pub eval: Prompts,
    /// Serves an `advantage_estimator` that is not built in.
    pub estimator: Option<Box<dyn AdvantageEstimator>>,
    /// Where asynchronous work runs.
    pub runtime: tokio::runtime::Handle,
    /// Ends rollouts.
    pub cancel: CancellationToken,
}

/// One sampled batch as all processes know it.
#[derive(Serialize, Deserialize)]
struct Batch {
    rows: Vec<RolloutRow>,
    numbers: Numbers,
    cancelled: bool,
}

impl TrainRun {
    /// Runs until all steps are done, `watch` wants to stop, or `cancel` is given.
    pub fn run(mut self, watch: &mut dyn Watch) -> Result<(TrainReport, Policy), TrainError> {
        let t = &self.config.trainer;
        let per_epoch = (self.train.len() / t.train_batch_size as u64).max(1);
        let total = t.max_training_steps.unwrap_or(u64::MAX).min(t.epochs * per_epoch);
        let store =
            t.ckpt_path.as_ref().map(|root| CheckpointStore::new(root, usize::try_from(t.max_ckpts_to_keep).ok()));
        let updates = (t.train_batch_size / t.policy_mini_batch_size) as u64 * u64::from(t.update_epochs_per_batch);
        let algorithm = t.algorithm.clone();
        let (every_eval, every_save) = (t.eval_interval, t.ckpt_interval);
        let mut dynamic: DynamicSampler<Vec<RolloutRow>> = DynamicSampler::new(&algorithm, t.train_batch_size, t.seed);
        let mut kept = Kept {
            step: 0,
            drawn: 0,
            batches: 0,
            kl: KlController::new(&algorithm),
            gathered: dynamic.state().clone(),
        };
        if let Some(checkpoint) = t.resume_mode.open(store.as_ref())? {
            checkpoint.restore(&mut self.policy.model, &mut self.policy.optimizer)?;
            kept = serde_json::from_value(checkpoint.state().clone()).map_err(|e| TrainError::File {
                path: checkpoint.path().join("trainer_state.json"),
                reason: format!("`state`: {e}"),
            })?;
            dynamic.restore(kept.gathered.clone());
        }
        let meter = Arc::new(Meter::default());
        if let Some(sampler) = self.sampler.take() {
            self.sampler = Some(Arc::new(Metered::new(sampler, Arc::clone(&meter))));
        }
        self.publish(kept.step)?;
        let mut report = TrainReport { steps: kept.step, last_reward: f64::NAN, last_eval: None, finished: false };
        if self.config.trainer.eval_before_train && kept.step == 0 && !self.eval.is_empty() {
            let numbers = self.evaluate()?;
            report.last_eval = numbers.get("eval/all/avg_score").copied();
            watch.log(0, &numbers);
        }
        let mut saved = None;
        while kept.step < total {
            let begun = Instant::now();
            let (engine, gradients) = (meter.total(), self.policy.busy());
            let mut times = BTreeMap::new();
            let Some((rows, mut numbers)) = self.gather(&mut kept, &mut dynamic, &mut times)? else { break };
            let options = UpdateOptions {
                mini_batch_prompts: self.config.trainer.policy_mini_batch_size,
                epochs: self.config.trainer.update_epochs_per_batch,
                max_tokens: self.config.trainer.max_tokens_per_microbatch,
                total_steps: total.saturating_mul(updates),
                temperature: self.config.temperature(),
                seed: self.config.trainer.seed.wrapping_add(kept.step),
            };
            let metrics = self.train(&rows, &algorithm, &options, &mut kept.kl, &mut times)?;
            report.last_reward = metrics.value("reward/avg_raw_reward").unwrap_or(f64::NAN);
            kept.step += 1;
            report.steps = kept.step;
            let at = Instant::now();
            self.publish(kept.step)?;
            times.insert("sync_weights", at.elapsed().as_secs_f64());
            // What neither the engine nor the model was busy with is what everything around them costs.
            let (engine, gradients) = (meter.total() - engine, self.policy.busy() - gradients);
            times.insert("engine", engine.as_secs_f64());
            times.insert("gradients", gradients.as_secs_f64());
            times.insert("overhead", begun.elapsed().saturating_sub(engine + gradients).as_secs_f64());
            numbers.extend(metrics.values().map(|(name, value)| (name.to_owned(), value)));
            if every_eval > 0 && (kept.step.is_multiple_of(every_eval) || kept.step == total) && !self.eval.is_empty() {
                let at = Instant::now();
                let found = self.evaluate()?;
                report.last_eval = found.get("eval/all/avg_score").copied();
                numbers.extend(found);
                times.insert("eval", at.elapsed().as_secs_f64());
            }
            times.insert("step", begun.elapsed().as_secs_f64());
            numbers.extend(times.iter().map(|(name, seconds)| (format!("timing/{name}"), *seconds)));
            numbers.insert("trainer/global_step".to_owned(), kept.step as f64);
            numbers.insert("trainer/epoch".to_owned(), (kept.drawn / self.train.len().max(1)) as f64);
            watch.log(kept.step, &numbers);
            let stop = self.any(watch.stop())?;
            let due = every_save > 0 && kept.step.is_multiple_of(every_save);
            if let Some(store) = store.as_ref().filter(|_| due || stop || kept.step == total) {
                self.save(store, &mut kept, &dynamic, watch)?;
                saved = Some(kept.step);
            }
            if stop {
                break;
            }
        }
        let unsaved = |store: &&CheckpointStore| saved != Some(kept.step) && !store.path(kept.step).exists();
        if let Some(store) = store.as_ref().filter(|_| kept.step > 0).filter(unsaved) {
            self.save(store, &mut kept, &dynamic, watch)?;
        }
        report.finished = kept.step >= total;
        Ok((report, self.policy))
    }

    fn save(
        &self,
        store: &CheckpointStore,
        kept: &mut Kept,
        dynamic: &DynamicSampler<Vec<RolloutRow>>,
        watch: &mut dyn Watch,
    ) -> Result<(), TrainError> {
        kept.gathered = dynamic.state().clone();
        let state = serde_json::to_value(&*kept).map_err(|e| TrainError::File {
            path: store.path(kept.step),
            reason: format!("the loop's state cannot be written: {e}"),
        })?;
        let base = self.config.trainer.policy.model.path.display().to_string();
        let path = store.save(kept.step, &self.policy.model, &self.policy.optimizer, &state, &base)?;
        watch.saved(kept.step, &path);
        Ok(())
    }

    /// Whether any process wants to stop.
    fn any(&self, stop: bool) -> Result<bool, TrainError> {
        Ok(self.policy.model.group().all_gather_json(&stop)?.into_iter().any(|stop| stop))
    }

    /// The first process tells the others.
    fn tell<T: Serialize + serde::de::DeserializeOwned>(
        &self,
        make: impl FnOnce(&dyn Sampler) -> Result<T, TrainError>,
    ) -> Result<T, TrainError> {
        let group = self.policy.model.group();
        let made = match &self.sampler {
            Some(sampler) if group.rank() == 0 => Some(make(sampler.as_ref()).map_err(|e| e.to_string())),
            _ => None,
        };
        if group.world_size() == 1 {
            return match made {
                Some(Ok(made)) => Ok(made),
                Some(Err(reason)) => Err(TrainError::Sampling { reason }),
                None => Err(TrainError::Sampling { reason: "the first process has nothing that samples".to_owned() }),
            };
        }
        let shared: Option<Result<T, String>> = group.broadcast_json(&made, 0)?;
        match shared {
            Some(Ok(shared)) => Ok(shared),
            Some(Err(reason)) => Err(TrainError::Sampling { reason }),
            None => Err(TrainError::Sampling { reason: "the first process has nothing that samples".to_owned() }),
        }
    }

    /// Samples until there is a step's worth of rows; nothing after a cancellation.
    fn gather(
        &self,
        kept: &mut Kept,
        dynamic: &mut DynamicSampler<Vec<RolloutRow>>,
        times: &mut BTreeMap<&'static str, f64>,
    ) -> Result<Option<(Vec<RolloutRow>, Numbers)>, TrainError> {
        let at = Instant::now();
        let size = self.config.trainer.train_batch_size as u64;
        loop {
            let (drawn, batch) = (kept.drawn, kept.batches);
            let made = self.tell(|sampler| self.sample(sampler, drawn, batch))?;
            if made.cancelled {
                return Ok(None);
            }
            kept.drawn += size;
            kept.batches += 1;
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
                numbers.insert("dynamic_sampling/batches".to_owned(), f64::from(ready.batches));
                numbers.insert("dynamic_sampling/surplus".to_owned(), ready.surplus as f64);
                let rows = ready.groups.into_iter().flat_map(|group| {
                    let uid = group.uid;
                    group.payload.into_iter().map(move |row| renamed(row, &uid))
                });
                let rows = rows.collect();
                times.insert("generate", at.elapsed().as_secs_f64());
                return Ok(Some((rows, numbers)));
            }
        }
    }

    fn sample(&self, sampler: &dyn Sampler, drawn: u64, batch: u64) -> Result<Batch, TrainError> {
        let c = &self.config;
        let size = c.trainer.train_batch_size as u64;
        let (trees, cancelled) = self.play(sampler, &self.train, drawn..drawn + size, batch, false)?;
        let choice = RowChoice {
            children: c.generator.train_child_trajectories,
            overlong_filtering: c.generator.apply_overlong_filtering,
            zero_reward_on_non_stop: c.generator.zero_reward_on_non_stop,
        };
        let mut all = Vec::new();
        for tree in &trees {
            all.extend(rows::from_tree(tree, choice)?);
        }
        Ok(Batch { rows: all, numbers: rollout_metrics(&trees).into_iter().collect(), cancelled })
    }

    fn play(
        &self,
        sampler: &dyn Sampler,
        prompts: &Prompts,
        places: std::ops::Range<u64>,
        batch: u64,
        evaluation: bool,
    ) -> Result<(Vec<Tree>, bool), TrainError> {
        let g = &self.config.generator;
        let sampling = if evaluation { g.eval_sampling() } else { g.sampling_params.clone() };
        let samples = if evaluation { g.eval_n_samples_per_prompt } else { g.n_samples_per_prompt };
        let options = TreeOptions { limits: g.limits.clone(), root: g.loop_options(), child: None };
        let players = sampler.players(sampling);
        let jobs = prompts.jobs(places, self.config.trainer.seed, batch, !evaluation, &players, &options);
        let jobs = groups(jobs, samples);
        let run_options = RunOptions { in_flight: g.in_flight, progress: None };
        let result = self
            .runtime
            .block_on(run(jobs, run_options, NoSink, &self.cancel))
            .map_err(|e| TrainError::Sampling { reason: e.to_string() })?;
        Ok((result.trees.into_iter().flatten().collect(), result.cancelled))
    }

    /// Advantages and the update.
    fn train(
        &mut self,
        rows: &[RolloutRow],
        algorithm: &AlgorithmConfig,
        options: &UpdateOptions,
        kl: &mut KlController,
        times: &mut BTreeMap<&'static str, f64>,
    ) -> Result<Metrics, TrainError> {
        let g = &self.config.generator;
        let sampled =
            Sampled { samples_per_prompt: g.n_samples_per_prompt, max_response: g.sampling_params.max_tokens as usize };
        let mut rewards: Vec<Vec<f32>> = rows.iter().map(|row| row.row.rewards().to_vec()).collect();
        let mut metrics = Metrics::default();
        let at = Instant::now();
        let bare: Vec<UpdateRow> = rows.iter().map(bare).collect();
        let reference =
            if needs_reference(algorithm) { Some(self.policy.reference_logprobs(&bare, options)?) } else { None };
        if let (true, Some(reference)) = (algorithm.use_kl_in_reward, &reference) {
            let old = self.policy.logprobs(&bare, options)?;
            let (mut sum, mut most, mut count) = (0.0, 0.0_f64, 0.0);
            for (i, row) in rows.iter().enumerate().filter(|(_, row)| !row.failed) {
                let mask = row.row.mask();
                let estimator = algorithm.kl_estimator_type;
                let own = penalize_rewards(&mut rewards[i], &old[i], &reference[i], mask, estimator, kl.value())
                    .map_err(|e| TrainError::Row { row: i, reason: e.to_string() })?;
                sum += own.mean;
                most = most.max(own.max);
                count += 1.0;
            }
            let mean = if count > 0.0 { sum / count } else { 0.0 };
            for (name, value) in [("loss/avg_kl", mean), ("loss/avg_kl_max", most), ("loss/kl_loss_coef", kl.value())] {
                metrics.insert(name, Metric::Mean { sum: value, weight: 1.0 });
            }
            kl.update(mean, rows.len());
        }
        times.insert("fwd_logprobs_values_reward", at.elapsed().as_secs_f64());
        let at = Instant::now();
        let built_in = advantages::built_in(algorithm);
        let estimator = built_in.as_deref().or(self.estimator.as_deref()).ok_or_else(|| TrainError::Config {
            key: "trainer.algorithm.advantage_estimator".to_owned(),
            expected: "a built-in estimator, or one that the program brings".to_owned(),
            found: format!("{:?}", algorithm.advantage_estimator),
        })?;
        let prepared = rows::prepare(rows, &rewards, estimator, algorithm, sampled)?;
        metrics.merge(prepared.metrics);
        times.insert("compute_advantages_and_returns", at.elapsed().as_secs_f64());
        let at = Instant::now();
        let reference = reference.filter(|_| algorithm.use_kl_loss);
        let update = self.policy.update(&prepared.rows, reference.as_ref(), options)?;
        metrics.merge(update.metrics);
        times.insert("policy_train", at.elapsed().as_secs_f64());
        Ok(metrics)
    }

    fn publish(&self, version: u64) -> Result<(), TrainError> {
        engine::publish(&self.policy.model, self.sampler.as_deref(), version)
    }

    /// Scores of the evaluation prompts: `eval/all/avg_score`, `eval/all/pass_at_N`.
    fn evaluate(&self) -> Result<Numbers, TrainError> {
        self.tell(|sampler| {
            let (trees, _) = self.play(sampler, &self.eval, 0..self.eval.len(), 0, true)?;
            let mut by_prompt: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
            for tree in &trees {
                let score = if tree.root.stop.is_failure() { 0.0 } else { f64::from(tree.root.reward) };
                by_prompt.entry(&tree.root.instance_id).or_default().push(score);
            }
            let all: Vec<f64> = by_prompt.values().flatten().copied().collect();
            let count = all.len().max(1) as f64;
            let passed = by_prompt.values().filter(|scores| scores.iter().any(|s| *s > 0.0)).count() as f64;
            let n = self.config.generator.eval_n_samples_per_prompt;
            let mut numbers: Numbers =
                rollout_metrics(&trees).into_iter().map(|(name, value)| (format!("eval/all/{name}"), value)).collect();
            numbers.insert("eval/all/avg_score".to_owned(), all.iter().sum::<f64>() / count);
            numbers.insert(format!("eval/all/pass_at_{n}"), passed / by_prompt.len().max(1) as f64);
            numbers.insert(
                "eval/all/mean_positive_reward".to_owned(),
                all.iter().map(|s| s.max(0.0)).sum::<f64>() / count,
            );
            Ok(numbers)
        })
    }
}

/// A row as the forward passes need it.
fn bare(row: &RolloutRow) -> UpdateRow {
    let mut tokens = row.row.prompt_ids().to_vec();
    tokens.extend_from_slice(row.row.response_ids());
    UpdateRow { tokens, response_start: row.row.prompt_ids().len(), ..UpdateRow::default() }
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
