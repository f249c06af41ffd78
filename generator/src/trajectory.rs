//! What one rollout leaves behind.
//!
//! | item | what it is |
//! |---|---|
//! | [`Trajectory`] | one node of a tree: rows, messages, turns, tree links, why it ended |
//! | [`Tree`] | a root with all its descendants, depth first |
//! | [`RolloutStop`] | why a rollout ended |
//! | [`TrajectoryId`] | which instance and which repetition of it |
//!
//! Invariants: ids follow from instance, repetition and place in the tree, never from a clock or chance; the mask of
//! a rollout that must not train ([`RolloutStop::trains`]) is all 0.

use espalier_inference::{Fidelity, Message, StopReason};
use serde::{Deserialize, Serialize};

use crate::row::Row;

/// The name of the format that [`Trajectory`] is stored in.
pub const SCHEMA: &str = "espalier.trajectory.v1";

/// Which instance of a data set, and which repetition of it. All nodes of a tree share their root's.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct TrajectoryId {
    /// The data set's row.
    pub instance_id: String,
    /// Which sample of it, from 0.
    pub repetition_id: u32,
}

impl std::fmt::Display for TrajectoryId {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "{}_{}", self.instance_id, self.repetition_id)
    }
}

/// Why a rollout ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RolloutStop {
    /// The environment said that the task is over.
    Completed,
    /// The task is over, and a stop string ended the last turn.
    StopString,
    /// The turn limit, the environment's or the loop's.
    MaxTurns,
    /// The last turn was cut at `max_tokens`.
    MaxTokens,
    /// The conversation no longer fits the engine's context or `max_input_tokens`.
    ContextOverflow,
    /// A budget of the tree is spent.
    Budget,
    /// The rollout's deadline passed.
    Timeout,
    /// The environment failed, panicked or gave a reward that is not finite.
    EnvError,
    /// The engine failed.
    EngineError,
    /// The rollout, or the parent that waited for it, was cancelled.
    Cancelled,
}

impl RolloutStop {
    /// All of them, in the order of the enumeration.
    pub const ALL: [Self; 10] = [
        Self::Completed,
        Self::StopString,
        Self::MaxTurns,
        Self::MaxTokens,
        Self::ContextOverflow,
        Self::Budget,
        Self::Timeout,
        Self::EnvError,
        Self::EngineError,
        Self::Cancelled,
    ];

    /// The name it is stored under.
    pub fn name(self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::StopString => "stop_string",
            Self::MaxTurns => "max_turns",
            Self::MaxTokens => "max_tokens",
            Self::ContextOverflow => "context_overflow",
            Self::Budget => "budget",
            Self::Timeout => "timeout",
            Self::EnvError => "env_error",
            Self::EngineError => "engine_error",
            Self::Cancelled => "cancelled",
        }
    }

    /// The stop reason of a stored name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|stop| stop.name() == name)
    }

    /// Whether the rollout failed, which says nothing about the policy: it is in no score, and a resumed run plays it
    /// again.
    pub fn is_failure(self) -> bool {
        matches!(self, Self::EnvError | Self::EngineError | Self::Cancelled)
    }

    /// Whether the rollout ended in a way that says something about the policy. The others' masks are cleared.
    pub fn trains(self) -> bool {
        !matches!(self, Self::Timeout | Self::EnvError | Self::EngineError | Self::Cancelled)
    }

    /// Whether the last turn ended by the policy's own choice: what SkyRL calls `"stop"`.
    pub fn is_natural(self) -> bool {
        matches!(self, Self::Completed | Self::StopString | Self::MaxTurns)
    }

    /// SkyRL's stop reason: `stop`, `length`, or `abort` where something failed.
    pub fn skyrl(self) -> &'static str {
        match self {
            Self::Completed | Self::StopString | Self::MaxTurns => "stop",
            Self::MaxTokens | Self::ContextOverflow | Self::Budget => "length",
            Self::Timeout | Self::EnvError | Self::EngineError | Self::Cancelled => "abort",
        }
    }
}

