"""One training step beside transformers and peft: the same model, rows, torch version and optimiser.

    python benches/train_peer.py ESPALIER MODEL [--steps 7] [--precisions bf16 f32] [--kinds lora full]

Each side runs in a process of its own, one after the other, `steps` steps after one that warms up. Says the median time of a
step of each, their ratio (espalier over peer, lower is better), and the peaks of resident memory. Rows: 4 of 512 tokens,
all but the first learned; LoRA of rank 16 on all linear layers. The peer needs torch 2.11.0, transformers and peft.
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROWS, LENGTH, RANK = 4, 512, 16

PEER = """
import json, resource, sys, time
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM
model_path, rows, steps, precision, kind = sys.argv[1], json.load(open(sys.argv[2])), int(sys.argv[3]), sys.argv[4], sys.argv[5]
torch.manual_seed(0)
dtype = torch.bfloat16 if precision == "bf16" else torch.float32
model = AutoModelForCausalLM.from_pretrained(model_path, dtype=dtype).train()
if kind == "lora":
    model = get_peft_model(model, LoraConfig(r=%d, lora_alpha=16, target_modules="all-linear", task_type="CAUSAL_LM"))
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-5)
ids = torch.tensor(rows)
times = []
for step in range(steps + 1):
    start = time.perf_counter()
    loss = model(input_ids=ids, labels=ids, use_cache=False).loss
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    times.append(time.perf_counter() - start)
print(json.dumps({"times": times[1:], "loss": loss.item(), "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}))
""" % RANK


def peer(model, rows, steps, precision, kind):
    out = subprocess.run([sys.executable, "-c", PEER, model, rows, str(steps), precision, kind],
                         capture_output=True, text=True, env=dict(os.environ, LD_LIBRARY_PATH=""))
    if out.returncode:
        sys.exit(f"the peer failed: {out.stderr[-2000:]}")
    return json.loads(out.stdout.strip().splitlines()[-1])


def espalier(program, model, data, steps, precision, kind, folder):
    log = folder / f"{precision}-{kind}"
    rank = RANK if kind == "lora" else 0
    command = [program, "sft", "--json", "--model", model, "--data", str(data), f"num_steps={steps + 1}", f"batch_size={ROWS}",
               f"precision={precision}", f"model.lora.rank={rank}", "optimizer_config.lr=1e-5", "sampler=sequential",
               f"max_tokens_per_microbatch={ROWS * LENGTH}", "logger=jsonl", "disable_cache=true", f"run_name={precision}-{kind}"]
    child = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    _, status, usage = os.wait4(child.pid, 0)
    if status:
        sys.exit(f"espalier failed: {child.stderr.read()[-2000:]}")
    (metrics,) = (folder / "runs" / log.name).glob("*.jsonl")
    rows = [json.loads(line) for line in metrics.read_text().splitlines()]
    return {"times": [r["timing/step"] for r in rows][1:], "loss": rows[-1]["train/loss"], "peak_mb": usage.ru_maxrss / 1024}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("espalier")
    parser.add_argument("model")
    parser.add_argument("--steps", type=int, default=7)
    parser.add_argument("--precisions", nargs="+", default=["bf16", "f32"])
    parser.add_argument("--kinds", nargs="+", default=["lora", "full"])
    arguments = parser.parse_args()
    draw = random.Random(0)
    rows = [[draw.randrange(10, 40000) for _ in range(LENGTH)] for _ in range(ROWS)]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "rows.json").write_text(json.dumps(rows))
        with (folder / "rows.jsonl").open("w") as data:
            for row in rows:
                data.write(json.dumps({"input_ids": row, "loss_mask": [1] * LENGTH}) + "\n")
        for kind in arguments.kinds:
            for precision in arguments.precisions:
                theirs = peer(arguments.model, str(folder / "rows.json"), arguments.steps, precision, kind)
                ours = espalier(arguments.espalier, arguments.model, folder / "rows.jsonl", arguments.steps, precision, kind, folder)
                median = [statistics.median(side["times"]) for side in (ours, theirs)]
                print(json.dumps({
                    "figure": f"{kind}_step_ratio", "precision": precision, "value": round(median[0] / median[1], 3), "must": 1.05,
                    "espalier_s": round(median[0], 3), "peer_s": round(median[1], 3),
                    "memory_ratio": round(ours["peak_mb"] / theirs["peak_mb"], 3),
                    "espalier_mb": round(ours["peak_mb"]), "peer_mb": round(theirs["peak_mb"]),
                    "espalier_loss": ours["loss"], "peer_loss": theirs["loss"],
                    "espalier_times": ours["times"], "peer_times": theirs["times"],
                }), flush=True)


if __name__ == "__main__":
    main()
