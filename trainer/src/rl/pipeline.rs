//! Groups of rollouts that are played while the trainer computes.
//!
//! One task, the feeder, starts groups in the order of the stream as [`Admission`] and the
//! number of workers let it; what ends comes back through a channel that has room for everything that may be in flight, so
//! nothing ever waits for the trainer. A root that fails is a tree with a stop reason: its group ends like any other.
//!
//! With dynamic sampling by `filter` a group without a signal is dropped by the task that played it, and another one may
//! start at once, whatever the trainer is doing. It takes the place of the dropped one in the count of what is outstanding,
//! so the bound on staleness is not touched. For each step there are as many replacements as a synchronous run would have
//! sampled; when what may start can no longer fill a step, the step fails as there.
//!
//! Invariants: groups start in order, so none is passed over; a group's version is the newest one when its first root
//! starts, and weights that come while it is played only make its tokens newer; after a cancellation what had not ended is
//! not delivered.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use espalier_algorithms::config::DynamicSamplingConfig;
use espalier_algorithms::filters::carries_signal;
use espalier_algorithms::filters::dynamic_sampling::SamplingError;
use espalier_generator::rollouts::{RolloutJob, groups};
use espalier_generator::tree::play_tree;
use espalier_generator::{Players, Tree, TreeOptions};
use tokio::runtime::Handle;
use tokio::sync::{Notify, Semaphore, mpsc, watch};
use tokio::task::{JoinHandle, JoinSet};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::mode::Background;
use super::prompts::Prompts;
use super::rows::{self, RolloutRow, RowChoice};
use super::staleness::{Admission, Started};
use crate::error::TrainError;

/// What is played, and how.
pub(crate) struct Work {
    pub(crate) prompts: Arc<Prompts>,
    pub(crate) players: Players,
    pub(crate) options: TreeOptions,
    /// Seed of the run.
    pub(crate) seed: u64,
    /// Prompts of a batch: they share the seed of their rollouts as in a synchronous run.
    pub(crate) batch: u64,
    /// Rollouts of each prompt.
    pub(crate) samples: u32,
    /// Roots that are played at once.
    pub(crate) in_flight: usize,
    /// Steps of the whole run: what none of them would use is not played.
    pub(crate) total_steps: u64,
    /// Drops groups without a signal, if that is asked for.
    pub(crate) filter: Option<Filter>,
}

/// Which groups are dropped as they end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Filter {
    /// Scores that differ by no more are the same.
    pub(crate) tolerance: f64,
    /// Which rows are scored: those that would train.
    pub(crate) choice: RowChoice,
    /// Batches that may be sampled for a step.
    pub(crate) batches: DynamicSamplingConfig,
}

impl Filter {
    fn keeps(&self, trees: &[Tree]) -> bool {
        let rows: Result<Vec<Vec<RolloutRow>>, _> =
            trees.iter().map(|tree| rows::from_tree(tree, self.choice)).collect();
        // What cannot become rows goes on to the step, which says why.
        let Ok(rows) = rows else { return true };
        let rows: Vec<RolloutRow> = rows.into_iter().flatten().collect();
        rows::scores(&rows).iter().any(|(_, samples, scores)| carries_signal(*samples, scores, self.tolerance))
    }
}

impl Work {
    /// The rollouts of a place; `cache` holds the jobs of the batch that was asked for last.
    fn group(&self, place: u64, cache: &mut Option<(u64, Vec<RolloutJob>)>) -> Vec<RolloutJob> {
        let number = place / self.batch;
        let first = number * self.batch;
        if cache.as_ref().is_none_or(|(cached, _)| *cached != number) {
            let places: Vec<u64> = (first..first + self.batch).collect();
            let jobs = self.prompts.jobs(&places, self.seed, number, true, &self.players, &self.options);
            *cache = Some((number, jobs));
        }
        let job = cache.as_ref().and_then(|(_, jobs)| jobs.get((place - first) as usize).cloned());
        groups(job, self.samples)
    }
}

