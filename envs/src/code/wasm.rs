//! `runtime = "wasm"`: candidate and tests in a fresh interpreter that is WebAssembly.
//!
//! Both share one interpreter, so a candidate that sets out to deceive its tests (by objects that are equal to
//! everything) can; nothing outside is at risk. Exits, output and files gain it nothing: whether the tests passed is
//! whether the last block completed, which the host knows.

use std::time::Duration;

use espalier_sandbox::{Limits, Outcome, Policy, ReplOptions, Sandbox};

use super::program::Examined;
use crate::env::EnvError;

/// Runs a candidate, then its tests, in an instance of their own.
pub(super) async fn examine(
    env: &str,
    source: &str,
    entry: Option<&str>,
    tests: &[(String, String)],
    time: Duration,
    memory_bytes: u64,
) -> Result<Examined, EnvError> {
    let failed = |reason: String| EnvError::Grader { env: env.to_owned(), reason };
    let sandbox = tokio::task::spawn_blocking(Sandbox::shared)
        .await
        .map_err(|error| failed(format!("the sandbox could not be loaded: {error}")))?
        .map_err(|error| failed(format!("the sandbox failed: {error}")))?;
    let limits = Limits { block: time, memory_bytes, allocation_bytes: memory_bytes / 2, ..Limits::default() };
    let options = ReplOptions { policy: Policy::Default, limits, ..ReplOptions::default() };
    let mut repl = sandbox.repl(options).await.map_err(|error| failed(format!("the sandbox failed: {error}")))?;
    let named = entry.map(|entry| ("candidate".to_owned(), entry.to_owned()));
    let blocks = [("candidate".to_owned(), source.to_owned())];
    let all = blocks.iter().chain(named.as_ref()).chain(tests);
    for (index, (name, code)) in all.enumerate() {
        let execution = repl.execute(code).await.map_err(|error| failed(format!("the sandbox failed: {error}")))?;
        let (verdict, reason) = match execution.outcome {
            Outcome::Completed => continue,
            Outcome::HostError { reason } => return Err(failed(format!("the sandbox failed: {reason}"))),
            Outcome::Raised { type_name, message } => {
                (if index == 0 { "no_candidate" } else { "failed" }, format!("{type_name}: {message}"))
            }
            Outcome::TimedOut => ("timed_out", format!("took longer than {} s", time.as_secs_f64())),
            Outcome::MemoryExceeded => ("memory", "used its memory up".to_owned()),
            Outcome::Killed { reason } => ("timed_out", reason),
        };
        return Ok(Examined { passed: false, verdict, reason: format!("{name}: {reason}") });
    }
    Ok(Examined { passed: true, verdict: "passed", reason: String::new() })
}
