# Runs a row's hidden check. Nothing that the agent wrote is imported here unless the check does so itself.
import json, os, subprocess, sys

task = json.loads(sys.stdin.buffer.read())
folder = os.path.join(os.getcwd(), "workspace")
os.makedirs(folder, exist_ok=True)


def read(path):
    """The text of one of the agent's files, or None."""
    try:
        with open(os.path.join(folder, path), encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return None


def run(*arguments, stdin="", seconds=10):
    """Runs one of the agent's programs as a process of its own: (exit code or None, stdout, stderr)."""
    try:
        done = subprocess.run(
            [sys.executable, *arguments], cwd=folder, input=stdin.encode(), capture_output=True, timeout=seconds
        )
    except subprocess.TimeoutExpired:
        return None, "", "time is over"
    return done.returncode, done.stdout.decode("utf-8", "replace"), done.stderr.decode("utf-8", "replace")


space = {"__name__": "check", "read": read, "run": run, "folder": folder, "answer": task["answer"]}
report = {}
try:
    exec(compile(task["check"], "<check>", "exec"), space)
    check = space.get("check")
    if not callable(check):
        raise TypeError("the check must define check()")
    report["reward"] = float(check())
except AssertionError as error:
    report["reward"], report["note"] = 0.0, str(error)[:500]
except BaseException as error:
    report["error"] = (type(error).__name__ + ": " + str(error))[:500]
sys.stdout.write("\n" + task["mark"] + json.dumps(report) + "\n")
sys.stdout.flush()
