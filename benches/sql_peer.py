"""text2sql steps per second beside skyrl-gym's, on the same episodes, in one run on one machine.

usage: sql_peer.py PATH_TO_text2sql_steps DATA [PAIRS]
needs: skyrl-gym 0.4.0 and pandas 3. The binary: cargo build --package espalier-envs --example text2sql_steps

The episodes are those of tests/parity/text2sql.jsonl (DATA is what its script needs): an environment is made per episode,
its actions are played one after the other, one episode at a time on both sides. In each pair one side runs, then the
other; a ratio is steps per second here over steps per second there. Prints every pair and the median.
"""

import json
import os
import platform
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time

import pandas
import skyrl_gym
from skyrl_gym.envs.sql.env import Text2SQLEnvConfig

here = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(here, "..", "tests", "parity"))
import text2sql  # noqa: E402

MUST = 3.0
ROUNDS = {"ours": 10, "theirs": 2}


def theirs(episodes, root, rounds):
    config = Text2SQLEnvConfig(db_path=root)
    steps = 0
    start = time.perf_counter()
    for _ in range(rounds):
        for episode in episodes:
            env = skyrl_gym.make("text2sql", env_config=config, extras=dict(episode["row"]))
            env.init([{"role": "user", "content": "?"}])
            for turn in episode["turns"]:
                env.step(turn["action"])
                steps += 1
    return steps / (time.perf_counter() - start)


def ours(binary, script, root, rounds):
    steps, seconds = subprocess.run(
        [binary, script, root, str(rounds)], check=True, capture_output=True, text=True
    ).stdout.split()
    return int(steps) / float(seconds)


def main():
    binary, data = sys.argv[1:3]
    pairs = int(sys.argv[3]) if len(sys.argv) > 3 else 5
    script = os.path.join(here, "..", "tests", "parity", "text2sql.jsonl")
    episodes = [json.loads(line) for line in open(script)]
    steps = sum(len(episode["turns"]) for episode in episodes)
    print(f"{len(episodes)} episodes, {steps} steps; {os.cpu_count()} CPUs; python {platform.python_version()},", end=" ")
    print(f"SQLite {sqlite3.sqlite_version}, pandas {pandas.__version__}", flush=True)
    with tempfile.TemporaryDirectory() as root:
        text2sql.build(root, data)
        theirs(episodes, root, 1)
        ours(binary, script, root, 1)
        ratios = []
        for pair in range(pairs):
            a, b = ours(binary, script, root, ROUNDS["ours"]), theirs(episodes, root, ROUNDS["theirs"])
            ratios.append(a / b)
            print(f"pair {pair}: ours {a:.0f} steps/s, skyrl-gym {b:.0f} steps/s, ratio {a / b:.2f}", flush=True)
    ratio = statistics.median(ratios)
    print(json.dumps({"figure": "text2sql_step_ratio", "value": round(ratio, 2), "must": MUST, "pass": ratio >= MUST}))
    return 0 if ratio >= MUST else 1


if __name__ == "__main__":
    sys.exit(main())
