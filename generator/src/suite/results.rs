//! What came of a suite.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::SuiteError;
use super::config::Mode;
use crate::metrics::Numbers;
use crate::seed;
use crate::statistics::{Interval, bootstrap, mean, pass_at_k};
use crate::trajectory::{RolloutStop, Trajectory, Tree};

/// One task, played by one model in one mode.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CellResult {
    /// The task.
    pub task: String,
    /// The model's name in the suite.
    pub engine: String,
    /// How it was played.
    pub mode: Mode,
    /// Roots that were played.
    pub rollouts: usize,
    /// Of these, how many failed (engine, environment): they are in no score and in no mean.
    pub failed: usize,
    /// Of these, how many did not fit the model's context: they score 0.
    pub does_not_fit: usize,
    /// Mean reward over rows, each row's samples averaged, with its 95 % interval. `None` where nothing could be
    /// scored.
    pub score: Option<Interval>,
    /// pass@k by k.
    pub pass_at_k: BTreeMap<u32, f64>,
    /// Share of code blocks that ran without an exception; `None` where there were none.
    pub valid_blocks: Option<f64>,
    /// Share of rollouts that gave an answer; `None` where the environment does not say.
    pub final_given: Option<f64>,
    /// Mean turns of a root.
    pub turns: f64,
    /// Mean `llm_query` calls of a tree.
    pub sub_calls: f64,
    /// Mean children of a tree.
    pub children: f64,
    /// Mean prompt tokens of a tree, summed over requests.
    pub prompt_tokens: f64,
    /// Mean tokens sampled in a tree.
    pub sampled_tokens: f64,
    /// Mean seconds of a tree.
    pub seconds: f64,
    /// Roots by stop reason.
    pub stops: BTreeMap<String, usize>,
    /// The environment's and the loop's numbers.
    pub metrics: Numbers,
    /// Rewards by row, for comparisons; failed rollouts are left out.
    pub rewards: BTreeMap<String, Vec<f32>>,
}

/// All cells of a suite.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SuiteResult {
    /// The suite's name.
    pub name: String,
    /// Its seed.
    pub seed: u64,
    /// The cells, in the order of the suite: tasks, then models, then modes.
    pub cells: Vec<CellResult>,
}

/// How a cell is summed up.
#[derive(Clone, Debug)]
pub struct Scoring {
    /// Seeds the bootstrap.
    pub seed: u64,
    /// The k of pass@k.
    pub pass_k: Vec<u32>,
    /// A sample passes whose reward is at least this.
    pub pass_reward: f32,
}

/// How far below [`Scoring::pass_reward`] a reward still passes: parts of a reward that 32 bits round may miss it by that.
const ROUNDING: f64 = 1e-6;

impl Scoring {
    /// Whether a sample passes.
    pub fn passes(&self, reward: f32) -> bool {
        let least = f64::from(self.pass_reward);
        f64::from(reward) >= least - ROUNDING * least.abs().max(1.0)
    }
}

/// Whether not even the first prompt fitted.
fn is_too_long(root: &Trajectory) -> bool {
    root.stop == RolloutStop::ContextOverflow && root.turns.is_empty()
}

