//! The command line.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

/// The variables that the command reads, for `--help`.
const ENVIRONMENT: &str = "\
Environment:
  ESPALIER_CACHE   models, the compiled interpreter; default `espalier` in $XDG_CACHE_HOME or ~/.cache
  ESPALIER_MODELS  where models are looked for by name; default `models` in the cache
  ESPALIER_LOG     log filter, such as `debug`; default `warn`
  NO_COLOR         no colours
  OMP_WAIT_POLICY  what idle threads of the local engine do; PASSIVE where it is not set
  An endpoint's key comes from the variable that `api_key_env` names, OpenRouter's by default from
  OPENROUTER_API_KEY.";

/// A gym and trainer for language models that write Python, inspect contexts too long to read, and call themselves.
#[derive(Debug, Parser)]
#[command(
    version,
    propagate_version = true,
    arg_required_else_help = true,
    after_help = format!("{}\n\n{ENVIRONMENT}", crate::failure::EXIT_CODES)
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
    /// Run a suite: environments, modes and models; or compare two runs.
    ///
    /// A suite is a TOML file (`examples/demo/suite.toml` is one, `docs/suites.md` explains every key). `key.path=value` overrides what it says, list items by
    /// their number: `engine.0.sampling.temperature=0.5`. Ctrl-C stops cleanly; `--resume` goes on.
    #[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
    Eval(EvalArguments),
    /// Play one task once and show the tree.
    Rollout(RolloutArguments),
    /// Grade recorded responses with an environment's own grader.
    ///
    /// Each line in is a JSON object: `response` (a text, or a list of texts, one per turn), perhaps `stop` (how the last turn
    /// ended, or a list: `stop` where nothing is said, `length`, `stop_string`), `ground_truth`, and any column that the
    /// environment reads (`espalier data env ID`); `params` sets parameters for that line. Each line out is
    /// `{"id", "reward", "metadata", "error"}`, in the order of the lines in; a line that could not be graded has an `error`
    /// and no reward.
    Grade(GradeArguments),
    /// Look at trajectories.
    #[command(subcommand)]
    Trajectories(TrajectoriesCommand),
    /// Look at data sets and environments.
    #[command(subcommand)]
    Data(DataCommand),
    /// Serve models, search engines and sandboxes to other programs.
    #[command(subcommand)]
    Serve(ServeCommand),
    /// Work with model files.
    #[cfg(feature = "torch")]
    #[command(subcommand)]
    Model(ModelCommand),
    /// Teach a model by reinforcement on environments.
    ///
    /// The configuration is a TOML file whose keys are SkyRL's where the thing is the same (`docs/training.md`);
    /// `key.path=value` overrides what it says, for instance `trainer.mode=one_step_off` to sample while the model trains.
    /// Ctrl-C finishes the step, saves and stops, however long that takes; a second one leaves at once.
    #[cfg(feature = "torch")]
    Train(TrainArguments),
    /// Teach a model by examples: conversations, tokens, or the rollouts of a run.
    ///
    /// `espalier sft --model DIR --data runs/X --filter 'reward > 0' export_path=OUT` learns from a run's good rollouts.
    /// What is learned goes to `ckpt_path` (checkpoints, to go on from), `export_path` (an adapter or model), or both.
    #[cfg(feature = "torch")]
    Sft(SftArguments),
    /// Write a checkpoint as an adapter or a model that others load.
    #[cfg(feature = "torch")]
    Export(ExportArguments),
    /// Measure this machine: the sandbox, rollouts or the engine.
    Bench(BenchArguments),
}

/// Arguments of `espalier train`.
#[cfg(feature = "torch")]
#[derive(Debug, Args)]
pub(crate) struct TrainArguments {
    /// The configuration.
    #[arg(long, value_name = "FILE")]
    pub(crate) config: PathBuf,
    /// Processes on this machine that share the model.
    #[arg(long, value_name = "N")]
    pub(crate) nproc: Option<std::num::NonZeroUsize>,
    /// Say how it ended as one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
    /// `key.path=value`, instead of what the file says.
    #[arg(value_name = "KEY=VALUE")]
    pub(crate) overrides: Vec<String>,
}

