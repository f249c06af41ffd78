//! Runs a suite.
//!
//! A cell (task, model, mode) is a run of its own in `DIRECTORY/{task}/{model}/{mode}`; cells are played one after the
//! other, the roots of a cell side by side. `results.json` and `report.md` lie in the directory itself.

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use espalier_envs::builtin::Builtin;
use espalier_envs::{EnvRow, Prepared, Registry};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::SuiteError;
use super::config::{Mode, SuiteConfig, TaskConfig};
use super::engines::{BuiltEngine, EngineFactory};
use super::report::report;
use super::results::{CellResult, Scoring, SuiteResult, write_whole};
use crate::metrics::rollout_metrics_with;
use crate::output::{OutputError, RunWriter, read_trees};
use crate::player::Player;
use crate::rollouts::{Progress, RolloutJob, RunOptions, groups, run};
use crate::seed;
use crate::source::RowSource;
use crate::trajectory::{TrajectoryId, Tree};
use crate::tree::{Players, Service, TreeOptions, TreeTask};

/// The id of the environment behind the modes `repl` and `recursive`.
const RLM: &str = "rlm";

/// Where a suite runs, and what hears of it.
pub struct SuiteOptions {
    /// Where results and trajectories go.
    pub directory: PathBuf,
    /// Go on with what is there; else a directory with trajectories is refused.
    pub resume: bool,
    /// The environments.
    pub registry: Registry,
    /// Hears of progress.
    pub events: Option<mpsc::Sender<SuiteEvent>>,
}

/// What happens while a suite runs.
#[derive(Clone, Debug, PartialEq)]
pub enum SuiteEvent {
    /// A cell began.
    Cell {
        /// Its number, from 0.
        index: usize,
        /// Cells in all.
        of: usize,
        /// The task.
        task: String,
        /// The model.
        engine: String,
        /// The mode.
        mode: Mode,
        /// Roots to play.
        rollouts: usize,
        /// Roots that an earlier run left done.
        resumed: usize,
    },
    /// Something of the cell's rollouts.
    Rollout(Progress),
    /// A cell ended.
    CellDone(Box<CellResult>),
    /// Something was repaired or skipped while resuming.
    Note(String),
}

/// What a run of a suite came to.
#[derive(Clone, Debug, PartialEq)]
pub struct SuiteRun {
    /// The cells that are whole.
    pub result: SuiteResult,
    /// A cancellation came before the last cell was whole; resume to go on.
    pub cancelled: bool,
    /// Wall time of this run.
    pub took: Duration,
}

/// One task's rows and prepared environments.
struct Loaded {
    rows: Vec<EnvRow>,
    alone: Option<Prepared>,
    rlm: Option<Prepared>,
}

/// Runs a suite. Everything that can be wrong with it is found before the first rollout.
pub async fn run_suite(
    config: &SuiteConfig,
    engines: &dyn EngineFactory,
    options: SuiteOptions,
    cancel: &CancellationToken,
) -> Result<SuiteRun, SuiteError> {
    let begun = Instant::now();
    config.check()?;
    let mut loaded = Vec::new();
    for task in &config.tasks {
        loaded.push(load(task, &options.registry)?);
    }
    let mut built: BTreeMap<&str, BuiltEngine> = BTreeMap::new();
    for spec in &config.engines {
        built.insert(&spec.name, engines.make(spec).await?);
    }
    std::fs::create_dir_all(&options.directory).map_err(|source| SuiteError::Io {
        path: options.directory.clone(),
        action: "make it",
        source,
    })?;

    same_suite(config, &options)?;

    let player = |name: &str| -> Option<Player> {
        let spec = config.engines.iter().find(|spec| spec.name == name)?;
        Some(built.get(name)?.player(spec))
    };
    let of = config.tasks.iter().map(|task| task.modes.len() * config.engines.len()).sum();
    let mut result = SuiteResult { name: config.name.clone(), seed: config.seed, cells: Vec::new() };
    let mut index = 0;
    for (task, loaded) in config.tasks.iter().zip(&loaded) {
        for spec in &config.engines {
            let Some(policy) = player(&spec.name) else { continue };
            let service = |name: Option<&String>| match name.and_then(|name| player(name)) {
                Some(frozen) if name.is_some_and(|name| *name != spec.name) => Service::Frozen(frozen.frozen()),
                _ => Service::Policy,
            };
            for &mode in &task.modes {
                let cell = Cell {
                    config,
                    task,
                    loaded,
                    engine: &spec.name,
                    mode,
                    players: Players {
                        policy: policy.clone(),
                        children: if mode == Mode::Recursive {
                            service(config.children.as_ref())
                        } else {
                            Service::None
                        },
                        calls: if mode == Mode::Alone { Service::None } else { service(config.calls.as_ref()) },
                    },
                };
                match cell.run(&options, index, of, cancel).await? {
                    Some(done) => {
                        tell(options.events.as_ref(), SuiteEvent::CellDone(Box::new(done.clone())));
                        result.cells.push(done);
                        result.write(&options.directory)?;
                        write_whole(&options.directory.join("report.md"), &report(&result))?;
                    }
                    None => return Ok(SuiteRun { result, cancelled: true, took: begun.elapsed() }),
                }
                index += 1;
            }
        }
    }
    Ok(SuiteRun { result, cancelled: false, took: begun.elapsed() })
}

