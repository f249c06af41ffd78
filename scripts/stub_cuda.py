"""Lets PyPI's CUDA build of torch be imported on a machine without the CUDA libraries, several GB that a CPU never calls.

usage: stub_cuda.py SITE_PACKAGES

For every CUDA library that torch's own libraries link to and that is not there, a stand-in is compiled: the right
SONAME, the symbol versions that the loader insists on, and every symbol that torch leaves open, each a function that
answers 1, CUDA's "invalid value". torch.cuda.is_available() is then False and everything on the CPU works. Needs gcc and
binutils.
"""

import collections
import pathlib
import re
import subprocess
import sys
import tempfile

LIBRARIES = {
    "cublas": ["cublas"],
    "cublasLt": ["cublasLt"],
    "cudart": ["cuda", "__cuda"],
    "cudnn": ["cudnn"],
    "cufft": ["cufft"],
    "cufile": ["cuFile"],
    "cupti": ["cupti"],
    "curand": ["curand"],
    "cusolver": ["cusolver"],
    "cusparse": ["cusparse"],
    "cusparseLt": ["cusparseLt"],
    "nccl": ["nccl", "pnccl"],
    "nvrtc": ["nvrtc"],
    "nvshmem_host": ["nvshmem"],
}
NAME = re.compile(rf"^lib({'|'.join(LIBRARIES)})\.so\.\d+$")


def lines(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()


def main():
    site = pathlib.Path(sys.argv[1])
    needed, versions = set(), collections.defaultdict(set)
    plain, of_version = set(), collections.defaultdict(set)
    for library in sorted((site / "torch/lib").glob("lib*.so")):
        for line in lines("readelf", "-d", library):
            found = re.search(r"NEEDED.*\[(.*?)\]", line)
            if found and NAME.match(found[1]):
                needed.add(found[1])
        of = None
        for line in lines("readelf", "-V", "-W", library):
            if file := re.search(r"File: (\S+)", line):
                of = file[1]
            elif of and (version := re.search(r"Name: (\S+)", line)):
                versions[of].add(version[1])
        for line in lines("nm", "-D", "--undefined-only", library):
            symbol, _, version = line.split()[-1].replace("@@", "@").partition("@")
            if version:
                of_version[version].add(symbol)
            else:
                plain.add(symbol)
    folder = site / "nvidia/cu13/lib"
    folder.mkdir(parents=True, exist_ok=True)
    for name in sorted(needed):
        target = folder / name
        if target.exists() and target.stat().st_size > 200_000:
            continue  # the real one
        own = sorted(versions[name])
        symbols = {symbol for version in own for symbol in of_version[version]}
        symbols |= {symbol for symbol in plain if symbol.startswith(tuple(LIBRARIES[NAME.match(name)[1]]))}
        with tempfile.TemporaryDirectory() as scratch:
            source = pathlib.Path(scratch, "stub.c")
            # The one function whose answer is a pointer that is followed.
            handle = "__cudaRegisterFatBinary"
            body = [f"int {symbol}(void) {{ return 1; }}" for symbol in sorted(symbols - {handle})]
            if handle in symbols:
                body.append(f"static void *handles[1]; void *{handle}(void) {{ return handles; }}")
            source.write_text("\n".join(["int espalier_stub;", *body, ""]))
            command = ["gcc", "-w", "-shared", "-fPIC", "-o", target, f"-Wl,-soname,{name}"]
            if own:
                script = pathlib.Path(scratch, "versions")
                script.write_text("".join(f"{v} {{ global: {'; '.join(sorted(of_version[v]))}; }};\n" for v in own))
                command.append(f"-Wl,--version-script={script}")
            subprocess.run([*command, source], check=True)


main()