/// Arguments of `espalier sft`.
#[cfg(feature = "torch")]
#[derive(Debug, Args)]
pub(crate) struct SftArguments {
    /// The configuration.
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// The model: a folder, or a name among the models of the cache.
    #[arg(long, value_name = "DIR")]
    pub(crate) model: Option<PathBuf>,
    /// A file or the folder of a run to learn from (repeatable; beside those of the configuration).
    #[arg(long, value_name = "PATH")]
    pub(crate) data: Vec<PathBuf>,
    /// Which trajectories of runs: an expression over `reward`, `depth`, `stop`, `env`, `turns`, `tokens`, `metrics`.
    #[arg(long, value_name = "EXPRESSION", requires = "data")]
    pub(crate) filter: Option<String>,
    /// Processes on this machine that share the model.
    #[arg(long, value_name = "N")]
    pub(crate) nproc: Option<std::num::NonZeroUsize>,
    /// Say how it ended as one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
    /// `key.path=value`, instead of what the file says.
    #[arg(value_name = "KEY=VALUE")]
    pub(crate) overrides: Vec<String>,
}

/// Arguments of `espalier export`.
#[cfg(feature = "torch")]
#[derive(Debug, Args)]
pub(crate) struct ExportArguments {
    /// The checkpoint: a `global_step_N` folder.
    pub(crate) checkpoint: PathBuf,
    /// The model that was trained: a folder, or a name among the models of the cache.
    #[arg(long, value_name = "DIR")]
    pub(crate) base: PathBuf,
    /// Where to write; must not be there yet.
    #[arg(long, value_name = "DIR")]
    pub(crate) out: PathBuf,
    /// Add an adapter to the weights and write the whole model.
    #[arg(long)]
    pub(crate) merge: bool,
    /// Type of a whole model's weights.
    #[arg(long, value_parser = ["bf16", "f32"], default_value = "bf16")]
    pub(crate) dtype: String,
}

/// Arguments of `espalier repl`.
#[derive(Debug, Args)]
pub(crate) struct ReplArguments {
    /// Read one JSON object per line from stdin, answer each with one line on stdout.
    #[arg(long)]
    pub(crate) json: bool,
    /// Calls of `llm_query`, `rlm_query` and tools are put to the driver as `{"call": {...}}` and answered by
    /// `{"return": ...}` (with `--json`). Without this the names do not exist.
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
    /// Memory, MiB, beyond the interpreter's own (three times the contexts is added); one allocation takes at most an
    /// eighth of it (twice the contexts is added).
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
    /// The local engine's decoding, adapters, weight updates.
    Engine,
    /// The trainer: packing, reinforcement, memory.
    Train,
}

/// Arguments of `espalier eval`.
#[derive(Debug, Args)]
pub(crate) struct EvalArguments {
    #[command(subcommand)]
    pub(crate) command: Option<EvalCommand>,
    /// The suite.
    #[arg(long, value_name = "FILE", required = true)]
    pub(crate) suite: Option<PathBuf>,
    /// Where results and trajectories go; `runs/NAME` of the suite by default.
    #[arg(long, value_name = "FOLDER")]
    pub(crate) out: Option<PathBuf>,
    /// Go on with what an earlier run left there; rollouts that failed (engine, environment) are played again.
    #[arg(long)]
    pub(crate) resume: bool,
    /// The results as one JSON object on stdout instead of tables.
    #[arg(long)]
    pub(crate) json: bool,
    /// Overrides of the suite: `key.path=value`.
    #[arg(value_name = "KEY=VALUE")]
    pub(crate) overrides: Vec<String>,
}

/// Subcommands of `espalier eval`.
#[derive(Debug, Subcommand)]
pub(crate) enum EvalCommand {
    /// Compare two runs row by row: differences with 95 % intervals.
    Compare {
        /// A run's folder, or its `results.json`.
        a: PathBuf,
        /// Another.
        b: PathBuf,
        /// One JSON object per task and mode.
        #[arg(long)]
        json: bool,
    },
}

