//! A job that is running: talked to line by line, or only awaited.

use std::io;
use std::os::fd::OwnedFd;
use std::pin::pin;
use std::time::Duration;

use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest};
use tokio::net::unix::pipe;
use tokio::time::{Instant, sleep_until, timeout};

use crate::capture::Capture;
use crate::cgroup::Group;
use crate::error::ProcessError;
use crate::init::{ENDED_SIZE, FAILED_SIZE};
use crate::job::{Outcome, Status};
use crate::spawn::Started;

/// How long killed processes may take to end, and outputs to be read to their end.
const PATIENCE: Duration = Duration::from_secs(10);
/// How much longer outputs are read after the first process has ended, where others may hold them.
const GRACE: Duration = Duration::from_secs(1);

/// A job that is talked to while it runs: what it reads is written by [`Session::send`], what it writes comes line by
/// line from [`Session::line`]. Its limits hold as for any job. Dropped, it is killed.
pub struct Session {
    running: Running,
    stdin: Option<pipe::Sender>,
    stdout: pipe::Receiver,
    /// What was read and is not yet a line.
    buffer: Vec<u8>,
    /// How far the buffer was searched for the end of a line.
    searched: usize,
    read: Capture,
    killed: bool,
}

/// What a session's job wrote.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Line {
    /// A line, without its end.
    Whole(Vec<u8>),
    /// More bytes than were asked for, without an end; they are dropped, and the session is of no use any more.
    TooLong,
    /// Its output is closed, or its time is over.
    Closed,
}

/// A job that runs.
pub(crate) struct Running {
    started: Started,
    exit: AsyncFd<OwnedFd>,
    stdout: Option<pipe::Receiver>,
    stderr: pipe::Receiver,
    report: pipe::Receiver,
    group: Option<Group>,
    kills_before: u64,
    began: Instant,
    deadline: Instant,
    output_bytes: usize,
}

fn receiver(fd: Option<OwnedFd>) -> Result<pipe::Receiver, ProcessError> {
    let fd = fd.ok_or_else(|| ProcessError::Lost { reason: "a pipe is gone".to_owned() })?;
    pipe::Receiver::from_owned_fd(fd).map_err(ProcessError::spawn("watch its output"))
}

#[expect(unsafe_code, reason = "registering a descriptor asks for a promise about its number")]
fn watch(pidfd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an `OwnedFd` names the same descriptor until it is dropped, and the `AsyncFd` owns it until then.
    unsafe { AsyncFd::register_with_interest(pidfd, Interest::READABLE) }.map_err(io::Error::from)
}

impl Running {
    pub(crate) fn new(
        mut started: Started,
        group: Option<Group>,
        kills_before: u64,
        wall: Duration,
        output_bytes: usize,
    ) -> Result<Self, ProcessError> {
        let began = Instant::now();
        let pidfd = started.pidfd.as_ref().map(OwnedFd::try_clone);
        let pidfd = pidfd.ok_or_else(|| ProcessError::Lost { reason: "its process is gone".to_owned() })?;
        let pidfd = pidfd.map_err(ProcessError::spawn("copy a descriptor"))?;
        let exit = watch(pidfd);
        Ok(Self {
            exit: exit.map_err(ProcessError::spawn("watch its process"))?,
            stdout: Some(receiver(started.stdout.take())?),
            stderr: receiver(started.stderr.take())?,
            report: receiver(started.report.take())?,
            started,
            group,
            kills_before,
            began,
            deadline: began.checked_add(wall).unwrap_or(began + Duration::from_secs(1 << 30)),
            output_bytes,
        })
    }

    /// Waits for the end and reads everything.
    pub(crate) async fn finish(mut self) -> Result<Outcome, ProcessError> {
        let (stdout, out) = (self.stdout.take(), Capture::new(self.output_bytes));
        self.end(stdout, out, false).await
    }

    async fn end(
        mut self,
        stdout: Option<pipe::Receiver>,
        mut out: Capture,
        killed: bool,
    ) -> Result<Outcome, ProcessError> {
        let mut err = Capture::new(self.output_bytes);
        let mut report = Capture::new(2 * (FAILED_SIZE + ENDED_SIZE));
        let timed_out;
        {
            let reading = async {
                tokio::join!(
                    async {
                        if let Some(mut stdout) = stdout {
                            drain(&mut stdout, &mut out).await;
                        }
                    },
                    drain(&mut self.stderr, &mut err),
                    drain(&mut self.report, &mut report),
                )
            };
            let mut reading = pin!(reading);
            let (exit, deadline, started) = (&self.exit, self.deadline, &self.started);
            let ending = async {
                if !killed {
                    tokio::select! {
                        _ = exit.readable() => return Ok(false),
                        () = sleep_until(deadline) => {}
                    }
                }
                started.kill();
                match timeout(PATIENCE, exit.readable()).await {
                    Ok(_) => Ok(true),
                    Err(_) => Err(ProcessError::Lost {
                        reason: format!("its processes were killed and did not end within {} s", PATIENCE.as_secs()),
                    }),
                }
            };
            let mut ending = pin!(ending);
            tokio::select! {
                _ = &mut reading => timed_out = ending.await?,
                ended = &mut ending => {
                    timed_out = ended?;
                    // Everything that was written is in the pipes; who holds them still is not of this job's first
                    // process any more.
                    let _ = timeout(GRACE, reading).await;
                }
            }
        }
        let wall = self.began.elapsed();
        let ended = self.started.collect();
        let report = report.finish().head;
        let (status, peak_memory_bytes) = self.status(&report, timed_out, killed)?;
        Ok(Outcome {
            status,
            stdout: out.finish(),
            stderr: err.finish(),
            wall,
            cpu: ended.map_or(Duration::ZERO, |ended| ended.cpu),
            peak_memory_bytes,
        })
    }

