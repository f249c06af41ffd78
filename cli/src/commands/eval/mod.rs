//! `espalier eval`.
//!
//! | module | what lives there |
//! |---|---|
//! | [`progress`] | what is shown while a suite runs |
//! | [`summary`] | the table at the end: modes side by side, one line per figure |

mod progress;
mod summary;

use std::path::{Path, PathBuf};

use espalier_envs::Registry;
use espalier_generator::suite::compare::comparison_report;
use espalier_generator::suite::{SuiteConfig, SuiteError, SuiteOptions, SuiteResult, compare, run_suite};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::arguments::{EvalArguments, EvalCommand};
use crate::engines::Engines;
use crate::failure::Failure;
use crate::settings;

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
    settings::apply("an override", &mut table, &arguments.overrides)?;
    let config = SuiteConfig::from_value(&table)
        .map_err(|error| Failure::Input { file: file.display().to_string(), reason: error.to_string() })?;
    let directory = arguments.out.clone().unwrap_or_else(|| PathBuf::from("runs").join(&config.name));

    let cancel = CancellationToken::new();
    let stopper = tokio::spawn(stop_on_interrupt(cancel.clone()));
    let (send, receive) = mpsc::channel(4096);
    let shown = tokio::spawn(progress::show(receive));
    let options = SuiteOptions {
        directory: directory.clone(),
        resume: arguments.resume,
        registry: Registry::standard(),
        events: Some(send),
    };
    let run = run_suite(&config, &Engines, options, &cancel).await;
    stopper.abort();
    // The suite has dropped its end of the channel; what is shown ends by itself.
    let _ = shown.await;
    let run = run.map_err(failure)?;

    if arguments.json {
        anstream::println!("{}", serde_json::to_string(&run.result).unwrap_or_default());
    } else {
        anstream::print!("{}", summary::side_by_side(&run.result));
        anstream::println!(
            "\n{:.0} s in all; trajectories and report.md: {}",
            run.took.as_secs_f64(),
            directory.display()
        );
    }
    if run.cancelled {
        return Err(Failure::Interrupted(format!(
            "what ended is kept in `{}`; the same command with `--resume` goes on",
            directory.display()
        )));
    }
    let failed: usize = run.result.cells.iter().map(|cell| cell.failed).sum();
    let played: usize = run.result.cells.iter().map(|cell| cell.rollouts).sum();
    if failed > 0 {
        anstream::eprintln!("{failed} of {played} rollouts failed; `espalier trajectories show` says why");
    }
    if failed == played && played > 0 {
        return Err(Failure::Engine("every rollout failed".to_owned()));
    }
    Ok(())
}

/// The first Ctrl-C ends what runs and keeps what ended; the second leaves at once.
pub(crate) async fn stop_on_interrupt(cancel: CancellationToken) {
    if tokio::signal::ctrl_c().await.is_err() {
        return;
    }
    anstream::eprintln!("stopping; what ended is kept (Ctrl-C again leaves at once)");
    cancel.cancel();
    if tokio::signal::ctrl_c().await.is_ok() {
        std::process::exit(130);
    }
}

/// A suite's error with its exit code.
pub(crate) fn failure(error: SuiteError) -> Failure {
    match error {
        SuiteError::Engine { .. } => Failure::Engine(error.to_string()),
        SuiteError::Key { .. } => {
            Failure::Usage { what: "the suite".to_owned(), expected: "valid keys".to_owned(), got: error.to_string() }
        }
        SuiteError::Io { ref path, .. } | SuiteError::Syntax { ref path, .. } => {
            Failure::Input { file: path.display().to_string(), reason: error.to_string() }
        }
        SuiteError::Task { .. } => Failure::Input { file: "the suite".to_owned(), reason: error.to_string() },
        other => Failure::Internal(other.to_string()),
    }
}

fn compare_runs(a: &Path, b: &Path, json: bool) -> Result<(), Failure> {
    let read = |path: &Path| SuiteResult::from_path(path).map_err(failure);
    let comparisons = compare(&read(a)?, &read(b)?)
        .map_err(|error| Failure::Input { file: b.display().to_string(), reason: error.to_string() })?;
    if json {
        for comparison in &comparisons {
            anstream::println!("{}", serde_json::to_string(comparison).unwrap_or_default());
        }
    } else {
        anstream::print!("{}", comparison_report(&comparisons));
    }
    Ok(())
}
