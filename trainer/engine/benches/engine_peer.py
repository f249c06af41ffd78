"""Decoding speed of transformers' `generate`, on the cases of espalier_engine::bench::DecodeCase::standard.

usage: engine_peer.py MODEL_FOLDER [repeat] [case...]
needs: torch 2.11.0 (the version that the engine links), transformers. bf16, greedy, past every end of turn, prefill
included, best of the repetitions; one JSON object per line, as examples/bench_decode.rs prints them.

Ragged rows are given to `generate` as its users give them: padded on the left to the longest prompt, and decoded until
the longest row has its tokens; only tokens that were asked for are counted.
"""

import json
import sys
import time

import torch
from transformers import AutoModelForCausalLM

MASK = (1 << 64) - 1


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
}
folder = sys.argv[1]
repeat = int(sys.argv[2]) if len(sys.argv) > 2 else 2
wanted = sys.argv[3:] or list(CASES)
model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()
model.generation_config.eos_token_id = None
vocab = model.config.vocab_size
for name in wanted:
    rows = CASES[name]
    longest = max(prompt for prompt, _ in rows)
    new = max(n for _, n in rows)
    ids = torch.full((len(rows), longest), 0)
    mask = torch.zeros_like(ids)
    for row, (prompt, _) in enumerate(rows):
        ids[row, longest - prompt :] = torch.tensor([32 + mix((row << 32) | i) % (vocab - 64) for i in range(prompt)])
        mask[row, longest - prompt :] = 1
    best = float("inf")
    with torch.inference_mode():
        for _ in range(repeat):
            start = time.perf_counter()
            out = model.generate(ids, attention_mask=mask, do_sample=False, max_new_tokens=new, pad_token_id=0)
            best = min(best, time.perf_counter() - start)
            assert out.shape[1] == longest + new, out.shape
    tokens = sum(n for _, n in rows)
    print(json.dumps({"name": name, "tokens": tokens, "seconds": best, "tokens_per_second": tokens / best}), flush=True)
