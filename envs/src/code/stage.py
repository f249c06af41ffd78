# Runs inside the process sandbox, for `lcb`. It reads one line for the candidate and one per test, and writes one
# line per test. Each test has a process of its own, made before any of the candidate's code runs; this process never
# runs any. What comes back from such a process is data: the expected output is not here to be found.
import atexit, json, os, select, signal, sys, threading

# The work folder is the candidates': nothing is imported from there.
sys.path[:] = [path for path in sys.path if path not in ("", ".", os.getcwd())]

LIMIT = 8 << 20

# Taken before any of the candidate's code runs, as all that is used after it.
unbound = getattr(sys, "set_int_max_str_digits", lambda digits: None)
digits = getattr(sys, "get_int_max_str_digits", lambda: 0)()
join_threads, run_exits = threading._shutdown, atexit._run_exitfuncs

# From where on an integer is written as hexadecimal digits.
widest = 1 << 10000


def encode(value, depth=0):
    """A value as a literal of exact builtin types; what is none becomes a call, which no literal is."""
    if depth > 60:
        return "deep()"
    if value is None or value is True or value is False:
        return repr(value)
    if isinstance(value, bool):
        return "True" if int.__bool__(value) else "False"
    if isinstance(value, int):
        return hex(int(value)) if widest is not None and abs(int(value)) >= widest else int.__repr__(value)
    if isinstance(value, float):
        text = float.__repr__(value)
        return {"inf": "1e999", "-inf": "-1e999", "nan": "nan()"}.get(text, text)
    if isinstance(value, str):
        return repr(str.__str__(value))
    if isinstance(value, (bytes, bytearray)):
        return repr(bytes(value))
    if isinstance(value, tuple):
        items = [encode(item, depth + 1) for item in tuple.__iter__(value)]
        return "(" + ", ".join(items) + ("," if len(items) == 1 else "") + ")"
    if isinstance(value, list):
        return "[" + ", ".join(encode(item, depth + 1) for item in list.__iter__(value)) + "]"
    if isinstance(value, dict):
        entries = dict.items(value)
        return "{" + ", ".join(f"{encode(k, depth + 1)}: {encode(v, depth + 1)}" for k, v in entries) + "}"
    if isinstance(value, (set, frozenset)):
        items = [encode(item, depth + 1) for item in value]
        return "{" + ", ".join(items) + "}" if items else "set()"
    if type(value).__module__ == "numpy" and hasattr(value, "tolist"):
        return encode(value.tolist(), depth + 1)
    return "opaque()"


PREAMBLE = """
from string import *
from re import *
from datetime import *
from collections import *
from heapq import *
from bisect import *
from copy import *
from math import *
from random import *
from statistics import *
from itertools import *
from functools import *
from operator import *
from io import *
from sys import *
from json import *
from typing import *
from builtins import *
import string, re, datetime, collections, heapq, bisect, copy, math, random, statistics
import itertools, functools, operator, io, sys, json
sys.setrecursionlimit(600000)
"""

# Imported once, here, so that each test's process has them.
ready = {}
exec(compile(PREAMBLE, "<preamble>", "exec"), ready)


def short(error):
    text = "%s: %s" % (type(error).__name__, error)
    return text[:500]


def finish(streams):
    """What an interpreter does after the main program: threads end, exit functions run, what was written goes out."""
    join_threads()
    try:
        run_exits()
    except Exception:
        pass
    for stream in [sys.stdout, *streams]:
        try:
            stream.flush()
        except (AttributeError, ValueError):
            pass


def loaded(text, whole):
    """The arguments, whose integers may have more digits than the candidate's own."""
    if whole:
        unbound(0)
    try:
        return [json.loads(line) for line in text.split("\n") if line.strip()]
    finally:
        unbound(digits)


