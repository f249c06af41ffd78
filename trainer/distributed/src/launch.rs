//! Starts the ranks of a job on this machine, and ends them together.
//!
//! The launcher opens the rendezvous store itself, as torchrun's agent does, and keeps it open while ranks run: the port
//! that it names is never free for another program to take. The variables are those of torchrun, so a rank may as well be
//! a Python program that calls `torch.distributed.init_process_group`.

mod output;

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::num::NonZero;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use tokio::process::{Child, Command};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{broadcast, mpsc};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::DistributedError;
use crate::ffi::{ShimError, Store, end_with_launcher};
pub use output::RankOutput;
use output::Streams;

/// How long ranks may take to end after SIGTERM, before they are killed.
const GRACE: Duration = Duration::from_secs(30);

/// How long opening a store on this machine may take.
const STORE_TIMEOUT: Duration = Duration::from_mins(1);

/// What is passed on to ranks, and whether it asks them to end.
const FORWARDED: [(Signal, bool); 5] = [
    (Signal::SIGINT, true),
    (Signal::SIGTERM, true),
    (Signal::SIGHUP, true),
    (Signal::SIGUSR1, false),
    (Signal::SIGUSR2, false),
];

/// How a rank ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RankEnd {
    /// It exited with this status.
    Exit(i32),
    /// This signal killed it.
    Signal(i32),
}

impl RankEnd {
    fn of(status: ExitStatus) -> Self {
        status.code().map_or(Self::Signal(status.signal().unwrap_or_default()), Self::Exit)
    }
}

impl fmt::Display for RankEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exit(code) => write!(f, "exited with status {code}"),
            Self::Signal(number) => match Signal::try_from(*number) {
                Ok(Signal::SIGKILL) => f.write_str("was killed by SIGKILL (for want of memory? see `dmesg`)"),
                Ok(signal) => write!(f, "was killed by {signal}"),
                Err(_) => write!(f, "was killed by signal {number}"),
            },
        }
    }
}

/// Why a job on this machine did not come to its end.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    /// No ranks were asked for.
    #[error("expected at least 1 process, got 0")]
    NoRanks,
    /// A variable that the launcher reads is wrong.
    #[error(transparent)]
    Environment(DistributedError),
    /// The store could not be opened.
    #[error(transparent)]
    Store(DistributedError),
    /// The program did not start.
    #[error("rank {rank}: could not start `{program}`: {source}")]
    Spawn {
        /// The rank that did not start.
        rank: usize,
        /// The program.
        program: String,
        /// What the system said.
        source: io::Error,
    },
    /// A rank failed, and the others were ended.
    #[error("rank {rank} of {world} {end}; the other ranks were ended{}", last_words(.stderr))]
    Rank {
        /// The rank that failed first.
        rank: usize,
        /// How many ranks there were.
        world: usize,
        /// How it ended.
        end: RankEnd,
        /// The end of what it wrote to its standard error, where that was not shown already.
        stderr: String,
    },
    /// The launcher was told to end, passed that on, and all ranks ended.
    #[error("ended by {signal}, {}", if *.killed { "and killed by a second signal" } else { "which was passed on to all ranks" })]
    Interrupted {
        /// The first signal.
        signal: Signal,
        /// Whether a second one came before all ranks had ended, which killed them.
        killed: bool,
    },
    /// The system did not let the launcher watch its ranks; they were killed.
    #[error("could not watch the ranks: {0}")]
    System(#[from] io::Error),
}

fn last_words(stderr: &str) -> String {
    if stderr.is_empty() { String::new() } else { format!("; its last words:\n{}", stderr.trim_end()) }
}

/// A rendezvous store on this machine, reachable from this machine only. It lives as long as this value.
#[derive(Debug)]
pub struct LocalStore {
    port: u16,
    _store: Store,
}

impl LocalStore {
    /// Opens a store on a free port of 127.0.0.1.
    pub fn open() -> Result<Self, DistributedError> {
        let host = Ipv4Addr::LOCALHOST;
        let failed = |cause| DistributedError::Store { address: host.to_string(), cause };
        let listener = TcpListener::bind((host, 0)).map_err(|e| failed(e.to_string()))?;
        let port = listener.local_addr().map_err(|e| failed(e.to_string()))?.port();
        let store = Store::tcp(&host.to_string(), port, Some(listener), STORE_TIMEOUT);
        Ok(Self { port, _store: store.map_err(|ShimError(cause)| failed(cause))? })
    }

