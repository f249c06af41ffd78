//! Jobs that mean harm. Each ends within its limits, nothing of it survives, and the next job is as good as ever.

#[allow(dead_code, reason = "every test file uses a part")]
mod support;

use std::os::unix::fs::{FileTypeExt, symlink};
use std::time::Duration;

use espalier_process::{Job, ProcessConfig, ProcessLimits, Program, Status, Wall, Workspace};
use support::{alive, attacked, marked, sandbox, skip, text, with};

fn seconds(seconds: u64) -> ProcessLimits {
    ProcessLimits { wall: Duration::from_secs(seconds), ..ProcessLimits::default() }
}

/// What Python says of each expression, one line each: its value, or its error's type.
fn ask(expressions: &[&str]) -> String {
    let mut code = "import os, socket, ctypes, errno\nlibc = ctypes.CDLL(None, use_errno=True)\n\
                    def call(*args):\n    result = libc.syscall(*args)\n    \
                    return errno.errorcode[ctypes.get_errno()] if result < 0 else 'allowed'\n"
        .to_owned();
    for expression in expressions {
        let asked = format!("try:\n    print({expression})\n");
        code.push_str(&asked);
        code.push_str("except OSError as error:\n    print(errno.errorcode[error.errno])\n");
    }
    code
}

#[tokio::test]
async fn a_fork_bomb_stays_within_its_number_of_processes() {
    let Some(sandbox) = sandbox() else { return };
    let code = "import os\nwhile True:\n    try:\n        os.fork()\n    except OSError:\n        pass";
    let outcome = attacked(&sandbox, code, ProcessLimits { processes: 16, ..seconds(2) }).await;
    assert_eq!(outcome.status, Status::TimedOut);
}

#[tokio::test]
async fn threads_count_as_processes() {
    let Some(sandbox) = sandbox() else { return };
    let code = "import threading, time\ncount = 0\ntry:\n    for _ in range(100):\n        \
                threading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n        count += 1\n\
                except RuntimeError:\n    print(count)";
    let outcome = attacked(&sandbox, code, ProcessLimits { processes: 8, ..seconds(20) }).await;
    assert_eq!(text(&outcome), "7\n");
}

#[tokio::test]
async fn memory_ends_at_its_limit() {
    let Some(sandbox) = sandbox() else { return };
    let limits = ProcessLimits { memory_bytes: 128 << 20, ..seconds(20) };
    let code = "hoard = []\nwhile True:\n    hoard.append(bytearray(1 << 20))";
    let outcome = attacked(&sandbox, code, limits.clone()).await;
    assert!(matches!(outcome.status, Status::Exited(1) | Status::MemoryExceeded), "{:?}", outcome.status);
    assert!(outcome.peak_memory_bytes.is_some_and(|bytes| bytes < 200 << 20), "{:?}", outcome.peak_memory_bytes);
    let outcome = attacked(&sandbox, "'a' * 10**10", limits).await;
    assert_eq!(outcome.status, Status::Exited(1));
    assert!(outcome.stderr.text().contains("MemoryError"));
}

#[tokio::test]
async fn memory_of_many_processes_is_counted_together() {
    let Some(sandbox) = with(ProcessConfig::default()) else { return };
    if let Some(reason) = sandbox.walls().reason(Wall::CgroupMemory) {
        skip(format!("no cgroup: {reason}"));
        return;
    }
    let code = "import os, time\nfor _ in range(20):\n    if os.fork() == 0:\n        \
                hoard = bytearray(100 << 20)\n        time.sleep(60)\n\
                hoard = bytearray(100 << 20)\nfor _ in range(20):\n    os.wait()";
    let limits = ProcessLimits { memory_bytes: 128 << 20, disk_bytes: 1 << 20, ..seconds(5) };
    let outcome = attacked(&sandbox, code, limits).await;
    assert!(matches!(outcome.status, Status::MemoryExceeded | Status::TimedOut), "{:?}", outcome.status);
}

