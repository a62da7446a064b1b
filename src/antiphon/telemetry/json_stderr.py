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

CHUNK_BYTES = 65536
MAX_LINE_BYTES = 1024 * 1024
"""The most bytes of one line; a longer line is split."""

END_TIMEOUT_S = 5.0
"""Seconds to wait for the last lines. It is limited because a child that survives its parent keeps the pipe
open."""

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
        os.dup2(target, STDERR)  # closes this process's end of the pipe, so that `_forward` can end
        forwarder.join(END_TIMEOUT_S)


def _forward(source: int, target: int) -> None:
    """Reads lines until all writers have closed the pipe, and writes each line as JSON. Continues to read if
    the target is closed, so that no writer blocks. `source`, `target`: file descriptors."""
    partial_line = b""
    while chunk := os.read(source, CHUNK_BYTES):
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
    """Returns the line unchanged if it is a JSON object. Returns a record with its text if it is not."""
    if line.startswith(b"{"):
        with suppress(ValueError, RecursionError):
            json.loads(line)
            return line
    text = line.decode("utf-8", "replace").rstrip("\r")
    if text.startswith(NOTICE_PREFIX):
        return format_json(time.time(), "info", "notice", {"text": text.removeprefix(NOTICE_PREFIX)}).encode()
    return format_json(time.time(), "warning", "output", {"text": text}).encode()