impl std::fmt::Display for RolloutStop {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.pad(self.name())
    }
}

/// One assistant turn.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Turn {
    /// Index into [`Trajectory::rows`]; `None` where only text is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub row: Option<u32>,
    /// First sampled token in that row's response.
    pub start: u32,
    /// One past the last sampled token.
    pub end: u32,
    /// Index into [`Trajectory::messages`] of the assistant's message.
    pub message: u32,
    /// Why the generation ended.
    pub stop: StopReason,
    /// The environment's reward for it.
    pub reward: f32,
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// Of these, how many came from a cache.
    pub cached_tokens: u32,
    /// Tokens sampled.
    pub sampled_tokens: u32,
    /// Time the engine took, microseconds.
    pub llm_us: u64,
    /// Time the environment took, microseconds.
    pub env_us: u64,
    /// What the environment recorded; stored as JSON text, because its types may differ from turn to turn.
    #[serde(with = "json_text")]
    pub metadata: serde_json::Map<String, serde_json::Value>,
}

/// What a call was for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CallKind {
    /// `llm_query`.
    #[default]
    Query,
    /// The environment asked the judge.
    Judge,
}

impl CallKind {
    /// Whether the policy did not ask.
    pub fn is_query(&self) -> bool {
        *self == Self::Query
    }
}

/// One `llm_query`, or one question to the judge: never trained on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CallRecord {
    /// The call's number within its rollout, from 0.
    pub index: u32,
    /// What it was for.
    #[serde(default, skip_serializing_if = "CallKind::is_query")]
    pub kind: CallKind,
    /// During which turn it was made.
    pub turn: u32,
    /// The model that answered.
    pub model: String,
    /// What was asked; of a conversation with the judge its messages, one after the other.
    pub prompt: String,
    /// What it answered; absent where it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub response: Option<String>,
    /// Why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// Tokens sampled.
    pub sampled_tokens: u32,
    /// Time it took, microseconds.
    pub us: u64,
}

/// Where the time of a rollout went, microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Timings {
    /// In the engine, for this rollout's own turns.
    pub llm_us: u64,
    /// In the environment, sub-calls and children included.
    pub env_us: u64,
    /// From start to end.
    pub total_us: u64,
}

/// What a rollout cost, its `llm_query` calls included, its children and its judge not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenUsage {
    /// Prompt tokens, summed over requests.
    pub prompt_tokens: u64,
    /// Of these, how many came from a cache.
    pub cached_tokens: u64,
    /// Tokens sampled.
    pub sampled_tokens: u64,
}

/// One node of a rollout tree.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Trajectory {
    /// Names this node: `{instance}_{repetition}` for a root, then `/{child index}` per level.
    pub rollout_id: String,
    /// The node that spawned it.
    #[serde(rename = "_rlm_parent_rid", default, skip_serializing_if = "Option::is_none")]
    pub parent_id: Option<String>,
    /// The root of its tree.
    pub root_id: String,
    /// 0 for a root.
    pub depth: u32,
    /// How many siblings were spawned before it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub child_index: Option<u32>,
    /// The data set's row, the root's.
    pub instance_id: String,
    /// Which sample of it, the root's.
    pub repetition_id: u32,
    /// The environment.
    pub env_id: String,
    /// The model that played it.
    pub model: String,
    /// Whether that is the policy being trained.
    pub trained: bool,
    /// How exactly tokens are known.
    pub fidelity: Fidelity,
    /// Seeds the rollout.
    pub seed: u64,
    /// Why it ended.
    pub stop: RolloutStop,
    /// What went wrong, in words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Sum of the turns' rewards.
    pub reward: f32,
    /// What it answered, where the environment has such a thing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer: Option<String>,
    /// Training rows; none where only text is known.
    pub rows: Vec<Row>,
    /// The conversation as text.
    pub messages: Vec<Message>,
    /// The assistant's turns.
    pub turns: Vec<Turn>,
    /// The `llm_query` calls it made, and what its environment asked the judge.
    pub calls: Vec<CallRecord>,
    /// What the environment reported; stored as JSON text, because its types may differ between environments.
    #[serde(with = "json_text")]
    pub env_metrics: serde_json::Map<String, serde_json::Value>,
    /// Where the time went.
    pub timings: Timings,
    /// What it cost.
    pub usage: TokenUsage,
}

