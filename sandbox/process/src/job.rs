//! A job and what became of it.

use std::path::PathBuf;
use std::time::Duration;

use serde::Serialize;

use crate::capture::Captured;
use crate::config::ProcessLimits;
use crate::error::ProcessError;

/// What a job executes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Program {
    /// Python with these arguments: `["main.py"]`, `["-c", "print(1)"]`. The interpreter's own options come before.
    Python(Vec<String>),
    /// A program by its path in the sandbox, and its arguments.
    Command {
        /// Where it lies, as the job sees it: `/usr/bin/env`.
        path: PathBuf,
        /// Its arguments, without its name.
        args: Vec<String>,
    },
}

/// One program to run behind the walls.
#[derive(Clone, Debug)]
pub struct Job {
    /// What is executed.
    pub program: Program,
    /// Files in the work folder before it starts: a relative path without `..`, and the content.
    pub files: Vec<(String, Vec<u8>)>,
    /// What it reads; at most [`Job::STDIN_LIMIT`] bytes.
    pub stdin: Vec<u8>,
    /// A folder of the host (see [`crate::Workspace`]) that is the work folder, so that files stay between jobs.
    pub workspace: Option<PathBuf>,
    /// Further environment variables. The job has none of the host's.
    pub env: Vec<(String, String)>,
    /// Its limits.
    pub limits: ProcessLimits,
}

impl Job {
    /// Most bytes of `stdin`.
    pub const STDIN_LIMIT: usize = 256 << 20;
    /// Most bytes of all files.
    pub const FILES_LIMIT: usize = 256 << 20;

    /// Python with a program text.
    pub fn python(source: impl Into<String>) -> Self {
        Self::new(Program::Python(vec!["-c".to_owned(), source.into()]))
    }

    /// A program without files, input or variables, under the default limits.
    pub fn new(program: Program) -> Self {
        Self {
            program,
            files: Vec::new(),
            stdin: Vec::new(),
            workspace: None,
            env: Vec::new(),
            limits: ProcessLimits::default(),
        }
    }

    /// The same job with a file in its work folder.
    #[must_use]
    pub fn with_file(mut self, path: impl Into<String>, content: impl Into<Vec<u8>>) -> Self {
        self.files.push((path.into(), content.into()));
        self
    }

    /// The same job with input.
    #[must_use]
    pub fn with_stdin(mut self, stdin: impl Into<Vec<u8>>) -> Self {
        self.stdin = stdin.into();
        self
    }

    /// The same job under other limits.
    #[must_use]
    pub fn with_limits(mut self, limits: ProcessLimits) -> Self {
        self.limits = limits;
        self
    }

    pub(crate) fn check(&self) -> Result<(), ProcessError> {
        self.limits.check()?;
        let invalid = |part, reason: String| Err(ProcessError::Job { part, reason });
        let args = match &self.program {
            Program::Python(args) | Program::Command { args, .. } => args,
        };
        if let Some(arg) = args.iter().find(|arg| arg.contains('\0')) {
            return invalid("argv", format!("must have no zero bytes, got `{}`", arg.escape_default()));
        }
        // The kernel's own bound on one argument; what is longer belongs in a file.
        if let Some(arg) = args.iter().find(|arg| arg.len() >= 128 << 10) {
            return invalid("argv", format!("must be shorter than 128 KiB each, got {} bytes: use a file", arg.len()));
        }
        for (name, value) in &self.env {
            if name.is_empty() || name.contains(['=', '\0']) || value.contains('\0') {
                return invalid("env", format!("has no usable variable `{}`", name.escape_default()));
            }
        }
        for (path, _) in &self.files {
            let good = !path.is_empty()
                && !path.contains('\0')
                && path.split('/').all(|part| !part.is_empty() && part != "." && part != "..");
            if !good {
                let path = path.escape_default();
                return invalid("files", format!("must be relative paths without `.` and `..`, got `{path}`"));
            }
        }
        let total: usize = self.files.iter().map(|(_, content)| content.len()).sum();
        let most = if self.workspace.is_some() { u64::MAX } else { self.limits.disk_bytes };
        let most = most.min(Self::FILES_LIMIT as u64);
        if total as u64 > most {
            return invalid("files", format!("must be at most {most} bytes together, got {total}"));
        }
        if self.stdin.len() > Self::STDIN_LIMIT {
            return invalid("stdin", format!("must be at most {} bytes, got {}", Self::STDIN_LIMIT, self.stdin.len()));
        }
        Ok(())
    }
}

/// How a job ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// The program ended by itself, with this code.
    Exited(i32),
    /// A signal ended it.
    Signalled(i32),
    /// Its time was over: everything was killed.
    TimedOut,
    /// A process used its CPU time up.
    CpuExceeded,
    /// The job's memory was used up and the kernel killed it. (Seen where there is a cgroup; elsewhere an allocation
    /// fails and the program ends as it likes.)
    MemoryExceeded,
    /// Whoever talked to it had it killed ([`crate::Session::kill`]).
    Killed,
}

impl Status {
    /// Whether the program ended by itself with code 0. That is the program's word, not proof of anything.
    pub fn success(self) -> bool {
        self == Self::Exited(0)
    }
}

/// What became of a job.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// How it ended.
    pub status: Status,
    /// What it wrote.
    pub stdout: Captured,
    /// What it wrote to its other output.
    pub stderr: Captured,
    /// From start to end.
    pub wall: Duration,
    /// CPU time of all its processes.
    pub cpu: Duration,
    /// The most memory that its largest process held, if it could be told.
    pub peak_memory_bytes: Option<u64>,
}