#[tokio::test]
async fn the_disk_ends_at_its_limit() {
    let Some(sandbox) = sandbox() else { return };
    let code = "written = 0\ntry:\n    for number in range(100):\n        with open(f'/tmp/{number}', 'wb') as file:\n\
                \x20           for _ in range(8):\n                written += file.write(bytes(1 << 20))\n                \
                file.flush()\nexcept OSError as error:\n    print(error.errno, written >> 20)";
    let limits = ProcessLimits { disk_bytes: 32 << 20, ..seconds(20) };
    let outcome = attacked(&sandbox, code, limits.clone()).await;
    let said = text(&outcome);
    let (errno, written) = said.trim().split_once(' ').unwrap();
    assert_eq!(errno, libc::ENOSPC.to_string());
    assert!(written.parse::<u64>().unwrap() <= 32, "{written}");
    // One file, and the number of files.
    let code = "open('/tmp/x', 'wb').write(bytes(16 << 20))";
    let outcome = attacked(&sandbox, code, ProcessLimits { file_bytes: 4 << 20, ..limits.clone() }).await;
    assert!(!outcome.status.success());
    let code = "try:\n    for number in range(100000):\n        open(f'/tmp/{number}', 'w').close()\n\
                except OSError as error:\n    print(error.errno)";
    assert_eq!(text(&attacked(&sandbox, code, limits).await), format!("{}\n", libc::ENOSPC));
}

#[tokio::test]
async fn output_is_counted_and_mostly_dropped() {
    let Some(sandbox) = sandbox() else { return };
    let code = "import os\nos.write(1, b'begin')\nfor _ in range(512):\n    os.write(1, b'x' * (1 << 20))\n\
                os.write(1, b'end')";
    let outcome = attacked(&sandbox, code, ProcessLimits { output_bytes: 1000, ..seconds(60) }).await;
    assert!(outcome.stdout.bytes > 30 << 20, "{}", outcome.stdout.bytes);
    assert!(outcome.stdout.head.starts_with(b"begin") && outcome.stdout.tail.ends_with(b"end"));
    assert_eq!(outcome.stdout.head.len() + outcome.stdout.tail.len(), 1000);
}

#[tokio::test]
async fn there_is_no_network() {
    let Some(sandbox) = sandbox() else { return };
    let code = ask(&[
        "socket.create_connection(('127.0.0.1', 80), 1)",
        "socket.socket(socket.AF_INET, socket.SOCK_DGRAM)",
        "socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)",
        "socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)",
        "len(socket.socketpair())",
        "sorted(name for _, name in socket.if_nameindex())",
    ]);
    let said = text(&attacked(&sandbox, &code, seconds(20)).await);
    assert_eq!(said, "EPERM\nEPERM\nEPERM\nEPERM\n2\nEPERM\n");
}

/// The network namespace by itself, whatever the filter says.
#[tokio::test]
async fn the_network_has_no_way_out() {
    let Some(sandbox) = sandbox() else { return };
    let code = "print([line.split(':')[0].strip() for line in open('/proc/net/dev').readlines()[2:]])";
    let Some(seeing) = with(ProcessConfig { proc: true, ..ProcessConfig::default() }) else { return };
    let outcome = seeing.run(Job::python(code)).await.unwrap();
    if outcome.stderr.text().contains("/proc/net/dev") {
        skip("this host gives a job no `/proc`");
        return;
    }
    assert_eq!(text(&outcome), "['lo']\n");
    drop(sandbox);
}

