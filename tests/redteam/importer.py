# Loaders, finders, sys.modules.
import sys
for name in ("posix", "_posixsubprocess", "_socket", "_ctypes", "nt", "_winapi", "fcntl", "mmap", "resource", "_thread"):
    try:
        module = __import__(name)
        print(name, [k for k in ("system", "fork", "open", "socket", "CDLL", "mmap") if hasattr(module, k)])
        if hasattr(module, "system") and module.system("true") == 0:
            print("ESCAPED", name)
    except BaseException as error:
        print(name, type(error).__name__)
# ---
import sys
sys.modules["json"] = None
sys.modules["re"] = 5
sys.meta_path.clear()
sys.path_hooks.clear()
sys.path[:] = ["/", "/etc"]
sys.modules.clear()
# ---
try:
    import importlib.util
    spec = importlib.util.spec_from_file_location("x", "/etc/passwd")
    spec.loader.get_data("/etc/passwd")
    print("ESCAPED")
except BaseException as error:
    print(type(error).__name__)
# ---
try:
    loader = __loader__ if "__loader__" in dir() else type(__builtins__)
    print(loader.load_module("os"))
except BaseException as error:
    print(type(error).__name__)
