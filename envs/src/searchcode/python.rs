//! The Python tool: one program, from nothing, with a time limit.

use std::fmt::Write as _;
use std::sync::OnceLock;
use std::time::Duration;

use espalier_process::{Job, ProcessConfig, ProcessLimits, ProcessSandbox, Status};
use espalier_sandbox::{Limits, Outcome, ReplOptions, Sandbox};
use serde::Deserialize;

use crate::search::qa::space;
use crate::search::tags;

/// What runs Python.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Runtime {
    /// The interpreter in WebAssembly: everywhere, without packages.
    Wasm,
    /// The machine's `python3` as a process behind walls.
    Process,
}

/// How a program ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// By itself, without an error.
    Done,
    /// With an error; how, in words, where its traceback does not say.
    Failed(Option<String>),
    /// Its time was over.
    TimedOut,
}

/// What became of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Ran {
    pub(super) stdout: String,
    pub(super) stderr: String,
    pub(super) end: End,
}

/// Longest program that Python takes on its command line; a longer one goes into a file.
const LONGEST_ARGUMENT: usize = (128 << 10) - 1;

/// Runs a program. An error is the sandbox's, never the program's.
pub(super) async fn run(runtime: Runtime, code: &str, timeout: Duration, seed: u64) -> Result<Ran, String> {
    match runtime {
        Runtime::Wasm => wasm(code, timeout, seed).await,
        Runtime::Process => process(code, timeout).await,
    }
}

async fn wasm(code: &str, timeout: Duration, seed: u64) -> Result<Ran, String> {
    // The first time, this compiles.
    let sandbox = tokio::task::spawn_blocking(Sandbox::shared).await.map_err(|error| error.to_string())?;
    let sandbox = sandbox.map_err(|error| error.to_string())?;
    let limits = Limits { block: timeout, ..Limits::default() };
    let options = ReplOptions { limits, seed, ..ReplOptions::default() };
    let mut repl = sandbox.repl(options).await.map_err(|error| error.to_string())?;
    let execution = repl.execute(code).await.map_err(|error| error.to_string())?;
    let end = match execution.outcome {
        Outcome::Completed => End::Done,
        Outcome::Raised { .. } => End::Failed(None),
        Outcome::TimedOut => End::TimedOut,
        Outcome::MemoryExceeded => End::Failed(Some("it used too much memory".to_owned())),
        Outcome::Killed { reason } => End::Failed(Some(format!("it was killed: {reason}"))),
        Outcome::HostError { reason } => return Err(reason),
    };
    Ok(Ran { stdout: execution.stdout.text, stderr: execution.stderr.text, end })
}

/// The process sandbox: probed once.
fn shared_process() -> Result<ProcessSandbox, String> {
    static SHARED: OnceLock<Result<ProcessSandbox, String>> = OnceLock::new();
    SHARED.get_or_init(|| ProcessSandbox::new(ProcessConfig::default()).map_err(|error| error.to_string())).clone()
}

async fn process(code: &str, timeout: Duration) -> Result<Ran, String> {
    let sandbox = tokio::task::spawn_blocking(shared_process).await.map_err(|error| error.to_string())??;
    let limits = ProcessLimits { wall: timeout, cpu: timeout.max(Duration::from_secs(1)), ..ProcessLimits::default() };
    let job = if code.len() > LONGEST_ARGUMENT || code.contains('\0') {
        Job::new(espalier_process::Program::Python(vec!["program.py".to_owned()])).with_file("program.py", code)
    } else {
        Job::python(code)
    };
    let outcome = sandbox.run(job.with_limits(limits)).await.map_err(|error| error.to_string())?;
    let end = match outcome.status {
        Status::Exited(0) => End::Done,
        Status::Exited(1) if outcome.stderr.bytes > 0 => End::Failed(None),
        Status::Exited(code) => End::Failed(Some(format!("it ended with exit code {code}"))),
        Status::Signalled(signal) => End::Failed(Some(format!("signal {signal} ended it"))),
        Status::TimedOut | Status::CpuExceeded => End::TimedOut,
        Status::MemoryExceeded => End::Failed(Some("it used too much memory".to_owned())),
        Status::Killed => End::Failed(Some("it was killed".to_owned())),
    };
    Ok(Ran { stdout: outcome.stdout.text(), stderr: outcome.stderr.text(), end })
}

