//! What is played next.

use std::collections::HashMap;
use std::sync::Arc;

use espalier_datasets::Source;
use espalier_envs::builtin::Builtin;
use espalier_envs::{EnvRow, Prepared, Registry};
use espalier_generator::rollouts::RolloutJob;
use espalier_generator::source::RowSource;
use espalier_generator::{Players, TrajectoryId, TreeOptions, TreeTask, seed};
use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;
use serde_json::{Map, Value};

use crate::error::TrainError;

/// Rows with their environments. Which row comes at which place follows from the seed alone, so a place is all that a
/// checkpoint needs.
#[derive(Default)]
pub struct Prompts {
    rows: Vec<(EnvRow, Prepared)>,
}

impl Prompts {
    /// Reads sources. Rows that name no environment get `env`; what a row lacks is known before anything is played.
    pub fn read(
        sources: &[Source],
        env: &str,
        params: &Map<String, Value>,
        registry: &Registry,
        key: &str,
    ) -> Result<Self, TrainError> {
        let wrong = |reason: String| TrainError::Config {
            key: key.to_owned(),
            expected: "rows to play".to_owned(),
            found: reason,
        };
        let prepared = registry.prepare(env, params).map_err(|e| wrong(e.to_string()))?;
        let mut rows = Vec::new();
        for source in sources {
            for row in source.rows(&Builtin).map_err(|e| wrong(e.to_string()))? {
                let row = row.map_err(|e| wrong(e.to_string()))?;
                let row = EnvRow::from_row(row).map_err(|e| wrong(e.to_string()))?;
                prepared.make(&row).map_err(|e| wrong(e.to_string()))?;
                rows.push((row, prepared.clone()));
            }
        }
        if rows.is_empty() && !sources.is_empty() {
            return Err(wrong("no row at all".to_owned()));
        }
        Ok(Self { rows })
    }

    /// Number of rows.
    pub fn len(&self) -> u64 {
        self.rows.len() as u64
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Row at each place of an endless stream of epochs; shuffled anew in each if `shuffled`.
    fn order(&self, places: &[u64], run_seed: u64, shuffled: bool) -> Vec<usize> {
        let len = self.len().max(1);
        let mut epoch: Option<(u64, Vec<usize>)> = None;
        places
            .iter()
            .map(|place| {
                let (number, at) = (place / len, (place % len) as usize);
                if !shuffled {
                    return at;
                }
                let order = match epoch.take() {
                    Some((n, order)) if n == number => order,
                    _ => {
                        let mut order: Vec<usize> = (0..self.rows.len()).collect();
                        let seed = seed::nth(seed::derive(run_seed, "prompts"), number);
                        order.shuffle(&mut ChaCha8Rng::seed_from_u64(seed));
                        order
                    }
                };
                let row = order.get(at).copied().unwrap_or(0);
                epoch = Some((number, order));
                row
            })
            .collect()
    }

    /// A row, in the order in which they were read.
    pub fn row(&self, index: usize) -> Option<&EnvRow> {
        self.rows.get(index).map(|(row, _)| row)
    }

    /// Jobs of some places. `batch` seeds the rollouts, so that a prompt that comes again is played anew.
    pub fn jobs(
        &self,
        places: &[u64],
        run_seed: u64,
        batch: u64,
        shuffled: bool,
        players: &Players,
        options: &TreeOptions,
    ) -> Vec<RolloutJob> {
        let batch_seed = seed::nth(seed::derive(run_seed, if shuffled { "train" } else { "eval" }), batch);
        let mut uses = HashMap::new();
        self.order(places, run_seed, shuffled)
            .into_iter()
            .filter_map(|index| {
                let (row, prepared) = self.rows.get(index)?;
                let again: &mut u32 = uses.entry(index).or_default();
                // A prompt that comes twice in a batch is two groups.
                let id = if *again == 0 { row.id.clone() } else { format!("{}#{again}", row.id) };
                *again += 1;
                Some(RolloutJob {
                    task: TreeTask {
                        seed: seed::derive(batch_seed, &id),
                        id: TrajectoryId { instance_id: id, repetition_id: 0 },
                        source: Arc::new(RowSource::new(prepared.clone(), row.clone())),
                        prompt: row.prompt.clone(),
                    },
                    players: players.clone(),
                    options: options.clone(),
                })
            })
            .collect()
    }
}
