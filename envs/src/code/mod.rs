//! Environments that run what the policy writes: `lcb` and `code`.
//!
//! | module | what lives there |
//! |---|---|
//! | [`lcb`] | LiveCodeBench: tests of inputs and outputs |
//! | [`program`] | `code`, as HumanEval and MBPP ask: tests that are code |
//! | [`answer`] | the code in a response |
//! | [`equality`], [`decimal`] | what Python takes for equal, compared on the host |
//! | `cases` | the tests of a LiveCodeBench row |
//! | `stage.py`, `examine.py` | what runs inside the process sandbox |
//!
//! Invariants: a verdict is the host's. What a test expects never enters a process that runs the candidate's code; what
//! comes back from such a process is data. A sandbox that could not run is [`EnvError::Grader`]; code that is wrong,
//! slow or absent is a reward of 0 that says why.

pub mod answer;
mod cases;
pub mod decimal;
pub mod equality;
pub mod lcb;
pub mod program;
mod wasm;

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use espalier_process::{ProcessConfig, ProcessError, ProcessLimits, ProcessSandbox};

use crate::env::EnvError;

/// The sandbox of these environments, one per process: it is probed once, and its places are shared by every episode.
async fn sandbox(env: &str, site_packages: bool) -> Result<ProcessSandbox, EnvError> {
    static SHARED: Mutex<BTreeMap<bool, ProcessSandbox>> = Mutex::new(BTreeMap::new());
    let made = tokio::task::spawn_blocking(move || {
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(sandbox) = shared.get(&site_packages) {
            return Ok(sandbox.clone());
        }
        let sandbox = ProcessSandbox::new(ProcessConfig { site_packages, ..ProcessConfig::default() })?;
        shared.insert(site_packages, sandbox.clone());
        Ok::<_, ProcessError>(sandbox)
    });
    let made = made.await.map_err(|error| grader(env, &error))?;
    made.map_err(|error| grader(env, &error))
}

fn grader(env: &str, error: &dyn std::fmt::Display) -> EnvError {
    EnvError::Grader { env: env.to_owned(), reason: format!("the process sandbox failed: {error}") }
}

/// A number of seconds of a row's parameters as a time.
fn seconds(env: &str, key: &str, seconds: f64) -> Result<Duration, EnvError> {
    Duration::try_from_secs_f64(seconds).ok().filter(|time| !time.is_zero() && time.as_secs() <= 3600).ok_or_else(
        || EnvError::Invalid {
            env: env.to_owned(),
            key: key.to_owned(),
            reason: format!("must be a number of seconds above 0 and at most 3600, got {seconds}"),
        },
    )
}

fn memory(env: &str, megabytes: u64) -> Result<u64, EnvError> {
    if (64..=1 << 20).contains(&megabytes) {
        return Ok(megabytes << 20);
    }
    Err(EnvError::Invalid {
        env: env.to_owned(),
        key: "memory_mb".to_owned(),
        reason: format!("must be from 64 to 1048576, got {megabytes}"),
    })
}

fn limits(wall: Duration, cpu: Duration, memory_bytes: u64) -> ProcessLimits {
    ProcessLimits { wall, cpu, memory_bytes, output_bytes: 64 << 10, ..ProcessLimits::default() }
}
