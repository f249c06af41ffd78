//! Reinforcement learning over rollout trees.
//!
//! | module | what lives there |
//! |---|---|
//! | [`config`], [`mode`] | what `espalier train` reads |
//! | [`prompts`] | what is played next: seeded order, resumable |
//! | [`engine`] | whatever samples, and how new weights reach it |
//! | [`rows`] | from trees to rows with advantages |
//! | [`staleness`] | what may be played while the trainer computes, and what trains next |
//! | `pipeline` | rollouts in the background |
//! | `gather` | from prompts, or from the background, to a step's rows |
//! | `step` | rewards, values, advantages, updates |
//! | `evaluation` | scores by source, and what was said |
//! | [`meter`] | how long the engine was at work |
//! | [`callbacks`] | what a program may hook in |
//! | this one | the loop: sample, judge, update, publish, evaluate, save |
//!
//! With several processes the first one samples and tells the others what came of it; all train.
//!
//! Invariants: one failed rollout never stops a step; a step's rows come from whole trees; weights are published after
//! every update, and in `sync` before the next sample; no group is more than `max_staleness_steps` versions old when it
//! trains; what a checkpoint holds leads to the same next step, nothing trained twice and nothing lost.

pub mod callbacks;
pub mod config;
pub mod engine;
mod evaluation;
mod gather;
pub mod meter;
pub mod mode;
mod pipeline;
pub mod prompts;
pub mod rows;
pub mod staleness;
mod step;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use espalier_algorithms::advantages::AdvantageEstimator;
use espalier_algorithms::config::DynamicSamplingKind;
use espalier_algorithms::filters::dynamic_sampling::{DynamicSampler, SamplerState};
use espalier_algorithms::kl::KlController;
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

use self::callbacks::{Callback, Control};
use self::config::TrainConfig;
use self::engine::Sampler;
use self::gather::Gathered;
use self::meter::{Meter, Metered};
use self::mode::Background;
use self::pipeline::{Filter, Pipeline, Work};
use self::prompts::Prompts;
use self::rows::RolloutRow;
use self::staleness::Position;
use crate::checkpoint::{CheckpointStore, Saved};
use crate::critic::Critic;
use crate::error::TrainError;
use crate::model::TrainModel;
use crate::sft::Watch;
use crate::update::{Policy, UpdateOptions};

/// What a checkpoint keeps of the loop.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Kept {
    /// Finished steps.
    step: u64,
    /// Which prompts were used.
    #[serde(flatten)]
    position: Position,
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
    /// Steps that this run took.
    pub taken: u64,
    /// Optimiser steps that were left out because gradients were not finite, since the beginning.
    pub skipped: u64,
    /// Whether all steps were done.
    pub finished: bool,
}

/// Everything a run of the loop needs. [`TrainRun::new`] takes what every run has; the rest is set where it is wanted.
pub struct TrainRun {
    /// Settings, checked.
    pub config: TrainConfig,
    /// The policy.
    pub policy: Policy,
    /// What says values, for `advantage_estimator = "gae"`.
    pub critic: Option<Critic>,
    /// What the policy is to become like, for `distillation`.
    pub teacher: Option<TrainModel>,
    /// What samples; the first process has one.
    pub sampler: Option<Arc<dyn Sampler>>,
    /// Prompts to train on.
    pub train: Prompts,
    /// Prompts to evaluate on; without any nothing is evaluated.
    pub eval: Prompts,
    /// Serves an `advantage_estimator` that is not built in.
    pub estimator: Option<Box<dyn AdvantageEstimator>>,
    /// Hear of what happens.
    pub callbacks: Vec<Box<dyn Callback>>,
    /// Where asynchronous work runs.
    pub runtime: tokio::runtime::Handle,
    /// Ends rollouts.
    pub cancel: CancellationToken,
}