def perform(job, text, streams):
    """One test, in its own process: what it has to say is returned."""
    global widest
    space = {"__name__": "__main__", "__builtins__": __builtins__}
    space.update((name, value) for name, value in ready.items() if not name.startswith("__"))
    functional = job["kind"] == "functional"
    try:
        code = compile(job["code"], "<candidate>", "exec")
    except BaseException as error:
        return b"C" + short(error).encode("utf-8", "replace")
    try:
        if functional:
            space["__name__"] = "candidate"
            exec(code, space)
            name = job["name"]
            target = getattr(space["Solution"](), name) if "Solution" in space else space[name]
            arguments = loaded(text, job["whole"])
            value = target(*arguments)
            if job["whole"]:
                unbound(0)
                widest = None
            return b"V" + encode(value).encode("utf-8", "surrogatepass")
        try:
            exec(code, space)
        except SystemExit:
            pass
        if job["whole"]:
            finish(streams)
        else:
            sys.stdout.flush()
        return b"O"
    except BaseException as error:
        try:
            sys.stdout.flush()
        except BaseException:
            pass
        return b"E" + short(error).encode("utf-8", "replace")


def write_all(fd, data):
    while data:
        data = data[os.write(fd, data):]


def child(job, text, report, printed):
    functional = job["kind"] == "functional"
    if job["whole"]:
        # A test finds nothing of the ones before it.
        folder = "test-%d" % os.getpid()
        os.mkdir(folder)
        os.chdir(folder)
    source = os.open("input", os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
    if not functional:
        write_all(source, text.encode("utf-8", "surrogatepass"))
        os.lseek(source, 0, 0)
    os.dup2(source, 0)
    os.dup2(printed, 1)
    os.dup2(os.open("/dev/null", os.O_WRONLY), 2)
    keep = os.dup(report)
    top = max(keep, 3)
    os.closerange(3, keep)
    os.closerange(top + 1, top + 64)
    sys.stdin = open(0, "r", encoding="utf-8", errors="surrogateescape", closefd=False)
    sys.stdout = open(1, "w", encoding="utf-8", errors="surrogateescape", closefd=False)
    sys.__stdin__, sys.__stdout__ = sys.stdin, sys.stdout
    atexit._clear()
    said = perform(job, text, [sys.stdout])
    write_all(keep, said)
    os._exit(0)


def collect(pid, pipes):
    """Everything that a test's process wrote until it ended, up to a bound."""
    taken = {fd: bytearray() for fd in pipes}
    ended = os.pidfd_open(pid) if hasattr(os, "pidfd_open") else None
    poll = select.poll()
    for fd in pipes:
        os.set_blocking(fd, False)
        poll.register(fd, select.POLLIN)
    if ended is not None:
        poll.register(ended, select.POLLIN)
    over = False
    while not over:
        events = poll.poll(None if ended is not None else 20)
        over = any(fd == ended for fd, _ in events)
        if ended is None:
            over = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        for fd in pipes:
            while True:
                try:
                    chunk = os.read(fd, 1 << 16)
                except BlockingIOError:
                    break
                if not chunk:
                    try:
                        poll.unregister(fd)
                    except KeyError:
                        pass
                    break
                if len(taken[fd]) < LIMIT:
                    taken[fd] += chunk
                elif not over:
                    break
    if ended is not None:
        os.close(ended)
    _, status = os.waitpid(pid, 0)
    # What it left behind goes too. Only in a process namespace: this is its second process.
    if os.getpid() == 2:
        try:
            os.kill(-1, signal.SIGKILL)
        except OSError:
            pass
        while True:
            try:
                os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
    for fd in pipes:
        os.close(fd)
    return [bytes(taken[fd]) for fd in pipes], status


def main():
    lines = open(0, "rb", closefd=False)
    job = json.loads(lines.readline())
    out = os.dup(1)
    for line in lines:
        text = json.loads(line)
        report, reporter = os.pipe()
        printed, printer = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                os.close(out)
                child(job, text, reporter, printer)
            finally:
                os._exit(1)
        os.close(reporter)
        os.close(printer)
        (said, shown), status = collect(pid, [report, printed])
        answer = {
            "tag": said[:1].decode("latin-1"),
            "text": said[1:].decode("utf-8", "replace"),
            "shown": shown.decode("utf-8", "replace"),
            "status": status,
            "cut": max(len(said), len(shown)) >= LIMIT,
        }
        write_all(out, json.dumps(answer).encode() + b"\n")


main()
