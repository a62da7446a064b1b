"""Standard error of a server whose log is JSON: every line is a JSON object, whoever wrote it.

Loggers write JSON by themselves. Native libraries, child processes, and the interpreter at a crash write
text: each line of it becomes a record.
"""

import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from antiphon.telemetry.logs import format_json

STDERR = 2

CHUNK = 65536
LONGEST = 1024 * 1024
"""Bytes after which a line without an end is cut."""

END_DEADLINE = 5.0
"""Seconds to wait for the last lines. A process that survives its parent may hold the pipe."""

NOTICE = "antiphon: "
"""The beginning of lines for people."""


@contextmanager
def convert_stderr() -> Iterator[None]:
    """While the context lasts, the lines that this process and its children write to standard error reach it
    as JSON objects."""
    target = os.dup(STDERR)
    reading, writing = os.pipe()
    os.dup2(writing, STDERR)
    os.close(writing)
    forwarder = threading.Thread(target=_forward, args=(reading, target), daemon=True)
    forwarder.start()
    try:
        yield
    finally:
        with suppress(OSError, ValueError):
            sys.stderr.flush()
        os.dup2(target, STDERR)  # the last writer of the pipe, once all children have ended
        forwarder.join(END_DEADLINE)


def _forward(source: int, target: int) -> None:
    """Reads lines until all writers have ended, and writes each as JSON. If nobody reads the target, goes on
    reading, so that no writer waits."""
    rest = b""
    while chunk := os.read(source, CHUNK):
        *lines, rest = (rest + chunk).split(b"\n")
        if len(rest) > LONGEST:
            lines, rest = [*lines, rest], b""
        _write(target, lines)
    _write(target, [rest])


def _write(target: int, lines: list[bytes]) -> None:
    """Writes lines as JSON objects; empty lines are left out."""
    data = b"".join(convert_line(line) + b"\n" for line in lines if line.strip())
    with suppress(OSError):
        while data:
            data = data[os.write(target, data) :]


def convert_line(line: bytes) -> bytes:
    """Returns the line if it is a JSON object, otherwise a record with its text."""
    if line.startswith(b"{"):
        with suppress(ValueError, RecursionError):
            json.loads(line)
            return line
    text = line.decode("utf-8", "replace").rstrip("\r")
    if text.startswith(NOTICE):
        return format_json(time.time(), "info", "notice", {"text": text.removeprefix(NOTICE)}).encode()
    return format_json(time.time(), "warning", "output", {"text": text}).encode()
