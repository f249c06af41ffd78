#!/usr/bin/env bash
# `make soak`: benches/soak.py for SECONDS_TO_SOAK seconds (default an hour); the dated output is kept.
set -euo pipefail
cd "$(dirname "$0")/.."
target=${CARGO_TARGET_DIR:-target}
out=benches/results/$(date +%Y-%m-%d)-soak.jsonl
python3 benches/soak.py "$target/debug/espalier" "${SECONDS_TO_SOAK:-3600}" | tee "$out.partial"
mv "$out.partial" "$out"
