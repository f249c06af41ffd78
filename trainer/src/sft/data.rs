//! Data sets for supervised fine-tuning: read once, kept as tokens, mixed by weight.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use espalier_envs::params::hint;
use espalier_generator::output::TrajectoryReader;
use espalier_generator::{Trajectory, seed};
use minijinja::{Environment, UndefinedBehavior};
use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tch::{Kind, Tensor};

use super::examples::{ChatEncoder, Columns, Example, Found, read_record};
use crate::error::TrainError;
use crate::files::{SafetensorsReader, SafetensorsWriter};

/// One source of examples.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DataSpec {
    /// A file (`.jsonl`, `.json`, `.csv`, `.parquet`) or the folder of a run.
    pub path: PathBuf,
    /// What it is called in metrics; the file's name otherwise.
    #[serde(default)]
    pub name: Option<String>,
    /// Share of the mixture, relative to the others'.
    #[serde(default = "one")]
    pub weight: f64,
    /// Of a run: which trajectories, for instance `reward > 0 and depth == 0`. Known are `reward`, `depth`, `stop`, `env`,
    /// `model`, `turns`, `tokens`, `answer`, `instance_id`, `repetition_id` and `metrics`.
    #[serde(default)]
    pub filter: Option<String>,
}

fn one() -> f64 {
    1.0
}

impl DataSpec {
    /// A source with the common settings.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), name: None, weight: 1.0, filter: None }
    }

    /// What it is called in metrics.
    pub fn name(&self) -> String {
        let stem = || self.path.file_stem().map_or_else(|| "data".to_owned(), |s| s.to_string_lossy().into_owned());
        self.name.clone().unwrap_or_else(stem)
    }
}

/// What happens to rows longer than `max_length`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Overlong {
    /// They are left out.
    #[default]
    Drop,
    /// They are cut at the end.
    Truncate,
}

/// How sources are read.
#[derive(Clone)]
pub struct ReadOptions {
    /// Lays conversations out.
    pub encoder: ChatEncoder,
    /// Which columns.
    pub columns: Columns,
    /// Longest row, tokens.
    pub max_length: usize,
    /// What happens to longer ones.
    pub overlong: Overlong,
    /// Where tokenised sets are kept; nowhere if absent.
    pub cache: Option<PathBuf>,
    /// Tokens that the model knows; a row with another is refused. Not checked if absent.
    pub vocab: Option<u64>,
    /// Identifies the tokenizer and template, for the cache.
    pub vocabulary: String,
}

/// A set of examples.
#[derive(Clone, Debug, Default)]
pub struct DataSet {
    /// What it is called.
    pub name: String,
    /// Share of the mixture.
    pub weight: f64,
    /// Its rows.
    pub examples: Vec<Example>,
    /// Rows that were left out or cut because they are too long.
    pub overlong: usize,
    /// Rows in which nothing is to be learned.
    pub empty: usize,
    /// Whether it came from the cache.
    pub cached: bool,
}

/// Reads a source, from the cache where that holds the same source read the same way.
pub fn load(spec: &DataSpec, options: &ReadOptions) -> Result<DataSet, TrainError> {
    if !(spec.weight.is_finite() && spec.weight > 0.0) {
        return Err(TrainError::Config {
            key: "train_datasets.weight".to_owned(),
            expected: "a positive number".to_owned(),
            found: spec.weight.to_string(),
        });
    }
    let mut set = DataSet { name: spec.name(), weight: spec.weight, ..DataSet::default() };
    let cached = options.cache.as_ref().map(|cache| Ok::<_, TrainError>((cache, key(spec, options)?))).transpose()?;
    if let Some((cache, key)) = &cached
        && let Some(found) = read_cache(&cache.join(format!("{key}.safetensors")))
    {
        return Ok(DataSet { name: set.name, weight: set.weight, cached: true, ..found });
    }
    let (rows, filtered) = if spec.path.is_dir() { from_run(spec, options)? } else { (from_file(spec, options)?, 0) };
    for mut row in rows {
        if row.tokens.len() > options.max_length {
            set.overlong += 1;
            if options.overlong == Overlong::Drop {
                continue;
            }
            row.tokens.truncate(options.max_length);
            row.weights.truncate(options.max_length);
        }
        if row.first_learned().is_none() {
            set.empty += 1;
            continue;
        }
        set.examples.push(row);
    }
    if set.examples.is_empty() {
        let left_out = spec.filter.as_ref().map(|filter| format!("{filtered} trajectories left out by `{filter}`, "));
        return Err(TrainError::File {
            path: spec.path.clone(),
            reason: format!(
                "expected rows to learn from, found none ({}{} too long for max_length = {}, {} with nothing to learn)",
                left_out.unwrap_or_default(),
                set.overlong,
                options.max_length,
                set.empty
            ),
        });
    }
    if let Some((cache, key)) = cached {
        write_cache(cache, &key, &set)?;
    }
    Ok(set)
}