/// A group that ended.
pub(crate) struct PlayedGroup {
    pub(crate) started: Started,
    /// Its roots in their order.
    pub(crate) trees: Vec<Tree>,
    /// From its start to its end.
    pub(crate) seconds: f64,
    /// The same of each root.
    pub(crate) rollout_seconds: Vec<f64>,
}

/// What feeder and trainer both know.
struct Shared {
    state: Mutex<State>,
    /// How many groups may have been started in all.
    limit: watch::Sender<u64>,
    /// A group was dropped.
    dropped: Notify,
    admission: Admission,
    total_steps: u64,
    /// Groups that may be dropped for a step and others started for them.
    replacements: u64,
}

struct State {
    version: u64,
    /// Groups that are played, or that ended and were not looked at yet.
    running: BTreeMap<u64, u64>,
    /// Groups of this run that were trained on, or dropped and told of.
    settled: u64,
    /// Places of groups that were dropped since the last step took its groups.
    dropped: Vec<u64>,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing panics while it holds the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many groups may be outstanding, those that are dropped left out of it.
    fn room(&self, state: &State) -> u64 {
        let left = self.total_steps.saturating_sub(state.version);
        self.admission.limit(0).min(left.saturating_mul(self.admission.batch as u64))
    }

    /// Lets as many groups start as what is known now allows.
    fn admit(&self, state: &State) {
        let replaced = (state.dropped.len() as u64).min(self.replacements);
        self.limit.send_replace(state.settled.saturating_add(self.room(state)).saturating_add(replaced));
    }

    /// A group ended without a signal.
    fn drop_group(&self, place: u64) {
        let mut state = self.state();
        state.running.remove(&place);
        state.dropped.push(place);
        self.admit(&state);
        drop(state);
        self.dropped.notify_one();
    }

    /// Groups that may still be there for the next step, when too many were dropped to fill it.
    fn exhausted(&self) -> Option<u64> {
        let state = self.state();
        let missing = (state.dropped.len() as u64).saturating_sub(self.replacements);
        let possible = self.room(&state).saturating_sub(missing);
        (missing > 0 && possible < self.admission.batch as u64).then_some(possible)
    }
}

type Ended = Result<PlayedGroup, String>;

/// What a step waited for.
enum Next {
    Cancelled,
    Dropped,
    Ended(Option<Ended>),
}

/// What a step trains on.
pub(crate) struct Taken {
    /// In the order of their places.
    pub(crate) groups: Vec<PlayedGroup>,
    /// Places of groups that were dropped since the last step.
    pub(crate) dropped: Vec<u64>,
}

/// The trainer's end.
pub(crate) struct Pipeline {
    shared: Arc<Shared>,
    max_batches: u32,
    ended: mpsc::Receiver<Ended>,
    finished: Vec<PlayedGroup>,
    cancel: CancellationToken,
    feeder: JoinHandle<()>,
    _cancels: DropGuard,
}

impl Pipeline {
    /// Starts playing `places`, of which nothing was started yet, under weights of `version`; `used` groups were trained
    /// on or dropped before.
    pub(crate) fn start(
        work: Work,
        background: Background,
        places: impl Iterator<Item = u64> + Send + 'static,
        (used, version): (u64, u64),
        runtime: &Handle,
        cancel: &CancellationToken,
    ) -> Self {
        let cancel = cancel.child_token();
        let admission = background.admission;
        let max_batches = work.filter.map_or(1, |filter| filter.batches.max_sample_batches);
        let shared = Arc::new(Shared {
            state: Mutex::new(State { version, running: BTreeMap::new(), settled: used, dropped: Vec::new() }),
            limit: watch::channel(used).0,
            dropped: Notify::new(),
            admission,
            total_steps: work.total_steps,
            replacements: u64::from(max_batches.saturating_sub(1)).saturating_mul(admission.batch as u64),
        });
        shared.admit(&shared.state());
        let room =
            usize::try_from(admission.limit(0)).unwrap_or(Semaphore::MAX_PERMITS).clamp(1, Semaphore::MAX_PERMITS);
        let (send, ended) = mpsc::channel(room);
        let feeder = Feeder {
            work: Arc::new(work),
            admitted: shared.limit.subscribe(),
            shared: Arc::clone(&shared),
            workers: Arc::new(Semaphore::new(background.workers.clamp(1, Semaphore::MAX_PERMITS))),
            send,
            cancel: cancel.clone(),
        };
        let feeder = runtime.spawn(feeder.run(used, places));
        let guard = cancel.clone().drop_guard();
        Self { shared, max_batches, ended, finished: Vec::new(), cancel, feeder, _cancels: guard }
    }

