//! Running Python over the workspace's files, for `run_python` and for hidden checks.
//!
//! With `runtime = "process"` the code is a native program in the process sandbox: it sees a copy of the files in a folder
//! in memory, and what it leaves there comes back as data, through the workspace's own bounds. Nothing is written to the
//! host's disk. With `runtime = "wasm"` it runs in the WebAssembly interpreter, without a file system; it reads and writes
//! files by functions.
//!
//! Invariants: what a program says of itself (its report, its files) is believed for its own workspace and for nothing
//! else; a sandbox that fails is [`RunError::Sandbox`] and never an observation.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use espalier_process::{Job, Outcome, ProcessConfig, ProcessLimits, ProcessSandbox, Program, Status};
use espalier_sandbox::{
    CallContext, CallError, HostCall, HostCalls, Limits, ReplOptions, Sandbox, Tool, Value as Python,
};
use serde::Deserialize;
use serde_json::json;
use tokio::sync::OnceCell;

use super::files::{FileLimits, Files};

const WRAPPER: &str = include_str!("wrapper.py");
const CHECK: &str = include_str!("check.py");

/// Where code runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Runtime {
    /// Natively, in the process sandbox.
    #[default]
    Process,
    /// In the WebAssembly interpreter.
    Wasm,
    /// Nowhere: there is no `run_python`.
    None,
}

/// What one run may take.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RunLimits {
    /// Time.
    pub time: Duration,
    /// Memory, bytes.
    pub memory: u64,
    /// Bytes of output kept, of each stream.
    pub output: usize,
    /// The workspace's bounds.
    pub files: FileLimits,
}

/// Why code could not be run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RunError {
    /// The sandbox failed.
    Sandbox(String),
    /// The code did something that ended its run; what to tell whoever wrote it.
    Code(String),
}

static PROCESSES: OnceCell<ProcessSandbox> = OnceCell::const_new();

/// The process sandbox of this process, set up on first use.
pub async fn processes() -> Result<&'static ProcessSandbox, RunError> {
    PROCESSES
        .get_or_try_init(|| async {
            tokio::task::spawn_blocking(|| ProcessSandbox::new(ProcessConfig::default()))
                .await
                .map_err(|error| RunError::Sandbox(error.to_string()))?
                .map_err(|error| RunError::Sandbox(error.to_string()))
        })
        .await
}

fn process_limits(limits: RunLimits, extra: Duration) -> ProcessLimits {
    let default = ProcessLimits::default();
    let disk = (4 * limits.files.bytes as u64).max(default.disk_bytes);
    ProcessLimits {
        // The wrapper starts, copies and reports besides.
        wall: limits.time + extra,
        cpu: limits.time + extra,
        memory_bytes: limits.memory + (256 << 20),
        file_bytes: default.file_bytes,
        disk_bytes: disk,
        output_bytes: 4 * limits.files.bytes + 4 * limits.output + (1 << 20),
        ..default
    }
}

fn copies(files: &Files) -> Vec<(String, Vec<u8>)> {
    files.iter().map(|(path, content)| (format!("workspace/{path}"), content.to_vec())).collect()
}

async fn run_job(
    script: &str,
    payload: &serde_json::Value,
    files: &Files,
    limits: ProcessLimits,
) -> Result<Outcome, RunError> {
    let sandbox = processes().await?;
    let mut job = Job::new(Program::Python(vec!["-c".to_owned(), script.to_owned()]));
    job.files = copies(files);
    job.stdin = payload.to_string().into_bytes();
    job.limits = limits;
    sandbox.run(job).await.map_err(|error| RunError::Sandbox(error.to_string()))
}

/// What a run left, as the wrapper says it.
#[derive(Deserialize)]
struct Report {
    status: Option<i64>,
    stdout: String,
    stderr: String,
    removed: Vec<String>,
    changed: BTreeMap<String, String>,
    skipped: u64,
}

/// Runs code; what it printed and did, as an observation. Files are changed.
pub async fn run(
    runtime: Runtime,
    code: &str,
    files: &mut Files,
    limits: RunLimits,
    seed: u64,
) -> Result<String, RunError> {
    match runtime {
        Runtime::Process => native(code, files, limits).await,
        Runtime::Wasm => wasm(code, files, limits, seed).await,
        Runtime::None => Err(RunError::Code("no code is run here".to_owned())),
    }
}