/// A run while it goes on.
struct Loop {
    config: TrainConfig,
    policy: Policy,
    critic: Option<Critic>,
    teacher: Option<TrainModel>,
    sampler: Option<Arc<dyn Sampler>>,
    train: Arc<Prompts>,
    eval: Prompts,
    estimator: Option<Box<dyn AdvantageEstimator>>,
    callbacks: Vec<Box<dyn Callback>>,
    runtime: tokio::runtime::Handle,
    cancel: CancellationToken,
    /// How groups are played in the background, if they are.
    background: Option<Background>,
    /// The first process's, where groups are played in the background.
    pipeline: Option<Pipeline>,
    store: Option<CheckpointStore>,
    /// Steps of the whole run.
    total_steps: u64,
}

impl TrainRun {
    /// A run without critic, teacher, evaluations and callbacks.
    pub fn new(
        config: TrainConfig,
        policy: Policy,
        sampler: Option<Arc<dyn Sampler>>,
        train: Prompts,
        runtime: tokio::runtime::Handle,
    ) -> Self {
        Self {
            config,
            policy,
            critic: None,
            teacher: None,
            sampler,
            train,
            eval: Prompts::default(),
            estimator: None,
            callbacks: Vec::new(),
            runtime,
            cancel: CancellationToken::new(),
        }
    }

    /// Runs until all steps are done, `watch` wants to stop, or `cancel` is given.
    pub fn run(self, watch: &mut dyn Watch) -> Result<(TrainReport, Policy), TrainError> {
        let t = &self.config.trainer;
        let per_epoch = (self.train.len() / t.train_batch_size as u64).max(1);
        let total_steps = t.max_training_steps.unwrap_or(u64::MAX).min(t.epochs.saturating_mul(per_epoch));
        let store =
            t.ckpt_path.as_ref().map(|root| CheckpointStore::new(root, usize::try_from(t.max_ckpts_to_keep).ok()));
        let background = Background::new(t.mode, &t.fully_async, t.train_batch_size);
        let Self { config, policy, critic, teacher, sampler, train, eval, estimator, callbacks, runtime, cancel } =
            self;
        let train = Arc::new(train);
        let mut this = Loop {
            config,
            policy,
            critic,
            teacher,
            sampler,
            train,
            eval,
            estimator,
            callbacks,
            runtime,
            cancel,
            background,
            pipeline: None,
            store,
            total_steps,
        };
        let outcome = this.run(watch);
        if let Some(pipeline) = this.pipeline.take() {
            pipeline.close(&this.runtime);
        }
        let report = outcome?;
        for callback in &mut this.callbacks {
            callback.on_train_end(&report);
        }
        Ok((report, this.policy))
    }
}

