//! Plays a root and whatever it spawns.
//!
//! | item | what it is |
//! |---|---|
//! | [`TreeTask`] | one root to play |
//! | [`TreeOptions`], [`Players`] | limits, the loop's options, who plays what |
//! | [`play_tree`] | plays it; always answers with a whole tree |
//!
//! A node is a task of its own on the runtime; a parent that waits for children holds no thread and no permit, so
//! however many wait at once, children go on. Cancellation runs from the top down through child tokens: when a node
//! ends, or the block that spawned it dies, everything below it ends as `cancelled`.
//!
//! Invariants: a tree is answered once, with every node that was ever spawned in it; a node that did not end in time
//! is answered as `cancelled`, and what it brings later is dropped; ids and seeds follow from the place in the tree.

use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use espalier_envs::{ChildAnswer, Env, EnvError, SubCallError};
use espalier_inference::Message;
use futures::FutureExt;
use serde::{Deserialize, Serialize};
use tokio::sync::{Notify, Semaphore};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::agent_loop::play;
use crate::budget::{Resource, TreeBudget, TreeLimits};
use crate::episode::{Episode, LoopOptions, Played, panic_text};
use crate::player::Player;
use crate::seed;
use crate::services::NodeServices;
use crate::source::EnvSource;
use crate::trajectory::{CallRecord, RolloutStop, Timings, TokenUsage, Trajectory, TrajectoryId, Tree, summed};

/// How long the nodes of an ended tree may take to notice that they are cancelled.
const ENDING: Duration = Duration::from_secs(10);

/// Trees of this process so far.
static TREES: AtomicU64 = AtomicU64::new(0);

/// Who plays what.
#[derive(Clone)]
pub struct Players {
    /// Plays the root.
    pub policy: Player,
    /// Plays children.
    pub children: Service,
    /// Answers `llm_query`.
    pub calls: Service,
    /// Grades, where an environment asks for that. Nothing it says is trained on.
    pub judge: Service,
}

impl Players {
    /// The policy plays everything; nobody judges.
    pub fn policy(policy: Player) -> Self {
        Self { policy, children: Service::Policy, calls: Service::Policy, judge: Service::None }
    }

    /// The same players with a judge.
    #[must_use]
    pub fn with_judge(mut self, judge: Player) -> Self {
        self.judge = Service::Frozen(judge.frozen());
        self
    }
}

/// Who serves something.
#[derive(Clone, Default)]
pub enum Service {
    /// The policy.
    #[default]
    Policy,
    /// Another model, which is not trained.
    Frozen(Player),
    /// Nobody.
    None,
}

impl Service {
    fn player<'a>(&'a self, policy: &'a Player) -> Option<&'a Player> {
        match self {
            Self::Policy => Some(policy),
            Self::Frozen(player) => Some(player),
            Self::None => None,
        }
    }
}

/// How a tree is played.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TreeOptions {
    /// What the tree may spend.
    pub limits: TreeLimits,
    /// How the root is played.
    pub root: LoopOptions,
    /// How children are played; like the root by default.
    pub child: Option<LoopOptions>,
}

/// One root to play.
#[derive(Clone)]
pub struct TreeTask {
    /// Which instance, which repetition.
    pub id: TrajectoryId,
    /// Seeds everything in the tree.
    pub seed: u64,
    /// Makes the environments.
    pub source: Arc<dyn EnvSource>,
    /// The data set's prompt.
    pub prompt: Vec<Message>,
}

/// What a node knows of its place.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) rollout_id: String,
    pub(crate) parent_id: Option<String>,
    pub(crate) depth: u32,
    pub(crate) child_index: Option<u32>,
    pub(crate) seed: u64,
    model: String,
    trained: bool,
    fidelity: espalier_inference::Fidelity,
}

/// One living node.
pub(crate) struct Node {
    pub(crate) place: Place,
    /// Cancels the node and everything below it.
    pub(crate) cancel: CancellationToken,
    /// The turn it plays.
    pub(crate) turn: Arc<AtomicU32>,
    /// Children spawned so far.
    pub(crate) children: AtomicU32,
    /// `llm_query` and judge calls made so far.
    pub(crate) calls_made: AtomicU32,
    /// The `llm_query` and judge calls that ended.
    pub(crate) calls: Mutex<Vec<CallRecord>>,
    /// What they cost.
    pub(crate) call_prompt_tokens: AtomicU64,
    pub(crate) call_cached_tokens: AtomicU64,
    pub(crate) call_sampled_tokens: AtomicU64,
}