#[tokio::test]
async fn the_host_cannot_be_read() {
    let Some(sandbox) = sandbox() else { return };
    let home = std::env::var("HOME").unwrap_or_else(|_| "/root".to_owned());
    let secret = tempfile::NamedTempFile::new().unwrap();
    let listed = format!("[name for name in os.listdir('{home}') if name not in ('.pyenv',)]");
    let temporary = format!("open('{}').read()", secret.path().display());
    let code = ask(&[
        "open('/etc/shadow').read()",
        "sorted(os.listdir('/etc'))",
        "sorted(os.listdir('/dev'))",
        "os.listdir('/proc')",
        "os.listdir('/sys')",
        "os.listdir('/old')",
        "os.listdir('/var')",
        "sorted(name for name in os.environ if name not in ('MARKER', 'LC_CTYPE'))",
        "os.listdir('/tmp')",
        &temporary,
        "os.getuid() != 0 and os.geteuid() != 0 and os.getgroups() in ([], [65534])",
        "os.uname().nodename",
    ]);
    let said = text(&attacked(&sandbox, &code, seconds(20)).await);
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines[0], "ENOENT");
    let etc = "['alternatives', 'group', 'ld.so.cache', 'localtime', 'passwd']";
    assert!(lines[1].split(", ").all(|name| etc.contains(name.trim_matches(['[', ']']))), "{}", lines[1]);
    assert_eq!(lines[2], "['full', 'null', 'random', 'shm', 'urandom', 'zero']");
    assert_eq!(lines[3..7], ["ENOENT"; 4]);
    let variables = "['HOME', 'OMP_NUM_THREADS', 'OPENBLAS_NUM_THREADS', 'PATH', 'PYTHONHASHSEED', 'TMPDIR']"
        .replace("'PATH'", "'LANG', 'PATH'");
    let mut expected: Vec<&str> = variables.trim_matches(['[', ']']).split(", ").collect();
    expected.sort_unstable();
    assert_eq!(lines[7], format!("[{}]", expected.join(", ")));
    assert_eq!(lines[8..10], ["['work']", "ENOENT"]);
    assert_eq!(lines[10], "True");
    assert_eq!(lines[11], "sandbox");
    let said = text(&attacked(&sandbox, &ask(&[&listed]), seconds(20)).await);
    assert!(matches!(said.as_str(), "[]\n" | "ENOENT\n"), "{said}");
}

#[tokio::test]
async fn nothing_but_the_scratch_folder_can_be_written() {
    let Some(sandbox) = sandbox() else { return };
    let prefix = &sandbox.interpreter().folders[0];
    let module = format!("open(os.path.join('{}', 'lib', 'planted.py'), 'w')", prefix.display());
    let chmod = format!("os.chmod('{}', 0o777)", sandbox.interpreter().executable.display());
    let code = ask(&[
        &module,
        &chmod,
        "open('/usr/planted', 'w')",
        "open('/etc/passwd', 'w')",
        "open('/planted', 'w')",
        "os.mkdir('/dev/planted')",
        "os.remove('/bin')",
        "open('/dev/null', 'w').write('x')",
        "os.mknod('/tmp/disk', 0o60600, os.makedev(8, 0))",
    ]);
    let said = text(&attacked(&sandbox, &code, seconds(20)).await);
    let lines: Vec<&str> = said.lines().collect();
    for line in &lines[..7] {
        assert!(["EROFS", "EACCES", "EPERM"].contains(line), "{said}");
    }
    assert_eq!(lines[7..], ["1", "EPERM"]);
}

#[tokio::test]
async fn calls_that_go_around_walls_are_refused() {
    let Some(sandbox) = sandbox() else { return };
    // Numbers of x86_64: ptrace, mount, unshare, setns, bpf, perf_event_open, keyctl, init_module, reboot,
    // process_vm_writev, pidfd_getfd, chroot, personality, clone with a user namespace; userfaultfd, io_uring_setup,
    // memfd_create, clone3; the last known call and one more; getpid of x32.
    let refused: Vec<String> = [101, 165, 272, 308, 321, 298, 250, 175, 169, 311, 438, 161, 135]
        .iter()
        .map(|number| format!("call({number}, 0, 0, 0, 0, 0, 0)"))
        .chain(["call(56, 0x10000000, 0, 0, 0, 0, 0)".to_owned()])
        .collect();
    let unknown: Vec<String> = [323, 425, 319, 435, 463, 0x4000_0027]
        .iter()
        .map(|number| format!("call({number}, 0, 0, 0, 0, 0, 0)"))
        .collect();
    let all: Vec<&str> = refused.iter().chain(&unknown).map(String::as_str).collect();
    let said = text(&attacked(&sandbox, &ask(&all), seconds(20)).await);
    let lines: Vec<&str> = said.lines().collect();
    assert!(lines[..refused.len()].iter().all(|line| *line == "EPERM"), "{said}");
    assert!(lines[refused.len()..].iter().all(|line| *line == "ENOSYS"), "{said}");
}

