"""The standard streams: output goes to the host as it is written, input is at its end."""

import io
import sys


class _Bytes(io.RawIOBase):
    def __init__(self, stream):
        self._stream = stream

    def writable(self):
        return True

    def write(self, data):
        data = bytes(data)
        self._stream.write(data.decode("utf-8", "replace"))
        return len(data)

    def close(self):
        pass


class Stream(io.TextIOBase):
    encoding = "utf-8"
    newlines = None
    mode = "w"

    def __init__(self, name, write, errors):
        self.name = name
        self.write = write
        self.errors = errors
        self.buffer = _Bytes(self)

    errors = None

    def writable(self):
        return True

    def flush(self):
        pass

    def close(self):
        pass

    def isatty(self):
        return False

    def reconfigure(self, **options):
        pass

    def __repr__(self):
        return f"<stream {self.name!r}>"


class Input(io.StringIO):
    encoding = "utf-8"
    name = "<stdin>"
    mode = "r"

    def write(self, text):
        raise io.UnsupportedOperation("not writable")

    def writable(self):
        return False

    def close(self):
        pass


stdin = Input("")
stdout = Stream("<stdout>", write_stdout, "strict")
stderr = Stream("<stderr>", write_stderr, "backslashreplace")
for _name, _stream in (("stdin", stdin), ("stdout", stdout), ("stderr", stderr)):
    setattr(sys, _name, _stream)
    setattr(sys, f"__{_name}__", _stream)

import errno

for _code, _names in enumerate(
    "EPERM ENOENT ESRCH EINTR EIO ENXIO E2BIG ENOEXEC EBADF ECHILD EAGAIN ENOMEM EACCES EFAULT ENOTBLK EBUSY EEXIST "
    "EXDEV ENODEV ENOTDIR EISDIR EINVAL ENFILE EMFILE ENOTTY ETXTBSY EFBIG ENOSPC ESPIPE EROFS EMLINK EPIPE EDOM "
    "ERANGE EDEADLK ENAMETOOLONG ENOLCK ENOSYS ENOTEMPTY ELOOP".split(),
    1,
):
    if not hasattr(errno, _names):
        setattr(errno, _names, _code)
for _names, _code in (("EWOULDBLOCK", 11), ("ETIMEDOUT", 110), ("ECONNREFUSED", 111), ("ENOTSUP", 95), ("EOPNOTSUPP", 95)):
    if not hasattr(errno, _names):
        setattr(errno, _names, _code)
if not getattr(errno, "errorcode", None):
    errno.errorcode = {
        value: name for name, value in sorted(vars(errno).items()) if name.startswith("E") and isinstance(value, int)
    }
