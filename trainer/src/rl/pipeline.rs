//! Groups of rollouts that are played while the trainer computes.
//!
//! One task, the feeder, starts groups in the order of the stream as [`Admission`](super::staleness::Admission) and the
//! number of workers let it; what ends comes back through a channel that has room for everything that may be in flight, so
//! nothing ever waits for the trainer. A root that fails is a tree with a stop reason: its group ends like any other.
//!
//! Invariants: groups start in order, so none is passed over; a group's version is the newest one when its first root
//! starts, and weights that come while it is played only make its tokens newer; after a cancellation what had not ended is
//! not delivered.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use espalier_generator::rollouts::{RolloutJob, groups};
use espalier_generator::tree::play_tree;
use espalier_generator::{Players, Tree, TreeOptions};
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::task::{JoinHandle, JoinSet};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::mode::Background;
use super::prompts::Prompts;
use super::staleness::Started;
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
}

/// What feeder and trainer both know.
#[derive(Default)]
struct Shared {
    version: u64,
    /// Groups that are played, or that ended and were not looked at yet.
    running: BTreeMap<u64, u64>,
}

type Ended = Result<PlayedGroup, String>;

/// The trainer's end.
pub(crate) struct Pipeline {
    background: Background,
    shared: Arc<Mutex<Shared>>,
    limit: watch::Sender<u64>,
    ended: mpsc::Receiver<Ended>,
    finished: Vec<PlayedGroup>,
    cancel: CancellationToken,
    feeder: JoinHandle<()>,
    _cancels: DropGuard,
}

fn lock(shared: &Mutex<Shared>) -> MutexGuard<'_, Shared> {
    // Nothing panics while it holds the lock.
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Pipeline {
    /// Starts playing `places`, of which nothing was started yet, under weights of `version`; `used` groups were trained
    /// on before.
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
        let shared = Arc::new(Mutex::new(Shared { version, running: BTreeMap::new() }));
        let (limit, admitted) = watch::channel(admission.limit(used));
        let room =
            usize::try_from(admission.limit(0)).unwrap_or(Semaphore::MAX_PERMITS).clamp(1, Semaphore::MAX_PERMITS);
        let (send, ended) = mpsc::channel(room);
        let feeder = Feeder {
            work: Arc::new(work),
            shared: Arc::clone(&shared),
            workers: Arc::new(Semaphore::new(background.workers.clamp(1, Semaphore::MAX_PERMITS))),
            admitted,
            send,
            cancel: cancel.clone(),
        };
        let feeder = runtime.spawn(feeder.run(used, places));
        let guard = cancel.clone().drop_guard();
        Self { background, shared, limit, ended, finished: Vec::new(), cancel, feeder, _cancels: guard }
    }

    /// New weights are with the sampler; `used` groups were trained on until then.
    pub(crate) fn published(&self, version: u64, used: u64) {
        lock(&self.shared).version = version;
        self.limit.send_replace(self.background.admission.limit(used));
    }

    /// Groups that ended and wait for a step.
    pub(crate) fn waiting(&mut self) -> Result<usize, TrainError> {
        while let Ok(group) = self.ended.try_recv() {
            self.take(group)?;
        }
        Ok(self.finished.len())
    }

    /// The groups that the update of `version` takes, in the order of their places; none after a cancellation. Waits for
    /// as long as it takes: every rollout has a deadline of its own.
    pub(crate) fn next(&mut self, version: u64, runtime: &Handle) -> Result<Option<Vec<PlayedGroup>>, TrainError> {
        loop {
            if self.cancel.is_cancelled() {
                return Ok(None);
            }
            self.waiting()?;
            if let Some(chosen) = self.choose(version) {
                return Ok(Some(chosen));
            }
            let cancelled = self.cancel.clone();
            let next = runtime.block_on(async {
                tokio::select! {
                    biased;
                    () = cancelled.cancelled() => None,
                    group = self.ended.recv() => Some(group),
                }
            });
            match next {
                None => return Ok(None),
                Some(Some(group)) => self.take(group)?,
                Some(None) => {
                    let reason = "the rollouts in the background ended before the run did".to_owned();
                    return Err(TrainError::Sampling { reason });
                }
            }
        }
    }

    fn take(&mut self, group: Ended) -> Result<(), TrainError> {
        let group = group.map_err(|reason| TrainError::Sampling { reason })?;
        lock(&self.shared).running.remove(&group.started.place);
        self.finished.push(group);
        Ok(())
    }

    fn choose(&mut self, version: u64) -> Option<Vec<PlayedGroup>> {
        let running: Vec<Started> =
            lock(&self.shared).running.iter().map(|(&place, &version)| Started { version, place }).collect();
        let finished: Vec<Started> = self.finished.iter().map(|group| group.started).collect();
        let chosen = self.background.admission.choose(version, &finished, &running)?;
        let mut all: Vec<Option<PlayedGroup>> = self.finished.drain(..).map(Some).collect();
        let groups = chosen.into_iter().filter_map(|i| all[i].take()).collect();
        self.finished = all.into_iter().flatten().collect();
        Some(groups)
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
    shared: Arc<Mutex<Shared>>,
    workers: Arc<Semaphore>,
    admitted: watch::Receiver<u64>,
    send: mpsc::Sender<Ended>,
    cancel: CancellationToken,
}

impl Feeder {
    /// Starts groups until there are no more places or the run is over, then waits for those that are played.
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
        let mut trees: Vec<JoinHandle<Tree>> = Vec::new();
        for job in jobs {
            let Ok(root) = Arc::clone(roots).acquire_owned().await else { return false };
            version.get_or_insert_with(|| {
                let mut shared = lock(&self.shared);
                let version = shared.version;
                shared.running.insert(place, version);
                version
            });
            let cancel = self.cancel.clone();
            trees.push(tokio::spawn(async move {
                let tree = play_tree(job.task, job.players, job.options, &cancel).await;
                drop(root);
                tree
            }));
        }
        let started = Started { version: version.unwrap_or_default(), place };
        let (send, cancel) = (self.send.clone(), self.cancel.clone());
        playing.spawn(async move {
            let mut played = Vec::with_capacity(trees.len());
            for tree in trees {
                match tree.await {
                    Ok(tree) => played.push(tree),
                    Err(error) => {
                        // Nobody listens any more once the run is over.
                        let _ = send.send(Err(format!("a rollout's task failed: {error}"))).await;
                        return;
                    }
                }
            }
            drop(worker);
            // What the cancellation cut off is played again when the run is resumed.
            if !cancel.is_cancelled() {
                let seconds = at.elapsed().as_secs_f64();
                let _ = send.send(Ok(PlayedGroup { started, trees: played, seconds })).await;
            }
        });
        true
    }
}
