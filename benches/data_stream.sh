#!/usr/bin/env bash
# How much memory reading large Parquet files takes. Writes files of these sizes to a temporary folder ($TMPDIR), one
# after the other, reads each as a suite does, and removes them. The largest by default is 10 GB.
#
#   benches/data_stream.sh [MEGABYTES...]
set -euo pipefail
cd "$(dirname "$0")/.."

sizes=("$@")
[ ${#sizes[@]} -gt 0 ] || sizes=(250 2500 10000)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
program="${CARGO_TARGET_DIR:-target}/debug/examples/data_stream"
cargo build --locked --quiet -p espalier-datasets --example data_stream

echo "# benches/data_stream.sh; $(date -u +%F), $(uname -m), $(nproc) cores, profile dev (dependencies optimised)"
for size in "${sizes[@]}"; do
  "$program" write "$folder/rows.parquet" "$size"
  "$program" read "$folder/rows.parquet"
done
