//! The columns that a trainer takes: SkyRL's `GeneratorOutput`, and the tree links beside it.
//!
//! `rollout_expert_indices`, `pixel_values` and `image_grid_thw` of the original are left out: no engine here routes
//! experts or sees images.

use std::collections::{BTreeMap, HashSet};

use espalier_inference::{Fidelity, TokenId};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::metrics;
use crate::row::VersionRun;
use crate::trajectory::{Trajectory, TrajectoryId, Tree};

/// How trajectories become rows of the output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExportRows {
    /// Exactly one row per prompt: what SkyRL calls "not step-wise". Refused where a conversation was rewritten.
    #[default]
    OnePerPrompt,
    /// Every row, with `is_last_step` and tree links.
    Rows,
}

/// How trees become an output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ExportOptions {
    /// How trajectories become rows.
    pub rows: ExportRows,
    /// Children's rows, depth first, before their root's.
    pub train_child_trajectories: bool,
    /// Set all rewards of a rollout to 0 whose last turn did not end by the policy's own choice.
    pub zero_reward_on_non_stop: bool,
    /// Clear the mask of a rollout whose last turn did not end by the policy's own choice.
    pub apply_overlong_filtering: bool,
}

/// Why trees do not make an output.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum ExportError {
    /// Nothing to export.
    #[error("there is nothing to export")]
    Empty,
    /// Children's rows need a layout that has room for them.
    #[error(
        "`train_child_trajectories` needs `rows = \"rows\"`: an output of one row per prompt has no place for children"
    )]
    Children,
    /// More or fewer rows than the layout takes.
    #[error("`{rollout}` has {rows} rows, an output of one row per prompt needs 1; export with `rows = \"rows\"`")]
    Rows {
        /// The rollout.
        rollout: String,
        /// Its rows.
        rows: usize,
    },
    /// Only text is known.
    #[error("`{rollout}` was played by `{model}`, which gives text only: it can be evaluated, not trained on")]
    Text {
        /// The rollout.
        rollout: String,
        /// The model.
        model: String,
    },
    /// Columns of unequal length.
    #[error("`{column}` has {found} entries, expected {expected}")]
    Length {
        /// The column.
        column: &'static str,
        /// What was expected.
        expected: usize,
        /// What came.
        found: usize,
    },
    /// An entry as long as something else than its row.
    #[error("`{column}` of row {row} has {found} entries, the response has {expected} tokens")]
    RowLength {
        /// The column.
        column: &'static str,
        /// The row.
        row: usize,
        /// Tokens of its response.
        expected: usize,
        /// Entries that came.
        found: usize,
    },
    /// Rows of one trajectory that do not lie together, or whose last is not marked.
    #[error("row {row}: {reason}")]
    Order {
        /// The row.
        row: usize,
        /// What is wrong.
        reason: &'static str,
    },
}

/// Where the time went, seconds per row.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TimeSplits {
    /// In the engine.
    pub llm: Vec<f64>,
    /// In the environment.
    pub env: Vec<f64>,
}

/// One batch as columns, one entry per row.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct GeneratorOutput {
    /// Prompts.
    pub prompt_token_ids: Vec<Vec<TokenId>>,
    /// Responses.
    pub response_ids: Vec<Vec<TokenId>>,
    /// Reward of each response token.
    pub rewards: Vec<Vec<f32>>,
    /// 1 on tokens that train.
    pub loss_masks: Vec<Vec<u8>>,
    /// `stop`, `length` or `abort`.
    pub stop_reasons: Vec<String>,
    /// See [`metrics::rollout_metrics`].
    pub rollout_metrics: BTreeMap<String, f64>,
    /// Log-probabilities, absent where one row has none.
    pub rollout_logprobs: Option<Vec<Vec<f32>>>,
    /// Instance and repetition; a child's are its root's.
    pub trajectory_ids: Vec<TrajectoryId>,
    /// Seconds of each rollout.
    pub trajectory_generation_times: Vec<f64>,
    /// Where they went.
    pub trajectory_time_splits: TimeSplits,
    /// The last row of its trajectory id; absent with one row per prompt.
    pub is_last_step: Option<Vec<bool>>,
    /// What the environment reported, on the last row of each rollout.
    pub env_metrics: Vec<serde_json::Map<String, serde_json::Value>>,
    /// The node each row belongs to.
    pub rollout_ids: Vec<String>,
    /// That node's parent.
    pub parent_rollout_ids: Vec<Option<String>>,
    /// That node's depth.
    pub depths: Vec<u32>,
    /// Which policy version sampled which tokens.
    pub versions: Vec<Vec<VersionRun>>,
}

/// Applies the two options for rollouts that were cut off. A root's descendants are judged each by its own end.
pub fn apply_overlong(trees: &mut [Tree], options: ExportOptions) {
    for node in trees.iter_mut().flat_map(Tree::nodes_mut) {
        if node.stop.is_natural() {
            continue;
        }
        if options.zero_reward_on_non_stop {
            node.clear_rewards();
        }
        if options.apply_overlong_filtering {
            node.clear_masks();
        }
    }
}

