import os
import sys
for key, value in dict(os.environ).items():
    print("ESCAPED", key, value)
print(sys.argv, sys.executable, sys.path)
for name in ("getcwd", "listdir", "getlogin", "uname", "getpid", "cpu_count", "getuid"):
    try:
        print(name, getattr(os, name)())
    except BaseException as error:
        print(name, type(error).__name__)
if any("home" in part or "root" in part for part in sys.path):
    print("ESCAPED sys.path")
# ---
import os
for path in ("/proc/self/environ", "/proc/self/maps", "/etc/passwd", "/dev/mem", "/dev/urandom"):
    for opener in ("open", "fdopen"):
        try:
            getattr(os, opener)(path, 0)
            print("ESCAPED", path)
        except BaseException as error:
            print(type(error).__name__)
