#!/usr/bin/env bash
# SmolLM2-135M learns arithmetic by reinforcement, on two cores: run.sh DIR [SEED].
set -euo pipefail
cd "$(dirname "$0")/../.."
out=${1:?a folder for everything that comes of it}
seed=${2:-0}
python3 examples/gsm8k_lora/rows.py "$out"
espalier train --config examples/gsm8k_lora/train.toml "data.train_data.0.path=$out/train.jsonl" "data.val_data.0.path=$out/test.jsonl" \
    "trainer.policy.model.path=${MODEL:-smollm2-135m-instruct}" "trainer.seed=$seed" \
    "trainer.ckpt_path=$out/train" "trainer.export_path=$out/adapter"
