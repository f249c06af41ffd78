"""The operating system of the sandbox: there is none.

Names that the standard library's `os` needs, without powers: nothing is read, nothing is written, nothing is run.
"""

environ = {}
error = OSError
_have_functions = []

F_OK, X_OK, W_OK, R_OK = 0, 1, 2, 4
O_RDONLY, O_WRONLY, O_RDWR, O_CREAT, O_EXCL, O_TRUNC, O_APPEND, O_CLOEXEC = 0, 1, 2, 64, 128, 512, 1024, 524288
EX_OK = 0

_FILES = "there are no files in this sandbox"
_PROCESSES = "there are no processes in this sandbox"


def _blocked(name, why):
    def function(*args, **kwargs):
        raise PermissionError(f"`os.{name}` is blocked by the sandbox policy (rule `os`): {why}")

    function.__name__ = function.__qualname__ = name
    return function


for _name in (
    "access chdir chmod chown close dup dup2 fstat fsync ftruncate getxattr isatty lchown link listdir lseek mkdir "
    "mkfifo open pipe read readlink remove rename replace rmdir scandir sendfile symlink sync truncate umask unlink "
    "utime write"
).split():
    globals()[_name] = _blocked(_name, _FILES)
for _name in "_exit abort execv execve kill killpg nice popen spawnv system wait waitpid".split():
    globals()[_name] = _blocked(_name, _PROCESSES)
del _name


def stat(path, *, dir_fd=None, follow_symlinks=True):
    raise FileNotFoundError(2, "No such file or directory", path)


def lstat(path, *, dir_fd=None):
    raise FileNotFoundError(2, "No such file or directory", path)


def getcwd():
    return "/"


def getcwdb():
    return b"/"


def getpid():
    return 1


def getppid():
    return 0


def getuid():
    return 1000


geteuid = getgid = getegid = getuid


def cpu_count():
    return 1


def get_terminal_size(fd=1):
    raise OSError(25, "Inappropriate ioctl for device")


def strerror(code):
    return _messages.get(code, f"Unknown error {code}")


_messages = {
    1: "Operation not permitted",
    2: "No such file or directory",
    5: "Input/output error",
    9: "Bad file descriptor",
    12: "Cannot allocate memory",
    13: "Permission denied",
    17: "File exists",
    20: "Not a directory",
    21: "Is a directory",
    22: "Invalid argument",
    25: "Inappropriate ioctl for device",
}


def putenv(name, value):
    pass


def unsetenv(name):
    pass


def device_encoding(fd):
    return None


def fspath(path):
    if isinstance(path, (str, bytes)):
        return path
    method = getattr(type(path), "__fspath__", None)
    if method is None:
        raise TypeError(f"expected str, bytes or os.PathLike object, not {type(path).__name__}")
    result = method(path)
    if not isinstance(result, (str, bytes)):
        raise TypeError(
            f"expected {type(path).__name__}.__fspath__() to return str or bytes, not {type(result).__name__}"
        )
    return result


class _Record(tuple):
    _fields = ()

    def __new__(cls, values):
        values = tuple(values)
        if len(values) < len(cls._fields):
            raise TypeError(f"{cls.__name__} needs {len(cls._fields)} values")
        return super().__new__(cls, values)

    def __getattr__(self, name):
        try:
            return self[type(self)._fields.index(name)]
        except ValueError:
            raise AttributeError(name) from None


class stat_result(_Record):
    _fields = (
        "st_mode",
        "st_ino",
        "st_dev",
        "st_nlink",
        "st_uid",
        "st_gid",
        "st_size",
        "st_atime",
        "st_mtime",
        "st_ctime",
    )


class terminal_size(_Record):
    _fields = ("columns", "lines")


class times_result(_Record):
    _fields = ("user", "system", "children_user", "children_system", "elapsed")


class uname_result(_Record):
    _fields = ("sysname", "nodename", "release", "version", "machine")


class DirEntry:
    pass


def uname():
    return uname_result(("Espalier", "sandbox", "1", "1", "wasm32"))


def times():
    return times_result((0.0, 0.0, 0.0, 0.0, 0.0))