/// Arguments of `espalier rollout`.
#[derive(Debug, Args)]
pub(crate) struct RolloutArguments {
    /// The question.
    pub(crate) prompt: String,
    /// The model: a folder for the local engine or its name in `$ESPALIER_MODELS`, or `URL#MODEL` for an
    /// OpenAI-compatible endpoint.
    #[arg(long, value_name = "MODEL")]
    pub(crate) model: OsString,
    /// The model that grades, for environments that ask a judge; named as `--model` is. The same name is the same model.
    #[arg(long, value_name = "MODEL")]
    pub(crate) judge: Option<OsString>,
    /// The environment.
    #[arg(long, default_value = "rlm", value_name = "ID")]
    pub(crate) env: String,
    /// Bind this file as the context.
    #[arg(long, value_name = "FILE")]
    pub(crate) context: Option<PathBuf>,
    /// The right answer, to grade by. Without it `rlm` rewards any answer that is not empty; other environments may
    /// need it.
    #[arg(long, value_name = "TEXT")]
    pub(crate) truth: Option<String>,
    /// Parameters of the environment: `key.path=value` (repeatable).
    #[arg(long, value_name = "KEY=VALUE")]
    pub(crate) param: Vec<String>,
    /// Sampling parameters: `temperature=0.7`, `max_tokens=256` (repeatable).
    #[arg(long, value_name = "KEY=VALUE")]
    pub(crate) sampling: Vec<String>,
    /// Most turns.
    #[arg(long, default_value_t = 10)]
    pub(crate) max_turns: u32,
    /// Seeds everything.
    #[arg(long, default_value_t = 0)]
    pub(crate) seed: u64,
    /// Keep the trajectories there.
    #[arg(long, value_name = "FOLDER")]
    pub(crate) out: Option<PathBuf>,
    /// The trajectories as JSON, one line each, instead of the tree.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Arguments of `espalier grade`.
#[derive(Debug, Args)]
pub(crate) struct GradeArguments {
    /// The responses, JSONL; stdin by default.
    pub(crate) file: Option<PathBuf>,
    /// The environment.
    #[arg(long, value_name = "ID")]
    pub(crate) env: String,
    /// Parameters of the environment: `key.path=value` (repeatable).
    #[arg(long, value_name = "KEY=VALUE")]
    pub(crate) param: Vec<String>,
    /// One JSON object per line instead of a table.
    #[arg(long)]
    pub(crate) json: bool,
    /// Most time for one response, seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 300.0)]
    pub(crate) timeout: f64,
    /// Responses that are graded at once.
    #[arg(long, value_name = "N", default_value = "16")]
    pub(crate) in_flight: std::num::NonZeroUsize,
    /// Seeds what the environment draws.
    #[arg(long, default_value_t = 0)]
    pub(crate) seed: u64,
}

/// Subcommands of `espalier trajectories`.
#[derive(Debug, Subcommand)]
pub(crate) enum TrajectoriesCommand {
    /// Show a run's trajectories, from Parquet or JSONL.
    Show {
        /// A run's folder (with any folders below it), or a trajectory file.
        path: PathBuf,
        /// Print one tree with its turns instead of a line per tree. Without `--id`: the one with most children.
        #[arg(long)]
        tree: bool,
        /// Only trees whose id contains this.
        #[arg(long, value_name = "TEXT")]
        id: Option<String>,
        /// Print the rows of a tree token by token, sampled ones marked; needs the model's folder, or its name in
        /// `$ESPALIER_MODELS`.
        #[arg(long, value_name = "MODEL")]
        mask: Option<PathBuf>,
        /// Most lines shown per message.
        #[arg(long, default_value_t = 12)]
        lines: usize,
        /// One JSON object per trajectory.
        #[arg(long)]
        json: bool,
    },
}

/// Subcommands of `espalier data`.
#[derive(Debug, Subcommand)]
pub(crate) enum DataCommand {
    /// The environments, the data sets that are generated, the formats that are read, and what the Hugging Face cache
    /// holds.
    List {
        /// One JSON object per entry.
        #[arg(long)]
        json: bool,
    },
    /// One environment: what it does, its parameters and the columns it reads.
    Env {
        /// Its id.
        id: String,
    },
    /// Rows of a file or of a generated data set, as JSONL; every row is checked.
    Show {
        #[command(flatten)]
        source: DataSourceArguments,
        /// Leave out rows whose prompt has more tokens; says how many and which (with `--tokenizer`).
        #[arg(long, value_name = "N", requires = "tokenizer")]
        max_prompt_tokens: Option<u64>,
        /// At most this many rows.
        #[arg(long, value_name = "N")]
        limit: Option<u64>,
    },
    /// What a source holds: rows, columns with types and examples, lengths, splits, and which environments fit.
    Inspect {
        #[command(flatten)]
        source: DataSourceArguments,
        /// Show the prompt template and the first row's prompt instead.
        #[arg(long)]
        prompt: bool,
        /// Say how many rows have longer prompts, and which (with `--tokenizer`).
        #[arg(long, value_name = "N", requires = "tokenizer")]
        max_prompt_tokens: Option<u64>,
        /// Look at the first rows only.
        #[arg(long, value_name = "N")]
        limit: Option<u64>,
        /// One JSON object instead of tables.
        #[arg(long)]
        json: bool,
    },
    /// Check every row: that it reads, that ids differ, and what its environment checks before it is played.
    ///
    /// With `--tokenizer` the tokens of every prompt are counted too. Ends with exit code 3 where something is wrong, or
    /// where `--max-prompt-tokens` leaves no row.
    Validate {
        #[command(flatten)]
        source: DataSourceArguments,
        /// The environment that is asked, instead of the one that each row names (`env_class`).
        #[arg(long, value_name = "ID")]
        env: Option<String>,
        /// Parameters of the environment (repeatable; with `--env`).
        #[arg(long, value_name = "KEY=VALUE", requires = "env")]
        env_param: Vec<String>,
        /// Name the rows whose prompt has more tokens, which a suite with this limit leaves out (with `--tokenizer`).
        #[arg(long, value_name = "N", requires = "tokenizer")]
        max_prompt_tokens: Option<std::num::NonZeroU64>,
        /// Stop after this many problems.
        #[arg(long, value_name = "N", default_value = "20")]
        problems: std::num::NonZeroU64,
        /// One JSON object per problem, and one for the sum.
        #[arg(long)]
        json: bool,
    },
    /// Download a data set of the Hugging Face hub into its cache; prints where every file lies.
    ///
    /// Goes on where an earlier download broke off and compares checksums. `HF_HOME` or `HF_HUB_CACHE` say where the
    /// cache is, `HF_TOKEN` who asks, `HF_ENDPOINT` where the hub is; with `HF_HUB_OFFLINE=1` nothing is downloaded.
    /// Sources name what is there as `hf://org/name/file`.
    Fetch {
        /// The data set: `org/name`, or `org/name@revision`.
        repo: String,
        /// Files by name or pattern: `*` is any text, `?` one character (repeatable; default: all).
        #[arg(long, value_name = "GLOB")]
        file: Vec<String>,
        /// Only data files whose names say that they belong to this split: `train`, `validation`, `test`.
        #[arg(long, value_name = "NAME")]
        split: Option<String>,
        /// One JSON object per file.
        #[arg(long)]
        json: bool,
    },
}

/// What rows are read, and how.
#[derive(Debug, Args)]
pub(crate) struct DataSourceArguments {
    /// A `.jsonl`, `.json`, `.csv` or `.parquet` file (the first three also `.gz` or `.zst`), `hf://org/name/file` for
    /// one of the Hugging Face cache, or the name of a generated data set.
    pub(crate) source: PathBuf,
    /// Parameters of a generated data set: `rows=4`, `size=16384` (repeatable).
    #[arg(long, value_name = "KEY=VALUE")]
    pub(crate) param: Vec<String>,
    /// What the records are: `rows`, `auto`, or a published set's own format.
    #[arg(long, value_parser = clap::builder::PossibleValuesParser::new(espalier_datasets::FORMATS.map(|spec| spec.name)))]
    pub(crate) format: Option<String>,
    /// What makes the prompt: `question`, `instruct`, or a template with `{{ column }}` in it.
    #[arg(long, value_name = "TEMPLATE")]
    pub(crate) prompt_template: Option<String>,
    /// The file with the database schemas of `spider` and `bird`, where it is not beside the questions.
    #[arg(long, value_name = "FILE")]
    pub(crate) tables: Option<PathBuf>,
    /// The model whose tokens are counted: a folder, or a name in `$ESPALIER_MODELS`.
    #[arg(long, value_name = "FOLDER")]
    pub(crate) tokenizer: Option<PathBuf>,
}

/// Subcommands of `espalier serve`.
#[derive(Debug, Subcommand)]
pub(crate) enum ServeCommand {
    /// An OpenAI-compatible API over a local model: chat and completions, streaming.
    ///
    /// Ctrl-C takes no new requests and gives those that run 5 s to finish, then cuts them off (exit code 130; 0 where
    /// all finished). A second Ctrl-C leaves at once.
    #[cfg(feature = "torch")]
    Openai {
        /// The model's folder, or its name in `$ESPALIER_MODELS`.
        #[arg(long, value_name = "FOLDER")]
        model: PathBuf,
        /// A LoRA adapter, PEFT's folder of it, under a name that requests give as `model`; may be repeated.
        #[arg(long = "adapter", value_name = "NAME=FOLDER", value_parser = adapter)]
        adapters: Vec<(String, PathBuf)>,
        /// Where to listen. Beyond loopback anybody who reaches the port may use the model.
        #[arg(long, default_value = "127.0.0.1:8000", value_name = "ADDRESS")]
        listen: std::net::SocketAddr,
        /// Memory of the KV cache, MiB; a quarter of the machine's by default.
        #[arg(long, value_name = "MIB")]
        kv_cache_mb: Option<u64>,
        /// How weights are kept.
        #[arg(long, default_value = "bf16", value_parser = ["bf16", "f32"])]
        precision: String,
    },
    /// A search engine over a folder of texts or a JSONL corpus, in the protocol of Search-R1 and skyrl-gym.
    ///
    /// `POST /retrieve` takes `{"query": TEXT, "topk": N, "return_scores": true}`, or `queries`, a list; `docs/search.md`
    /// describes it. Ctrl-C ends it as it does `serve openai`.
    Search(SearchServerArguments),
    /// REPLs in sandboxes for other programs, over HTTP.
    ///
    /// `docs/sandbox-http.md` describes the API; `examples/sandbox_client` has a client in Python. Ctrl-C takes no new
    /// requests, gives blocks that run 5 s to finish and closes every REPL (exit code 130 where a block was cut off).
    Sandbox(SandboxServerArguments),
    /// The Tinker API over a local model, for the `tinker` package from PyPI as it is: it samples and trains.
    ///
    /// Clients say `TINKER_BASE_URL=http://127.0.0.1:8000 TINKER_API_KEY=tml-anything`; `docs/tinker.md` describes what is
    /// served. Requests and results are kept in a database: what was accepted survives a restart. Ctrl-C takes no new
    /// requests and gives those that run 5 s to finish (exit code 130 where one was cut off).
    #[cfg(feature = "torch")]
    Tinker(TinkerServerArguments),
}

/// Arguments of `espalier serve tinker`.
#[cfg(feature = "torch")]
#[derive(Debug, Args)]
pub(crate) struct TinkerServerArguments {
    /// The model's folder, or its name in `$ESPALIER_MODELS`.
    #[arg(long, value_name = "FOLDER")]
    pub(crate) base_model: PathBuf,
    /// What clients call the model, such as `Qwen/Qwen3-0.6B`; what `--base-model` says where absent. They load the tokenizer
    /// of that name.
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// Where to listen. Beyond loopback it asks for `--api-keys` or `--open`.
    #[arg(long, default_value = "127.0.0.1:8000", value_name = "ADDRESS")]
    pub(crate) listen: std::net::SocketAddr,
    /// The folder of the database and of checkpoints. One server at a time uses it.
    #[arg(long, default_value = "runs/tinker", value_name = "FOLDER")]
    pub(crate) state: PathBuf,
    /// The keys that are accepted: on every line an owner's name and the SHA-256 of the key (`printf %s KEY | sha256sum`).
    /// Owners do not see each other's work.
    #[arg(long, value_name = "FILE")]
    pub(crate) api_keys: Option<PathBuf>,
    /// Without keys, let other machines in too.
    #[arg(long)]
    pub(crate) open: bool,
    /// Write the model's tokenizer to `FOLDER/NAME`, where clients find it that run in FOLDER: the SDK loads the tokenizer of
    /// the model's name, from a folder of that name or from the hub.
    #[arg(long, value_name = "FOLDER")]
    pub(crate) write_client_dir: Option<PathBuf>,
    /// How long results are kept, seconds.
    #[arg(long, default_value_t = 3600.0, value_name = "SECONDS")]
    pub(crate) keep_results: f64,
    /// A session whose client fell silent for so long is ended, seconds.
    #[arg(long, default_value_t = 600.0, value_name = "SECONDS")]
    pub(crate) session_timeout: f64,
    /// Memory of the KV cache, MiB; a quarter of the machine's by default.
    #[arg(long, value_name = "MIB")]
    pub(crate) kv_cache_mb: Option<u64>,
    /// Memory of adapters that train, with their gradients and moments, MiB; what is more waits on the disk.
    #[arg(long, default_value_t = 4096, value_name = "MIB")]
    pub(crate) adapter_memory_mb: u64,
    /// Checkpoints that can be sampled from at once without being read again.
    #[arg(long, default_value_t = 64, value_name = "N")]
    pub(crate) samplers: usize,
    /// Tokens of a training batch that go through the model at once.
    #[arg(long, default_value_t = 4096, value_name = "TOKENS")]
    pub(crate) micro_batch_tokens: usize,
    /// Compute layers again in the backward pass instead of remembering them: less memory, more time.
    #[arg(long)]
    pub(crate) gradient_checkpointing: bool,
    /// How the base model's weights are kept, to sample and to train. Adapters and sums have 32 bits.
    #[arg(long, default_value = "bf16", value_parser = ["bf16", "f32"])]
    pub(crate) precision: String,
}

/// Arguments of `espalier serve sandbox`.
#[derive(Debug, Args)]
pub(crate) struct SandboxServerArguments {
    /// Where to listen. Beyond loopback it asks for `--api-key-env`.
    #[arg(long, default_value = "127.0.0.1:8100", value_name = "ADDRESS")]
    pub(crate) listen: std::net::SocketAddr,
    /// REPLs at once.
    #[arg(long, default_value_t = 64, value_name = "N")]
    pub(crate) max_repls: usize,
    /// Memory that all REPLs together may be promised, MiB; each counts with its own `--memory` and four times its
    /// contexts.
    #[arg(long, default_value_t = 16384, value_name = "MIB")]
    pub(crate) max_memory: u64,
    /// A REPL that nobody asked anything for so long is closed, seconds.
    #[arg(long, default_value_t = 900.0, value_name = "SECONDS")]
    pub(crate) idle_timeout: f64,
    /// Largest request body, MiB: it bounds contexts and snapshots.
    #[arg(long, default_value_t = 256, value_name = "MIB")]
    pub(crate) max_body: usize,
    /// The environment variable that holds the keys (separated by commas or blanks, 16 characters at least). Each key
    /// sees the REPLs made with it.
    #[arg(long, value_name = "NAME")]
    pub(crate) api_key_env: Option<String>,
    /// What a REPL has, and the most that its creator may ask for.
    #[command(flatten)]
    pub(crate) limits: LimitArguments,
}

/// Arguments of `espalier serve search`.
#[derive(Debug, Args)]
pub(crate) struct SearchServerArguments {
    /// What is searched: a folder of `.txt` and `.md` files, or a `.jsonl` file with `contents` (or `text`) and maybe
    /// `id` and `title` on every line.
    #[arg(long, value_name = "PATH")]
    pub(crate) corpus: PathBuf,
    /// Where to listen. Beyond loopback anybody who reaches the port may search.
    #[arg(long, default_value = "127.0.0.1:8000", value_name = "ADDRESS")]
    pub(crate) listen: std::net::SocketAddr,
    /// Documents in an answer to a request that does not say how many.
    #[arg(long, default_value_t = 3, value_name = "N")]
    pub(crate) topk: usize,
}

/// Subcommands of `espalier model`.
#[cfg(feature = "torch")]
#[derive(Debug, Subcommand)]
pub(crate) enum ModelCommand {
    /// Turn a GGUF file into a folder with safetensors, config.json and tokenizer.json.
    Convert {
        /// The GGUF file.
        source: PathBuf,
        /// The folder to make.
        destination: PathBuf,
        /// How weights are stored.
        #[arg(long, default_value = "bf16", value_parser = ["bf16", "f32"])]
        dtype: String,
    },
}

/// `NAME=FOLDER`.
#[cfg(feature = "torch")]
fn adapter(text: &str) -> Result<(String, PathBuf), String> {
    match text.split_once('=') {
        Some((name, folder)) if !name.is_empty() && !folder.is_empty() => Ok((name.to_owned(), folder.into())),
        _ => Err("expected a name, `=` and a folder".to_owned()),
    }
}
