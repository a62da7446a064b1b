"""Makes every line on standard error a JSON object, for servers whose log is JSON.

Loggers already write JSON. Native libraries, child processes and a crashing interpreter write text: each of
these lines becomes a record.
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
MAX_LINE_BYTES = 1024 * 1024
"""The most bytes of one line; a longer line is split."""

END_DEADLINE = 5.0
"""Seconds to wait for the last lines. A process that survives its parent may hold the pipe."""

NOTICE_PREFIX = "antiphon: "
"""The beginning of the lines that Antiphon writes for people."""


@contextmanager
def convert_stderr() -> Iterator[None]:
    """While the context lasts, converts the lines that this process and its children write to standard error
    to JSON objects."""
    target = os.dup(STDERR)
    read_end, write_end = os.pipe()
    os.dup2(write_end, STDERR)
    os.close(write_end)
    forwarder = threading.Thread(target=_forward, args=(read_end, target), daemon=True)
    forwarder.start()
    try:
        yield
    finally:
        with suppress(OSError, ValueError):
            sys.stderr.flush()
        os.dup2(target, STDERR)  # the last writer of the pipe, once all children have ended
        forwarder.join(END_DEADLINE)


def _forward(source: int, target: int) -> None:
    """Reads lines until all writers have ended, and writes each as JSON. If the target is closed, it
    continues to read, so that no writer blocks."""
    partial_line = b""
    while chunk := os.read(source, CHUNK):
        *lines, partial_line = (partial_line + chunk).split(b"\n")
        if len(partial_line) > MAX_LINE_BYTES:
            lines, partial_line = [*lines, partial_line], b""
        _write(target, lines)
    _write(target, [partial_line])


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
    if text.startswith(NOTICE_PREFIX):
        return format_json(time.time(), "info", "notice", {"text": text.removeprefix(NOTICE_PREFIX)}).encode()
    return format_json(time.time(), "warning", "output", {"text": text}).encode()
