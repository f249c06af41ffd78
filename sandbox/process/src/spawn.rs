//! Starting a job's first process, and making sure that it ends.
//!
//! All jobs are started by one thread that lives as long as this process: a job dies with the *thread* that started it
//! (`PR_SET_PDEATHSIG`), and threads of a runtime come and go. Another thread waits for what was killed and not
//! awaited.

use std::ffi::{c_char, c_int, c_void};
use std::fs::File;
use std::io::{self, Seek, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;
use std::sync::OnceLock;
use std::sync::mpsc::{self, Sender};
use std::time::Duration;

use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::signal::{SigSet, Signal, kill};
use nix::unistd::Pid;

use crate::error::ProcessError;
use crate::program::Image;
use crate::slots::Slot;

/// What the job reads.
pub(crate) enum Input {
    /// These bytes.
    Bytes(Vec<u8>),
    /// What the host writes while it runs.
    Pipe,
}

/// A job's first process, and this end of its pipes. Dropped before it was waited for, it is killed and collected.
pub(crate) struct Started {
    pid: Pid,
    pub(crate) pidfd: Option<OwnedFd>,
    pub(crate) stdin: Option<OwnedFd>,
    pub(crate) stdout: Option<OwnedFd>,
    pub(crate) stderr: Option<OwnedFd>,
    pub(crate) report: Option<OwnedFd>,
    /// Without its bytes: what the steps are for.
    pub(crate) image: Image,
    /// There is no process namespace: what is left behind is in the process group, at best.
    grouped: bool,
    /// The place is taken until the process is collected.
    held: Option<Held>,
}

/// What must not be used again before a job is dead.
pub(crate) struct Held {
    _slot: Slot,
    /// A folder that the job worked in, where it has no root view.
    _folder: Option<tempfile::TempDir>,
}

impl Held {
    pub(crate) fn new(slot: Slot, folder: Option<tempfile::TempDir>) -> Self {
        Self { _slot: slot, _folder: folder }
    }
}

/// How a first process ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ended {
    /// User and system time of all processes of the job.
    pub(crate) cpu: Duration,
}

type Work = Box<dyn FnOnce() + Send>;

/// Runs work on the thread that starts jobs.
fn on_starter(work: Work) -> Result<(), ProcessError> {
    static STARTER: OnceLock<Sender<Work>> = OnceLock::new();
    let sender = STARTER.get_or_init(|| {
        let (sender, receiver) = mpsc::channel::<Work>();
        // Without the thread the receiver is gone, and sending says so.
        let _ = std::thread::Builder::new().name("process-start".to_owned()).spawn(move || {
            // No handler of this process may run in a child that shares its memory.
            let _ = SigSet::all().thread_block();
            for work in receiver {
                work();
            }
        });
        sender
    });
    sender.send(work).map_err(|_| ProcessError::Lost { reason: "the thread that starts jobs is gone".to_owned() })
}

/// Starts a job. `held` comes back to life for others when the job is dead.
pub(crate) async fn start(image: Image, flags: i32, input: Input, held: Held) -> Result<Started, ProcessError> {
    let (reply, answer) = tokio::sync::oneshot::channel();
    on_starter(Box::new(move || {
        // If nobody waits any more, what was started is dropped here, and so killed.
        let _ = reply.send(start_here(image, flags, input, Some(held)));
    }))?;
    answer.await.map_err(|_| ProcessError::Lost { reason: "the thread that starts jobs is gone".to_owned() })?
}

/// Starts a job and waits for it, on this thread.
pub(crate) fn start_and_wait<T: Send + 'static>(
    image: Image,
    flags: i32,
    then: impl FnOnce(Result<Started, ProcessError>) -> T + Send + 'static,
) -> Result<T, ProcessError> {
    let (reply, answer) = mpsc::channel();
    on_starter(Box::new(move || {
        let _ = reply.send(then(start_here(image, flags, Input::Bytes(Vec::new()), None)));
    }))?;
    answer.recv().map_err(|_| ProcessError::Lost { reason: "the thread that starts jobs is gone".to_owned() })
}

fn start_here(mut image: Image, flags: i32, input: Input, held: Option<Held>) -> Result<Started, ProcessError> {
    let executable =
        memory_file("espalier-job", &image.bytes).map_err(ProcessError::spawn("write its first process"))?;
    image.forget_bytes();
    let pipe = || -> Result<(OwnedFd, OwnedFd), ProcessError> {
        let (reader, writer) = io::pipe().map_err(ProcessError::spawn("make a pipe"))?;
        Ok((reader.into(), writer.into()))
    };
    let (child_stdin, stdin) = match input {
        Input::Bytes(bytes) => {
            let file = memory_file("espalier-stdin", &bytes).map_err(ProcessError::spawn("write its input"))?;
            (file, None)
        }
        Input::Pipe => {
            let (reader, writer) = pipe()?;
            (reader, Some(writer))
        }
    };
    let (stdout, child_stdout) = pipe()?;
    let (stderr, child_stderr) = pipe()?;
    let (report, child_report) = pipe()?;
    // Numbers above those that they get in the child, so that none is overwritten before it is used.
    let children = [high(child_stdin)?, high(child_stdout)?, high(child_stderr)?, high(child_report)?];
    let executable = high(executable)?;
    let (pid, pidfd) =
        clone(flags, executable.as_raw_fd(), children.each_ref().map(AsRawFd::as_raw_fd)).map_err(|source| {
            ProcessError::Setup { step: "create its first process and namespaces".to_owned(), wall: None, source }
        })?;
    Ok(Started {
        pid,
        pidfd: Some(pidfd),
        stdin,
        stdout: Some(stdout),
        stderr: Some(stderr),
        report: Some(report),
        image,
        grouped: flags & libc::CLONE_NEWPID == 0,
        held,
    })
}