/// Nodes that play, and what ended.
#[derive(Default)]
struct Nodes {
    living: BTreeMap<String, Arc<Node>>,
    ended: Vec<Trajectory>,
    /// The tree was answered: whatever comes now is dropped.
    sealed: bool,
}

/// One tree while it is played.
pub(crate) struct RolloutTree {
    id: TrajectoryId,
    source: Arc<dyn EnvSource>,
    players: Players,
    pub(crate) options: TreeOptions,
    pub(crate) budget: Arc<TreeBudget>,
    pub(crate) deadline: Instant,
    pub(crate) permits: Semaphore,
    /// The judge's endpoint refused to be held to a schema.
    pub(crate) plain_judge: AtomicBool,
    /// Tells this tree's conversations from those of every other tree of this process, for engines.
    number: u64,
    nodes: Mutex<Nodes>,
    /// Told when the last living node ended.
    idle: Notify,
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing panics while it holds one of these locks, so a poisoned one is as whole as any other.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Plays a root with everything it spawns. Always answers: what failed is in the nodes' stop reasons.
pub async fn play_tree(task: TreeTask, players: Players, options: TreeOptions, cancel: &CancellationToken) -> Tree {
    let TreeTask { id, seed, source, prompt } = task;
    let tree = Arc::new(RolloutTree {
        budget: TreeBudget::new(&options.limits),
        deadline: Instant::now() + options.limits.wall(),
        plain_judge: AtomicBool::new(false),
        permits: Semaphore::new(options.limits.concurrent_calls.max(1) as usize),
        number: TREES.fetch_add(1, Ordering::Relaxed),
        nodes: Mutex::default(),
        idle: Notify::new(),
        id,
        source,
        players,
        options,
    });
    let root_id = tree.id.to_string();
    let node = tree.register(&tree.players.policy, None, 0, None, root_id.clone(), seed, cancel.child_token());
    let root = std::panic::catch_unwind(AssertUnwindSafe(|| tree.source.root()));
    // The root's REPL counts as well; if not even that fits, the limit is the configuration's own fault.
    let memory = tree.budget.reserve(Resource::Memory, tree.options.limits.repl_mb.saturating_mul(1 << 20));
    match (made(root, tree.source.env_id()), memory) {
        (Ok(env), Ok(memory)) => {
            let player = tree.players.policy.clone();
            let task = Arc::clone(&tree).play_node(Arc::clone(&node), env, prompt, player, tree.options.root.clone());
            // A task of its own: whatever it does to its thread, this future lives on, and dropping this future
            // cancels it.
            let _cancels = node.cancel.clone().drop_guard();
            let ended = tokio::spawn(task).await;
            drop(memory);
            if let Err(error) = ended {
                tree.end(&node, failed(RolloutStop::EngineError, format!("the rollout's task failed: {error}")));
            }
        }
        (Err(error), _) => tree.end(&node, failed(RolloutStop::EnvError, error.to_string())),
        (_, Err(error)) => tree.end(&node, failed(RolloutStop::Budget, error.to_string())),
    }
    node.cancel.cancel();
    if tokio::time::timeout(ENDING, tree.all_ended()).await.is_err() {
        tracing::warn!(root_id, "some nodes of this tree did not end after its cancellation");
    }
    tree.seal()
}

/// What making an environment came to.
fn made<T>(result: std::thread::Result<Result<T, EnvError>>, env_id: &str) -> Result<T, EnvError> {
    result.unwrap_or_else(|panic| {
        let reason = format!("making it panicked: {}", panic_text(&*panic));
        Err(EnvError::Failed { env: env_id.to_owned(), reason })
    })
}

/// What there is of an episode that never came to its end.
fn failed(stop: RolloutStop, error: impl Into<Option<String>>) -> Played {
    Played {
        stop,
        error: error.into(),
        rows: Vec::new(),
        messages: Vec::new(),
        turns: Vec::new(),
        fidelity: espalier_inference::Fidelity::Text,
        answer: None,
        metrics: espalier_envs::Metrics::new(),
        timings: Timings::default(),
        usage: TokenUsage::default(),
    }
}

/// A child that was spawned: its task's answer, and what cancels it.
pub(crate) struct Spawned {
    pub(crate) answer: tokio::sync::oneshot::Receiver<Result<ChildAnswer, SubCallError>>,
    pub(crate) cancel: CancellationToken,
}

impl RolloutTree {
    /// Who answers `llm_query`.
    pub(crate) fn caller(&self) -> Option<&Player> {
        self.players.calls.player(&self.players.policy)
    }