#[tokio::test]
async fn processes_of_the_host_cannot_be_reached() {
    let Some(sandbox) = sandbox() else { return };
    let own = std::process::id();
    let kill = format!("os.kill({own}, 9)");
    let code = ask(&[&kill, "os.kill(1, 9)", "os.getppid()", "os.getpid()", "os.kill(1, 0)"]);
    let said = text(&attacked(&sandbox, &code, seconds(20)).await);
    let lines: Vec<&str> = said.lines().collect();
    // Its own first process is there and takes no signal from within.
    assert_eq!(lines, ["ESRCH", "None", "1", "2", "None"]);
    let code = "import os\ntry:\n    os.kill(-1, 9)\nexcept OSError:\n    pass\nprint('alone')";
    assert_eq!(text(&attacked(&sandbox, code, seconds(20)).await), "alone\n");
}

#[tokio::test]
async fn with_a_proc_only_its_own_processes_are_seen() {
    let Some(sandbox) = with(ProcessConfig { proc: true, ..ProcessConfig::default() }) else { return };
    let code = "import os\nif not os.path.exists('/proc/self'):\n    print('none')\nelse:\n    \
                print(sorted(int(name) for name in os.listdir('/proc') if name.isdigit()))\n    \
                for path in ('/proc/1/environ', '/proc/1/mem', '/proc/1/fd', '/proc/1/root'):\n        try:\n            \
                print(os.listdir(path) if path.endswith(('fd', 'root')) else open(path, 'rb').read(10))\n        \
                except OSError as error:\n            print(error.errno == 13)";
    let said = text(&attacked(&sandbox, code, seconds(20)).await);
    if said == "none\n" {
        skip("this host gives a job no `/proc`");
        return;
    }
    assert_eq!(said, "[1, 2]\nTrue\nTrue\nTrue\nTrue\n");
}

#[tokio::test]
async fn time_ends_what_ignores_signals() {
    let Some(sandbox) = sandbox() else { return };
    let code = "import signal, time\nfor number in range(1, 65):\n    try:\n        \
                signal.signal(number, signal.SIG_IGN)\n    except (OSError, ValueError):\n        pass\n\
                print('still here', flush=True)\nwhile True:\n    time.sleep(60)";
    let outcome = attacked(&sandbox, code, seconds(1)).await;
    assert_eq!(outcome.status, Status::TimedOut);
    assert_eq!(outcome.stdout.text(), "still here\n");
}

#[tokio::test]
async fn cpu_time_ends_what_computes() {
    let Some(sandbox) = sandbox() else { return };
    let limits = ProcessLimits { cpu: Duration::from_secs(1), ..seconds(60) };
    let outcome = attacked(&sandbox, "sum(range(10**12))", limits).await;
    assert_eq!(outcome.status, Status::CpuExceeded);
}

#[tokio::test]
async fn children_left_behind_end_with_the_job() {
    let Some(sandbox) = sandbox() else { return };
    let code = "import os, time\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n        \
                while True:\n            time.sleep(60)\n    os._exit(0)\nos.wait()\nprint('done')";
    let outcome = attacked(&sandbox, code, seconds(30)).await;
    assert_eq!(text(&outcome), "done\n");
}

#[tokio::test]
async fn a_dropped_run_is_killed() {
    let Some(sandbox) = sandbox() else { return };
    let (job, marker) = marked("import time\nprint('up', flush=True)\ntime.sleep(600)");
    let mut session = sandbox.session(job.with_limits(seconds(600))).await.unwrap();
    assert_eq!(session.line(10).await, espalier_process::session::Line::Whole(b"up".to_vec()));
    assert!(alive(&marker) > 0, "the marker is not seen");
    drop(session);
    // The place is free when its process is gone, so taking all of them waits for that.
    let all = (0..sandbox.config().concurrency).map(|_| sandbox.session(Job::python("input()")));
    let mut sessions = Vec::new();
    for session in all {
        sessions.push(session.await.unwrap());
    }
    assert_eq!(alive(&marker), 0);
}

#[tokio::test]
async fn nothing_of_the_host_is_open() {
    let Some(sandbox) = sandbox() else { return };
    // A file that a careless host left inheritable.
    let open = std::fs::File::open("/etc/passwd").unwrap();
    nix::fcntl::fcntl(&open, nix::fcntl::FcntlArg::F_SETFD(nix::fcntl::FdFlag::empty())).unwrap();
    let code = "import os\nfound = []\nfor number in range(3, 256):\n    try:\n        os.fstat(number)\n        \
                found.append(number)\n    except OSError:\n        pass\nprint(found)";
    assert_eq!(text(&attacked(&sandbox, code, seconds(20)).await), "[]\n");
}

