"""What the process sandbox costs: HumanEval's reference solutions with their tests, in the sandbox against the same
interpreter with nothing around it.

    python3 benches/code_peer.py HumanEval.jsonl.gz [--rounds 3] > benches/results/DATE-code-overhead.txt

The figure `code_overhead_ms` is the median, over all programs and rounds, of the difference between the two. Both
run one after the other, program by program, so that whatever else the machine does falls on both.
"""

import argparse
import gzip
import json
import os
import platform
import subprocess
import sys
import tempfile


def programs(path):
    with gzip.open(path, "rt") as rows:
        for line in rows:
            row = json.loads(line)
            call = "check(%s)\n" % row["entry_point"]
            yield "\n".join([row["prompt"] + row["canonical_solution"], row["test"], call])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("data")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--example", help="a built `overhead` example; built with cargo where left out")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "programs.jsonl")
        with open(path, "w") as file:
            for program in programs(options.data):
                file.write(json.dumps(program) + "\n")
        if options.example:
            command = [options.example]
        else:
            command = ["cargo", "run", "--release", "-p", "espalier-process", "--example", "overhead", "--"]
        print("machine: %s, %d CPUs, load %.1f" % (platform.platform(), os.cpu_count(), os.getloadavg()[0]))
        sys.stdout.flush()
        return subprocess.run([*command, path, str(options.rounds)]).returncode


if __name__ == "__main__":
    sys.exit(main())
