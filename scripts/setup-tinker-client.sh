#!/usr/bin/env bash
# A Python with the Tinker SDK, for tests; prints the Python's path. ESPALIER_TEST_PYTHON names one that has it.
set -euo pipefail
version=0.38.0
has() { "$1" -c "import tinker; assert tinker.__version__ == '$version'" 2> /dev/null; }
if [ -n "${ESPALIER_TEST_PYTHON:-}" ] && has "$ESPALIER_TEST_PYTHON"; then
  echo "$ESPALIER_TEST_PYTHON"
  exit
fi
cache=${ESPALIER_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/espalier}
venv=$cache/venvs/tinker-$version
mkdir -p "$cache/venvs"
# Several tests ask at once; one makes it.
exec 9> "$venv.lock"
flock 9
if [ ! -e "$venv/ready" ]; then
  rm -rf "$venv"
  python3 -m venv "$venv" >&2
  "$venv/bin/python" -m pip install --quiet --no-cache-dir --disable-pip-version-check "tinker==$version" >&2
  has "$venv/bin/python"
  touch "$venv/ready"
fi
echo "$venv/bin/python"