    /// Weights of `version` are with the sampler; `used` groups were trained on or dropped until then.
    pub(crate) fn published(&self, version: u64, used: u64) {
        let mut state = self.shared.state();
        (state.version, state.settled) = (version, used);
        self.shared.admit(&state);
    }

    /// Groups that ended and wait for a step.
    pub(crate) fn waiting(&mut self) -> Result<usize, TrainError> {
        while let Ok(group) = self.ended.try_recv() {
            self.take(group)?;
        }
        Ok(self.finished.len())
    }

    /// The groups that the update of `version` takes; none after a cancellation. Waits for as long as it takes: every
    /// rollout has a deadline of its own.
    pub(crate) fn next(&mut self, version: u64, runtime: &Handle) -> Result<Option<Taken>, TrainError> {
        loop {
            if self.cancel.is_cancelled() {
                return Ok(None);
            }
            self.waiting()?;
            if let Some(chosen) = self.choose(version) {
                return Ok(Some(chosen));
            }
            // What still plays may end with a signal; the error tells how many did.
            if let Some(possible) = self.shared.exhausted()
                && self.finished.len() as u64 >= possible
            {
                let (batches, kept) = (self.max_batches, self.finished.len());
                let error = SamplingError::Exhausted { batches, kept, wanted: self.shared.admission.batch };
                return Err(TrainError::Sampling { reason: error.to_string() });
            }
            let cancelled = self.cancel.clone();
            let next = runtime.block_on(async {
                tokio::select! {
                    biased;
                    () = cancelled.cancelled() => Next::Cancelled,
                    group = self.ended.recv() => Next::Ended(group),
                    () = self.shared.dropped.notified() => Next::Dropped,
                }
            });
            match next {
                Next::Cancelled => return Ok(None),
                Next::Dropped => {}
                Next::Ended(Some(group)) => self.take(group)?,
                Next::Ended(None) => {
                    let reason = "the rollouts in the background ended before the run did".to_owned();
                    return Err(TrainError::Sampling { reason });
                }
            }
        }
    }

    fn take(&mut self, group: Ended) -> Result<(), TrainError> {
        let group = group.map_err(|reason| TrainError::Sampling { reason })?;
        self.shared.state().running.remove(&group.started.place);
        self.finished.push(group);
        Ok(())
    }

    fn choose(&mut self, version: u64) -> Option<Taken> {
        let finished: Vec<Started> = self.finished.iter().map(|group| group.started).collect();
        let mut state = self.shared.state();
        let running: Vec<Started> = state.running.iter().map(|(&place, &version)| Started { version, place }).collect();
        let chosen = self.shared.admission.choose(version, &finished, &running)?;
        // What is told of from now on is not counted for the next step.
        let dropped = std::mem::take(&mut state.dropped);
        state.settled += dropped.len() as u64;
        self.shared.admit(&state);
        drop(state);
        let mut all: Vec<Option<PlayedGroup>> = self.finished.drain(..).map(Some).collect();
        let groups = chosen.into_iter().filter_map(|i| all[i].take()).collect();
        self.finished = all.into_iter().flatten().collect();
        Some(Taken { groups, dropped })
    }

