//! `runtime = "wasm"`: candidate and tests in a fresh interpreter that is WebAssembly.
//!
//! The instance is the grader's own and holds nothing but the two, so they have all of Python's builtins: `eval`, `exec`
//! and `compile` too, which the REPL's policy keeps from models elsewhere ([`RUNNER`]).
//!
//! Both share one interpreter, so a candidate that sets out to deceive its tests (by objects that are equal to
//! everything, by what it finds in the interpreter) can; nothing outside is at risk. Exits, output and files gain it
//! nothing: whether the tests passed is whether the last block completed, which the host knows.

use std::time::Duration;

use espalier_sandbox::{Limits, Outcome, Policy, ReplOptions, Sandbox, Tool, Value};

use super::program::Examined;
use crate::env::EnvError;

/// What runs the code: an author's tool, which the policy does not bind. `start` gives the candidate builtins of its own;
/// the tests get a copy of its names and builtins that it never had in its hands. What runs them was looked up before.
const RUNNER: &str = "
def runner(exec=exec, compile=compile, dict=dict, builtins=dict(__builtins__.__dict__)):
    clean = dict(builtins)
    def run(source, name, space):
        exec(compile(source, '<' + name + '>', 'exec'), space)
    def start(source):
        space = {'__name__': '__main__', '__builtins__': builtins}
        run(source, 'candidate', space)
        tests = dict(space)
        tests['__builtins__'] = clean
        return tests
    return start, run

start, run = runner()

def _runner(source, name=None, space=None):
    return start(source) if space is None else run(source, name, space)
";

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
    let runner = Tool::Python { name: "_runner".to_owned(), description: String::new(), source: RUNNER.to_owned() };
    let options = ReplOptions { policy: Policy::Default, limits, tools: vec![runner], ..ReplOptions::default() };
    let mut repl = sandbox.repl(options).await.map_err(|error| failed(format!("the sandbox failed: {error}")))?;
    let named = entry.map(|entry| ("candidate".to_owned(), entry.to_owned()));
    let blocks = [("candidate".to_owned(), source.to_owned())];
    let all = blocks.iter().chain(named.as_ref()).chain(tests);
    for (index, (name, code)) in all.enumerate() {
        let (source, named) = (Value::from(code.as_str()).repr(), Value::from(name.as_str()).repr());
        let block = match index {
            0 => format!("_space = _runner({source})"),
            _ => format!("_runner({source}, {named}, _space)"),
        };
        let execution = repl.execute(&block).await.map_err(|error| failed(format!("the sandbox failed: {error}")))?;
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
