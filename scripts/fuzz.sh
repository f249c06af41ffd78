#!/bin/sh
# fuzz.sh FOLDER TARGET [SECONDS]: builds a fuzz target (FOLDER/fuzz/fuzz_targets/TARGET.rs) with the compiler that is
# there and runs it. What it finds lies in FOLDER/fuzz/artifacts/TARGET and is given to it again as an argument of the
# program. `cargo fuzz` does the same with AddressSanitizer, and needs a nightly compiler for that; the targets hold no
# unsafe code, and their oracles are assertions.
set -eu
if [ $# -lt 2 ]; then
    echo "usage: scripts/fuzz.sh FOLDER TARGET [SECONDS], such as: scripts/fuzz.sh envs math 60" >&2
    exit 2
fi
folder=$(cd "$(dirname "$0")/../$1/fuzz" && pwd)
target=$2
seconds=${3:-60}
host=$(rustc -vV | sed -n 's/^host: //p')
# As cargo-fuzz asks for libFuzzer's counters; with a target given, build scripts are left alone.
coverage="--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4"
coverage="$coverage -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table"
coverage="$coverage -Cllvm-args=-sanitizer-coverage-trace-compares -Ccodegen-units=1 -Cdebug-assertions=on"
built=${CARGO_TARGET_DIR:-$folder/target}/fuzz
cd "$folder"
RUSTFLAGS=$coverage CARGO_TARGET_DIR=$built cargo build --release --target "$host" --bin "$target"
mkdir -p "corpus/$target" "artifacts/$target"
exec "$built/$host/release/$target" "corpus/$target" -artifact_prefix="artifacts/$target/" -max_total_time="$seconds" \
    -timeout=10 -rss_limit_mb=2048 -print_final_stats=1