    /// The variables that make a process rank `rank` of `world` at this store.
    pub fn variables(&self, rank: usize, world: usize) -> Vec<(&'static str, String)> {
        vec![
            ("RANK", rank.to_string()),
            ("LOCAL_RANK", rank.to_string()),
            ("GROUP_RANK", "0".to_owned()),
            ("WORLD_SIZE", world.to_string()),
            ("LOCAL_WORLD_SIZE", world.to_string()),
            ("MASTER_ADDR", Ipv4Addr::LOCALHOST.to_string()),
            ("MASTER_PORT", self.port.to_string()),
            ("TORCHELASTIC_USE_AGENT_STORE", "True".to_owned()),
            ("TORCHELASTIC_RESTART_COUNT", "0".to_owned()),
        ]
    }
}

/// Runs `nproc` copies of a program as the ranks of one job, and returns when all have ended.
///
/// - Each finds the variables of [`Rendezvous`](crate::Rendezvous) in its environment, and besides, where nobody has set
///   them, `OMP_NUM_THREADS` (the cores divided by `nproc`, at least 1) and `OMP_WAIT_POLICY=PASSIVE`. `env` goes last.
/// - When one fails, the others get SIGTERM, after 30 seconds SIGKILL, and the error names the one that failed first.
/// - SIGINT, SIGTERM, SIGHUP, SIGUSR1 and SIGUSR2 are passed on; the handlers stay for the life of the process. Ranks get
///   SIGTERM when the launcher dies.
/// - After SIGINT, SIGTERM or SIGHUP the ranks have the time that they need: what they save may be large. A second of these
///   signals kills them. A rank that then ends with 128 and the signal's number, or with 130, did what it was told. Where all
///   end with 0 the work was done before the signal came.
/// - `ESPALIER_RANK_OUTPUT` says whose output is shown; see [`RankOutput`].
///
/// Blocks; in an async program call it where blocking is allowed.
pub fn spawn_local<A, K, V>(
    nproc: usize,
    program: impl AsRef<OsStr>,
    args: impl IntoIterator<Item = A>,
    env: impl IntoIterator<Item = (K, V)>,
) -> Result<(), LaunchError>
where
    A: AsRef<OsStr>,
    K: AsRef<OsStr>,
    V: AsRef<OsStr>,
{
    if nproc == 0 {
        return Err(LaunchError::NoRanks);
    }
    let output = RankOutput::from_env().map_err(LaunchError::Environment)?;
    let store = LocalStore::open().map_err(LaunchError::Store)?;
    let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
    let threads = (cores / nproc).max(1).to_string();
    let defaults = [("OMP_NUM_THREADS", threads), ("OMP_WAIT_POLICY", "PASSIVE".to_owned())];
    let unset = defaults.into_iter().filter(|(name, _)| std::env::var_os(name).is_none());
    let mut variables: Vec<_> = unset.map(|(name, value)| (name.into(), value.into())).collect();
    variables.extend(env.into_iter().map(|(name, value)| (name.as_ref().to_owned(), value.as_ref().to_owned())));
    let job = Job {
        program: program.as_ref().to_owned(),
        args: args.into_iter().map(|a| a.as_ref().to_owned()).collect(),
        env: variables,
        store,
        world: nproc,
        output,
    };
    // The kernel ends ranks with the thread that started them: it must live as long as they do, and no other runtime may
    // be on it.
    std::thread::scope(|scope| scope.spawn(|| job.run()).join())
        .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

struct Job {
    program: OsString,
    args: Vec<OsString>,
    env: Vec<(OsString, OsString)>,
    store: LocalStore,
    world: usize,
    output: RankOutput,
}

/// What became of one rank.
struct Ended {
    rank: usize,
    end: RankEnd,
    stderr: String,
}

impl Job {
    fn run(&self) -> Result<(), LaunchError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(self.supervise())
    }

    fn start(&self, rank: usize) -> Result<Child, LaunchError> {
        let mut command = std::process::Command::new(&self.program);
        command
            .args(&self.args)
            .envs(self.store.variables(rank, self.world))
            .envs(self.env.iter().map(|(k, v)| (k, v)));
        // A group of its own: what a terminal sends to the launcher's group reaches a rank once, from the launcher.
        command.process_group(0).stdin(Stdio::null());
        end_with_launcher(&mut command);
        let mut command = Command::from(command);
        let (stdout, stderr) = self.output.streams(rank);
        command.stdout(stdout).stderr(stderr).kill_on_drop(true);
        let program = || self.program.to_string_lossy().into_owned();
        command.spawn().map_err(|source| LaunchError::Spawn { rank, program: program(), source })
    }

    async fn supervise(&self) -> Result<(), LaunchError> {
        let mut received = forwarded()?;
        let (send, _) = broadcast::channel(64);
        let mut ranks = JoinSet::new();
        for rank in 0..self.world {
            let child = self.start(rank)?;
            ranks.spawn(attend(rank, child, self.output, send.subscribe()));
        }
        let mut failed: Option<Ended> = None;
        let mut interrupted: Option<Signal> = None;
        let (mut obeyed, mut killed) = (false, false);
        let mut kill_at = None;
        loop {
            let patience = kill_at;
            tokio::select! {
                ended = ranks.join_next() => {
                    let Some(ended) = ended else { break };
                    // Those that ended at the same moment: the one that was killed is why the others failed.
                    let mut all = vec![ended];
                    all.extend(std::iter::from_fn(|| ranks.try_join_next()));
                    let all: Vec<Ended> = all.into_iter().map(|r| r.map_err(io::Error::other)?).collect::<io::Result<_>>()?;
                    let told = |end: RankEnd| interrupted.is_some_and(|signal| killed || obeys(end, signal));
                    obeyed |= all.iter().any(|e| told(e.end));
                    if failed.is_none() {
                        let bad = all.into_iter().filter(|e| e.end != RankEnd::Exit(0) && !told(e.end));
                        failed = bad.min_by_key(|e| (matches!(e.end, RankEnd::Exit(_)), e.rank));
                        if failed.is_some() {
                            let _ = send.send(Signal::SIGTERM); // fails where no rank is left
                            kill_at.get_or_insert(Instant::now() + GRACE);
                        }
                    }
                }
                Some((signal, ends)) = received.recv() => {
                    killed |= ends && interrupted.is_some();
                    if ends {
                        interrupted.get_or_insert(signal);
                    }
                    let _ = send.send(if killed && ends { Signal::SIGKILL } else { signal });
                }
                () = async { tokio::time::sleep_until(patience.unwrap_or_else(Instant::now)).await }, if patience.is_some() => {
                    let _ = send.send(Signal::SIGKILL);
                    kill_at = None;
                }
            }
        }
        match (interrupted, failed) {
            (_, Some(Ended { rank, end, stderr })) => Err(LaunchError::Rank { rank, world: self.world, end, stderr }),
            (Some(signal), None) if obeyed || killed => Err(LaunchError::Interrupted { signal, killed }),
            (_, None) => Ok(()),
        }
    }
}

