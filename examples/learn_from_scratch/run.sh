#!/usr/bin/env bash
# From nothing to a policy that asks copies of itself: run.sh DIR [SEED]. With COPIES=no the same without `rlm_query`.
set -euo pipefail
cd "$(dirname "$0")/../.."
out=${1:?a folder for everything that comes of it}
seed=${2:-0}
copies=${COPIES:-yes}
name=$([ "$copies" = yes ] && echo policy || echo alone)
[ -e "$out/demos" ] || learn-from-scratch prepare --out "$out" --seed "$seed"
[ -e "$out/taught" ] || espalier sft --config examples/learn_from_scratch/sft.toml --model "$out/model" --data "$out/demos" \
    "seed=$seed" "ckpt_path=$out/sft" "export_path=$out/taught"
espalier train --config examples/learn_from_scratch/train.toml "trainer.policy.model.path=$out/taught" "trainer.seed=$seed" \
    "trainer.ckpt_path=$out/train-$name" "trainer.export_path=$out/$name" \
    "environment.params.children=$([ "$copies" = yes ] && echo true || echo false)"
