"""Opens files that settings name. It refuses a FIFO or a device, which could make a reader wait forever."""

import errno
import os
import stat
from io import BufferedReader
from pathlib import Path


def open_regular(path: Path | str) -> BufferedReader:
    """Opens a regular file for reading. Raises OSError, also for a file of another kind."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        kind = "it is a directory" if stat.S_ISDIR(mode) else "it is not a regular file"
        raise OSError(errno.EINVAL, kind, str(path))
    return open(descriptor, "rb")


def read_text(path: Path | str) -> str:
    """Reads a regular file of UTF-8. Raises OSError, and UnicodeDecodeError."""
    with open_regular(path) as file:
        return file.read().decode("utf-8")
