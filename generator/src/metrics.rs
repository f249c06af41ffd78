//! Numbers of a batch of rollouts, under SkyRL's names.
//!
//! | prefix | what |
//! |---|---|
//! | `generate/` | tokens, turns and times of the roots (children are counted under `tree/`) |
//! | `environment/` | what the roots' environments report, aggregated |
//! | `tree/` | children, depth, sub-calls |
//! | `stop/` | the share of roots that ended for each reason |
//!
//! Roots that failed ([`RolloutStop::is_failure`]) are in `stop/` alone: half a rollout would pull every mean down.

use std::collections::BTreeMap;

use espalier_envs::Metrics;
pub use espalier_trackers::Numbers;

use crate::row::Row;
use crate::statistics::{deviation, mean, quantile};
use crate::trajectory::{RolloutStop, Trajectory, Tree};

/// The metrics of a batch; environment metrics are averaged.
pub fn rollout_metrics(trees: &[Tree]) -> Numbers {
    rollout_metrics_with(trees, |_, episodes| espalier_envs::metrics::mean(episodes))
}

/// The metrics of a batch; `aggregate` summarises the reports of one environment's episodes, given its id.
pub fn rollout_metrics_with(trees: &[Tree], aggregate: impl Fn(&str, &[Metrics]) -> Metrics) -> Numbers {
    let mut numbers = Numbers::new();
    for stop in RolloutStop::ALL {
        let count = trees.iter().filter(|tree| tree.root.stop == stop).count();
        if count > 0 {
            numbers.insert(format!("stop/{stop}"), count as f64 / trees.len() as f64);
        }
    }
    let trees: Vec<&Tree> = trees.iter().filter(|tree| !tree.root.stop.is_failure()).collect();
    let roots: Vec<&Trajectory> = trees.iter().map(|tree| &tree.root).collect();
    if roots.is_empty() {
        return numbers;
    }
    tokens(&roots, &mut numbers);
    times(&roots, &mut numbers);
    let mut by_env: BTreeMap<&str, Vec<Metrics>> = BTreeMap::new();
    for root in &roots {
        let metrics = root.env_metrics.iter().map(|(key, value)| (key.clone(), value.clone())).collect();
        by_env.entry(&root.env_id).or_default().push(metrics);
    }
    let alone = by_env.len() == 1;
    for (env, episodes) in by_env {
        for (key, value) in aggregate(env, &episodes) {
            let Some(value) = value.as_f64().or_else(|| value.as_bool().map(|truth| f64::from(u8::from(truth)))) else {
                continue;
            };
            let name = if alone { format!("environment/{key}") } else { format!("environment/{env}/{key}") };
            numbers.insert(name, value);
        }
    }
    shape(&trees, &mut numbers);
    numbers
}

fn tokens(roots: &[&Trajectory], numbers: &mut Numbers) {
    let lengths: Vec<f64> = roots.iter().map(|root| root.response_tokens() as f64).collect();
    for (name, value) in spread(&lengths) {
        numbers.insert(format!("generate/{name}_num_tokens"), value);
    }
    let of = |keep: fn(f32) -> bool| {
        let kept: Vec<f64> =
            roots.iter().filter(|root| keep(root.reward)).map(|root| root.response_tokens() as f64).collect();
        mean(&kept)
    };
    numbers.insert("generate/avg_tokens_non_zero_rewards".to_owned(), of(|reward| reward > 0.0));
    numbers.insert("generate/avg_tokens_zero_rewards".to_owned(), of(|reward| reward == 0.0));
    let assistant: Vec<f64> = roots.iter().map(|root| root.trained_tokens() as f64).collect();
    for (name, value) in spread(&assistant) {
        numbers.insert(format!("generate/{name}_assistant_tokens"), value);
    }
    let per_turn: Vec<f64> = roots.iter().flat_map(|root| &root.rows).flat_map(mask_runs).collect();
    numbers.insert("generate/tokens_per_turn_mean".to_owned(), mean(&per_turn));
    numbers.insert("generate/tokens_per_turn_std".to_owned(), deviation(&per_turn));
    numbers.insert("generate/tokens_per_turn_max".to_owned(), per_turn.iter().copied().fold(0.0, f64::max));
}

fn spread(values: &[f64]) -> [(&'static str, f64); 4] {
    let least = values.iter().copied().fold(f64::INFINITY, f64::min);
    let most = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    [("min", least), ("max", most), ("avg", mean(values)), ("std", deviation(values))]
}

/// Lengths of the runs of mask 1.
fn mask_runs(row: &Row) -> Vec<f64> {
    let runs = row.mask().chunk_by(|a, b| a == b);
    runs.filter(|run| run.first() == Some(&1)).map(|run| run.len() as f64).collect()
}

fn times(roots: &[&Trajectory], numbers: &mut Numbers) {
    type Time = fn(&Trajectory) -> u64;
    let kinds: [(&str, Time); 4] = [
        ("completion", |root| root.timings.total_us),
        ("llm", |root| root.timings.llm_us),
        ("env", |root| root.timings.env_us),
        ("other", |root| root.timings.total_us.saturating_sub(root.timings.llm_us + root.timings.env_us)),
    ];
    for (kind, of) in kinds {
        let seconds: Vec<f64> = roots.iter().map(|root| of(root) as f64 / 1e6).collect();
        let values = [
            ("mean", mean(&seconds)),
            ("p90", quantile(&seconds, 0.9)),
            ("max", seconds.iter().copied().fold(0.0, f64::max)),
        ];
        for (name, value) in values {
            numbers.insert(format!("generate/trajectory_time_{kind}_{name}"), value);
        }
    }
}

fn shape(trees: &[&Tree], numbers: &mut Numbers) {
    let per_tree = |of: &dyn Fn(&Tree) -> usize| {
        let values: Vec<f64> = trees.iter().map(|tree| of(tree) as f64).collect();
        mean(&values)
    };
    let turns = per_tree(&|tree| tree.root.turns.len());
    let children = per_tree(&|tree| tree.descendants.len());
    let depth = per_tree(&|tree| tree.nodes().map(|node| node.depth as usize).max().unwrap_or_default());
    let calls = per_tree(&|tree| tree.nodes().flat_map(|node| &node.calls).filter(|call| call.kind.is_query()).count());
    let judged =
        per_tree(&|tree| tree.nodes().flat_map(|node| &node.calls).filter(|call| !call.kind.is_query()).count());
    let sampled = per_tree(&|tree| tree.nodes().map(|node| node.usage.sampled_tokens as usize).sum());
    numbers.insert("generate/avg_turns".to_owned(), turns);
    numbers.insert("tree/avg_children".to_owned(), children);
    numbers.insert("tree/avg_depth".to_owned(), depth);
    numbers.insert("tree/avg_sub_calls".to_owned(), calls);
    if judged > 0.0 {
        numbers.insert("tree/avg_judge_calls".to_owned(), judged);
    }
    numbers.insert("tree/avg_sampled_tokens".to_owned(), sampled);
}