fn high(fd: OwnedFd) -> Result<OwnedFd, ProcessError> {
    const FIRST: RawFd = 10;
    if fd.as_raw_fd() >= FIRST {
        return Ok(fd);
    }
    let copy = fcntl(&fd, FcntlArg::F_DUPFD_CLOEXEC(FIRST))
        .map_err(|error| ProcessError::Spawn { what: "move a descriptor", source: error.into() })?;
    Ok(owned(copy))
}

#[expect(unsafe_code, reason = "descriptors come as numbers from `fcntl` and `clone`")]
fn owned(fd: RawFd) -> OwnedFd {
    // SAFETY: the caller has the number from the kernel as a new descriptor, and nothing else owns it.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

/// A sealed file in memory, at its beginning.
fn memory_file(name: &str, content: &[u8]) -> io::Result<OwnedFd> {
    let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
    // Kernels from 6.3 may refuse to execute files that do not ask for it; older ones do not know the flag.
    let executable = MFdFlags::from_bits_retain(libc::MFD_EXEC);
    let fd = memfd_create(name, flags | executable).or_else(|_| memfd_create(name, flags))?;
    let mut file = File::from(fd);
    file.write_all(content)?;
    file.rewind()?;
    let seals = SealFlag::F_SEAL_WRITE | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_SEAL;
    fcntl(&file, FcntlArg::F_ADD_SEALS(seals))?;
    Ok(file.into())
}

/// What the child needs before it executes the file.
struct ChildArgs {
    executable: RawFd,
    fds: [RawFd; 4],
    argv: [*const c_char; 2],
    envp: [*const c_char; 1],
    /// Keep the rights in a new user namespace across the execution: there the user is not root, who would keep them.
    keep_rights: bool,
    /// Written by the child if it fails.
    errno: i64,
}

const CHILD_STACK: usize = 64 << 10;

/// Creates a process in new namespaces that executes a file. The memory is shared until it does, so the cost does not
/// depend on how much memory this process has.
#[expect(unsafe_code, reason = "no safe interface gives namespaces to a new process without copying this one")]
fn clone(namespaces: i32, executable: RawFd, fds: [RawFd; 4]) -> io::Result<(Pid, OwnedFd)> {
    let name = c"espalier-job".as_ptr();
    let mut args = ChildArgs {
        executable,
        fds,
        argv: [name, ptr::null()],
        envp: [ptr::null()],
        keep_rights: namespaces & libc::CLONE_NEWUSER != 0,
        errno: 0,
    };
    let mut stack = vec![0_u128; CHILD_STACK / 16];
    let mut pidfd: c_int = -1;
    let flags = namespaces | libc::CLONE_VM | libc::CLONE_VFORK | libc::CLONE_PIDFD | libc::SIGCHLD;
    // SAFETY: `CLONE_VFORK` suspends this thread until the child has executed the file or ended, so `args`, `stack`
    // and `pidfd` outlive its use of them, and nobody else uses them meanwhile. The stack's end is aligned to 16
    // bytes. The child runs `enter`, which allocates nothing, takes no lock, cannot panic, and makes only raw system
    // calls; the one thing of this thread that it shares and writes is `errno`. All signals are blocked on the thread
    // that starts jobs, so no handler runs in the child.
    let pid = unsafe {
        let top = stack.as_mut_ptr().add(stack.len()).cast::<c_void>();
        libc::clone(enter, top, flags, (&raw mut args).cast::<c_void>(), &raw mut pidfd)
    };
    if pid < 0 {
        return Err(io::Error::last_os_error());
    }
    let (pid, pidfd) = (Pid::from_raw(pid), owned(pidfd));
    // SAFETY: the child is done with `args`, as above; it wrote the field, so it is read as the memory has it.
    let errno = unsafe { ptr::read_volatile(&raw const args.errno) };
    if errno != 0 {
        collect(pid);
        return Err(io::Error::from_raw_os_error(errno as i32));
    }
    Ok((pid, pidfd))
}

/// `CAP_SETGID`, `CAP_SETUID` and `CAP_SYS_ADMIN`: for the maps of users and groups, the mounts and the host name.
const KEPT_RIGHTS: [libc::c_long; 3] = [6, 7, 21];

/// The child: its four descriptors in their places, then the file.
#[expect(unsafe_code, reason = "only raw system calls are allowed here")]
extern "C" fn enter(args: *mut c_void) -> c_int {
    let args = args.cast::<ChildArgs>();
    // SAFETY: `args` is the parent's, which is suspended and keeps it alive. The calls get numbers, and pointers to
    // texts and lists that live as long.
    unsafe {
        for (place, fd) in (*args).fds.iter().enumerate() {
            if libc::syscall(libc::SYS_dup2, *fd, place) < 0 {
                (*args).errno = i64::from(*libc::__errno_location());
                libc::syscall(libc::SYS_exit_group, 127);
            }
        }
        if (*args).keep_rights {
            // Version 3 of the interface, this process; then two times effective, permitted, inheritable.
            let header = [0x2008_0522_u32, 0];
            let mut sets = [0_u32; 6];
            libc::syscall(libc::SYS_capget, header.as_ptr(), sets.as_mut_ptr());
            (sets[2], sets[5]) = (sets[1], sets[4]);
            libc::syscall(libc::SYS_capset, header.as_ptr(), sets.as_ptr());
            for right in KEPT_RIGHTS {
                libc::syscall(libc::SYS_prctl, libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_RAISE, right, 0, 0);
            }
        }
        libc::syscall(
            libc::SYS_execveat,
            (*args).executable,
            c"".as_ptr(),
            (*args).argv.as_ptr(),
            (*args).envp.as_ptr(),
            libc::AT_EMPTY_PATH,
        );
        (*args).errno = i64::from(*libc::__errno_location());
        libc::syscall(libc::SYS_exit_group, 127);
    }
    127
}

/// Waits for a process that is about to end, and takes its times.
#[expect(unsafe_code, reason = "`wait4` is the call that gives times of one child, and no safe interface has it")]
fn collect(pid: Pid) -> Option<Ended> {
    let mut status: c_int = 0;
    // SAFETY: `rusage` is plain numbers, for which zeros are valid; both pointers are to locals that outlive the call.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        loop {
            let got = libc::wait4(pid.as_raw(), &raw mut status, 0, &raw mut usage);
            if got == pid.as_raw() {
                break usage;
            }
            if io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
                return None;
            }
        }
    };
    let time = |time: libc::timeval| {
        Duration::from_secs(time.tv_sec.cast_unsigned()) + Duration::from_micros(time.tv_usec.cast_unsigned())
    };
    Some(Ended { cpu: time(usage.ru_utime) + time(usage.ru_stime) })
}