fn from_file(spec: &DataSpec, options: &ReadOptions) -> Result<Vec<Example>, TrainError> {
    let wrong = |reason: String| TrainError::File { path: spec.path.clone(), reason };
    if spec.filter.is_some() {
        return Err(wrong("`filter` is for the folders of runs".to_owned()));
    }
    let records = espalier_datasets::records(&spec.path).map_err(|e| wrong(e.to_string()))?;
    let mut rows = Vec::new();
    for record in records {
        let (place, record) = record.map_err(|e| wrong(e.to_string()))?;
        let at = |reason: String| wrong(format!("{place}: {reason}"));
        match read_record(&record, &options.columns).map_err(at)? {
            Found::Tokens(row) => {
                known(&row, options.vocab).map_err(at)?;
                rows.push(row);
            }
            Found::Chat(messages, tools) => rows.extend(options.encoder.encode(&messages, &tools).map_err(at)?),
        }
    }
    Ok(rows)
}

/// Refuses tokens that the model does not know.
fn known(row: &Example, vocab: Option<u64>) -> Result<(), String> {
    let Some(vocab) = vocab else { return Ok(()) };
    match row.tokens.iter().position(|token| u64::from(*token) >= vocab) {
        None => Ok(()),
        Some(at) => Err(format!("token {at} is {}, the model knows tokens below {vocab}", row.tokens[at])),
    }
}

/// What a filter may speak of.
const FACTS: [&str; 11] =
    ["reward", "depth", "stop", "env", "model", "turns", "tokens", "answer", "instance_id", "repetition_id", "metrics"];

/// Rows of a run's trajectories: what the model said is learned, whoever played. How many trajectories the filter left out.
fn from_run(spec: &DataSpec, options: &ReadOptions) -> Result<(Vec<Example>, usize), TrainError> {
    let wrong = |reason: String| TrainError::File { path: spec.path.clone(), reason };
    let mut environment = Environment::new();
    environment.set_undefined_behavior(UndefinedBehavior::Strict);
    let expression = spec.filter.as_deref().unwrap_or("true");
    let no_filter = |reason: String| TrainError::Settings(format!("filter `{expression}`: {reason}"));
    let filter = environment.compile_expression(expression).map_err(|e| no_filter(e.to_string()))?;
    let mut names: Vec<String> = filter.undeclared_variables(false).into_iter().collect();
    names.sort();
    if let Some(name) = names.iter().find(|name| !FACTS.contains(&name.as_str())) {
        return Err(no_filter(format!("`{name}` is no property of a trajectory; {}", hint(name, FACTS.into_iter()))));
    }
    let (mut rows, mut filtered) = (Vec::new(), 0);
    for node in TrajectoryReader::open(&spec.path).map_err(|e| wrong(e.to_string()))? {
        let node = node.map_err(|e| wrong(e.to_string()))?;
        if node.stop.is_failure() {
            continue;
        }
        let kept = filter.eval(facts(&node)).map_err(|e| no_filter(format!("of `{}`: {e}", node.rollout_id)))?;
        if kept.is_undefined() {
            return Err(no_filter(format!("`{}` has no such figure", node.rollout_id)));
        }
        if !kept.is_true() {
            filtered += 1;
            continue;
        }
        if node.rows.is_empty() {
            return Err(wrong(format!(
                "`{}` has no tokens: its engine gave text only; play the run with an engine that gives tokens",
                node.rollout_id
            )));
        }
        let first = rows.len();
        rows.extend(node.rows.iter().map(|row| {
            let mut example = Example::default();
            example.tokens.extend_from_slice(row.prompt_ids());
            example.tokens.extend_from_slice(row.response_ids());
            example.weights.resize(example.tokens.len(), 0.0);
            example
        }));
        for turn in &node.turns {
            let Some(index) = turn.row.map(|row| row as usize) else { continue };
            let (Some(row), Some(example)) = (node.rows.get(index), rows.get_mut(first + index)) else { continue };
            let from = row.prompt_ids().len();
            let said = from + turn.start as usize..from + turn.end as usize;
            example.weights.get_mut(said).into_iter().flatten().for_each(|weight| *weight = 1.0);
        }
        for example in &rows[first..] {
            known(example, options.vocab).map_err(|reason| wrong(format!("`{}`: {reason}", node.rollout_id)))?;
        }
    }
    Ok((rows, filtered))
}