    /// What the first process reported.
    fn status(&self, report: &[u8], timed_out: bool, killed: bool) -> Result<(Status, Option<u64>), ProcessError> {
        let long = |at: usize| report.get(at..at + 8).and_then(|bytes| bytes.try_into().ok()).map(i64::from_le_bytes);
        if long(0) == Some(1) {
            return Err(failed_step(&self.started, report));
        }
        if killed {
            return Ok((Status::Killed, None));
        }
        let out_of_memory = self.group.as_ref().is_some_and(|group| group.kills() > self.kills_before);
        let Some(status) = long(16).filter(|_| long(0) == Some(2)) else {
            // The first process was killed before it could report.
            return match (timed_out, out_of_memory) {
                (true, _) => Ok((Status::TimedOut, None)),
                (false, true) => Ok((Status::MemoryExceeded, None)),
                (false, false) => Err(ProcessError::Lost { reason: "its first process ended without a report".into() }),
            };
        };
        // `ru_maxrss` follows two times of two words each, in kilobytes.
        let peak = long(24 + 32).map(|kilobytes| kilobytes.cast_unsigned() * 1024);
        let status = status as i32;
        let signal = status & 0x7f;
        let status = match signal {
            0 => Status::Exited((status >> 8) & 0xff),
            libc::SIGKILL if out_of_memory => Status::MemoryExceeded,
            libc::SIGXCPU => Status::CpuExceeded,
            signal => Status::Signalled(signal),
        };
        Ok((status, peak))
    }
}

/// The error of a report that says that a step failed.
pub(crate) fn failed_step(started: &Started, report: &[u8]) -> ProcessError {
    let long = |at: usize| report.get(at..at + 8).and_then(|bytes| bytes.try_into().ok()).map_or(0, i64::from_le_bytes);
    let source = io::Error::from_raw_os_error(long(16).wrapping_neg() as i32);
    match started.image.purpose(long(8).cast_unsigned()) {
        Some(purpose) if purpose.exec => ProcessError::Exec { program: purpose.what.to_string(), source },
        Some(purpose) => ProcessError::Setup { step: purpose.what.to_string(), wall: purpose.wall, source },
        None => ProcessError::Setup { step: "a step that is not known".to_owned(), wall: None, source },
    }
}

async fn drain(pipe: &mut pipe::Receiver, into: &mut Capture) {
    let mut buffer = vec![0; 64 << 10];
    loop {
        match pipe.read(&mut buffer).await {
            Ok(0) | Err(_) => return,
            Ok(count) => into.push(&buffer[..count]),
        }
    }
}

impl Session {
    pub(crate) fn new(mut running: Running) -> Result<Self, ProcessError> {
        let stdin = running.started.stdin.take().map(pipe::Sender::from_owned_fd).transpose();
        let stdin = stdin.map_err(ProcessError::spawn("watch its input"))?;
        let stdout = running.stdout.take().ok_or_else(|| ProcessError::Lost { reason: "a pipe is gone".to_owned() })?;
        let read = Capture::new(running.output_bytes);
        Ok(Self { running, stdin, stdout, buffer: Vec::new(), searched: 0, read, killed: false })
    }

    /// Writes to the job. False if it does not read any more, or its time is over.
    pub async fn send(&mut self, bytes: &[u8]) -> bool {
        let Some(stdin) = &mut self.stdin else { return false };
        tokio::select! {
            written = stdin.write_all(bytes) => written.is_ok(),
            () = sleep_until(self.running.deadline) => false,
        }
    }

    /// Ends what the job reads.
    pub fn close_input(&mut self) {
        self.stdin = None;
    }

    /// The next line that the job writes, of at most `limit` bytes.
    pub async fn line(&mut self, limit: usize) -> Line {
        let mut chunk = vec![0; 16 << 10];
        loop {
            if let Some(end) = self.buffer[self.searched..].iter().position(|byte| *byte == b'\n') {
                let rest = self.buffer.split_off(self.searched + end + 1);
                let mut line = std::mem::replace(&mut self.buffer, rest);
                line.pop();
                self.searched = 0;
                return if line.len() > limit { Line::TooLong } else { Line::Whole(line) };
            }
            self.searched = self.buffer.len();
            if self.buffer.len() > limit {
                self.buffer = Vec::new();
                self.searched = 0;
                return Line::TooLong;
            }
            let read = tokio::select! {
                read = self.stdout.read(&mut chunk) => read,
                () = sleep_until(self.running.deadline) => return Line::Closed,
            };
            match read {
                Ok(0) | Err(_) => return Line::Closed,
                Ok(count) => {
                    self.read.push(&chunk[..count]);
                    self.buffer.extend_from_slice(&chunk[..count]);
                }
            }
        }
    }

    /// Kills the job; [`Session::finish`] then says [`Status::Killed`].
    pub fn kill(&mut self) {
        self.killed = true;
        self.running.started.kill();
    }

    /// Closes the job's input and waits for its end. Its output is in the outcome from the beginning, lines that were
    /// taken included. What it writes to its other output is read only here: a job that writes more than a pipe holds
    /// waits until then.
    pub async fn finish(self) -> Result<Outcome, ProcessError> {
        drop(self.stdin);
        self.running.end(Some(self.stdout), self.read, self.killed).await
    }
}