impl Loop {
    fn run(&mut self, watch: &mut dyn Watch) -> Result<TrainReport, TrainError> {
        let t = &self.config.trainer;
        let total = self.total_steps;
        let updates = (t.train_batch_size / t.policy_mini_batch_size) as u64 * u64::from(t.update_epochs_per_batch);
        let (every_eval, every_save) = (t.eval_interval, t.ckpt_interval);
        let mut dynamic: DynamicSampler<Vec<RolloutRow>> =
            DynamicSampler::new(&t.algorithm, t.train_batch_size, t.seed);
        let store = self.store.as_ref().filter(|_| self.policy.model.group().rank() == 0);
        let _lock = store.map(CheckpointStore::lock).transpose()?;
        let mut kept = self.begin(&mut dynamic)?;
        for callback in &mut self.callbacks {
            callback.on_train_start(kept.step);
        }
        let meter = Arc::new(Meter::default());
        if let Some(sampler) = self.sampler.take() {
            self.sampler = Some(Arc::new(Metered::new(sampler, Arc::clone(&meter))));
        }
        self.publish(kept.step)?;
        let mut report = TrainReport {
            steps: kept.step,
            last_reward: f64::NAN,
            last_eval: None,
            taken: 0,
            skipped: 0,
            finished: false,
        };
        if self.config.trainer.eval_before_train && every_eval > 0 && kept.step == 0 && !self.eval.is_empty() {
            let numbers = self.evaluate(0)?;
            report.last_eval = numbers.get("eval/all/avg_score").copied();
            self.log(0, &numbers, watch);
        }
        self.start_background(&kept);
        let mut saved = None;
        while kept.step < total {
            let begun = Instant::now();
            let (engine, gradients) = (meter.total(), self.policy.busy());
            let mut times = BTreeMap::new();
            for callback in &mut self.callbacks {
                callback.on_step_begin(kept.step + 1);
            }
            let Some(Gathered { rows, mut numbers }) = self.gather(&mut kept, &mut dynamic, &mut times)? else { break };
            for callback in &mut self.callbacks {
                callback.on_rollouts(kept.step + 1, &rows);
            }
            let options = UpdateOptions {
                mini_batch_prompts: self.config.trainer.policy_mini_batch_size,
                epochs: self.config.trainer.update_epochs_per_batch,
                max_tokens: self.config.trainer.max_tokens_per_microbatch,
                total_steps: total.saturating_mul(updates),
                temperature: self.config.temperature(),
                seed: self.config.trainer.seed.wrapping_add(kept.step),
            };
            let metrics = self.train(&rows, &options, &mut kept.kl, &mut times)?;
            report.last_reward = metrics.value("reward/avg_raw_reward").unwrap_or(f64::NAN);
            kept.step += 1;
            report.steps = kept.step;
            report.taken += 1;
            let at = Instant::now();
            self.publish(kept.step)?;
            if let Some(pipeline) = &self.pipeline {
                pipeline.published(kept.step, kept.position.used());
            }
            times.insert("sync_weights", at.elapsed().as_secs_f64());
            // What neither the engine nor the model was busy with is what everything around them costs.
            let (engine, gradients) =
                (meter.total().saturating_sub(engine), self.policy.busy().saturating_sub(gradients));
            times.insert("engine", engine.as_secs_f64());
            times.insert("gradients", gradients.as_secs_f64());
            times.insert("overhead", begun.elapsed().saturating_sub(engine + gradients).as_secs_f64());
            numbers.extend(metrics.values().map(|(name, value)| (name.to_owned(), value)));
            let mut wanted = Control::default();
            for callback in &mut self.callbacks {
                let own = callback.on_step_end(kept.step, &numbers);
                wanted.should_save |= own.should_save;
                wanted.should_evaluate |= own.should_evaluate;
            }
            let due = every_eval > 0 && (kept.step.is_multiple_of(every_eval) || kept.step == total);
            if self.any(due || wanted.should_evaluate)? && !self.eval.is_empty() {
                let at = Instant::now();
                let found = self.evaluate(kept.step)?;
                report.last_eval = found.get("eval/all/avg_score").copied();
                numbers.extend(found);
                times.insert("eval", at.elapsed().as_secs_f64());
            }
            times.insert("step", begun.elapsed().as_secs_f64());
            numbers.extend(times.iter().map(|(name, seconds)| (format!("timing/{name}"), *seconds)));
            numbers.insert("trainer/global_step".to_owned(), kept.step as f64);
            numbers.insert("trainer/epoch".to_owned(), (kept.position.used() / self.train.len().max(1)) as f64);
            self.log(kept.step, &numbers, watch);
            let stop = self.any(watch.stop())?;
            let due = every_save > 0 && kept.step.is_multiple_of(every_save);
            if self.any(due || wanted.should_save)? || stop || kept.step == total {
                self.save(&mut kept, &dynamic, watch)?;
                saved = Some(kept.step);
            }
            if stop {
                break;
            }
        }
        let there = |store: &CheckpointStore| store.path(kept.step).exists();
        if kept.step > 0 && saved != Some(kept.step) && !self.store.as_ref().is_some_and(there) {
            self.save(&mut kept, &dynamic, watch)?;
        }
        report.skipped = self.policy.optimizer.skipped();
        report.finished = kept.step >= total;
        Ok(report)
    }