fn facts(node: &Trajectory) -> minijinja::Value {
    minijinja::context! {
        reward => node.reward,
        depth => node.depth,
        stop => node.stop.name(),
        env => node.env_id,
        model => node.model,
        turns => node.turns.len(),
        tokens => node.response_tokens(),
        answer => node.answer,
        instance_id => node.instance_id,
        repetition_id => node.repetition_id,
        metrics => minijinja::Value::from_serialize(&node.env_metrics),
    }
}

/// Hash of everything that decides a source's tokens.
fn key(spec: &DataSpec, options: &ReadOptions) -> Result<String, TrainError> {
    let mut hash = Sha256::new();
    let settings = serde_json::json!({
        "version": 1,
        "vocabulary": options.vocabulary,
        "train_on": options.encoder.train_on,
        "kwargs": options.encoder.kwargs,
        "columns": options.columns,
        "max_length": options.max_length,
        "overlong": options.overlong,
        "filter": spec.filter,
    });
    hash.update(settings.to_string());
    let mut files = vec![spec.path.clone()];
    if spec.path.is_dir() {
        let entries = fs::read_dir(&spec.path).map_err(TrainError::io("read", &spec.path))?;
        files = entries.flatten().map(|entry| entry.path()).filter(|path| path.is_file()).collect();
        files.sort();
    }
    for path in files {
        let mut file = fs::File::open(&path).map_err(TrainError::io("read", &path))?;
        std::io::copy(&mut file, &mut hash).map_err(TrainError::io("read", &path))?;
    }
    Ok(hash.finalize().iter().take(16).map(|b| format!("{b:02x}")).collect())
}

/// A cache that cannot be read is no cache.
fn read_cache(path: &Path) -> Option<DataSet> {
    if !path.exists() {
        return None;
    }
    let file = SafetensorsReader::open(path).ok()?;
    let numbers = |name: &str, count: i64| Vec::<i64>::try_from(file.get(name, &[count]).ok()?).ok();
    let counts = numbers("counts", 4)?;
    let (rows, total) = (counts[0], counts[1]);
    let (lengths, tokens) = (numbers("lengths", rows)?, numbers("tokens", total)?);
    let weights: Vec<f32> = numbers("weights", total)?.into_iter().map(|bits| f32::from_bits(bits as u32)).collect();
    let mut at = 0;
    let mut set = DataSet { overlong: counts[2] as usize, empty: counts[3] as usize, ..DataSet::default() };
    for length in lengths {
        let end = at + usize::try_from(length).ok()?;
        set.examples.push(Example {
            tokens: tokens.get(at..end)?.iter().map(|t| u32::try_from(*t).ok()).collect::<Option<_>>()?,
            weights: weights.get(at..end)?.to_vec(),
        });
        at = end;
    }
    Some(set)
}

