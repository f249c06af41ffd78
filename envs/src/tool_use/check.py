# Runs a row's hidden check. Nothing that the agent wrote is imported here unless the check does so itself.
import os, sys

# First of all: no folder that the agent's code can write to is one that modules come from.
home = os.getcwd()
sys.path[:] = [path for path in sys.path if path not in ("", ".") and not (path + "/").startswith(home + "/")]
import contextlib, errno, json, math, resource, signal, stat, subprocess, tempfile, threading

folder = os.path.join(home, "workspace")
# Most that is read of an output or a file: bytes, characters.
MOST = 4 << 20


class Meddled(BaseException):
    """The agent's code changed the process of the check."""


def play():
    # The mark lives in this frame and in what it closes over, and in no module.
    task = json.loads(sys.stdin.buffer.read())
    mark = task.pop("mark")
    ran = False
    turn = threading.Lock()
    names = [name for name in dir(resource) if name.startswith("RLIMIT_")]

    def say(text):
        rest = ("\n" + mark + text + "\n").encode()
        while rest:
            rest = rest[os.write(1, rest) :]

    def limits():
        return [resource.getrlimit(getattr(resource, name)) for name in names]

    bounds = limits()
    # A namespace of processes of its own, whose first one waits for this one: everything else came from `run()`.
    own = os.getpid() == 2 and os.getppid() == 1

    def hide():
        """Keeps processes of the same user away from this one's memory and descriptors (PR_SET_DUMPABLE)."""
        try:
            import ctypes

            hidden = ctypes.CDLL(None).prctl(4, 0, 0, 0, 0) == 0
        except (ImportError, OSError, AttributeError):
            hidden = False
        if not hidden and os.path.exists("/proc/self/mem"):
            raise RuntimeError("the check cannot hide its memory from the agent's code on this host")

    def stand():
        """The agent's folder, also where its code took it away or put something else there."""
        os.makedirs(home, exist_ok=True)
        os.chmod(home, 0o700)
        try:
            real = stat.S_ISDIR(os.lstat(folder).st_mode)
            if not real:
                os.unlink(folder)
        except FileNotFoundError:
            real = False
        if not real:
            os.mkdir(folder)
        os.chmod(folder, 0o700)

    def read(path):
        """The text of one of the agent's regular files, its first 4 Mi characters, or None."""
        opened = []
        try:
            parts = os.path.relpath(os.path.normpath(os.path.join(folder, path)), folder).split(os.sep)
            if parts[0] in (".", ".."):
                return None
            at = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            opened.append(at)
            for part in parts[:-1]:
                at = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=at)
                opened.append(at)
                os.close(opened.pop(0))
            at = os.open(parts[-1], os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=at)
            opened.append(at)
            if not stat.S_ISREG(os.fstat(at).st_mode):
                return None
            with open(at, encoding="utf-8", errors="replace", closefd=False) as file:
                return file.read(MOST)
        except (OSError, ValueError):
            return None
        finally:
            for descriptor in opened:
                os.close(descriptor)

    def run(*arguments, stdin="", seconds=10):
        """Runs one of the agent's programs as a process of its own: (exit code or None, stdout, stderr)."""
        nonlocal ran
        with turn:
            if not ran:
                hide()
            stand()
            with contextlib.ExitStack() as stack:
                given, out, err = (stack.enter_context(tempfile.TemporaryFile(dir=home)) for _ in range(3))
                given.write(stdin.encode())
                given.seek(0)
                # Nothing that one run leaves at home is found there by the next one.
                fresh = tempfile.mkdtemp(prefix="run-", dir=home)
                env = {**os.environ, "HOME": fresh, "TMPDIR": fresh, "PYTHONNOUSERSITE": "1"}
                if not ran:
                    say("ran")
                try:
                    child = subprocess.Popen(
                        [sys.executable, "-s", *arguments],
                        cwd=folder,
                        stdin=given,
                        stdout=out,
                        stderr=err,
                        env=env,
                        start_new_session=True,
                    )
                except (ValueError, OSError) as error:
                    # A zero byte, or too long.
                    if isinstance(error, OSError) and error.errno != errno.E2BIG:
                        raise
                    return 2, "", "cannot be run with these arguments: " + str(error)
                ran = True
                try:
                    status = child.wait(seconds)
                except subprocess.TimeoutExpired:
                    status = None
                finally:
                    # What it started besides ends with it.
                    for kill, whom in ((os.killpg, child.pid), (os.kill, -1)):
                        if whom > 0 or own:
                            try:
                                kill(whom, signal.SIGKILL)
                            except OSError:
                                pass
                    child.kill()
                    child.wait()
                if limits() != bounds:
                    raise Meddled("the agent's code changed the limits of the check")
                if status is None:
                    return None, "", "time is over"
                texts = []
                for file in (out, err):
                    file.seek(0)
                    texts.append(file.read(MOST).decode("utf-8", "replace"))
                return status, texts[0], texts[1]

    def theirs(error):
        """Whether an error of the check was brought about by what the agent's code left."""
        if not ran or not isinstance(error, (MemoryError, OSError, Meddled)):
            return False
        name = getattr(error, "filename", None)
        if isinstance(name, bytes):
            name = os.fsdecode(name)
        return not isinstance(name, str) or (os.path.normpath(os.path.join(home, name)) + "/").startswith(home + "/")

    # Interrupted by the agent's code, the check ends like by any other signal.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    stand()
    space = {"__name__": "check", "read": read, "run": run, "folder": folder, "answer": task["answer"]}
    report = {}
    try:
        exec(compile(task["check"], "<check>", "exec"), space)
        check = space.get("check")
        if not callable(check):
            raise TypeError("the check must define check()")
        given = check()
        # Texts that look like numbers are a mistake of the check's, and `nan` is no JSON.
        if isinstance(given, (str, bytes, bytearray)) or not math.isfinite(given):
            raise TypeError("check() must give a number from 0 to 1, got " + repr(given)[:100])
        report["reward"] = float(given)
    except AssertionError as error:
        report["reward"], report["note"] = 0.0, str(error)[:500]
    except BaseException as error:
        told = (type(error).__name__ + ": " + str(error))[:500]
        if theirs(error):
            report["reward"], report["note"] = 0.0, "the agent's code made the check fail: " + told
        else:
            report["error"] = told
    sys.stdout.flush()
    say(json.dumps(report))


play()
