#!/usr/bin/env bash
# A Python environment for the tests that check Espalier from outside: the official `openai` client, pandas and
# pyarrow. Lies in the per-user cache; a no-op when it is there.
set -euo pipefail
cd "$(dirname "$0")/.."
requirements=scripts/python-requirements.txt
cache=${ESPALIER_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/espalier}
key=$(sha256sum "$requirements" | cut -c1-12)
dst=$cache/python-$key
if [ ! -e "$dst/ready" ]; then
  mkdir -p "$cache"
  rm -rf "$dst"
  python3 -m venv "$dst"
  "$dst/bin/python" -m pip install --quiet --disable-pip-version-check -r "$requirements"
  touch "$dst/ready"
fi
ln -sfnT "$dst" "$cache/python"
echo "python: $dst" >&2