impl CellResult {
    /// Sums a cell up.
    pub fn new(task: &str, engine: &str, mode: Mode, trees: &[Tree], scoring: &Scoring, metrics: Numbers) -> Self {
        let roots: Vec<&Trajectory> = trees.iter().map(|tree| &tree.root).collect();
        let mut rewards: BTreeMap<String, Vec<f32>> = BTreeMap::new();
        let mut stops: BTreeMap<String, usize> = BTreeMap::new();
        for root in &roots {
            *stops.entry(root.stop.to_string()).or_default() += 1;
            if !root.stop.is_failure() {
                rewards.entry(root.instance_id.clone()).or_default().push(root.reward);
            }
        }
        let per_row: Vec<f64> = rewards.values().map(|row| row_mean(row)).collect();
        let pass_at_k = scoring.pass_k.iter().filter_map(|&k| {
            let chances: Vec<f64> = rewards
                .values()
                .filter_map(|row| {
                    let right = row.iter().filter(|&&reward| scoring.passes(reward)).count();
                    pass_at_k(row.len() as u32, right as u32, k)
                })
                .collect();
            (!chances.is_empty()).then(|| (k, mean(&chances)))
        });
        let number = |root: &Trajectory, key: &str| root.env_metrics.get(key).and_then(serde_json::Value::as_f64);
        // What failed halfway says as little about costs as about the score.
        let whole: Vec<&Tree> = trees.iter().filter(|tree| !tree.root.stop.is_failure()).collect();
        let blocks: f64 = whole.iter().filter_map(|tree| number(&tree.root, "blocks")).sum();
        let valid: f64 = whole.iter().filter_map(|tree| number(&tree.root, "valid_blocks")).sum();
        let given: Vec<f64> = whole.iter().filter_map(|tree| gave_answer(&tree.root)).collect();
        let per_tree = |of: &dyn Fn(&Tree) -> f64| mean(&whole.iter().map(|tree| of(tree)).collect::<Vec<f64>>());
        Self {
            task: task.to_owned(),
            engine: engine.to_owned(),
            mode,
            rollouts: roots.len(),
            failed: trees.len() - whole.len(),
            does_not_fit: roots.iter().filter(|root| is_too_long(root)).count(),
            score: (!per_row.is_empty())
                .then(|| bootstrap(&per_row, seed::derive(scoring.seed, &format!("{task}/{engine}/{}", mode.name())))),
            pass_at_k: pass_at_k.collect(),
            valid_blocks: (blocks > 0.0).then(|| valid / blocks),
            final_given: (!given.is_empty()).then(|| mean(&given)),
            turns: per_tree(&|tree| tree.root.turns.len() as f64),
            sub_calls: per_tree(&|tree| {
                tree.nodes().flat_map(|node| &node.calls).filter(|call| call.kind.is_query()).count() as f64
            }),
            children: per_tree(&|tree| tree.descendants.len() as f64),
            prompt_tokens: per_tree(&|tree| tree.nodes().map(|node| node.usage.prompt_tokens as f64).sum()),
            sampled_tokens: per_tree(&|tree| tree.nodes().map(|node| node.usage.sampled_tokens as f64).sum()),
            seconds: per_tree(&|tree| tree.root.timings.total_us as f64 / 1e6),
            stops,
            metrics,
            rewards,
        }
    }

    /// Whether no row fitted the model's context.
    pub fn never_fits(&self) -> bool {
        self.rollouts > 0 && self.does_not_fit == self.rollouts
    }
}

/// Whether a rollout gave an answer, by whatever its environment reports.
fn gave_answer(root: &Trajectory) -> Option<f64> {
    let said = ["final_value_set", "answered"].iter().find_map(|key| root.env_metrics.get(*key)?.as_bool());
    said.map(|said| f64::from(u8::from(said)))
}

pub(super) fn row_mean(rewards: &[f32]) -> f64 {
    mean(&rewards.iter().map(|&reward| f64::from(reward)).collect::<Vec<f64>>())
}

impl SuiteResult {
    /// The file that a run leaves in its directory.
    pub const FILE: &'static str = "results.json";

    /// Reads a result: its file, or the directory that holds it.
    pub fn from_path(path: impl AsRef<Path>) -> Result<Self, SuiteError> {
        let path = path.as_ref();
        let path = if path.is_dir() { path.join(Self::FILE) } else { path.to_owned() };
        let text = std::fs::read_to_string(&path).map_err(|source| SuiteError::Io {
            path: path.clone(),
            action: "read it",
            source,
        })?;
        serde_json::from_str(&text)
            .map_err(|error| SuiteError::Syntax { path, reason: format!("not a suite's result: {error}") })
    }

    /// Writes the result into a directory, whole or not at all.
    pub fn write(&self, directory: &Path) -> Result<(), SuiteError> {
        let path = directory.join(Self::FILE);
        let text = serde_json::to_string_pretty(self)
            .map_err(|error| SuiteError::Syntax { path: path.clone(), reason: error.to_string() })?;
        write_whole(&path, &text)
    }
}

/// Writes a file through a temporary one beside it.
pub(super) fn write_whole(path: &Path, text: &str) -> Result<(), SuiteError> {
    let failed = |source| SuiteError::Io { path: path.to_owned(), action: "write it", source };
    let temporary = path.with_extension("tmp");
    std::fs::write(&temporary, text).map_err(failed)?;
    std::fs::rename(&temporary, path).map_err(failed)
}
