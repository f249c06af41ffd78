//! Plays many roots, a bounded number at once.
//!
//! | item | what it is |
//! |---|---|
//! | [`RolloutJob`] | one root with everything it needs |
//! | [`run`] | plays jobs, streams trees to a [`TreeSink`], reports [`Progress`] |
//! | [`groups`] | `n` samples of each of many tasks |
//!
//! Invariants: trees come back in the order of their jobs, whatever order they end in; a job that fails is one tree
//! with a typed stop reason; after a cancellation what had ended is kept and written, and what had not is not.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use thiserror::Error;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use crate::output::{OutputError, RunWriter};
use crate::seed;
use crate::trajectory::{RolloutStop, TrajectoryId, Tree};
use crate::tree::{Players, TreeOptions, TreeTask, play_tree};

/// One root with everything it needs.
#[derive(Clone)]
pub struct RolloutJob {
    /// What is played.
    pub task: TreeTask,
    /// Who plays.
    pub players: Players,
    /// How.
    pub options: TreeOptions,
}

/// Repeats each job `samples` times in a row, as SkyRL's groups lie: repetition ids from 0, a seed for each.
pub fn groups(jobs: impl IntoIterator<Item = RolloutJob>, samples: u32) -> Vec<RolloutJob> {
    let jobs = jobs.into_iter();
    jobs.flat_map(|job| {
        (0..samples).map(move |repetition_id| {
            let mut job = job.clone();
            job.task.id = TrajectoryId { instance_id: job.task.id.instance_id, repetition_id };
            job.task.seed = seed::nth(job.task.seed, u64::from(repetition_id));
            job
        })
    })
    .collect()
}

/// What happens while jobs are played.
#[derive(Clone, Debug, PartialEq)]
pub enum Progress {
    /// A job began.
    Started {
        /// Its place among the jobs.
        job: usize,
        /// Its id.
        id: TrajectoryId,
    },
    /// A job's tree ended.
    Ended {
        /// Its place among the jobs.
        job: usize,
        /// Its id.
        id: TrajectoryId,
        /// Why it ended.
        stop: RolloutStop,
        /// The root's reward.
        reward: f32,
        /// The root's turns.
        turns: usize,
        /// Its descendants.
        children: usize,
        /// Tokens sampled in the whole tree.
        sampled_tokens: u64,
        /// From start to end.
        took: Duration,
    },
}

/// Takes trees as they end, in that order. Called on a thread of its own, so it may block.
pub trait TreeSink: Send {
    /// Takes one tree.
    fn take(&mut self, tree: &Tree) -> Result<(), OutputError>;
}

impl TreeSink for RunWriter {
    fn take(&mut self, tree: &Tree) -> Result<(), OutputError> {
        self.write(tree)
    }
}

/// Keeps nothing on disk.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoSink;

impl TreeSink for NoSink {
    fn take(&mut self, _tree: &Tree) -> Result<(), OutputError> {
        Ok(())
    }
}

/// How many jobs are played at once, and what hears of it.
#[derive(Clone, Debug)]
pub struct RunOptions {
    /// Roots that are played at once.
    pub in_flight: usize,
    /// Hears of every start and end; a full or closed channel loses events, never time.
    pub progress: Option<mpsc::Sender<Progress>>,
}

impl Default for RunOptions {
    fn default() -> Self {
        Self { in_flight: 64, progress: None }
    }
}

/// What came of a run.
pub struct RunResult<S> {
    /// One entry per job, in the order of the jobs; `None` where a cancellation came first.
    pub trees: Vec<Option<Tree>>,
    /// The sink.
    pub sink: S,
    /// Whether the run was cancelled before all jobs had ended.
    pub cancelled: bool,
}

