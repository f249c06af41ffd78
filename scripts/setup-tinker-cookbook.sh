#!/usr/bin/env bash
# A Python with the Tinker SDK and its cookbook, for tests/clients/cookbook.py; prints the Python's path. Torch is the one of
# scripts/setup-engine-peer.sh, which this makes first.
set -euo pipefail
cd "$(dirname "$0")/.."
cache=${ESPALIER_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/espalier}
peer=$(scripts/setup-engine-peer.sh)
key=$(cat scripts/tinker-cookbook-requirements.txt "$0" | sha256sum | cut -c1-12)
venv=$cache/python-tinker-cookbook-$key
if [ ! -e "$venv/ready" ]; then
  rm -rf "$venv"
  python3 -m venv "$venv" >&2
  pip=("$venv/bin/python" -m pip install --quiet --no-cache-dir --disable-pip-version-check)
  echo "downloading the Tinker SDK and its cookbook" >&2
  where() { "$1" -c 'import sysconfig; print(sysconfig.get_path("purelib"))'; }
  where "$peer" > "$(where "$venv/bin/python")/peer.pth"
  # The cookbook asks for renderers that are not on PyPI and that the recipes here do not load.
  "${pip[@]}" --no-deps tinker-cookbook==0.6.1 >&2
  "${pip[@]}" -r scripts/tinker-cookbook-requirements.txt >&2
  "$venv/bin/python" -c 'import tinker, tinker_cookbook.recipes.rl_loop' >&2
  touch "$venv/ready"
fi
echo "$venv/bin/python"