    /// Who judges.
    pub(crate) fn judge(&self) -> Option<&Player> {
        self.players.judge.player(&self.players.policy)
    }

    /// Who plays children.
    pub(crate) fn child_player(&self) -> Option<&Player> {
        self.players.children.player(&self.players.policy)
    }

    /// The name of a node's conversation to engines. The same task may be played by many trees at once, so ids alone
    /// would not do.
    pub(crate) fn session(&self, node: &Node) -> String {
        format!("{}:{}", self.number, node.place.rollout_id)
    }

    #[expect(clippy::too_many_arguments, reason = "a node's place has that many coordinates")]
    fn register(
        &self,
        player: &Player,
        parent_id: Option<String>,
        depth: u32,
        child_index: Option<u32>,
        rollout_id: String,
        seed: u64,
        cancel: CancellationToken,
    ) -> Arc<Node> {
        let node = Arc::new(Node {
            place: Place {
                rollout_id: rollout_id.clone(),
                parent_id,
                depth,
                child_index,
                seed,
                model: player.engine.info().model.clone(),
                trained: player.trained,
                fidelity: player.fidelity(),
            },
            cancel,
            turn: Arc::default(),
            children: AtomicU32::new(0),
            calls_made: AtomicU32::new(0),
            calls: Mutex::default(),
            call_prompt_tokens: AtomicU64::new(0),
            call_cached_tokens: AtomicU64::new(0),
            call_sampled_tokens: AtomicU64::new(0),
        });
        lock(&self.nodes).living.insert(rollout_id, Arc::clone(&node));
        node
    }

    /// Spawns one child of a node, if the budgets allow it.
    pub(crate) fn spawn_child(
        self: &Arc<Self>,
        parent: &Arc<Node>,
        request: espalier_envs::ChildRequest,
    ) -> Result<Spawned, SubCallError> {
        let depth = parent.place.depth + 1;
        let limits = &self.options.limits;
        if depth > limits.depth {
            return Err(SubCallError::Budget { budget: "depth", limit: u64::from(limits.depth) });
        }
        if parent.cancel.is_cancelled() {
            return Err(SubCallError::Cancelled);
        }
        if Instant::now() >= self.deadline {
            return Err(SubCallError::Budget { budget: "time", limit: limits.wall().as_secs() });
        }
        let player = self
            .child_player()
            .ok_or_else(|| SubCallError::Failed("no engine serves children here".to_owned()))?
            .clone();
        let context = request.context.as_ref().map_or(request.prompt.len(), espalier_sandbox::Context::size);
        let bytes = limits.repl_mb.saturating_mul(1 << 20).saturating_add(3 * context as u64);
        let memory = self.budget.reserve(Resource::Memory, bytes)?;
        self.budget.reserve(Resource::Children, 1)?.spend_all();

        let index = parent.children.fetch_add(1, Ordering::AcqRel);
        let rollout_id = format!("{}/{index}", parent.place.rollout_id);
        let seed = seed::derive(parent.place.seed, &format!("child {index}"));
        let parent_id = Some(parent.place.rollout_id.clone());
        let cancel = parent.cancel.child_token();
        let node = self.register(&player, parent_id, depth, Some(index), rollout_id, seed, cancel.clone());
        let (send, answer) = tokio::sync::oneshot::channel();
        let tree = Arc::clone(self);
        tokio::spawn(async move {
            let child = std::panic::catch_unwind(AssertUnwindSafe(|| tree.source.child(&request, depth)));
            let told = match made(child, tree.source.env_id()) {
                Ok((env, prompt)) => {
                    let options = tree.options.child.clone().unwrap_or_else(|| tree.options.root.clone());
                    Arc::clone(&tree).play_node(node, env, prompt, player, options).await
                }
                Err(error) => {
                    tree.end(&node, failed(RolloutStop::EnvError, error.to_string()));
                    Err(SubCallError::Failed(error.to_string()))
                }
            };
            drop(memory);
            // The parent may be gone: then nobody waits for this answer.
            let _ = send.send(told);
        });
        Ok(Spawned { answer, cancel })
    }

