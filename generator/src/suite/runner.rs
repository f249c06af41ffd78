//! Runs a suite.
//!
//! A cell (task, model, mode) is a run of its own in `DIRECTORY/{task}/{model}/{mode}`; cells are played one after the
//! other, the roots of a cell side by side. `results.json` and `report.md` lie in the directory itself.

use std::collections::{BTreeMap, HashSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use espalier_envs::builtin::Builtin;
use espalier_envs::{EnvRow, Prepared, Registry};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::SuiteError;
use super::config::{Mode, SuiteConfig, TaskConfig};
use super::contents::{Contents, contents};
use super::engines::{BuiltEngine, EngineFactory};
use super::report::report;
use super::results::{CellResult, Scoring, SuiteResult, write_whole};
use crate::metrics::{Numbers, rollout_metrics_with};
use crate::output::{OutputError, RunWriter, read_trees};
use crate::player::Player;
use crate::rollouts::{Progress, RolloutJob, RunOptions, groups, run};
use crate::seed;
use crate::source::RowSource;
use crate::trajectory::{Trajectory, TrajectoryId, Tree};
use crate::tree::{Players, Service, TreeOptions, TreeTask};

/// Most rows of a suite, all tasks together: they are held in memory while it runs.
pub const MAX_ROWS: usize = 100_000;

/// Most roots of a cell: its rows, times the samples of each.
pub const MAX_ROLLOUTS: u64 = 1_000_000;

/// Where a suite runs, and what hears of it.
pub struct SuiteOptions {
    /// Where results and trajectories go.
    pub directory: PathBuf,
    /// Go on with what is there, and play again what failed; else a directory with trajectories is refused.
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
    let nothing = |cancelled| SuiteRun {
        result: SuiteResult { name: config.name.clone(), seed: config.seed, cells: Vec::new() },
        cancelled,
        took: begun.elapsed(),
    };
    // Reading much data takes its time: not on a thread that others wait for, and only until somebody cancels.
    let reading = tokio::task::spawn_blocking({
        let (config, registry, cancel) = (config.clone(), options.registry.clone(), cancel.clone());
        move || read_inputs(&config, &registry, &cancel)
    });
    let read = match reading.await {
        Ok(read) => read?,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            // The runtime is shutting down.
            Err(_) => None,
        },
    };
    let Some((loaded, contents)) = read else { return Ok(nothing(true)) };
    let mut built: BTreeMap<&str, BuiltEngine> = BTreeMap::new();
    for spec in &config.engines {
        built.insert(&spec.name, engines.make(spec).await?);
    }
    std::fs::create_dir_all(&options.directory).map_err(|source| SuiteError::Io {
        path: options.directory.clone(),
        action: "make it",
        source,
    })?;

    same_suite(config, contents, &options)?;

    let player = |name: &str| -> Option<Player> {
        let spec = config.engines.iter().find(|spec| spec.name == name)?;
        Some(built.get(name)?.player(spec))
    };
    let playing = |task: &TaskConfig| config.engines.iter().filter(|spec| task.is_played_by(spec)).collect::<Vec<_>>();
    let of = config.tasks.iter().map(|task| task.modes.len() * playing(task).len()).sum();
    let SuiteRun { mut result, .. } = nothing(false);
    let mut index = 0;
    for (task, loaded) in config.tasks.iter().zip(&loaded) {
        for spec in playing(task) {
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
                        // A judge is a judge, also where it is the model that plays.
                        judge: match config.judge.as_deref().and_then(player) {
                            Some(judge) => Service::Frozen(judge.frozen()),
                            None => Service::None,
                        },
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

/// Refuses to mix the rollouts of different suites or of different files; leaves a note of this one for the next run.
fn same_suite(config: &SuiteConfig, contents: Contents, options: &SuiteOptions) -> Result<(), SuiteError> {
    const CONTENTS: &str = "contents";
    let path = options.directory.join("suite.json");
    let mut now = config.identity();
    if let Some(entries) = now.as_object_mut() {
        entries.insert(CONTENTS.to_owned(), serde_json::json!(contents));
    }
    if options.resume && path.is_file() {
        let text = std::fs::read_to_string(&path).map_err(|source| SuiteError::Io {
            path: path.clone(),
            action: "read it",
            source,
        })?;
        let before: serde_json::Value = serde_json::from_str(&text)
            .map_err(|error| SuiteError::Syntax { path: path.clone(), reason: format!("not valid JSON: {error}") })?;
        let Some(steps) = difference(&[], Some(&before), Some(&now)) else { return Ok(()) };
        let difference = match &steps[..] {
            [Step::Key(CONTENTS), Step::Key(file)] => format!("`{file}` held something else"),
            steps => format!("`{}` differs", key(steps)),
        };
        return Err(SuiteError::Changed { directory: options.directory.clone(), difference });
    }
    if path.is_file() {
        return Err(OutputError::Exists(options.directory.clone()).into());
    }
    if options.resume && options.directory.join("results.json").is_file() {
        let difference = "`suite.json`, which says what its trajectories were played with, is gone".to_owned();
        return Err(SuiteError::Changed { directory: options.directory.clone(), difference });
    }
    write_whole(&path, &format!("{now:#}\n"))
}

/// One step into a JSON value.
#[derive(Clone, Copy)]
enum Step<'a> {
    Key(&'a str),
    Item(usize),
}

/// The way to the first difference; keys and files that only one of the two names are differences too.
fn difference<'a>(
    at: &[Step<'a>],
    before: Option<&'a serde_json::Value>,
    now: Option<&'a serde_json::Value>,
) -> Option<Vec<Step<'a>>> {
    use serde_json::Value::{Array, Object};
    let below = |step| [at, &[step]].concat();
    match (before, now) {
        _ if before == now => None,
        (Some(Object(before)), Some(Object(now))) => before
            .keys()
            .chain(now.keys())
            .find_map(|key| difference(&below(Step::Key(key)), before.get(key), now.get(key))),
        (Some(Array(before)), Some(Array(now))) if before.len() == now.len() => before
            .iter()
            .zip(now)
            .enumerate()
            .find_map(|(index, (before, now))| difference(&below(Step::Item(index)), Some(before), Some(now))),
        _ => Some(at.to_vec()),
    }
}

/// Steps as a key is written in messages: `task[0].data.limit`.
fn key(steps: &[Step<'_>]) -> String {
    let mut text = String::new();
    for step in steps {
        let _ = match step {
            Step::Key(key) if text.is_empty() => write!(text, "{key}"),
            Step::Key(key) => write!(text, ".{key}"),
            Step::Item(index) => write!(text, "[{index}]"),
        };
    }
    // A file of another shape altogether.
    if text.is_empty() { "suite".to_owned() } else { text }
}

fn tell(events: Option<&mpsc::Sender<SuiteEvent>>, event: SuiteEvent) {
    if let Some(events) = events {
        // Nobody waits for a slow listener.
        let _ = events.try_send(event);
    }
}

/// The tasks' rows, and what the files hold; `None` where a cancellation came first.
fn read_inputs(
    config: &SuiteConfig,
    registry: &Registry,
    cancel: &CancellationToken,
) -> Result<Option<(Vec<Loaded>, Contents)>, SuiteError> {
    let mut loaded = Vec::new();
    let mut room = MAX_ROWS;
    for task in &config.tasks {
        let samples = task.samples.unwrap_or(config.samples);
        let Some(task) = load(task, samples, registry, room, cancel)? else { return Ok(None) };
        room -= task.rows.len();
        loaded.push(task);
    }
    Ok(contents(config, cancel)?.map(|contents| (loaded, contents)))
}

/// Reads one task, at most `room` rows of it.
fn load(
    task: &TaskConfig,
    samples: u32,
    registry: &Registry,
    room: usize,
    cancel: &CancellationToken,
) -> Result<Option<Loaded>, SuiteError> {
    let wrong = |reason: String| SuiteError::Task { task: task.name.clone(), reason };
    // Parameters are read even where no mode plays them: a mistake in them is a mistake.
    let env = registry.prepare(&task.env, &task.params).map_err(|error| wrong(error.to_string()))?;
    let alone = task.modes.contains(&Mode::Alone).then_some(env);
    let in_repl = task.modes.iter().any(|mode| *mode != Mode::Alone);
    let rlm = if in_repl || !task.rlm.is_empty() {
        Some(registry.prepare(&task.rlm_env, &task.rlm).map_err(|error| wrong(error.to_string()))?)
    } else {
        None
    };
    let rlm = rlm.filter(|_| in_repl);

    let mut rows = Vec::new();
    for row in task.data.rows(&Builtin).map_err(|error| wrong(error.to_string()))? {
        if cancel.is_cancelled() {
            return Ok(None);
        }
        let row = row.map_err(|error| wrong(error.to_string()))?;
        if rows.len() == room {
            return Err(wrong(format!(
                "its data has more rows than fit: a suite has at most {MAX_ROWS}, all tasks together; take fewer with \
                 `data.limit`"
            )));
        }
        let row = EnvRow::from_row(row).map_err(|error| wrong(error.to_string()))?;
        // Whatever a row lacks is known before anything is played.
        for prepared in [&alone, &rlm].into_iter().flatten() {
            prepared.make(&row).map_err(|error| wrong(error.to_string()))?;
        }
        rows.push(row);
    }
    if rows.is_empty() {
        return Err(wrong("its data has no rows".to_owned()));
    }
    let roots = rows.len() as u64 * u64::from(samples);
    if roots > MAX_ROLLOUTS {
        return Err(wrong(format!(
            "{} rows x {samples} samples are {roots} rollouts; expected at most {MAX_ROLLOUTS}",
            rows.len()
        )));
    }
    Ok(Some(Loaded { rows, alone, rlm }))
}

/// Replaces the environment's numbers by those over all nodes of all trees that did not fail.
fn pool(prepared: &Prepared, trees: &[Tree], numbers: &mut Numbers) {
    let report = |node: &Trajectory| node.env_metrics.iter().map(|(key, value)| (key.clone(), value.clone())).collect();
    let episodes: Vec<_> = trees
        .iter()
        .filter(|tree| !tree.root.stop.is_failure())
        .flat_map(Tree::nodes)
        .filter(|node| !node.stop.is_failure())
        .map(report)
        .collect();
    numbers.retain(|name, _| !name.starts_with("environment/"));
    for (key, value) in prepared.aggregate(&episodes) {
        if let Some(value) = value.as_f64() {
            numbers.insert(format!("environment/{key}"), value);
        }
    }
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
        let mut metrics = rollout_metrics_with(&trees, |_, episodes| prepared.aggregate(episodes));
        if prepared.pools_children() {
            pool(prepared, &trees, &mut metrics);
        }
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
        let wanted: HashSet<&TrajectoryId> = jobs.iter().map(|job| &job.task.id).collect();
        // An endpoint that was away must not spoil a run for good.
        let replay = |root: &Trajectory| root.stop.is_failure() && wanted.contains(&root.id());
        let (writer, resumed) = RunWriter::resume(directory, self.config.output.clone(), replay)?;
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
