#!/usr/bin/env bash
# `make bench`: every figure of this machine, then the sandbox, the engine and the trainer beside their peers from PyPI. The
# dated raw output goes to benches/results/. `benches/run.sh train` measures the trainer alone.
set -euo pipefail
cd "$(dirname "$0")/.."
cache=${ESPALIER_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/espalier}
espalier=${CARGO_TARGET_DIR:-target}/debug/espalier
day=$(date +%Y-%m-%d)
mkdir -p benches/results

machine() {
  echo "date: $day"
  echo "commit: $(git rev-parse --short HEAD 2>/dev/null || echo unknown)"
  echo "kernel: $(uname -sr)"
  echo "cpu: $(nproc) x $(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1)"
  echo "memory: $(sed -n 's/^MemTotal: *//p' /proc/meminfo)"
}

# The trainer alone, then its steps beside transformers and peft.
train() {
  cargo build --locked --workspace --examples
  local python
  python=$(scripts/setup-engine-peer.sh)
  {
    machine
    "$espalier" bench train --json || true
    # The peer gets a clean path: it has libraries of its own.
    LD_LIBRARY_PATH=$PWD/.libtorch/lib "$python" benches/train_peer.py "$(dirname "$espalier")/examples/train_steps" "$model"
  } | tee "benches/results/$day-train.txt"
}

# OpenMP threads that spin between steps would take the core from the other side.
export OMP_WAIT_POLICY=PASSIVE
model=${ESPALIER_MODELS:-$cache/models}/smollm2-135m-instruct
if [ "${1:-}" = train ]; then
  train
  exit
fi

# A missed figure is a result too. The sandbox's are short, and medians of three runs say more.
for subject in sandbox rollout engine; do
  runs=1
  if [ "$subject" = sandbox ]; then runs=3; fi
  {
    machine
    for run in $(seq "$runs"); do
      echo "run: $run"
      "$espalier" bench "$subject" --json || true
    done
  } | tee "benches/results/$day-$subject.txt"
done

peers=$cache/python-peers-$(sha256sum < scripts/peers-requirements.txt | cut -c1-12)
if [ ! -e "$peers/ready" ]; then
  python3 -m venv "$peers"
  "$peers/bin/python" -m pip install --quiet --disable-pip-version-check -r scripts/peers-requirements.txt
  touch "$peers/ready"
fi
{ machine; "$peers/bin/python" benches/sandbox_peers.py "$espalier"; } | tee "benches/results/$day-sandbox-peers.txt"

# The gym beside its peers, where the published data are at hand.
if [ -n "${ESPALIER_DATA:-}" ]; then
  cargo build --locked --workspace --examples
  examples=$(dirname "$espalier")/examples
  python=$peers/bin/python
  {
    machine
    "$python" benches/graders_peer.py "$examples/math_pairs" "$ESPALIER_DATA/math/math_test.json" "$ESPALIER_DATA/gsm8k/test.jsonl"
  } | tee "benches/results/$day-graders-peer.txt"
  { machine; "$python" benches/sql_peer.py "$examples/text2sql_steps" "$ESPALIER_DATA"; } | tee "benches/results/$day-text2sql.txt"
  {
    machine
    "$python" benches/code_peer.py "$ESPALIER_DATA/code/HumanEval.jsonl.gz" --example "$examples/overhead"
  } | tee "benches/results/$day-code-overhead.txt"
else
  echo "graders, SQL and code beside their peers: skipped, ESPALIER_DATA names no folder with the data" >&2
fi

python=$(scripts/setup-engine-peer.sh)
{ machine; "$python" benches/engine_peer.py "$espalier" "$model"; } | tee "benches/results/$day-engine-peers.txt"
train