    /// Ends what is still played and waits for it.
    pub(crate) fn close(self, runtime: &Handle) {
        self.cancel.cancel();
        let Self { feeder, ended, .. } = self;
        // Whatever still wants to tell something must not wait for a reader.
        drop(ended);
        // Nothing to tell of a feeder that panicked: no step will ask for its groups.
        let _ = runtime.block_on(feeder);
    }
}

struct Feeder {
    work: Arc<Work>,
    shared: Arc<Shared>,
    workers: Arc<Semaphore>,
    admitted: watch::Receiver<u64>,
    send: mpsc::Sender<Ended>,
    cancel: CancellationToken,
}

impl Feeder {
    /// Starts groups as they are admitted until the run is over, then waits for those that are played.
    async fn run(mut self, used: u64, places: impl Iterator<Item = u64> + Send) {
        let mut playing = JoinSet::new();
        let roots = Arc::new(Semaphore::new(self.work.in_flight.clamp(1, Semaphore::MAX_PERMITS)));
        let mut cache = None;
        for (started, place) in (used..).zip(places) {
            let cancel = self.cancel.clone();
            let begun = tokio::select! {
                biased;
                () = cancel.cancelled() => false,
                begun = self.begin(started, place, &roots, &mut cache, &mut playing) => begun,
            };
            if !begun {
                break;
            }
            while playing.try_join_next().is_some() {}
        }
        while playing.join_next().await.is_some() {}
    }

    /// Waits until a group may start, then starts it. Answers whether to go on.
    async fn begin(
        &mut self,
        started: u64,
        place: u64,
        roots: &Arc<Semaphore>,
        cache: &mut Option<(u64, Vec<RolloutJob>)>,
        playing: &mut JoinSet<()>,
    ) -> bool {
        if self.admitted.wait_for(|limit| started < *limit).await.is_err() {
            return false;
        }
        let Ok(worker) = Arc::clone(&self.workers).acquire_owned().await else { return false };
        let jobs = self.work.group(place, cache);
        let at = Instant::now();
        let mut version = None;
        let mut trees: Vec<JoinHandle<(Tree, f64)>> = Vec::new();
        for job in jobs {
            let Ok(root) = Arc::clone(roots).acquire_owned().await else { return false };
            version.get_or_insert_with(|| {
                let mut state = self.shared.state();
                let version = state.version;
                state.running.insert(place, version);
                version
            });
            let cancel = self.cancel.clone();
            trees.push(tokio::spawn(async move {
                let at = Instant::now();
                let tree = play_tree(job.task, job.players, job.options, &cancel).await;
                drop(root);
                (tree, at.elapsed().as_secs_f64())
            }));
        }
        let started = Started { version: version.unwrap_or_default(), place };
        let (send, cancel) = (self.send.clone(), self.cancel.clone());
        let (shared, filter) = (Arc::clone(&self.shared), self.work.filter);
        playing.spawn(async move {
            let (mut played, mut rollout_seconds) = (Vec::with_capacity(trees.len()), Vec::new());
            for tree in trees {
                match tree.await {
                    Ok((tree, seconds)) => {
                        played.push(tree);
                        rollout_seconds.push(seconds);
                    }
                    Err(error) => {
                        // Nobody listens any more once the run is over.
                        let _ = send.send(Err(format!("a rollout's task failed: {error}"))).await;
                        return;
                    }
                }
            }
            drop(worker);
            // What the cancellation cut off is played again when the run is resumed.
            if cancel.is_cancelled() {
                return;
            }
            if filter.is_some_and(|filter| !filter.keeps(&played)) {
                shared.drop_group(place);
            } else {
                let seconds = at.elapsed().as_secs_f64();
                let _ = send.send(Ok(PlayedGroup { started, trees: played, seconds, rollout_seconds })).await;
            }
        });
        true
    }
}
