//! Two results side by side.

use serde::{Deserialize, Serialize};

use super::SuiteError;
use super::config::Mode;
use super::report::table;
use super::results::{CellResult, SuiteResult, row_mean};
use crate::seed;
use crate::statistics::{Interval, mean, paired_difference};

/// One task and mode in both results.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    /// The task.
    pub task: String,
    /// The mode.
    pub mode: Mode,
    /// The model of A.
    pub engine_a: String,
    /// The model of B.
    pub engine_b: String,
    /// Rows that both scored.
    pub rows: usize,
    /// A's mean over these rows.
    pub a: f64,
    /// B's mean over these rows.
    pub b: f64,
    /// B - A over these rows, with its 95 % paired-bootstrap interval.
    pub difference: Interval,
}

impl Comparison {
    /// Whether the interval leaves 0 out.
    pub fn is_clear(&self) -> bool {
        self.rows > 1 && (self.difference.low > 0.0 || self.difference.high < 0.0)
    }
}

/// Compares two results cell by cell: same task, same mode, and the same model where both have it; where each has one
/// model only, these two are compared whatever their names.
pub fn compare(a: &SuiteResult, b: &SuiteResult) -> Result<Vec<Comparison>, SuiteError> {
    let single = engines(a).len() == 1 && engines(b).len() == 1;
    let mut comparisons = Vec::new();
    for left in &a.cells {
        let right = b.cells.iter().find(|right| {
            right.task == left.task && right.mode == left.mode && (single || right.engine == left.engine)
        });
        if let Some(comparison) = right.and_then(|right| cells(left, right, a.seed)) {
            comparisons.push(comparison);
        }
    }
    if comparisons.is_empty() { Err(SuiteError::Nothing) } else { Ok(comparisons) }
}

fn engines(result: &SuiteResult) -> Vec<&str> {
    let mut names: Vec<&str> = result.cells.iter().map(|cell| cell.engine.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    names
}

fn cells(left: &CellResult, right: &CellResult, seed: u64) -> Option<Comparison> {
    let pairs: Vec<(f64, f64)> = left
        .rewards
        .iter()
        .filter_map(|(row, rewards)| Some((row_mean(rewards), row_mean(right.rewards.get(row)?))))
        .collect();
    if pairs.is_empty() {
        return None;
    }
    let (a, b): (Vec<f64>, Vec<f64>) = pairs.iter().copied().unzip();
    Some(Comparison {
        task: left.task.clone(),
        mode: left.mode,
        engine_a: left.engine.clone(),
        engine_b: right.engine.clone(),
        rows: pairs.len(),
        a: mean(&a),
        b: mean(&b),
        difference: paired_difference(
            &pairs,
            seed::derive(seed, &format!("compare {} {}", left.task, left.mode.name())),
        ),
    })
}

/// Comparisons as a Markdown table.
pub fn comparison_report(comparisons: &[Comparison]) -> String {
    let head = ["task", "mode", "A", "B", "rows", "score A", "score B", "B - A", "clear"].map(str::to_owned);
    let rows = comparisons.iter().map(|it| {
        vec![
            it.task.clone(),
            it.mode.name().to_owned(),
            it.engine_a.clone(),
            it.engine_b.clone(),
            it.rows.to_string(),
            format!("{:.3}", it.a),
            format!("{:.3}", it.b),
            format!("{:+.3} [{:+.3}, {:+.3}]", it.difference.mean, it.difference.low, it.difference.high),
            if it.is_clear() { "yes" } else { "no" }.to_owned(),
        ]
    });
    table(&head, rows.collect())
}