/// Largest count of tokens of one node that is believed: sums over a tree cannot overflow.
const MOST_TOKENS: u64 = 1 << 40;

/// Longest time of one node that is believed, microseconds: nearly nine years.
const LONGEST_US: u64 = 1 << 48;

impl Trajectory {
    /// Refuses counts that nothing can have counted; what is read from a file may say anything.
    pub(crate) fn check(&self) -> Result<(), String> {
        let counts = [
            ("usage.prompt_tokens", self.usage.prompt_tokens, MOST_TOKENS),
            ("usage.cached_tokens", self.usage.cached_tokens, MOST_TOKENS),
            ("usage.sampled_tokens", self.usage.sampled_tokens, MOST_TOKENS),
            ("timings.llm_us", self.timings.llm_us, LONGEST_US),
            ("timings.env_us", self.timings.env_us, LONGEST_US),
            ("timings.total_us", self.timings.total_us, LONGEST_US),
        ];
        match counts.into_iter().find(|(_, count, most)| count > most) {
            Some((name, count, most)) => Err(format!("`{name}`: expected at most {most}, got {count}")),
            None => Ok(()),
        }
    }

    /// Instance and repetition.
    pub fn id(&self) -> TrajectoryId {
        TrajectoryId { instance_id: self.instance_id.clone(), repetition_id: self.repetition_id }
    }

    /// Tokens of all responses.
    pub fn response_tokens(&self) -> usize {
        self.rows.iter().map(Row::len).sum()
    }

    /// Tokens whose mask is set.
    pub fn trained_tokens(&self) -> usize {
        self.rows.iter().map(Row::trained_tokens).sum()
    }

    /// Clears the mask of every row.
    pub fn clear_masks(&mut self) {
        self.rows.iter_mut().for_each(Row::clear_mask);
    }

    /// Sets every reward to 0.
    pub fn clear_rewards(&mut self) {
        self.rows.iter_mut().for_each(Row::clear_rewards);
        self.turns.iter_mut().for_each(|turn| turn.reward = 0.0);
        self.reward = 0.0;
    }

    /// Replaces the rewards by new ones, one per turn, each at its turn's last sampled token.
    pub fn set_rewards(&mut self, rewards: &[f32]) -> Result<(), RewardError> {
        if rewards.len() != self.turns.len() {
            return Err(RewardError::Count { turns: self.turns.len(), found: rewards.len() });
        }
        if let Some(turn) = rewards.iter().position(|reward| !reward.is_finite()) {
            return Err(RewardError::NotFinite { turn, value: rewards[turn] });
        }
        let sum = summed(rewards.iter().copied());
        if !sum.is_finite() {
            return Err(RewardError::Sum);
        }
        self.clear_rewards();
        self.reward = sum;
        for (turn, &reward) in self.turns.iter_mut().zip(rewards) {
            turn.reward = reward;
            let row = turn.row.and_then(|row| self.rows.get_mut(row as usize));
            if let (Some(row), true) = (row, turn.end > turn.start) {
                row.add_reward(turn.end as usize - 1, reward);
            }
        }
        Ok(())
    }
}

/// The sum of turns' rewards, rounded once: 0.1 three times and 0.7 are 1, whatever the order.
pub(crate) fn summed(rewards: impl Iterator<Item = f32>) -> f32 {
    // An empty sum is -0.
    (rewards.map(f64::from).sum::<f64>() + 0.0) as f32
}

