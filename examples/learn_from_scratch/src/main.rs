//! `learn-from-scratch`: makes what `espalier sft` and `espalier train` start from, and draws what came of it.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a program that says what it made")]

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use espalier_example_learn_from_scratch::{Failure, demos, model, plot, vocabulary};

#[derive(Parser)]
#[command(about = "A model of a million parameters that learns to ask copies of itself")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Make a tokenizer, a random model and the teacher's rollouts: DIR/model and DIR/demos
    Prepare {
        /// Where they go
        #[arg(long, value_name = "DIR")]
        out: PathBuf,
        /// Seeds weights and rollouts
        #[arg(long, default_value_t = 0)]
        seed: u64,
        /// Questions that the teacher plays
        #[arg(long, default_value_t = 1500)]
        rows: u64,
    },
    /// Draw the curves of runs as SVG: NAME=METRICS.jsonl...
    Plot {
        /// Where the picture goes
        #[arg(long, value_name = "FILE")]
        out: PathBuf,
        /// Curves: a name and a file of metrics; those of one name have one colour
        #[arg(required = true, value_name = "NAME=FILE")]
        curves: Vec<String>,
    },
}

#[tokio::main]
async fn main() -> ExitCode {
    match run(Arguments::parse().command).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("error: {failure}");
            ExitCode::FAILURE
        }
    }
}

async fn run(command: Command) -> Result<(), Failure> {
    match command {
        Command::Prepare { out, seed, rows } => {
            let folder = out.join("model");
            std::fs::create_dir_all(&folder)?;
            vocabulary::write(&folder, seed)?;
            model::write(&folder, seed)?;
            println!("`{}`: {} parameters", folder.display(), model::parameters());
            let trees = demos::write(&folder, &out.join("demos"), rows, seed).await?;
            let nodes: usize = trees.iter().map(|tree| tree.nodes().count()).sum();
            let reward = trees.iter().map(|tree| f64::from(tree.root.reward)).sum::<f64>() / trees.len().max(1) as f64;
            println!(
                "`{}`: {} trees, {nodes} nodes, mean reward {reward:.2}",
                out.join("demos").display(),
                trees.len()
            );
            Ok(())
        }
        Command::Plot { out, curves } => plot::write(&out, &curves),
    }
}