    /// From the beginning, or from where a checkpoint left off.
    fn begin(&mut self, dynamic: &mut DynamicSampler<Vec<RolloutRow>>) -> Result<Kept, TrainError> {
        let t = &self.config.trainer;
        let Some(checkpoint) = t.resume_mode.open(self.store.as_ref(), "trainer.resume_mode")? else {
            return Ok(Kept {
                step: 0,
                position: Position::default(),
                batches: 0,
                kl: KlController::new(&t.algorithm),
                gathered: dynamic.state().clone(),
            });
        };
        checkpoint.restore(&mut self.policy.model, &mut self.policy.optimizer)?;
        if let Some(critic) = &mut self.critic {
            checkpoint.restore_critic(&mut critic.model, &mut critic.optimizer)?;
        }
        let kept: Kept = serde_json::from_value(checkpoint.state().clone()).map_err(|e| TrainError::File {
            path: checkpoint.path().join("trainer_state.json"),
            reason: format!("`state`: {e}"),
        })?;
        dynamic.restore(kept.gathered.clone());
        Ok(kept)
    }

    /// Starts to play in the background, on the process that samples and where that is asked for.
    fn start_background(&mut self, kept: &Kept) {
        let (Some(background), Some(sampler)) = (self.background, &self.sampler) else { return };
        if self.policy.model.group().rank() > 0 || kept.step >= self.total_steps {
            return;
        }
        let g = &self.config.generator;
        let batch = self.config.trainer.train_batch_size as u64;
        let algorithm = &self.config.trainer.algorithm;
        let filter = (algorithm.dynamic_sampling.kind == Some(DynamicSamplingKind::Filter)).then(|| Filter {
            tolerance: algorithm.zero_variance_filter_tol,
            choice: self.choice(),
            batches: algorithm.dynamic_sampling,
        });
        let work = Work {
            prompts: Arc::clone(&self.train),
            players: sampler.players(g.sampling_params.clone()),
            options: self.tree_options(),
            seed: self.config.trainer.seed,
            batch,
            samples: g.n_samples_per_prompt,
            in_flight: g.in_flight,
            total_steps: self.total_steps,
            filter,
        };
        let places = kept.position.upcoming();
        let at = (kept.position.used(), kept.step);
        self.pipeline = Some(Pipeline::start(work, background, places, at, &self.runtime, &self.cancel));
    }

    fn save(
        &mut self,
        kept: &mut Kept,
        dynamic: &DynamicSampler<Vec<RolloutRow>>,
        watch: &mut dyn Watch,
    ) -> Result<(), TrainError> {
        let Some(store) = &self.store else { return Ok(()) };
        kept.gathered = dynamic.state().clone();
        let state = serde_json::to_value(&*kept).map_err(|e| TrainError::File {
            path: store.path(kept.step),
            reason: format!("the loop's state cannot be written: {e}"),
        })?;
        let base = self.config.trainer.policy.model.path.display().to_string();
        let policy = Saved { model: &self.policy.model, optimizer: &self.policy.optimizer };
        let critic = self.critic.as_ref().map(|critic| Saved { model: &critic.model, optimizer: &critic.optimizer });
        let path = store.save_with(kept.step, policy, critic, &state, &base)?;
        watch.saved(kept.step, &path);
        for callback in &mut self.callbacks {
            callback.on_save(kept.step, &path);
        }
        Ok(())
    }

    fn log(&mut self, step: u64, numbers: &crate::sft::Numbers, watch: &mut dyn Watch) {
        watch.log(step, numbers);
        for callback in &mut self.callbacks {
            callback.on_log(step, numbers);
        }
    }

    /// Whether any process wants something.
    fn any(&self, wanted: bool) -> Result<bool, TrainError> {
        Ok(self.policy.model.group().all_gather_json(&wanted)?.into_iter().any(|wanted| wanted))
    }

    fn publish(&self, version: u64) -> Result<(), TrainError> {
        engine::publish(&self.policy.model, self.sampler.as_deref(), version)
    }
}