async fn native(code: &str, files: &mut Files, limits: RunLimits) -> Result<String, RunError> {
    let payload = json!({
        "code": code,
        "seconds": limits.time.as_secs_f64(),
        "output_bytes": limits.output,
        "files": limits.files.files,
        "file_bytes": limits.files.file_bytes,
        "bytes": limits.files.bytes,
    });
    let outcome = run_job(WRAPPER, &payload, files, process_limits(limits, Duration::from_secs(5))).await?;
    // Code may end the program around it: then there is no report, and nothing of what it did is kept.
    let gone = |what: &str| Err(RunError::Code(format!("{what}; the files are as they were before")));
    match outcome.status {
        Status::TimedOut | Status::CpuExceeded => return gone("it took too long and left programs running"),
        Status::MemoryExceeded => return gone("it used up the memory"),
        Status::Exited(0) => {}
        _ => return gone("the program that ran it was ended by it"),
    }
    let Ok(report) = serde_json::from_slice::<Report>(&whole(&outcome)) else {
        return gone("the program that ran it could not report");
    };
    for path in &report.removed {
        files.remove(path);
    }
    let mut notes = Vec::new();
    for (path, content) in &report.changed {
        let kept =
            hex(content).ok_or_else(|| "it is not whole".to_owned()).and_then(|content| files.put(path, content));
        if let Err(reason) = kept {
            notes.push(format!("`{path}` was not kept: {reason}"));
        }
    }
    if report.skipped > 0 {
        notes.push(format!(
            "{} files that are no regular ones, or too many or too large, were not kept",
            report.skipped
        ));
    }
    let ended = match report.status {
        Some(0) => None,
        Some(code) if code < 0 => Some(format!("ended by signal {}", -code)),
        Some(code) => Some(format!("exit code {code}")),
        None => Some(format!("stopped after {} s", limits.time.as_secs_f64())),
    };
    Ok(told(&report.stdout, &report.stderr, ended, &notes))
}

fn whole(outcome: &Outcome) -> Vec<u8> {
    [outcome.stdout.head.as_slice(), outcome.stdout.tail.as_slice()].concat()
}

fn hex(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16).map(|digit| digit as u8);
    if !text.len().is_multiple_of(2) {
        return None;
    }
    text.as_bytes().chunks_exact(2).map(|pair| Some(digit(pair[0])? << 4 | digit(pair[1])?)).collect()
}

fn told(stdout: &str, stderr: &str, ended: Option<String>, notes: &[String]) -> String {
    let mut parts = Vec::new();
    for (name, text) in [("stdout", stdout), ("stderr", stderr)] {
        if !text.trim().is_empty() {
            parts.push(format!("{name}:\n{}", text.trim_end()));
        }
    }
    parts.extend(ended);
    if parts.is_empty() {
        parts.push("(nothing was printed)".to_owned());
    }
    parts.extend(notes.iter().cloned());
    parts.join("\n")
}

/// Serves files to code in the interpreter.
struct Served(Mutex<Files>);

#[async_trait]
impl HostCalls for Served {
    async fn call(&self, call: HostCall, _context: CallContext) -> Result<Python, CallError> {
        let error = |kind: &str, message: String| CallError { type_name: kind.to_owned(), message };
        let mut files = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let text = |index: usize, name: &str| match call
            .args
            .get(index)
            .or_else(|| call.kwargs.iter().find(|(key, _)| key == name).map(|(_, value)| value))
        {
            Some(Python::Str(text)) => Ok(text.clone()),
            _ => Err(error("TypeError", format!("{}(): `{name}` must be a text", call.function))),
        };
        match call.function.as_str() {
            "list_files" => Ok(Python::List(files.iter().map(|(path, _)| Python::from(path)).collect())),
            "read_file" => {
                let path = text(0, "path")?;
                let plain = super::files::plain(&path).map_err(|reason| error("ValueError", reason))?;
                let content = files.get(&plain);
                let content =
                    content.ok_or_else(|| error("FileNotFoundError", format!("there is no file `{path}`")))?;
                Ok(Python::Str(String::from_utf8_lossy(content).into_owned()))
            }
            "write_file" => {
                let (path, content) = (text(0, "path")?, text(1, "content")?);
                files.put(&path, content.into_bytes()).map_err(|reason| error("OSError", reason))?;
                Ok(Python::None)
            }
            other => Err(CallError::runtime(format!("nothing serves `{other}` here"))),
        }
    }
}

