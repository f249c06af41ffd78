//! The `espalier` command. Thin: every room of the workspace does its own work, this one reads arguments, shows
//! progress and chooses exit codes.
//!
//! | module | what lives there |
//! |---|---|
//! | [`arguments`] | the command line |
//! | [`failure`] | what can go wrong, and the exit code that says so |
//! | [`commands`] | one module per subcommand |
//! | [`engines`] | engines by kind, the local one included |
//! | [`interrupt`] | what Ctrl-C does |
//! | [`output`] | stdout and stderr |
//! | [`settings`] | TOML files with `key.path=value` overrides |

mod arguments;
mod commands;
mod engines;
mod failure;
mod interrupt;
mod output;
mod settings;

use std::process::ExitCode;

use clap::Parser;
use clap::error::ErrorKind;
use owo_colors::OwoColorize as _;

use crate::arguments::{Arguments, Command};
use crate::failure::Failure;

fn main() -> ExitCode {
    #[cfg(feature = "torch")]
    let_idle_threads_sleep();
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => return unparsed(&error),
    };
    let filter = tracing_subscriber::EnvFilter::try_from_env("ESPALIER_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("warn"));
    let coloured = anstream::AutoStream::choice(&std::io::stderr()) != anstream::ColorChoice::Never;
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(coloured).init();
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return report(&Failure::Internal(format!("could not start the runtime: {error}"))),
    };
    let outcome = runtime.block_on(run(arguments.command));
    // A thread that waits for a line of input cannot be stopped; it must not hold up the exit.
    runtime.shutdown_background();
    match outcome.and_then(|()| output::flush()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => report(&failure),
    }
}

/// Shows the help or version that was asked for, or what is wrong with the command line.
fn unparsed(error: &clap::Error) -> ExitCode {
    if error.kind() == ErrorKind::InvalidUtf8
        && let Some(argument) = std::env::args_os().skip(1).find(|argument| argument.to_str().is_none())
    {
        return report(&Failure::Configuration(format!(
            "the argument `{}` is not UTF-8; only files and folders may be named otherwise",
            argument.display()
        )));
    }
    match error.print() {
        Err(unwritten) if !error.use_stderr() => report(&Failure::Stdout(unwritten)),
        _ => ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2)),
    }
}

/// Starts this program again with `OMP_WAIT_POLICY=PASSIVE`, unless it is set: libtorch's threads spin while they wait
/// otherwise, and take the processor from the sandbox and from other programs. The OpenMP library reads the variable
/// when it is loaded, which is before `main`; hence the second start.
#[cfg(feature = "torch")]
fn let_idle_threads_sleep() {
    use std::os::unix::process::CommandExt as _;

    const POLICY: &str = "OMP_WAIT_POLICY";
    if std::env::var_os(POLICY).is_some() {
        return;
    }
    if let Ok(program) = std::env::current_exe() {
        // Returns only where it failed; this process then goes on, slower.
        let _ = std::process::Command::new(program).args(std::env::args_os().skip(1)).env(POLICY, "PASSIVE").exec();
    }
}

async fn run(command: Command) -> Result<(), Failure> {
    match command {
        Command::Repl(arguments) => commands::repl::run(arguments).await,
        Command::Eval(arguments) => commands::eval::run(arguments).await,
        Command::Grade(arguments) => commands::grade::run(arguments).await,
        Command::Rollout(arguments) => commands::rollout::run(arguments).await,
        Command::Trajectories(command) => commands::trajectories::run(command),
        Command::Data(command) => commands::data::run(command).await,
        Command::Serve(command) => commands::serve::run(command).await,
        #[cfg(feature = "torch")]
        Command::Model(command) => commands::model::run(command),
        #[cfg(feature = "torch")]
        Command::Train(arguments) => commands::train::train(arguments),
        #[cfg(feature = "torch")]
        Command::Sft(arguments) => commands::train::sft(arguments),
        #[cfg(feature = "torch")]
        Command::Export(arguments) => commands::train::export(arguments),
        Command::Bench(arguments) => commands::bench::run(arguments).await,
    }
}

fn report(failure: &Failure) -> ExitCode {
    if !failure.is_silent() {
        output::say!("{}: {failure}", "error".red().bold());
    }
    if let Some(hint) = failure.hint() {
        output::say!("{}: {hint}", "hint".cyan().bold());
    }
    failure.exit_code()
}
