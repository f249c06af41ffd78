//! Credit and weight in rollout trees.
//!
//! A root trajectory may spawn children, and those more. [`TreeCredit`] says what a child is credited with,
//! [`row_weights`] how much its rows weigh in the loss.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

/// What a child trajectory's tokens are credited with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum TreeCredit {
    /// The root's advantage. Groups hold roots only; children's rewards are not read.
    #[default]
    Root,
    /// An advantage from its own reward, in its own group.
    Own,
    /// The root's advantage times `gamma^depth`.
    Discounted {
        /// From 0 to 1.
        gamma: f64,
    },
}

impl TreeCredit {
    /// The share of the root's advantage at a depth; none where children have their own.
    pub fn share(self, depth: u32) -> Option<f64> {
        match self {
            Self::Root => Some(1.0),
            Self::Own => None,
            Self::Discounted { gamma } => Some(gamma.powi(i32::try_from(depth).unwrap_or(i32::MAX))),
        }
    }
}

/// How much a row of a tree weighs in the loss.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RowWeighting {
    /// The weights of a tree's rows sum to 1, so a tree weighs the same however many rows it has: spawning children, or
    /// cutting a trajectory into steps, buys no influence. Rows without trainable tokens take no share.
    #[default]
    ByTree,
    /// Every row weighs 1, so every token weighs the same and large trees weigh more.
    ByToken,
}

/// A row, for its weight.
#[derive(Clone, Copy, Debug)]
pub struct TreeRow<'a> {
    /// The tree it belongs to.
    pub tree: &'a str,
    /// Its trainable tokens.
    pub tokens: usize,
}

/// The weight of each row of a mini-batch, which must hold whole trees.
pub fn row_weights(rows: &[TreeRow<'_>], weighting: RowWeighting) -> Vec<f64> {
    if weighting == RowWeighting::ByToken {
        return vec![1.0; rows.len()];
    }
    // Rows with trainable tokens, and all rows, of each tree.
    let mut counts: HashMap<&str, (usize, usize)> = HashMap::new();
    for row in rows {
        let (live, all) = counts.entry(row.tree).or_default();
        *live += usize::from(row.tokens > 0);
        *all += 1;
    }
    rows.iter()
        .map(|row| match counts[row.tree] {
            // A tree without any trainable token still counts as one tree in the denominators.
            (0, all) => 1.0 / all as f64,
            (_, _) if row.tokens == 0 => 0.0,
            (live, _) => 1.0 / live as f64,
        })
        .collect()
}