/// Refuses to mix the rollouts of different suites; leaves a note of this one for the next run.
fn same_suite(config: &SuiteConfig, options: &SuiteOptions) -> Result<(), SuiteError> {
    let path = options.directory.join("suite.json");
    let now = config.identity();
    if options.resume && path.is_file() {
        let text = std::fs::read_to_string(&path).map_err(|source| SuiteError::Io {
            path: path.clone(),
            action: "read it",
            source,
        })?;
        let before: serde_json::Value = serde_json::from_str(&text)
            .map_err(|error| SuiteError::Syntax { path: path.clone(), reason: format!("not valid JSON: {error}") })?;
        if before != now {
            let keys = now.as_object().into_iter().flatten();
            let key = keys.into_iter().find(|(key, value)| before.get(key.as_str()) != Some(*value));
            let key = key.map_or_else(|| "suite".to_owned(), |(key, _)| key.clone());
            return Err(SuiteError::Changed { directory: options.directory.clone(), key });
        }
        return Ok(());
    }
    if path.is_file() {
        return Err(OutputError::Exists(options.directory.clone()).into());
    }
    write_whole(&path, &format!("{now:#}\n"))
}

fn tell(events: Option<&mpsc::Sender<SuiteEvent>>, event: SuiteEvent) {
    if let Some(events) = events {
        // Nobody waits for a slow listener.
        let _ = events.try_send(event);
    }
}

fn load(task: &TaskConfig, registry: &Registry) -> Result<Loaded, SuiteError> {
    let wrong = |reason: String| SuiteError::Task { task: task.name.clone(), reason };
    let mut rows = Vec::new();
    let mut seen = HashSet::new();
    for row in task.data.rows(&Builtin).map_err(|error| wrong(error.to_string()))? {
        let row = row.map_err(|error| wrong(error.to_string()))?;
        let row = EnvRow::from_row(row).map_err(|error| wrong(error.to_string()))?;
        if !seen.insert(row.id.clone()) {
            return Err(wrong(format!("two rows have the id `{}`; ids must differ", row.id)));
        }
        rows.push(row);
    }
    if rows.is_empty() {
        return Err(wrong("its data has no rows".to_owned()));
    }
    let prepare = |wanted: bool, id: &str, params| -> Result<Option<Prepared>, SuiteError> {
        if !wanted {
            return Ok(None);
        }
        let prepared = registry.prepare(id, params).map_err(|error| wrong(error.to_string()))?;
        // Whatever a row lacks is known before anything is played.
        for row in &rows {
            prepared.make(row).map_err(|error| wrong(error.to_string()))?;
        }
        Ok(Some(prepared))
    };
    let alone = prepare(task.modes.contains(&Mode::Alone), &task.env, &task.params)?;
    let rlm = prepare(task.modes.iter().any(|mode| *mode != Mode::Alone), RLM, &task.rlm)?;
    Ok(Loaded { rows, alone, rlm })
}

/// One task, one model, one mode.
struct Cell<'a> {
    config: &'a SuiteConfig,
    task: &'a TaskConfig,
    loaded: &'a Loaded,
    engine: &'a str,
    mode: Mode,
    players: Players,
}

