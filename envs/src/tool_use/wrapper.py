# Runs the agent's code as a program of its own and reports what it did and which files it left.
import json, os, stat, subprocess, sys

task = json.loads(sys.stdin.buffer.read())
home = os.getcwd()
folder = os.path.join(home, "workspace")
os.makedirs(folder, exist_ok=True)


def snapshot():
    files, skipped, total = {}, 0, 0
    for parent, folders, names in os.walk(folder, followlinks=False):
        folders[:] = sorted(name for name in folders if name != "__pycache__")
        for name in sorted(names):
            path = os.path.join(parent, name)
            try:
                info = os.lstat(path)
                if not stat.S_ISREG(info.st_mode) or info.st_size > task["file_bytes"]:
                    skipped += 1
                    continue
                total += info.st_size
                if total > task["bytes"] or len(files) >= task["files"]:
                    skipped += 1
                    continue
                with open(path, "rb") as file:
                    files[os.path.relpath(path, folder)] = file.read()
            except (OSError, UnicodeError):
                skipped += 1
    return files, skipped


before, _ = snapshot()
code = os.path.join(home, "code.py")
with open(code, "w", encoding="utf-8", errors="surrogatepass") as file:
    file.write(task["code"])
most = task["output_bytes"]
outs = []
for name in ("stdout", "stderr"):
    outs.append(open(os.path.join(home, name), "w+b"))
child = subprocess.Popen(
    [sys.executable, code], cwd=folder, stdin=subprocess.DEVNULL, stdout=outs[0], stderr=outs[1], env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
)
try:
    status = child.wait(task["seconds"])
except subprocess.TimeoutExpired:
    child.kill()
    child.wait()
    status = None


def kept(file):
    size = file.seek(0, 2)
    file.seek(0)
    if size <= most:
        return file.read().decode("utf-8", "replace")
    head = file.read(most // 2)
    file.seek(size - most // 2)
    text = head.decode("utf-8", "replace") + "\n... " + str(size - most) + " bytes left out ...\n"
    return text + file.read().decode("utf-8", "replace")


after, skipped = snapshot()
report = {
    "status": status,
    "stdout": kept(outs[0]),
    "stderr": kept(outs[1]).replace(code, "code.py"),
    "removed": [path for path in before if path not in after and not os.path.lexists(os.path.join(folder, path))],
    "changed": {path: data.hex() for path, data in after.items() if before.get(path) != data},
    "skipped": skipped,
}
sys.stdout.write(json.dumps(report))
