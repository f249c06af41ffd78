//! Evaluations: scores of the prompts of `data.val_data`, and what was said, where that is kept.
//!
//! | number | what it is |
//! |---|---|
//! | `eval/{source}/avg_score` | mean score of a source's rollouts; a failed rollout scores 0 |
//! | `eval/{source}/pass_at_{n}` | share of its prompts with a score above 0 among their `n` rollouts |
//! | `eval/{source}/mean_positive_reward` | mean of the scores, negative ones counted as 0 |
//! | `eval/all/...` | the same over everything, and the figures of the rollouts |
//!
//! A source is the row's `data_source`, slashes written as underscores, `unknown` where there is none. Weights do not change
//! while an evaluation is played, in any mode.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{BufWriter, Write as _};
use std::path::Path;

use espalier_envs::EnvRow;
use espalier_generator::Tree;
use espalier_generator::metrics::rollout_metrics;
use espalier_inference::{Message, Role};
use serde_json::{Value, json};

use super::Loop;
use crate::error::TrainError;
use crate::sft::Numbers;

/// A rollout of an evaluation.
struct Played<'a> {
    tree: &'a Tree,
    row: &'a EnvRow,
    source: String,
    score: f64,
}

impl Loop {
    /// Plays the evaluation prompts and says how they went; the trees are with the first process.
    pub(super) fn evaluate(&mut self, step: u64) -> Result<Numbers, TrainError> {
        for callback in &mut self.callbacks {
            callback.on_eval_begin(step);
        }
        let mut trees = Vec::new();
        let numbers = self.tell(|this, sampler| {
            let places: Vec<u64> = (0..this.eval.len()).collect();
            let (played, _) = this.play(sampler, &this.eval, &places, 0, true)?;
            let samples = this.config.generator.eval_n_samples_per_prompt;
            // Trees lie in the order of their rows; a cancellation leaves gaps.
            let rows: Vec<usize> = (0..played.len()).map(|i| i / samples.max(1) as usize).collect();
            let (rows, kept): (Vec<usize>, Vec<Tree>) =
                rows.into_iter().zip(played).filter_map(|(row, tree)| Some((row, tree?))).unzip();
            trees = kept;
            let scored: Vec<Played<'_>> = rows
                .iter()
                .zip(&trees)
                .filter_map(|(&row, tree)| {
                    let row = this.eval.row(row)?;
                    let score = if tree.root.stop.is_failure() { 0.0 } else { f64::from(tree.root.reward) };
                    Some(Played { tree, row, source: source(row), score })
                })
                .collect();
            let mut numbers = scores(&scored, samples);
            numbers
                .extend(rollout_metrics(&trees).into_iter().map(|(name, value)| (format!("eval/all/{name}"), value)));
            if let Some(root) = this.config.dump_folder() {
                dump(&scored, &numbers, &root.join(format!("global_step_{step}_evals")))?;
            }
            Ok(numbers)
        })?;
        for callback in &mut self.callbacks {
            callback.on_eval(step, &numbers, &trees);
        }
        Ok(numbers)
    }
}

/// What a row's source is called in names of numbers and files.
fn source(row: &EnvRow) -> String {
    let name = row.columns.get("data_source").and_then(Value::as_str).filter(|name| !name.is_empty());
    let plain = |c: char| if c.is_alphanumeric() || "-_.+".contains(c) { c } else { '_' };
    match name.unwrap_or("unknown").chars().map(plain).collect::<String>() {
        // Names of files and numbers that mean something else.
        taken if taken == "all" || taken.starts_with('.') => format!("_{taken}"),
        name => name,
    }
}

fn scores(played: &[Played<'_>], samples: u32) -> Numbers {
    let mut numbers = Numbers::new();
    let sources: BTreeSet<&str> = played.iter().map(|one| one.source.as_str()).collect();
    for name in sources.into_iter().map(Some).chain([None]) {
        let own: Vec<&Played<'_>> = played.iter().filter(|one| name.is_none_or(|name| one.source == name)).collect();
        let mut passed: BTreeMap<&str, bool> = BTreeMap::new();
        for one in &own {
            *passed.entry(&one.tree.root.instance_id).or_default() |= one.score > 0.0;
        }
        let mean = |of: &dyn Fn(f64) -> f64| own.iter().map(|one| of(one.score)).sum::<f64>() / own.len().max(1) as f64;
        let passes = passed.values().filter(|passed| **passed).count() as f64 / passed.len().max(1) as f64;
        let name = name.unwrap_or("all");
        numbers.insert(format!("eval/{name}/avg_score"), mean(&|score| score));
        numbers.insert(format!("eval/{name}/pass_at_{samples}"), passes);
        numbers.insert(format!("eval/{name}/mean_positive_reward"), mean(&|score| score.max(0.0)));
    }
    numbers
}

/// Writes every rollout to `{source}.jsonl` in a folder, and the numbers to `aggregated_results.jsonl`, as SkyRL does.
fn dump(played: &[Played<'_>], numbers: &Numbers, folder: &Path) -> Result<(), TrainError> {
    fs::create_dir_all(folder).map_err(TrainError::io("create", folder))?;
    let mut files: BTreeMap<&str, Vec<Value>> = BTreeMap::new();
    for Played { tree, row, source, score } in played {
        let root = &tree.root;
        // The data set's prompt may hold turns of the assistant too.
        let said = |(i, message): (usize, &Message)| i >= row.prompt.len() && message.role == Role::Assistant;
        let begin = root.messages.iter().enumerate().position(said);
        let (prompt, response) = root.messages.split_at(begin.unwrap_or(root.messages.len()));
        files.entry(source).or_default().push(json!({
            "input_prompt": prompt,
            "output_response": response,
            "score": score,
            "stop_reason": root.stop.name(),
            "env_class": root.env_id,
            "env_extras": row.columns,
            "data_source": row.columns.get("data_source"),
            "instance_id": root.instance_id,
            "repetition_id": root.repetition_id,
            "error": root.error,
        }));
    }
    for (source, lines) in files {
        write_lines(&folder.join(format!("{source}.jsonl")), &lines)?;
    }
    write_lines(&folder.join("aggregated_results.jsonl"), &[json!(numbers)])
}

fn write_lines(path: &Path, lines: &[Value]) -> Result<(), TrainError> {
    let mut out = BufWriter::new(File::create(path).map_err(TrainError::io("create", path))?);
    for line in lines {
        writeln!(out, "{line}").map_err(TrainError::io("write", path))?;
    }
    out.flush().map_err(TrainError::io("write", path))
}
