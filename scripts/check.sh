#!/usr/bin/env bash
# What must hold besides the tests. Called by `make check` and by CI.
set -euo pipefail
cd "$(dirname "$0")/.."
# The documentation is built with private items: a map of a crate may link to them.
export RUSTDOCFLAGS="-D warnings -A rustdoc::private_intra_doc_links"
step() { printf '\n== %s\n' "$*" >&2; }

step formatting
cargo fmt --all --check

step "interpreter artifact matches its sources"
# Built as part of the workspace: alone it would ask for other features of its dependencies, and compile them again.
cargo build --quiet --locked --workspace --bin xtask
"${CARGO_TARGET_DIR:-target}/debug/xtask" guest --check

step clippy
cargo clippy --locked --workspace --all-targets -- -D warnings

step documentation
cargo doc --locked --workspace --no-deps --document-private-items --quiet

step "one set of features, so that nothing compiles twice"
features() {
  cargo tree --locked --prefix none --no-dedupe -f '{p} {f}' "$@" | sed 's/ (\*)$//; s/ (proc-macro)$//' | grep -vF "$PWD" | sort -u
}
all=$(features --workspace -e normal,build,dev)
for build in "--workspace -e normal,build" "--package espalier --no-default-features -e normal,build"; do
  # shellcheck disable=SC2086 # several words on purpose
  extra=$(comm -23 <(features $build) <(echo "$all"))
  if [ -n "$extra" ]; then
    printf 'compiled again by `%s`:\n%s\nGive these the features of the test build in cli/Cargo.toml.\n' "$build" "$extra" >&2
    exit 1
  fi
done

step "the command without libtorch"
cargo build --locked --package espalier --no-default-features

step "licences, bans, sources"
deny=$(command -v cargo-deny || true)
if [ -z "$deny" ]; then
  tools=${ESPALIER_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/espalier}/tools
  deny=$tools/bin/cargo-deny
  version=0.20.2
  if ! "$deny" --version 2>/dev/null | grep -qF "$version"; then
    # Unoptimised: it runs for seconds, and compiling it is what costs.
    CARGO_PROFILE_DEV_DEBUG=0 cargo install --quiet --locked --debug --root "$tools" --target-dir "$tools/target" "cargo-deny@$version"
    rm -rf "$tools/target"
  fi
fi
"$deny" --log-level error check bans licenses sources
# The advisory database is a git repository; where it cannot be fetched, what is at hand is used.
if [ -d "${CARGO_HOME:-$HOME/.cargo}/advisory-dbs" ]; then
  "$deny" --log-level error check --disable-fetch advisories
else
  echo "advisories: skipped, no database at hand (\`cargo deny fetch\` gets it)" >&2
fi
