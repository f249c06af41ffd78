"""Training steps beside transformers and peft: the same model, rows, threads, torch version and optimiser.

    python benches/train_peer.py TRAIN_STEPS MODEL [--steps 7] [--precisions bf16 f32] [--kinds lora full] [--ranks 1 2 4]

TRAIN_STEPS is the trainer's example of that name. A step is forward, backward, clipping and AdamW over 4 rows of 512 tokens,
all but the first learned; LoRA of rank 16 on all linear layers, or all weights. Each side is a process of its own; they take
turns, step by step, after one step each that warms up, so that what else the machine does meets both. The figure is the
median of the steps' ratios, espalier over peer. The peer has what transformers and peft do by themselves: `sdpa` attention,
adapters in 32 bits beside a base in bfloat16. Then the memory of one of N processes that share the model.
"""

import argparse
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROWS, LENGTH, RANK = 4, 512, 16

PEER = """
import json, sys, time
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM
path, rows, precision, kind = sys.argv[1:5]
torch.manual_seed(0)
dtype = {"bf16": torch.bfloat16, "f32": torch.float32}[precision]
model = AutoModelForCausalLM.from_pretrained(path, dtype=dtype, attn_implementation="sdpa").train()
if kind == "lora":
    model = get_peft_model(model, LoraConfig(r=%d, lora_alpha=16, target_modules="all-linear", task_type="CAUSAL_LM"))
trained = [p for p in model.parameters() if p.requires_grad]
optimizer = torch.optim.AdamW(trained, lr=1e-5, weight_decay=0.01)
ids = torch.tensor(json.load(open(rows)))
print(json.dumps({"threads": torch.get_num_threads()}), flush=True)
for _ in sys.stdin:
    start = time.perf_counter()
    loss = model(input_ids=ids, labels=ids, use_cache=False).loss
    loss.backward()
    torch.nn.utils.clip_grad_norm_(trained, 1.0)
    optimizer.step()
    optimizer.zero_grad()
    print(json.dumps({"seconds": time.perf_counter() - start, "loss": loss.item()}), flush=True)
peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(json.dumps({"peak_mb": int(peak.split()[1]) / 1024}), flush=True)
""" % RANK


class Side:
    """A process that takes a step whenever it is asked."""

    def __init__(self, command, environment=None):
        environment = {**os.environ, **(environment or {})}
        self.child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
        self.threads = self.answer()["threads"]
        self.steps = []

    def answer(self):
        line = self.child.stdout.readline()
        if not line:
            sys.exit(f"`{self.child.args[0]}` ended with {self.child.wait()} and said nothing")
        return json.loads(line)

    def ask(self):
        self.child.stdin.write("\n")
        self.child.stdin.flush()

    def step(self):
        self.ask()
        self.steps.append(self.answer())

    def finish(self):
        self.child.stdin.close()
        last = self.answer()
        self.child.wait()
        return last


def figure(name, value, unit, must, better, **details):
    line = {"figure": name, "value": float(f"{value:.3g}"), "unit": unit, "must": must, "better": better}
    print(json.dumps({**line, **details}), flush=True)


def compare(program, model, rows, steps, precision, kind):
    theirs = Side([sys.executable, "-c", PEER, model, rows, precision, kind], {"LD_LIBRARY_PATH": ""})
    ours = Side([program, model, rows, precision, kind])
    if ours.threads != theirs.threads:
        sys.exit(f"espalier has {ours.threads} threads, the peer {theirs.threads}: set OMP_NUM_THREADS")
    for _ in range(steps + 1):
        theirs.step()
        ours.step()
    seconds = [[step["seconds"] for step in side.steps[1:]] for side in (ours, theirs)]
    peaks = [side.finish()["peak_mb"] for side in (ours, theirs)]
    median = [statistics.median(side) for side in seconds]
    ratios = [mine / other for mine, other in zip(*seconds)]
    for name, side in zip(("espalier", "peer"), (ours, theirs)):
        print(json.dumps({"side": name, "kind": kind, "precision": precision, "steps": side.steps}), flush=True)
    details = {"espalier_s": round(median[0], 3), "peer_s": round(median[1], 3), "threads": ours.threads}
    details |= {"least": round(min(ratios), 3), "most": round(max(ratios), 3)}
    figure(f"{kind}_step_ratio_{precision}", statistics.median(ratios), "x", 1.05, "lower", **details)
    details = {"espalier_mb": round(peaks[0]), "peer_mb": round(peaks[1])}
    # Only adapters promise to be small.
    must = 0.8 if kind == "lora" else 1.0
    figure(f"{kind}_memory_ratio_{precision}", peaks[0] / peaks[1], "x", must, "lower", **details)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def memory_by_rank(program, model, rows, worlds):
    """What each of N processes holds: parameters, moments (as bytes), and the peak of resident memory."""
    alone = None
    for world in worlds:
        place = {"WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "OMP_NUM_THREADS": "1"}
        command = [program, model, rows, "f32", "full"]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        ranks = [
            subprocess.Popen(command, env={**os.environ, **place, "RANK": str(rank), "LOCAL_RANK": str(rank)}, **pipes)
            for rank in range(world)
        ]
        for rank in ranks:
            rank.stdin.write("\n")
            rank.stdin.close()
        last = [json.loads(rank.stdout.read().splitlines()[-1]) for rank in ranks]
        if any([rank.wait() for rank in ranks]):
            sys.exit(f"a process of {world} failed")
        held, peak = (max(one[key] for one in last) for key in ("held_mb", "peak_mb"))
        alone = alone or held
        figure(f"fsdp_held_n{world}", held / alone, "x", round(1.02 / world, 3), "lower", held_mb=round(held), peak_mb=round(peak))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("program", metavar="TRAIN_STEPS")
    parser.add_argument("model", metavar="MODEL")
    parser.add_argument("--steps", type=int, default=7)
    parser.add_argument("--rows", type=int, default=ROWS, help="other than 4 to see that it runs, not to quote")
    parser.add_argument("--precisions", nargs="*", default=["bf16", "f32"])
    parser.add_argument("--kinds", nargs="*", default=["lora", "full"])
    parser.add_argument("--ranks", nargs="*", type=int, default=[1, 2, 4])
    arguments = parser.parse_args()
    draw = random.Random(0)
    with tempfile.TemporaryDirectory() as name:
        rows = Path(name, "rows.json")
        rows.write_text(json.dumps([[draw.randrange(10, 40000) for _ in range(LENGTH)] for _ in range(arguments.rows)]))
        for kind in arguments.kinds:
            for precision in arguments.precisions:
                compare(arguments.program, arguments.model, str(rows), arguments.steps, precision, kind)
        short = Path(name, "short.json")
        short.write_text(json.dumps([[draw.randrange(10, 40000) for _ in range(64)] for _ in range(4)]))
        memory_by_rank(arguments.program, arguments.model, str(short), arguments.ranks)


if __name__ == "__main__":
    main()