impl Started {
    /// Kills every process of the job.
    pub(crate) fn kill(&self) {
        if self.pidfd.is_some() {
            kill_all(self.pid, self.grouped);
        }
    }

    /// Kills every process of the job after a time, unless what is returned is dropped before.
    pub(crate) fn kill_after(&self, time: Duration) -> Sender<()> {
        let (pid, grouped) = (self.pid, self.grouped);
        let (sender, receiver) = mpsc::channel::<()>();
        // Without the thread nothing is killed, which is no worse than without this call.
        let _ = std::thread::Builder::new().name("process-watch".to_owned()).spawn(move || {
            if receiver.recv_timeout(time) == Err(mpsc::RecvTimeoutError::Timeout) {
                kill_all(pid, grouped);
            }
        });
        sender
    }

    /// Waits for the first process, which blocks; call it when the descriptor says that it has ended. Afterwards the
    /// place is free.
    pub(crate) fn collect(&mut self) -> Option<Ended> {
        self.pidfd.take()?;
        let ended = collect(self.pid);
        if self.grouped {
            let _ = kill(Pid::from_raw(-self.pid.as_raw()), Signal::SIGKILL);
        }
        self.held = None;
        ended
    }
}

/// The first process, with which its namespace dies; and its group, where it has none.
fn kill_all(pid: Pid, grouped: bool) {
    let _ = kill(pid, Signal::SIGKILL);
    if grouped {
        let _ = kill(Pid::from_raw(-pid.as_raw()), Signal::SIGKILL);
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        static COLLECTOR: OnceLock<Sender<(Pid, Option<Held>)>> = OnceLock::new();
        if self.pidfd.take().is_none() {
            return;
        }
        kill_all(self.pid, self.grouped);
        let collector = COLLECTOR.get_or_init(|| {
            let (sender, receiver) = mpsc::channel::<(Pid, Option<Held>)>();
            let _ = std::thread::Builder::new().name("process-collect".to_owned()).spawn(move || {
                for (pid, held) in receiver {
                    collect(pid);
                    drop(held);
                }
            });
            sender
        });
        // Without the thread the process stays a zombie and the place is free at once.
        let _ = collector.send((self.pid, self.held.take()));
    }
}

/// This process's effective user and group.
#[expect(unsafe_code, reason = "two calls that cannot fail")]
pub(crate) fn user() -> (u32, u32) {
    // SAFETY: neither takes an argument or touches memory.
    unsafe { (libc::geteuid(), libc::getegid()) }
}
