"""The local engine's decoding, and how it reads a long prompt, beside transformers' `generate`, in one run on one machine.

usage: engine_peer.py PATH_TO_ESPALIER MODEL_FOLDER [ROUNDS]
needs: torch 2.11.0, the version that the engine links, and transformers; scripts/setup-engine-peer.sh makes such a Python.

Cases are those of espalier_engine::bench::DecodeCase::standard: bf16, greedy, past every end of turn, prefill included;
`prefill4k` reads 4,096 tokens and answers one, and counts what it read.
In each round each case runs once here and once there; a ratio is the median over the rounds of tokens per second here
over tokens per second there. Ragged rows are given to `generate` as its users give them: padded on the left to the longest
prompt, and decoded until the longest row has its tokens; only tokens that were asked for are counted.
Prints every round, then one line per figure, as `espalier bench --json` does.
"""

import json
import statistics
import subprocess
import sys
import time

import torch
from transformers import AutoModelForCausalLM

MASK = (1 << 64) - 1
MUST = {"b1": 1.2, "b8": 1.2, "b32": 1.2, "ragged32": 1.5, "prefill4k": 1.0}


def mix(x):
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def pick(i, salt):
    return 16 + mix(i ^ (salt << 32)) % 241


CASES = {
    "b1": [(128, 128)],
    "b8": [(128, 128)] * 8,
    "b32": [(128, 128)] * 32,
    "ragged32": [(pick(i, 1), pick(i, 2)) for i in range(32)],
    "prefill4k": [(4096, 1)],
}
OURS = {name: f"decode_tokens_per_s_{name}" for name in CASES} | {"prefill4k": "prefill_tokens_per_s_4k"}
RATIO = {name: f"decode_ratio_{name}" for name in CASES} | {"prefill4k": "prefill_ratio_4k"}


def counted(rows):
    """New tokens, or those of the prompts where one token each is new."""
    new = sum(n for _, n in rows)
    return sum(prompt for prompt, _ in rows) if new == len(rows) else new


def theirs(model, rows):
    vocab = model.config.vocab_size
    longest = max(prompt for prompt, _ in rows)
    new = max(n for _, n in rows)
    ids = torch.full((len(rows), longest), 0)
    mask = torch.zeros_like(ids)
    for row, (prompt, _) in enumerate(rows):
        ids[row, longest - prompt :] = torch.tensor([32 + mix((row << 32) | i) % (vocab - 64) for i in range(prompt)])
        mask[row, longest - prompt :] = 1
    with torch.inference_mode():
        start = time.perf_counter()
        out = model.generate(ids, attention_mask=mask, do_sample=False, max_new_tokens=new, pad_token_id=0)
        seconds = time.perf_counter() - start
    assert out.shape[1] == longest + new, out.shape
    return counted(rows) / seconds


def ours(command, name):
    run = [command, "bench", "engine", "--json", "--quick", "--only", OURS[name]]
    line = subprocess.run(run, stdout=subprocess.PIPE, text=True, check=True).stdout
    return json.loads(line)["value"]


def main():
    command, folder = sys.argv[1:3]
    rounds = int(sys.argv[3]) if len(sys.argv) > 3 else 3
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()
    model.generation_config.eos_token_id = None
    ratios = {name: [] for name in CASES}
    for round in range(rounds):
        for name, rows in CASES.items():
            here, there = ours(command, name), theirs(model, rows)
            ratios[name].append(here / there)
            line = {"case": name, "round": round, "espalier_tokens_per_s": round_(here)}
            print(json.dumps({**line, "transformers_tokens_per_s": round_(there)}), flush=True)
    for name, measured in ratios.items():
        figure = {"figure": RATIO[name], "value": round_(statistics.median(measured)), "unit": "x"}
        print(json.dumps({**figure, "must": MUST[name], "better": "higher"}), flush=True)


def round_(number):
    return float(f"{number:.3g}")


main()