/// Whether this is how a rank ends that was told to by a signal.
fn obeys(end: RankEnd, signal: Signal) -> bool {
    match end {
        RankEnd::Exit(code) => code == 128 + signal as i32 || code == 128 + Signal::SIGINT as i32,
        RankEnd::Signal(number) => number == signal as i32,
    }
}

/// Waits for one rank, and passes signals on to it and to whatever it has started.
async fn attend(
    rank: usize,
    mut child: Child,
    output: RankOutput,
    mut signals: broadcast::Receiver<Signal>,
) -> io::Result<Ended> {
    let streams = Streams::of(rank, &mut child, output);
    loop {
        tokio::select! {
            status = child.wait() => {
                let end = RankEnd::of(status?);
                return Ok(Ended { rank, end, stderr: streams.finish().await });
            }
            Ok(signal) = signals.recv() => {
                // Not reaped yet, or `id` would be `None`: the number is still this rank's.
                if let Some(id) = child.id().and_then(|id| i32::try_from(id).ok()) {
                    let _ = killpg(Pid::from_raw(id), signal);
                }
            }
        }
    }
}

/// The signals that this process gets, from now on.
fn forwarded() -> io::Result<mpsc::UnboundedReceiver<(Signal, bool)>> {
    let (send, receive) = mpsc::unbounded_channel();
    for (number, ends) in FORWARDED {
        let mut stream = signal(SignalKind::from_raw(number as i32))?;
        let send = send.clone();
        tokio::spawn(async move { while stream.recv().await.is_some() && send.send((number, ends)).is_ok() {} });
    }
    Ok(receive)
}