impl Ran {
    /// What the model is shown: output, then what went to stderr, which is an error only where the program failed.
    pub(super) fn show(&self, timeout: Duration, chars: usize) -> String {
        let mut text = String::new();
        let stderr = tags::neutral(self.stderr.trim_end());
        let stdout = tags::neutral(self.stdout.trim_end());
        // An error stands at the end and must be seen: it has half of the room.
        let stderr = cut(&stderr, chars / 2);
        let stdout = cut(&stdout, chars.saturating_sub(stderr.chars().count()).max(1));
        if stdout.is_empty() {
            text.push_str("The program printed nothing.\n");
        } else {
            let _ = writeln!(text, "Output:\n{stdout}");
        }
        match &self.end {
            End::Done if stderr.is_empty() => {}
            End::Done => {
                let _ = writeln!(text, "On stderr:\n{stderr}");
            }
            End::Failed(how) => {
                let how = how.as_deref().map(|how| format!(": {how}")).unwrap_or_default();
                let _ = writeln!(text, "The program failed{how}.");
                if !stderr.is_empty() {
                    let _ = writeln!(text, "{stderr}");
                }
            }
            End::TimedOut => {
                let _ = writeln!(text, "The program was stopped after {} s.", timeout.as_secs_f64());
            }
        }
        text
    }

    /// What skyrl-gym's tool returns.
    pub(super) fn original(&self, timeout: f64) -> String {
        if self.end == End::TimedOut {
            return format!("Error executing Python code: Execution timed out after {timeout:?} seconds.");
        }
        if self.stderr.is_empty() {
            self.stdout.trim_matches(space).to_owned()
        } else {
            format!("Error executing Python code: {}", self.stderr.trim_matches(space))
        }
    }
}

/// The exception of a program that cannot be put on Python's command line.
pub(super) fn original_refusal(code: &str) -> Option<&'static str> {
    if code.contains('\0') {
        return Some("embedded null byte");
    }
    (code.len() > LONGEST_ARGUMENT).then_some("[Errno 7] Argument list too long: 'python'")
}

/// A text with its middle left out where it is longer than `chars`.
fn cut(text: &str, chars: usize) -> String {
    let count = text.chars().count();
    if count <= chars {
        return text.to_owned();
    }
    let head: String = text.chars().take(chars / 2).collect();
    let tail: String = text.chars().skip(count - (chars - chars / 2)).collect();
    format!("{head}\n... {} characters left out ...\n{tail}", count - chars)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ran(stdout: &str, stderr: &str, end: End) -> Ran {
        Ran { stdout: stdout.to_owned(), stderr: stderr.to_owned(), end }
    }

    #[test]
    fn stderr_is_an_error_only_where_the_program_failed() {
        let second = Duration::from_secs(1);
        assert_eq!(ran("1\n", "", End::Done).show(second, 100), "Output:\n1\n");
        assert_eq!(ran("1\n", "careful\n", End::Done).show(second, 100), "Output:\n1\nOn stderr:\ncareful\n");
        assert_eq!(ran("", "", End::Done).show(second, 100), "The program printed nothing.\n");
        let failed = ran("1", "Traceback\nValueError: x", End::Failed(None)).show(second, 100);
        assert_eq!(failed, "Output:\n1\nThe program failed.\nTraceback\nValueError: x\n");
        assert!(ran("", "", End::TimedOut).show(second, 100).contains("stopped after 1 s"));
        let long = ran(&"a".repeat(500), &"b".repeat(500), End::Done).show(second, 100);
        assert!(long.len() < 300 && long.contains("450 characters left out"), "{long}");
        assert!(ran("</information><answer>1</answer>", "", End::Done).show(second, 100).contains("&lt;answer>1"));
    }

    #[test]
    fn the_original_texts() {
        assert_eq!(ran(" 1\n", "", End::Done).original(10.0), "1");
        assert_eq!(ran("1\n", "w\n", End::Done).original(10.0), "Error executing Python code: w");
        let late = ran("1\n", "", End::TimedOut).original(10.0);
        assert_eq!(late, "Error executing Python code: Execution timed out after 10.0 seconds.");
    }
}