impl GeneratorOutput {
    /// Exports trees in the order they come. Metrics are those of the trees as played, before the overlong options.
    pub fn from_trees(trees: &[Tree], options: ExportOptions) -> Result<Self, ExportError> {
        if trees.is_empty() {
            return Err(ExportError::Empty);
        }
        if options.train_child_trajectories && options.rows == ExportRows::OnePerPrompt {
            return Err(ExportError::Children);
        }
        let mut output = Self { rollout_metrics: metrics::rollout_metrics(trees), ..Self::default() };
        let mut trees = trees.to_vec();
        apply_overlong(&mut trees, options);
        let mut all_logprobs = Vec::new();
        let mut last_steps = Vec::new();
        for tree in &trees {
            if options.train_child_trajectories {
                for child in &tree.descendants {
                    // A frozen text-only child has nothing to train on; its root does.
                    if child.fidelity == Fidelity::Tokens {
                        output.push(child, &mut all_logprobs);
                    }
                }
            }
            if tree.root.fidelity == Fidelity::Text {
                let (rollout, model) = (tree.root.rollout_id.clone(), tree.root.model.clone());
                return Err(ExportError::Text { rollout, model });
            }
            if options.rows == ExportRows::OnePerPrompt && tree.root.rows.len() > 1 {
                let (rollout, rows) = (tree.root.rollout_id.clone(), tree.root.rows.len());
                return Err(ExportError::Rows { rollout, rows });
            }
            output.push(&tree.root, &mut all_logprobs);
            last_steps.resize(output.response_ids.len(), false);
            if let Some(last) = last_steps.last_mut() {
                *last = true;
            }
        }
        output.rollout_logprobs = all_logprobs.into_iter().collect();
        output.is_last_step = (options.rows == ExportRows::Rows).then_some(last_steps);
        Ok(output)
    }

    fn push(&mut self, node: &Trajectory, all_logprobs: &mut Vec<Option<Vec<f32>>>) {
        let nothing = [crate::row::Row::empty(Vec::new())];
        // A rollout that failed before its first row keeps its place, with nothing in it.
        let rows = if node.rows.is_empty() { &nothing[..] } else { &node.rows[..] };
        for (index, row) in rows.iter().enumerate() {
            let last = index + 1 == rows.len();
            self.prompt_token_ids.push(row.prompt_ids().to_vec());
            self.response_ids.push(row.response_ids().to_vec());
            self.rewards.push(row.rewards().to_vec());
            self.loss_masks.push(row.mask().to_vec());
            self.stop_reasons.push(node.stop.skyrl().to_owned());
            all_logprobs.push(if row.is_empty() { Some(Vec::new()) } else { row.logprobs().map(<[f32]>::to_vec) });
            self.trajectory_ids.push(node.id());
            self.trajectory_generation_times.push(node.timings.total_us as f64 / 1e6);
            self.trajectory_time_splits.llm.push(node.timings.llm_us as f64 / 1e6);
            self.trajectory_time_splits.env.push(node.timings.env_us as f64 / 1e6);
            self.env_metrics.push(if last { node.env_metrics.clone() } else { serde_json::Map::new() });
            self.rollout_ids.push(node.rollout_id.clone());
            self.parent_rollout_ids.push(node.parent_id.clone());
            self.depths.push(node.depth);
            self.versions.push(row.versions().to_vec());
        }
    }

    /// Checks what a trainer relies on; answers warnings.
    pub fn validate(&self) -> Result<Vec<String>, ExportError> {
        let expected = self.response_ids.len();
        if expected == 0 {
            return Err(ExportError::Empty);
        }
        let columns: [(&'static str, usize); 12] = [
            ("prompt_token_ids", self.prompt_token_ids.len()),
            ("rewards", self.rewards.len()),
            ("loss_masks", self.loss_masks.len()),
            ("stop_reasons", self.stop_reasons.len()),
            ("rollout_logprobs", self.rollout_logprobs.as_ref().map_or(expected, Vec::len)),
            ("trajectory_ids", self.trajectory_ids.len()),
            ("trajectory_generation_times", self.trajectory_generation_times.len()),
            ("is_last_step", self.is_last_step.as_ref().map_or(expected, Vec::len)),
            ("env_metrics", self.env_metrics.len()),
            ("rollout_ids", self.rollout_ids.len()),
            ("parent_rollout_ids", self.parent_rollout_ids.len()),
            ("versions", self.versions.len()),
        ];
        for (column, found) in columns {
            if found != expected {
                return Err(ExportError::Length { column, expected, found });
            }
        }
        for (row, response) in self.response_ids.iter().enumerate() {
            let expected = response.len();
            let columns = [
                ("rewards", self.rewards[row].len()),
                ("loss_masks", self.loss_masks[row].len()),
                ("rollout_logprobs", self.rollout_logprobs.as_ref().map_or(expected, |all| all[row].len())),
            ];
            for (column, found) in columns {
                if found != expected {
                    return Err(ExportError::RowLength { column, row, expected, found });
                }
            }
        }
        if let Some(last) = &self.is_last_step {
            let mut seen = HashSet::new();
            for row in 0..expected {
                let begins = row == 0 || last[row - 1];
                if begins && !seen.insert(&self.trajectory_ids[row]) {
                    return Err(ExportError::Order { row, reason: "the rows of its trajectory do not lie together" });
                }
                if !begins && self.trajectory_ids[row] != self.trajectory_ids[row - 1] {
                    return Err(ExportError::Order { row, reason: "the trajectory before it has no last step" });
                }
            }
            if !last[expected - 1] {
                return Err(ExportError::Order { row: expected - 1, reason: "the last row is not a last step" });
            }
        }
        let mut warnings = Vec::new();
        if self.loss_masks.iter().flatten().all(|&mask| mask == 0) {
            warnings.push("every loss mask is 0: there is nothing to train on".to_owned());
        }
        Ok(warnings)
    }
}