fn write_cache(cache: &Path, key: &str, set: &DataSet) -> Result<(), TrainError> {
    fs::create_dir_all(cache).map_err(TrainError::io("create", cache))?;
    let lengths: Vec<i64> = set.examples.iter().map(|e| e.tokens.len() as i64).collect();
    let tokens: Vec<i64> = set.examples.iter().flat_map(|e| e.tokens.iter().map(|t| i64::from(*t))).collect();
    // Weights are few values in practice and must come back exactly; 64 bits hold any 32-bit float.
    let weights: Vec<i64> =
        set.examples.iter().flat_map(|e| e.weights.iter().map(|w| i64::from(w.to_bits()))).collect();
    let counts = [lengths.len() as i64, tokens.len() as i64, set.overlong as i64, set.empty as i64];
    let columns: BTreeMap<&str, &[i64]> =
        [("counts", &counts[..]), ("lengths", &lengths), ("tokens", &tokens), ("weights", &weights)].into();
    let names: Vec<_> = columns.iter().map(|(name, all)| ((*name).to_owned(), vec![all.len() as i64])).collect();
    let partial = cache.join(format!("{key}.{}.partial", std::process::id()));
    let mut out = SafetensorsWriter::create(&partial, &names, Kind::Int64, None)?;
    for (name, values) in columns {
        out.put(name, &Tensor::f_from_slice(values)?)?;
    }
    out.finish()?;
    let path = cache.join(format!("{key}.safetensors"));
    fs::rename(&partial, &path).map_err(TrainError::io("rename", &partial))
}

/// How examples follow each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Sampler {
    /// Shuffled anew in every epoch.
    #[default]
    Random,
    /// As they stand.
    Sequential,
}

/// Several sets as one stream. The stream is a function of the seed and the position, so a position is all that a
/// checkpoint needs.
#[derive(Clone, Debug)]
pub struct Mixture {
    sizes: Vec<usize>,
    weights: Vec<f64>,
    sampler: Sampler,
    seed: u64,
    epoch: Option<(u64, Vec<(usize, usize)>)>,
}

impl Mixture {
    /// A stream over sets.
    pub fn new(sets: &[DataSet], sampler: Sampler, seed: u64) -> Self {
        Self {
            sizes: sets.iter().map(|s| s.examples.len()).collect(),
            weights: sets.iter().map(|s| s.weight).collect(),
            sampler,
            seed,
            epoch: None,
        }
    }

    /// Examples of one epoch: as many as all sets have.
    pub fn epoch_len(&self) -> u64 {
        self.sizes.iter().sum::<usize>() as u64
    }

    /// Set and index of the example at a position, counted from 0 over all epochs.
    pub fn at(&mut self, position: u64) -> (usize, usize) {
        let len = self.epoch_len().max(1);
        let epoch = position / len;
        if self.epoch.as_ref().is_none_or(|(number, _)| *number != epoch) {
            self.epoch = Some((epoch, self.order(epoch)));
        }
        let order = self.epoch.as_ref().map_or(&[][..], |(_, order)| order);
        order.get((position % len) as usize).copied().unwrap_or_default()
    }

    fn order(&self, epoch: u64) -> Vec<(usize, usize)> {
        let total = self.epoch_len() as usize;
        let shuffled = |set: usize, round: u64| -> Vec<usize> {
            let mut order: Vec<usize> = (0..self.sizes[set]).collect();
            if self.sampler == Sampler::Random {
                let seed = seed::nth(seed::derive(self.seed, &format!("{epoch}/{round}")), set as u64);
                order.shuffle(&mut ChaCha8Rng::seed_from_u64(seed));
            }
            order
        };
        let sum: f64 = self.weights.iter().sum();
        let by_size = self.weights.iter().all(|w| *w == self.weights[0]);
        let share: Vec<f64> = self
            .weights
            .iter()
            .zip(&self.sizes)
            .map(|(w, n)| if by_size { *n as f64 / total as f64 } else { w / sum })
            .collect();
        let mut queues: Vec<(u64, Vec<usize>, usize)> =
            (0..self.sizes.len()).map(|set| (0, shuffled(set, 0), 0)).collect();
        let mut drawn = vec![0_usize; self.sizes.len()];
        let mut order = Vec::with_capacity(total);
        for n in 1..=total {
            // The set that lags its share most goes next.
            let lag = |set: usize| share[set] * n as f64 - drawn[set] as f64;
            let set = (0..drawn.len()).max_by(|a, b| lag(*a).total_cmp(&lag(*b)).then(b.cmp(a))).unwrap_or(0);
            let (round, queue, at) = &mut queues[set];
            if *at == queue.len() {
                *round += 1;
                *queue = shuffled(set, *round);
                *at = 0;
            }
            order.push((set, queue[*at]));
            *at += 1;
            drawn[set] += 1;
        }
        order
    }
}