async fn wasm(code: &str, files: &mut Files, limits: RunLimits, seed: u64) -> Result<String, RunError> {
    let failed = |error: &dyn std::fmt::Display| RunError::Sandbox(error.to_string());
    let sandbox = tokio::task::spawn_blocking(Sandbox::shared)
        .await
        .map_err(|error| failed(&error))?
        .map_err(|error| failed(&error))?;
    let served = Arc::new(Served(Mutex::new(files.clone())));
    let tool =
        |name: &str, description: &str| Tool::Host { name: name.to_owned(), description: description.to_owned() };
    let options = ReplOptions {
        limits: Limits {
            block: limits.time,
            memory_bytes: limits.memory,
            output_bytes: limits.output,
            value_bytes: limits.files.file_bytes,
            calls_per_block: 1000,
            ..Limits::default()
        },
        seed,
        tools: vec![
            tool("list_files", "names of all files"),
            tool("read_file", "a file's text"),
            tool("write_file", "writes a file"),
        ],
        host: Arc::clone(&served) as Arc<dyn HostCalls>,
        ..ReplOptions::default()
    };
    let mut repl = sandbox.repl(options).await.map_err(|error| failed(&error))?;
    let execution = repl.execute(code).await.map_err(|error| failed(&error))?;
    if let espalier_sandbox::Outcome::HostError { reason } = &execution.outcome {
        return Err(RunError::Sandbox(reason.clone()));
    }
    *files = served.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let ended = match &execution.outcome {
        espalier_sandbox::Outcome::Completed | espalier_sandbox::Outcome::Raised { .. } => None,
        other => Some(format!("stopped: {}", other.name())),
    };
    Ok(told(&execution.stdout.text, &execution.stderr.text, ended, &[]))
}

#[derive(Deserialize)]
struct Checked {
    #[serde(default)]
    reward: Option<f64>,
    #[serde(default)]
    note: Option<String>,
    #[serde(default)]
    error: Option<String>,
}

/// What the check says, after the mark, before it runs the agent's code for the first time.
const RAN: &str = "ran";

/// Runs a hidden check in a sandbox of its own over a copy of the files; the reward and what the check noted. `mark`
/// tells the check's report from everything else that is printed.
///
/// A check that ends without a report after it ran the agent's code is 0: that code can end its grader, and must not
/// gain by it. Without a report before that, it is the check's own fault, an error.
pub async fn check(
    script: &str,
    answer: &str,
    files: &Files,
    limits: RunLimits,
    mark: &str,
) -> Result<(f64, Option<String>), String> {
    let payload = json!({"check": script, "answer": answer, "mark": mark});
    let limits = RunLimits { time: limits.time.max(Duration::from_mins(1)), ..limits };
    let outcome = run_job(CHECK, &payload, files, process_limits(limits, Duration::from_secs(10))).await;
    let outcome = outcome.map_err(|(RunError::Sandbox(reason) | RunError::Code(reason))| reason)?;
    let text = String::from_utf8_lossy(&whole(&outcome)).into_owned();
    let (ran, reports): (Vec<&str>, Vec<&str>) =
        text.lines().filter_map(|line| line.strip_prefix(mark)).partition(|said| *said == RAN);
    let [report] = reports.as_slice() else {
        if !ran.is_empty() {
            let note = format!("the check gave no report after it ran the agent's code ({:?})", outcome.status);
            return Ok((0.0, Some(note)));
        }
        let said: String = outcome.stderr.text().chars().take(500).collect();
        return Err(format!("the check gave no report ({:?}): {said}", outcome.status));
    };
    let report: Checked =
        serde_json::from_str(report).map_err(|error| format!("the check's report cannot be read: {error}"))?;
    match (report.reward, report.error) {
        (_, Some(error)) => Err(format!("the check failed: {error}")),
        (Some(reward), None) if (0.0..=1.0).contains(&reward) => Ok((reward, report.note)),
        (Some(reward), None) => Err(format!("the check must give a number from 0 to 1, got {reward}")),
        (None, None) => Err("the check must give a number from 0 to 1, got none".to_owned()),
    }
}
