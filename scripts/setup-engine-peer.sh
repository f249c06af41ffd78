#!/usr/bin/env bash
# A Python with transformers and peft on the torch that engine and trainer link, for benches/engine_peer.py and
# benches/train_peer.py; prints the Python's path.
set -euo pipefail
cd "$(dirname "$0")/.."
cache=${ESPALIER_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/espalier}
key=$(cat scripts/engine-peer-requirements.txt scripts/stub_cuda.py "$0" | sha256sum | cut -c1-12)
venv=$cache/python-engine-peer-$key
if [ ! -e "$venv/ready" ]; then
  rm -rf "$venv"
  python3 -m venv "$venv" >&2
  pip=("$venv/bin/python" -m pip install --quiet --no-cache-dir --disable-pip-version-check)
  echo "downloading torch 2.11.0 (544 MB), transformers and peft" >&2
  # The CUDA libraries that torch asks for are left out: stand-ins take their place.
  # peft asks for torch, and torch for them.
  "${pip[@]}" --no-deps torch==2.11.0 nvidia-cuda-runtime==13.0.96 peft==0.21.2 accelerate==1.15.0 >&2
  "${pip[@]}" -r scripts/engine-peer-requirements.txt >&2
  "$venv/bin/python" scripts/stub_cuda.py "$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')" >&2
  "$venv/bin/python" -c 'import torch, transformers, peft; assert not torch.cuda.is_available()' >&2
  touch "$venv/ready"
fi
echo "$venv/bin/python"
