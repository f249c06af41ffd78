//! Programs with a watchdog.
#![allow(dead_code, reason = "each test file uses some of it")]

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// A program that runs longer than this hangs.
const WATCHDOG: Duration = Duration::from_mins(2);

/// The program that acts as a rank or as a launcher.
pub(crate) fn rank_program() -> &'static str {
    env!("CARGO_BIN_EXE_distributed-rank")
}

/// A program that runs, with its output.
#[derive(Debug)]
pub(crate) struct Running {
    child: Child,
    lines: Receiver<String>,
    errors: Receiver<String>,
    started: Instant,
}

/// How a program ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

fn lines(from: impl Read + Send + 'static) -> Receiver<String> {
    let (send, receive) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(from).lines().map_while(Result::ok) {
            if send.send(line).is_err() {
                break;
            }
        }
    });
    receive
}

impl Running {
    pub(crate) fn start(command: &mut Command) -> Self {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap_or_else(|e| panic!("{command:?}: {e}"));
        let (stdout, stderr) = (child.stdout.take().expect("piped"), child.stderr.take().expect("piped"));
        Self { child, lines: lines(stdout), errors: lines(stderr), started: Instant::now() }
    }

    pub(crate) fn pid(&self) -> nix::unistd::Pid {
        nix::unistd::Pid::from_raw(self.child.id() as i32)
    }

    /// The next line of standard output that begins with `start`.
    pub(crate) fn line(&self, start: &str) -> String {
        loop {
            match self.lines.recv_timeout(WATCHDOG) {
                Ok(line) if line.starts_with(start) => return line,
                Ok(_) => {}
                Err(e) => {
                    panic!("no line {start:?}: {e}; standard error: {:?}", self.errors.try_iter().collect::<Vec<_>>())
                }
            }
        }
    }

    /// Waits for the end.
    pub(crate) fn end(mut self) -> Ended {
        let collect = |receiver: &Receiver<String>| {
            let mut text = String::new();
            loop {
                match receiver.recv_timeout(WATCHDOG.saturating_sub(self.started.elapsed())) {
                    Ok(line) => text.extend([line.as_str(), "\n"]),
                    Err(RecvTimeoutError::Disconnected) => return Some(text),
                    Err(RecvTimeoutError::Timeout) => return None,
                }
            }
        };
        let output = collect(&self.lines).zip(collect(&self.errors));
        let Some((stdout, stderr)) = output else {
            let _ = self.child.kill();
            panic!("a program did not end within {WATCHDOG:?}")
        };
        let status = self.child.wait().expect("waited");
        Ended { code: status.code(), stdout, stderr }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