/// Why new rewards do not fit a trajectory.
#[derive(Clone, Debug, thiserror::Error, PartialEq)]
pub enum RewardError {
    /// Not one reward per turn.
    #[error("expected one reward for each of {turns} turns, got {found}")]
    Count {
        /// The trajectory's turns.
        turns: usize,
        /// What came.
        found: usize,
    },
    /// Not a finite number.
    #[error("the reward of turn {turn} is {value}, expected a finite number")]
    NotFinite {
        /// Which turn.
        turn: usize,
        /// What came.
        value: f32,
    },
    /// The sum overflows.
    #[error("the sum of the rewards is not a finite number")]
    Sum,
}

/// A root and all its descendants.
#[derive(Clone, Debug, PartialEq)]
pub struct Tree {
    /// The root.
    pub root: Trajectory,
    /// Its descendants, depth first, siblings by child index.
    pub descendants: Vec<Trajectory>,
}

impl Tree {
    /// The root, then its descendants.
    pub fn nodes(&self) -> impl Iterator<Item = &Trajectory> {
        std::iter::once(&self.root).chain(&self.descendants)
    }

    /// The root, then its descendants.
    pub fn nodes_mut(&mut self) -> impl Iterator<Item = &mut Trajectory> {
        std::iter::once(&mut self.root).chain(&mut self.descendants)
    }

    /// The children of a node, by child index.
    pub fn children<'a>(&'a self, rollout_id: &'a str) -> impl Iterator<Item = &'a Trajectory> {
        self.descendants.iter().filter(move |node| node.parent_id.as_deref() == Some(rollout_id))
    }

    /// Puts a tree together from its nodes, in whatever order they come.
    pub fn assemble(nodes: Vec<Trajectory>) -> Result<Self, TreeError> {
        let mut roots: Vec<Trajectory> = Vec::new();
        let mut by_parent: std::collections::HashMap<String, Vec<Trajectory>> = std::collections::HashMap::new();
        for node in nodes {
            match node.parent_id.clone() {
                None => roots.push(node),
                Some(parent) => by_parent.entry(parent).or_default().push(node),
            }
        }
        if roots.len() != 1 {
            return Err(TreeError::Roots(roots.len()));
        }
        let root = roots.remove(0);
        for siblings in by_parent.values_mut() {
            // Popped from the back below: the last child lies lowest.
            siblings.sort_by_key(|node| std::cmp::Reverse(node.child_index));
        }
        let mut pending = by_parent.remove(&root.rollout_id).unwrap_or_default();
        let mut descendants = Vec::new();
        while let Some(node) = pending.pop() {
            if let Some(children) = by_parent.remove(&node.rollout_id) {
                pending.extend(children);
            }
            descendants.push(node);
        }
        match by_parent.into_keys().min() {
            Some(parent) => Err(TreeError::Orphan { root: root.rollout_id, parent }),
            None => Ok(Self { root, descendants }),
        }
    }
}

/// Why nodes do not make a tree.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum TreeError {
    /// Not exactly one root.
    #[error("expected one root, got {0}")]
    Roots(usize),
    /// A node whose parent is missing.
    #[error("tree `{root}`: the parent `{parent}` of a node is missing")]
    Orphan {
        /// The root.
        root: String,
        /// The missing parent.
        parent: String,
    },
}

/// A JSON object stored as text.
mod json_text {
    use serde::{Deserialize, Deserializer, Serializer, de::Error as _};
    use serde_json::{Map, Value};

    pub(super) fn serialize<S: Serializer>(map: &Map<String, Value>, out: S) -> Result<S::Ok, S::Error> {
        out.collect_str(&Value::Object(map.clone()))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(input: D) -> Result<Map<String, Value>, D::Error> {
        let text = String::deserialize(input)?;
        serde_json::from_str(&text)
            .map_err(|error| D::Error::custom(format!("expected a JSON object as text, got {text:?}: {error}")))
    }
}