#[tokio::test]
async fn its_input_is_its_own() {
    let Some(sandbox) = sandbox() else { return };
    let code = ask(&["os.read(0, 10)", "os.write(0, b'x')", "os.ftruncate(0, 10)"]);
    let outcome = sandbox.run(Job::python(code).with_stdin("input")).await.unwrap();
    assert_eq!(text(&outcome), "b'input'\nEPERM\nEPERM\n");
}

#[tokio::test]
async fn links_in_a_workspace_lead_nowhere() {
    let Some(sandbox) = sandbox() else { return };
    let parent = tempfile::tempdir().unwrap();
    let outside = parent.path().join("outside");
    std::fs::write(&outside, "secret").unwrap();
    let workspace = Workspace::create(parent.path().join("work")).unwrap();
    let job = |code: String| {
        let mut job = Job::new(Program::Python(vec!["-c".to_owned(), code]));
        job.workspace = Some(workspace.path().to_owned());
        job
    };
    let code = format!(
        "import os\nopen('kept.txt', 'w').write('kept')\nos.symlink('{0}', 'link')\nos.symlink('..', 'up')\n\
         os.mkfifo('pipe')\nos.symlink('{0}', 'main.py')\n\
         try:\n    print(open('link').read())\nexcept OSError as error:\n    print(error.errno)",
        outside.display()
    );
    let outcome = sandbox.run(job(code)).await.unwrap();
    assert_eq!(text(&outcome), format!("{}\n", libc::ENOENT));

    assert_eq!(workspace.read("kept.txt", 100).unwrap(), b"kept");
    for path in ["link", "up/outside", "../outside", "/etc/passwd", "pipe", "main.py", "."] {
        assert!(workspace.read(path, 100).is_err(), "{path} was read");
    }
    for path in ["link", "up/planted", "../planted", "pipe"] {
        assert!(workspace.write(path, b"overwritten").is_err(), "{path} was written");
    }
    assert!(workspace.read("kept.txt", 3).unwrap_err().to_string().contains("is larger than 3 bytes"));
    // A file of the next job takes the place of a link, within the sandbox.
    let next = job("print(open('main.py').read(), open('kept.txt').read())".to_owned()).with_file("main.py", "mine");
    assert_eq!(text(&sandbox.run(next).await.unwrap()), "mine kept\n");
    workspace.write("given.txt", b"given").unwrap();
    let next = job("print(open('given.txt').read()); open('given.txt', 'a').write('!')".to_owned());
    assert_eq!(text(&sandbox.run(next).await.unwrap()), "given\n");
    assert_eq!(std::fs::read_to_string(&outside).unwrap(), "secret");
    assert!(std::fs::symlink_metadata(workspace.path().join("pipe")).unwrap().file_type().is_fifo());
    // A link in place of the folder itself.
    symlink(parent.path(), parent.path().join("alias")).unwrap();
    let mut job = Job::python("");
    job.workspace = Some(parent.path().join("alias"));
    assert!(sandbox.run(job).await.is_err());
}

#[tokio::test]
async fn many_jobs_with_a_hog_among_them_all_end() {
    let Some(sandbox) = sandbox() else { return };
    let mut jobs = Vec::new();
    for number in 0..64 {
        let sandbox = sandbox.clone();
        let code = if number == 7 { "while True: pass".to_owned() } else { format!("print({number})") };
        jobs.push(tokio::spawn(async move { sandbox.run(Job::python(code).with_limits(seconds(5))).await }));
    }
    for (number, job) in jobs.into_iter().enumerate() {
        let outcome = job.await.unwrap().unwrap();
        if number == 7 {
            assert_eq!(outcome.status, Status::TimedOut);
        } else {
            assert_eq!(text(&outcome), format!("{number}\n"));
        }
    }
}

#[tokio::test]
async fn the_default_walls_are_up_or_the_sandbox_refuses() {
    let Some(sandbox) = sandbox() else { return };
    for wall in Wall::REQUIRED {
        assert!(sandbox.walls().is_up(wall), "{}", sandbox.walls());
    }
}
