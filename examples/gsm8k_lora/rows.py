"""Writes sums and differences that a small model gets right one time in three: `rows.py FOLDER` makes train.jsonl and test.jsonl.

Every row is a chat with one worked example and a question, and the number that answers it, in the columns that the `gsm8k`
environment reads. No question of test.jsonl is in train.jsonl.
"""

import json
import random
import sys
from pathlib import Path

# The mark in the system message is the one of GSM8K; where a prompt has it, the environment adds no instruction of its own.
SYSTEM = "Work it out. Format: ####"


def questions():
    """All questions, with what they come to and an example of their kind."""
    for a in range(10, 50):
        for b in range(2, 10):
            yield f"{a} + {b}", a + b, "16 + 7 = 23"
    for a in range(8, 30):
        for b in range(2, min(a, 10)):
            yield f"{a} - {b}", a - b, "15 - 7 = 8"


def row(place, question, truth, example):
    asked = example.split(" =")[0]
    return {
        "id": f"arithmetic-{place}",
        "prompt": [
            {"role": "system", "content": SYSTEM},
            {"role": "user", "content": asked},
            {"role": "assistant", "content": example},
            {"role": "user", "content": question},
        ],
        "env_class": "gsm8k",
        "data_source": "arithmetic",
        "reward_spec": {"ground_truth": str(truth)},
    }


def main():
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    everything = [q for q in questions() if not q[2].startswith(f"{q[0]} =")]
    random.Random(0).shuffle(everything)
    for name, part in (("test", everything[:96]), ("train", everything[96:])):
        with open(folder / f"{name}.jsonl", "w", encoding="utf-8") as file:
            for place, question in enumerate(part):
                file.write(json.dumps(row(f"{name}-{place}", *question)) + "\n")
        print(f"{folder}/{name}.jsonl: {len(part)} rows")


if __name__ == "__main__":
    main()
