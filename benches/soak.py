"""Hostile blocks, forks, snapshots and drops for as long as asked; memory, mappings and descriptors are watched.

usage: soak.py PATH_TO_ESPALIER [SECONDS]

Runs the red team's corpus through `espalier repl --json` again and again: every round makes new REPLs, runs a file's
blocks in them, forks some, restores some from snapshots and closes all. Fails when a block is answered without a typed
outcome, when an empty next block does not complete, or when the process holds more at the end than after the first
rounds (beyond a fifth). Prints one line a minute.
"""

import json
import pathlib
import random
import subprocess
import sys
import time

CORPUS = sorted((pathlib.Path(__file__).parent.parent / "tests" / "redteam").glob("*.py"))
OUTCOMES = {"completed", "raised", "timed_out", "memory_exceeded", "killed"}


class Repl:
    def __init__(self, command):
        self.process = subprocess.Popen(
            [command, "repl", "--json", "--timeout", "0.2", "--wait-timeout", "0.2", "--memory", "128"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, line):
        self.process.stdin.write(json.dumps(line) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            sys.exit(f"the host died on {line}: exit code {self.process.wait()}")
        return json.loads(answer)

    def holds(self):
        status = pathlib.Path(f"/proc/{self.process.pid}")
        resident = next(
            int(line.split()[1]) for line in (status / "status").read_text().splitlines() if line.startswith("RssAnon")
        )
        mappings = (status / "maps").read_text().count("\n")
        descriptors = len(list((status / "fd").iterdir()))
        return {"rss_mb": resident // 1024, "mappings": mappings, "descriptors": descriptors}


def block(driver, name, code, place):
    answer = driver.ask({"code": code, "repl": name})
    if answer.get("outcome") not in OUTCOMES:
        sys.exit(f"{place}: {answer}")
    empty = driver.ask({"code": "", "repl": name})
    if empty.get("outcome") != "completed":
        sys.exit(f"{place}: an empty next block answered {empty}")


def main():
    command, seconds = sys.argv[1], float(sys.argv[2]) if len(sys.argv) > 2 else 3600
    draw = random.Random(0)
    driver = Repl(command)
    start, told, blocks, first = time.monotonic(), 0.0, 0, None
    print(json.dumps({"date": time.strftime("%Y-%m-%d"), "seconds": seconds, "files": len(CORPUS)}), flush=True)
    while time.monotonic() - start < seconds:
        path = draw.choice(CORPUS)
        name = driver.ask({"op": "new"})["repl"]
        made = [name]
        for index, code in enumerate(path.read_text().split("# ---\n")):
            block(driver, name, code, f"{path.name}, block {index + 1}")
            blocks += 1
            if draw.random() < 0.1:
                made.append(driver.ask({"op": "fork", "repl": name})["repl"])
            if draw.random() < 0.05:
                snapshot = driver.ask({"op": "snapshot", "repl": name})["snapshot"]
                made.append(driver.ask({"op": "restore", "snapshot": snapshot})["repl"])
        for repl in made:
            block(driver, repl, "x = 1", f"{path.name}, REPL {repl}")
            driver.ask({"op": "close", "repl": repl})
        elapsed = time.monotonic() - start
        if elapsed - told >= 60 or elapsed >= seconds:
            told = elapsed
            holds = driver.holds()
            first = first or holds
            print(json.dumps({"s": round(elapsed), "blocks": blocks, **holds}), flush=True)
    last = driver.holds()
    driver.process.stdin.close()
    driver.process.wait()
    grown = [key for key, value in last.items() if first and value > first[key] * 1.2 + 16]
    if grown:
        sys.exit(f"grew beyond a fifth: {', '.join(grown)}: {first} -> {last}")
    print(json.dumps({"blocks": blocks, "first": first, "last": last, "passed": True}))


if __name__ == "__main__":
    main()
