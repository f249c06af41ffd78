//! `espalier eval`.
//!
//! | module | what lives there |
//! |---|---|
//! | [`progress`] | what is shown while a suite runs |
//! | [`summary`] | the table at the end: modes side by side, one line per figure |

mod progress;
mod summary;

use std::path::{Path, PathBuf};

use espalier_datasets::DataError;
use espalier_envs::builtin::Builtin;
use espalier_envs::{EnvError, Registry};
use espalier_generator::RolloutStop;
use espalier_generator::suite::{Mode, SuiteConfig, SuiteError, SuiteOptions, SuiteResult, compare, run_suite};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::arguments::{EvalArguments, EvalCommand};
use crate::engines::Engines;
use crate::failure::Failure;
use crate::output::{self, out, outln};
use crate::{interrupt, settings};

pub(crate) async fn run(arguments: EvalArguments) -> Result<(), Failure> {
    match arguments.command {
        Some(EvalCommand::Compare { a, b, json }) => compare_runs(&a, &b, json),
        None => {
            let Some(suite) = &arguments.suite else {
                return Err(Failure::Usage {
                    what: "`espalier eval`".to_owned(),
                    expected: "`--suite FILE`".to_owned(),
                    got: "none".to_owned(),
                });
            };
            evaluate(suite, &arguments).await
        }
    }
}

async fn evaluate(file: &Path, arguments: &EvalArguments) -> Result<(), Failure> {
    let mut table = settings::read_toml(file)?;
    settings::apply("the override", &mut table, &arguments.overrides)?;
    let origin = Origin { file, overrides: &arguments.overrides };
    let config = SuiteConfig::from_value(&table).map_err(|error| origin.failure(error))?;
    let registry = Registry::standard();
    check_tasks(&config, &registry, &origin)?;
    let directory = arguments.out.clone().unwrap_or_else(|| PathBuf::from("runs").join(&config.name));

    let cancel = CancellationToken::new();
    let stopper = tokio::spawn(interrupt::stop_and_keep(cancel.clone()));
    let (send, receive) = mpsc::channel(4096);
    let shown = tokio::spawn(progress::show(receive));
    let options = SuiteOptions { directory: directory.clone(), resume: arguments.resume, registry, events: Some(send) };
    let engines = Engines::default();
    let run = run_suite(&config, &engines, options, &cancel).await;
    stopper.abort();
    // The suite has dropped its end of the channel; what is shown ends by itself.
    let _ = shown.await;
    let run = run.map_err(|error| match (&error, engines.failure()) {
        (SuiteError::Engine { engine, .. }, Some(failure)) => origin.engine(&config, engine, failure),
        _ => origin.failure(error),
    })?;

    if arguments.json {
        outln!("{}", serde_json::to_string(&run.result).unwrap_or_default())?;
    } else {
        out!("{}", summary::result(&run.result, output::columns()))?;
        outln!("\n{:.0} s in all; trajectories and report.md: {}", run.took.as_secs_f64(), directory.display())?;
    }
    if run.cancelled {
        return Err(Failure::Interrupted(format!(
            "what ended is kept in `{}`; the same command with `--resume` goes on",
            directory.display()
        )));
    }
    let failed: usize = run.result.cells.iter().map(|cell| cell.failed).sum();
    let played: usize = run.result.cells.iter().map(|cell| cell.rollouts).sum();
    if failed == 0 {
        return Ok(());
    }
    let why = format!("`espalier trajectories show {}` says why", directory.display());
    if failed < played {
        return Err(Failure::Partly(format!(
            "{failed} of {played} rollouts failed; {why}, `--resume` plays them again"
        )));
    }
    let engine = run.result.cells.iter().any(|cell| cell.stops.contains_key(RolloutStop::EngineError.name()));
    let said = format!("every rollout failed; {why}");
    Err(if engine { Failure::Engine(said) } else { Failure::Environment(said) })
}

/// Where a suite's keys come from: a file, and what the command line sets on top of it.
struct Origin<'a> {
    file: &'a Path,
    overrides: &'a [String],
}

impl Origin<'_> {
    /// A suite's error with the place that it comes from: the override that set the key, or the file.
    fn failure(&self, error: SuiteError) -> Failure {
        match error {
            SuiteError::Key { key, reason } => {
                Failure::Configuration(format!("{}: key `{key}` {reason}", self.of(&key)))
            }
            SuiteError::Task { .. } => Failure::from(error).within(self.file()),
            other => other.into(),
        }
    }

    /// What is wrong with an engine. An override is named where it sets something of the engine that the failure quotes.
    fn engine(&self, config: &SuiteConfig, name: &str, failure: Failure) -> Failure {
        let index = config.engines.iter().position(|engine| engine.name == name).unwrap_or_default();
        let said = failure.to_string();
        let quoted = |text: &String| {
            let Some((path, value)) = text.split_once('=') else { return false };
            let last = path.rsplit('.').next().unwrap_or(path);
            path.starts_with(&format!("engine.{index}."))
                && [last, value].iter().any(|it| said.contains(&format!("`{it}`")))
        };
        let place = self.overrides.iter().rev().find(|text| quoted(text));
        let place = place.map_or_else(|| self.file(), |text| format!("the override `{text}`"));
        failure.within(format!("{place}: engine `{name}`"))
    }

    fn of(&self, key: &str) -> String {
        settings::override_of(key, self.overrides).map_or_else(|| self.file(), |text| format!("the override `{text}`"))
    }

    fn file(&self) -> String {
        format!("`{}`", self.file.display())
    }
}

/// Reads what tasks say of environments and generated data: the suite itself cannot tell a wrong parameter from wrong
/// data.
fn check_tasks(config: &SuiteConfig, registry: &Registry, origin: &Origin<'_>) -> Result<(), Failure> {
    for (index, task) in config.tasks.iter().enumerate() {
        let place = |key: &str| {
            let key = format!("task[{index}].{key}");
            format!("{}: key `{key}`", origin.of(&key))
        };
        let wrong = |key: &str, reason: String| Failure::Configuration(format!("{}: {reason}", place(key)));
        let of_env = |key: &str, error: EnvError| Failure::from(error).within(place(key));
        if task.modes.contains(&Mode::Alone) {
            registry.spec(&task.env).map_err(|error| of_env("env", error))?;
            registry.prepare(&task.env, &task.params).map_err(|error| of_env("params", error))?;
        }
        if task.modes.iter().any(|mode| *mode != Mode::Alone) {
            registry.spec(&task.rlm_env).map_err(|error| of_env("rlm_env", error))?;
            registry.prepare(&task.rlm_env, &task.rlm).map_err(|error| of_env("rlm", error))?;
        }
        if let Some(Err(error @ DataError::Source { .. })) =
            task.data.builtin.as_ref().map(|_| task.data.rows(&Builtin))
        {
            return Err(wrong("data", error.to_string()));
        }
    }
    Ok(())
}

fn compare_runs(a: &Path, b: &Path, json: bool) -> Result<(), Failure> {
    let comparisons = compare(&SuiteResult::from_path(a)?, &SuiteResult::from_path(b)?)
        .map_err(|error| Failure::from(error).within(format!("`{}` and `{}`", a.display(), b.display())))?;
    if json {
        for comparison in &comparisons {
            outln!("{}", serde_json::to_string(comparison).unwrap_or_default())?;
        }
        return Ok(());
    }
    out!("{}", summary::comparisons(&comparisons, output::columns()))
}
