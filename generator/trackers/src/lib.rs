//! Where the numbers of a run go.
//!
//! | module | what lives there |
//! |---|---|
//! | [`tracker`] | [`Tracker`], which takes a step's numbers, and [`Numbers`] |
//! | [`logger`] | [`Logger`] and [`Loggers`]: the backends by name, as a configuration names them |
//! | [`run`] | [`RunSpec`]: which backends, under which names, where, fresh or resumed |
//! | [`fan_out`] | [`Trackers`]: all backends of a run as one tracker |
//! | [`console`] | [`Console`]: a line or an aligned block a step, for people |
//! | [`jsonl`] | [`Jsonl`]: a JSON object a step, appended to a file |
//! | [`tensorboard`] | [`TensorBoard`]: event files, with their framing and their messages |
//! | [`wandb`] | [`Wandb`]: offline runs of Weights & Biases, with their framing and their messages |
//! | [`protobuf`] | the wire format that the last two share |
//!
//! Invariants: names of metrics reach a backend as they came; what was logged is with the operating system when `log`
//! returns, so a run that is killed leaves files that end with its last step; memory does not grow with the number of
//! steps; a backend that fails is dropped, with one warning, and never stops a run.
//!
//! ```
//! use espalier_trackers::{Loggers, Numbers, RunSpec, Tracker, Trackers};
//!
//! # let directory = tempfile::tempdir()?;
//! # let directory = directory.path().to_owned();
//! let logger = Loggers::new(["wandb", "jsonl"])?;
//! let mut trackers = Trackers::open(&RunSpec { logger, directory, ..RunSpec::default() })?;
//! trackers.log(1, &Numbers::from([("policy/loss".to_owned(), 0.03)]))?;
//! trackers.finish(0)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod clock;
pub mod console;
mod error;
pub mod fan_out;
pub mod jsonl;
pub mod logger;
pub mod protobuf;
pub mod run;
pub mod tensorboard;
pub mod tracker;
pub mod wandb;

pub use console::{Console, ConsoleOptions, Layout};
pub use error::TrackerError;
pub use fan_out::{Dropped, Trackers};
pub use jsonl::Jsonl;
pub use logger::{Logger, Loggers};
pub use run::RunSpec;
pub use tensorboard::TensorBoard;
pub use tracker::{Numbers, Tracker};
pub use wandb::Wandb;