/// Why a run stopped.
#[derive(Debug, Error)]
pub enum RunError {
    /// The sink refused a tree. The run stopped; what was written before stays.
    #[error(transparent)]
    Output(#[from] OutputError),
    /// The system gave no thread for the sink.
    #[error("no thread for writing trajectories: {0}")]
    Thread(String),
    /// The sink panicked.
    #[error("what takes the trajectories panicked")]
    Sink,
}

/// Plays jobs. Trees go to the sink as they end.
pub async fn run<S: TreeSink + 'static>(
    jobs: Vec<RolloutJob>,
    options: RunOptions,
    sink: S,
    cancel: &CancellationToken,
) -> Result<RunResult<S>, RunError> {
    let total = jobs.len();
    // Stops the roots when the sink fails, without cancelling what the caller may share.
    let stop = cancel.child_token();
    let _cancels = stop.clone().drop_guard();
    let (send, receive) = mpsc::channel::<Arc<Tree>>(64);
    // A thread of its own, not one of the runtime's: it lives as long as the run, and waits most of the time.
    let (wrote, written) = oneshot::channel();
    let writer = std::thread::Builder::new().name("trajectories".to_owned()).spawn({
        let stop = stop.clone();
        move || {
            // Nobody waits for the answer if the run was dropped.
            let _ = wrote.send(drain(sink, receive, &stop));
        }
    });
    writer.map_err(|error| RunError::Thread(error.to_string()))?;

    let in_flight = options.in_flight.max(1);
    let played = futures::stream::iter(jobs.into_iter().enumerate().map(move |(place, job)| {
        let (stop, send, progress) = (stop.clone(), send.clone(), options.progress.clone());
        async move {
            if stop.is_cancelled() {
                return (place, None);
            }
            let id = job.task.id.clone();
            tell(progress.as_ref(), Progress::Started { job: place, id });
            let tree = play_tree(job.task, job.players, job.options, &stop).await;
            // What the cancellation cut off did not end: it is played again when the run is resumed.
            if tree.root.stop == RolloutStop::Cancelled && stop.is_cancelled() {
                return (place, None);
            }
            tell(progress.as_ref(), ended(place, &tree));
            let tree = Arc::new(tree);
            // The writer's end is only closed when it failed, which is reported below.
            let _ = send.send(Arc::clone(&tree)).await;
            (place, Some(tree))
        }
    }))
    .buffer_unordered(in_flight);
    let mut trees: Vec<Option<Arc<Tree>>> = vec![None; total];
    {
        // The stream holds the last sender: the writer ends when this scope does.
        let mut played = std::pin::pin!(played);
        while let Some((place, tree)) = played.next().await {
            trees[place] = tree;
        }
    }
    let sink = written.await.map_err(|_| RunError::Sink)??;
    let trees: Vec<Option<Tree>> = trees
        .into_iter()
        .map(|tree| tree.map(|tree| Arc::try_unwrap(tree).unwrap_or_else(|tree| (*tree).clone())))
        .collect();
    let cancelled = trees.iter().any(Option::is_none);
    Ok(RunResult { trees, sink, cancelled })
}

/// Gives trees to the sink until there are no more, or until it fails.
fn drain<S: TreeSink>(
    mut sink: S,
    mut trees: mpsc::Receiver<Arc<Tree>>,
    stop: &CancellationToken,
) -> Result<S, OutputError> {
    while let Some(tree) = trees.blocking_recv() {
        if let Err(error) = sink.take(&tree) {
            stop.cancel();
            return Err(error);
        }
    }
    Ok(sink)
}

fn tell(progress: Option<&mpsc::Sender<Progress>>, event: Progress) {
    if let Some(progress) = progress {
        // Nobody waits for a slow listener.
        let _ = progress.try_send(event);
    }
}

fn ended(job: usize, tree: &Tree) -> Progress {
    let root = &tree.root;
    Progress::Ended {
        job,
        id: root.id(),
        stop: root.stop,
        reward: root.reward,
        turns: root.turns.len(),
        children: tree.descendants.len(),
        sampled_tokens: tree.nodes().map(|node| node.usage.sampled_tokens).sum(),
        took: Duration::from_micros(root.timings.total_us),
    }
}