impl Cell<'_> {
    /// Plays the cell; `None` where a cancellation came first.
    async fn run(
        &self,
        options: &SuiteOptions,
        index: usize,
        of: usize,
        cancel: &CancellationToken,
    ) -> Result<Option<CellResult>, SuiteError> {
        let directory = options.directory.join(&self.task.name).join(self.engine).join(self.mode.name());
        let Some(prepared) = (if self.mode == Mode::Alone { &self.loaded.alone } else { &self.loaded.rlm }) else {
            return Err(SuiteError::Task {
                task: self.task.name.clone(),
                reason: "no environment was made".to_owned(),
            });
        };
        let mut jobs = self.jobs(prepared);
        let all = jobs.len();
        let (writer, mut trees) = self.open(&directory, options, &jobs)?;
        let done: HashSet<TrajectoryId> = trees.iter().map(|tree| tree.root.id()).collect();
        jobs.retain(|job| !done.contains(&job.task.id));
        let event = SuiteEvent::Cell {
            index,
            of,
            task: self.task.name.clone(),
            engine: self.engine.to_owned(),
            mode: self.mode,
            rollouts: all,
            resumed: done.len(),
        };
        tell(options.events.as_ref(), event);

        let (send, mut receive) = mpsc::channel(1024);
        let events = options.events.clone();
        let forward = tokio::spawn(async move {
            while let Some(progress) = receive.recv().await {
                tell(events.as_ref(), SuiteEvent::Rollout(progress));
            }
        });
        let run_options = RunOptions { in_flight: self.config.in_flight, progress: Some(send) };
        let played = run(jobs, run_options, writer, cancel).await?;
        // The run dropped the sending end: the forwarder is at its end too.
        let _ = forward.await;
        played.sink.finish()?;
        trees.extend(played.trees.into_iter().flatten());
        if played.cancelled {
            return Ok(None);
        }
        trees.sort_by_key(|tree| tree.root.id());
        let metrics = rollout_metrics_with(&trees, |_, episodes| prepared.aggregate(episodes));
        let scoring = Scoring {
            seed: self.config.seed,
            pass_k: self.config.pass_k.clone(),
            pass_reward: self.config.pass_reward,
        };
        Ok(Some(CellResult::new(&self.task.name, self.engine, self.mode, &trees, &scoring, metrics)))
    }

    /// Opens the cell's directory; the trees that an earlier run left, of those that this one asks for.
    fn open(
        &self,
        directory: &Path,
        options: &SuiteOptions,
        jobs: &[RolloutJob],
    ) -> Result<(RunWriter, Vec<Tree>), SuiteError> {
        if !options.resume {
            return Ok((RunWriter::create(directory, self.config.output.clone())?, Vec::new()));
        }
        let (writer, resumed) = RunWriter::resume(directory, self.config.output.clone())?;
        for note in resumed.repaired {
            tell(options.events.as_ref(), SuiteEvent::Note(format!("{}: {note}", directory.display())));
        }
        if resumed.completed.is_empty() {
            return Ok((writer, Vec::new()));
        }
        let (mut trees, notes) = read_trees(directory)?;
        for note in notes {
            tell(options.events.as_ref(), SuiteEvent::Note(note));
        }
        let wanted: HashSet<&TrajectoryId> = jobs.iter().map(|job| &job.task.id).collect();
        trees.retain(|tree| wanted.contains(&tree.root.id()));
        Ok((writer, trees))
    }

    fn jobs(&self, prepared: &Prepared) -> Vec<RolloutJob> {
        let tree = TreeOptions {
            limits: self.task.limits.clone().unwrap_or_else(|| self.config.limits.clone()),
            root: self.task.rollout.clone().unwrap_or_else(|| self.config.rollout.clone()),
            child: None,
        };
        // The same row has the same seed in every mode and for every model.
        let task_seed = seed::derive(self.config.seed, &self.task.name);
        let jobs = self.loaded.rows.iter().map(|row| RolloutJob {
            task: TreeTask {
                id: TrajectoryId { instance_id: row.id.clone(), repetition_id: 0 },
                seed: seed::derive(task_seed, &row.id),
                source: Arc::new(RowSource::new(prepared.clone(), row.clone())),
                prompt: row.prompt.clone(),
            },
            players: self.players.clone(),
            options: tree.clone(),
        });
        groups(jobs, self.task.samples.unwrap_or(self.config.samples))
    }
}