    /// Plays one node to its end and enters it; what it tells its parent.
    async fn play_node(
        self: Arc<Self>,
        node: Arc<Node>,
        env: Box<dyn Env>,
        prompt: Vec<Message>,
        player: Player,
        options: LoopOptions,
    ) -> Result<ChildAnswer, SubCallError> {
        let episode = Episode {
            env,
            prompt,
            player,
            options,
            services: Arc::new(NodeServices::new(Arc::clone(&self), Arc::clone(&node))),
            budget: Arc::clone(&self.budget),
            seed: node.place.seed,
            depth: node.place.depth,
            deadline: self.deadline,
            cancel: node.cancel.clone(),
            session: self.session(&node),
            turn: Arc::clone(&node.turn),
        };
        let played = AssertUnwindSafe(play(episode)).catch_unwind().await.unwrap_or_else(|panic| {
            failed(RolloutStop::EngineError, format!("the rollout panicked: {}", panic_text(&*panic)))
        });
        // Nothing below a node outlives it.
        node.cancel.cancel();
        let told = match (played.stop, &played.answer) {
            (RolloutStop::Cancelled, _) => Err(SubCallError::Cancelled),
            (RolloutStop::EnvError | RolloutStop::EngineError, _) => {
                Err(SubCallError::Failed(played.error.clone().unwrap_or_else(|| played.stop.to_string())))
            }
            (RolloutStop::Timeout, None) => {
                Err(SubCallError::Failed(played.error.clone().unwrap_or_else(|| "no answer in time".to_owned())))
            }
            (RolloutStop::Budget, None) => Err(self.budget.spent(Resource::Tokens)),
            (_, answer) => Ok(ChildAnswer { answer: answer.clone() }),
        };
        self.end(&node, played);
        told
    }

    /// Enters what a node came to, unless the tree was answered already.
    fn end(&self, node: &Node, played: Played) {
        let trajectory = self.trajectory(node, played);
        let mut nodes = lock(&self.nodes);
        if nodes.sealed || nodes.living.remove(&node.place.rollout_id).is_none() {
            tracing::debug!(node.place.rollout_id, "a late result was dropped");
            return;
        }
        nodes.ended.push(trajectory);
        if nodes.living.is_empty() {
            self.idle.notify_waiters();
        }
    }

    /// Waits until no node lives.
    async fn all_ended(&self) {
        loop {
            let mut told = std::pin::pin!(self.idle.notified());
            // Listening before looking: an end in between is not missed.
            told.as_mut().enable();
            if lock(&self.nodes).living.is_empty() {
                return;
            }
            told.await;
        }
    }

    /// Answers the tree: nodes that still live count as cancelled.
    fn seal(&self) -> Tree {
        let mut nodes = lock(&self.nodes);
        nodes.sealed = true;
        for (_, node) in std::mem::take(&mut nodes.living) {
            let reason = "it did not end after its tree was cancelled".to_owned();
            let trajectory = self.trajectory(&node, failed(RolloutStop::Cancelled, reason));
            nodes.ended.push(trajectory);
        }
        let ended = std::mem::take(&mut nodes.ended);
        drop(nodes);
        match Tree::assemble(ended) {
            Ok(tree) => tree,
            // Every node was registered under a registered parent and entered once.
            Err(error) => unreachable!("a tree lost a node: {error}"),
        }
    }

    fn trajectory(&self, node: &Node, played: Played) -> Trajectory {
        let mut calls = std::mem::take(&mut *lock(&node.calls));
        calls.sort_by_key(|call| call.index);
        let mut usage = played.usage;
        usage.prompt_tokens += node.call_prompt_tokens.load(Ordering::Acquire);
        usage.cached_tokens += node.call_cached_tokens.load(Ordering::Acquire);
        usage.sampled_tokens += node.call_sampled_tokens.load(Ordering::Acquire);
        let place = &node.place;
        let fidelity = if played.messages.is_empty() { place.fidelity } else { played.fidelity };
        let reward = summed(played.turns.iter().map(|turn| turn.reward));
        Trajectory {
            rollout_id: place.rollout_id.clone(),
            parent_id: place.parent_id.clone(),
            root_id: self.id.to_string(),
            depth: place.depth,
            child_index: place.child_index,
            instance_id: self.id.instance_id.clone(),
            repetition_id: self.id.repetition_id,
            env_id: self.source.env_id().to_owned(),
            model: place.model.clone(),
            trained: place.trained,
            fidelity,
            seed: place.seed,
            stop: played.stop,
            error: played.error,
            reward: if reward.is_finite() { reward } else { 0.0 },
            answer: played.answer.map(|answer| answer.text),
            rows: played.rows,
            messages: played.messages,
            turns: played.turns,
            calls,
            env_metrics: played.metrics.into_iter().collect(),
            timings: played.timings,
            usage,
        }
    }
}
