//! The command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

/// A gym and trainer for language models that write Python, inspect contexts too long to read, and call themselves.
#[derive(Debug, Parser)]
#[command(
    version,
    propagate_version = true,
    arg_required_else_help = true,
    after_help = "Exit codes: 0 done, 1 a check or figure failed, 2 wrong arguments or configuration, 3 wrong input \
                  data, 4 an engine failed, 5 the sandbox failed, 130 stopped by Ctrl-C (what ended is kept).\n\n\
                  Environment: ESPALIER_CACHE (models, compiled interpreter; default ~/.cache/espalier), \
                  ESPALIER_LOG (log filter, such as `debug`), NO_COLOR."
)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Work in the Python REPL that models work in, by hand or from another program.
    ///
    /// At a terminal it has history, multi-line input and commands (`:help`). With `--json` it reads one JSON object
    /// per line and answers each with one line; `docs/repl-json.md` describes the protocol.
    Repl(ReplArguments),
    /// Measure this machine: the sandbox, rollouts or the engine.
    Bench(BenchArguments),
}

/// Arguments of `espalier repl`.
#[derive(Debug, Args)]
pub(crate) struct ReplArguments {
    /// Read one JSON object per line from stdin, answer each with one line on stdout.
    #[arg(long)]
    pub(crate) json: bool,
    /// Calls of `llm_query`, `rlm_query` and tools are put to the driver as `{"call": {...}}` and answered by
    /// `{"return": ...}` (with `--json`). Without this they raise.
    #[arg(long, requires = "json")]
    pub(crate) host_calls: bool,
    /// A host function of that name exists in the REPL (repeatable; with `--host-calls`).
    #[arg(long, value_name = "NAME", requires = "host_calls")]
    pub(crate) tool: Vec<String>,
    /// What the code may name.
    #[arg(long, value_enum, default_value_t = PolicyArgument::Default)]
    pub(crate) policy: PolicyArgument,
    /// Bind this file as `context`: a `.json` file as the value it holds, any other as text (repeatable:
    /// `context_0`, `context_1`...).
    #[arg(long, value_name = "FILE")]
    pub(crate) context: Vec<PathBuf>,
    /// Seeds `random`, `os.urandom` and `uuid4`.
    #[arg(long, default_value_t = 0)]
    pub(crate) seed: u64,
    /// A virtual clock instead of the machine's.
    #[arg(long)]
    pub(crate) deterministic: bool,
    /// Limits.
    #[command(flatten)]
    pub(crate) limits: LimitArguments,
}

/// Limits of a REPL.
#[derive(Debug, Args)]
#[command(next_help_heading = "Limits")]
pub(crate) struct LimitArguments {
    /// Execution time of a block, seconds (waiting for calls does not count).
    #[arg(long, value_name = "SECONDS", default_value_t = 30.0)]
    pub(crate) timeout: f64,
    /// Time a block may wait for calls, seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 600.0)]
    pub(crate) wait_timeout: f64,
    /// Memory, MiB, beyond the interpreter's own (three times the contexts is added).
    #[arg(long, value_name = "MIB", default_value_t = 256)]
    pub(crate) memory: u64,
    /// Output kept per stream and block, bytes.
    #[arg(long, value_name = "BYTES", default_value_t = 1 << 20)]
    pub(crate) output: usize,
    /// Python's recursion limit.
    #[arg(long, value_name = "FRAMES", default_value_t = 1000)]
    pub(crate) recursion: u32,
    /// Host calls in one block.
    #[arg(long, value_name = "N", default_value_t = 64)]
    pub(crate) calls_per_block: u32,
    /// Host calls in the REPL's life.
    #[arg(long, value_name = "N", default_value_t = 1000)]
    pub(crate) calls: u64,
}

/// `--policy`
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum PolicyArgument {
    /// The allow-listed standard library; `eval`, `exec`, `open`... are blocked by name.
    Default,
    /// No imports and the builtin list of the original RLM REPL.
    Strict,
}

/// Arguments of `espalier bench`.
#[derive(Debug, Args)]
pub(crate) struct BenchArguments {
    /// What to measure.
    #[arg(value_enum)]
    pub(crate) subject: BenchSubject,
    /// One JSON object per figure: `figure`, `value`, `unit`, `must`, `better`.
    #[arg(long)]
    pub(crate) json: bool,
    /// Only figures whose name contains this.
    #[arg(long, value_name = "TEXT")]
    pub(crate) only: Option<String>,
    /// Fewer repetitions and smaller loads: to see that it runs, not to quote.
    #[arg(long)]
    pub(crate) quick: bool,
}

/// What `espalier bench` measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum BenchSubject {
    /// REPLs: start, block, fork, memory, limits, Python's speed.
    Sandbox,
    /// Rollouts with a scripted engine.
    Rollout,
    /// The local engine's decoding.
    Engine,
}
