#!/usr/bin/env bash
# Puts libtorch 2.11.0 into the per-user cache and links .libtorch to it. A no-op when it is there.
#
#   scripts/setup-libtorch.sh [cpu|cuda]
#
# cpu (default): a slim libtorch, 410 MB on disk, taken out of PyPI's wheel.
# cuda: the whole wheel with its CUDA libraries, several GB.
set -euo pipefail
cd "$(dirname "$0")/.."
device=${1:-cpu}
version=2.11.0 # what tch 0.24.0 is generated for; no other version works
requirements=scripts/libtorch-requirements.txt
cache=${ESPALIER_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/espalier}/libtorch
key=$version-$device-$(cat "$requirements" "$0" | sha256sum | cut -c1-12)
dst=$cache/$key

download() { # folder, pip arguments...
  local into=$1 platforms=(--platform manylinux2014_x86_64) glibc
  shift
  # pip takes a wheel of an older glibc only where it is named.
  for glibc in {17..28}; do platforms+=(--platform "manylinux_2_${glibc}_x86_64"); done
  python3 -m pip download --quiet --no-cache-dir --only-binary=:all: \
    --python-version 3.12 --implementation cp --abi cp312 "${platforms[@]}" -d "$into" "$@"
}

if [ ! -e "$dst/build-version" ]; then
  mkdir -p "$cache"
  tmp=$(mktemp -d "$dst.XXXXXX")
  trap 'rm -rf "$tmp"' EXIT
  case $device in
    cpu)
      echo "downloading libtorch $version (544 MB)" >&2
      download "$tmp/wheels" --no-deps --require-hashes -r "$requirements"
      ;;
    cuda)
      echo "downloading libtorch $version with CUDA (several GB)" >&2
      download "$tmp/wheels" "torch==$version"
      ;;
    *)
      echo "setup-libtorch: expected \`cpu\` or \`cuda\`, got \`$device\`" >&2
      exit 2
      ;;
  esac
  python3 - "$tmp" "$device" <<'PY'
import glob, os, shutil, sys, zipfile
tmp, device = sys.argv[1:]
out = tmp + "/out"
slim = {"torch/lib/libtorch_cpu.so", "torch/lib/libc10.so", "torch/lib/libgomp.so.1"}
slim_cuda = {"libcudart.so.13", "libcupti.so.13"}
for wheel in glob.glob(tmp + "/wheels/*.whl"):
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            base = os.path.basename(name)
            if name.endswith("/"):
                continue
            if name.startswith("torch/include/") or name in slim or (device == "cuda" and name.startswith("torch/lib/")):
                path = os.path.join(out, name[len("torch/"):])
            elif base in slim_cuda or (device == "cuda" and name.startswith("nvidia/") and ".so" in base):
                path = os.path.join(out, "lib", base)
            else:
                continue
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with archive.open(name) as source, open(path, "wb") as target:
                shutil.copyfileobj(source, target, 1 << 20)
if device == "cpu":
    # torch-sys links -ltorch; the wheel's own stub would pull in libtorch_cuda.
    with open(out + "/lib/libtorch.so", "w") as stub:
        stub.write("INPUT(-ltorch_cpu -lc10)\n")
PY
  if command -v strip >/dev/null; then strip --strip-unneeded "$tmp/out/lib/libtorch_cpu.so"; fi
  echo "$version" > "$tmp/out/build-version" # torch-sys checks this file
  # Another process may have been quicker: its result is as good.
  mv -T "$tmp/out" "$dst" 2>/dev/null || [ -e "$dst/build-version" ]
fi
ln -sfnT "$dst" .libtorch
echo "libtorch: $dst" >&2
