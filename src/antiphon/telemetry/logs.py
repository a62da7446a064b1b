"""Structured log records on standard error: one text line or one JSON object each.

A record has an event's name and values. The formatter quotes the values, so no text of a caller can break a
line. Never pass prompts, answers or credentials as values.

`convert_stderr` is for servers whose log is JSON. Native libraries, child processes and a crashing
interpreter write text to standard error: each of these lines becomes a record.
"""

import asyncio
import json
import logging
import os
import re
import select
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from contextlib import contextmanager, suppress
from functools import lru_cache
from types import TracebackType
from typing import Literal

LOGGER = logging.getLogger("antiphon")

FIELDS = "antiphon_fields"
"""The attribute of a LogRecord that contains the values."""

LEVEL_NAMES = {
    level: logging.getLevelName(level).lower() for level in (logging.INFO, logging.WARNING, logging.ERROR)
}
"""The levels of our records, as a line names them."""

_COMMON_ATTRIBUTES = vars(logging.LogRecord(LOGGER.name, logging.INFO, "", 0, "", (), None))
"""The attributes that all records share. They are computed once, because this takes half the time of a
record."""

FormatEvent = Callable[[float, str, str, Mapping[str, object]], str]
"""`format_text` or `format_json`."""

_encode = json.JSONEncoder(default=str).encode

_PLAIN = re.compile(r"[!#-~]*").fullmatch
"""Matches printable ASCII without spaces and quotation marks, which needs no JSON notation."""

PATH_STEP = re.compile(r"([\w-]+)(?:\[\d{1,5}\])*", re.ASCII)
"""One step of a field's path: a name, with the indices after it."""

UNKNOWN = "(unknown)"

STDERR = 2

CHUNK_BYTES = 65536
MAX_LINE_BYTES = 1024 * 1024
"""The most bytes of one line; a longer line is split."""

END_TIMEOUT_S = 5.0
"""Seconds to wait for the last lines. It is limited because a child that survives its parent keeps the pipe
open."""

READER_TIMEOUT_S = 2.0
"""Seconds to wait for the reader of a full non-blocking descriptor, before the rest of a line is lost. A slow
reader needs milliseconds; one that has stopped must not stop the server."""

NOTICE_PREFIX = "antiphon: "
"""The beginning of the lines that Antiphon writes for people."""


def record(event: str, level: int = logging.INFO, **values: object) -> None:
    """Writes one record, unless its level is off. The record has no source line, because finding the line
    is slow."""
    if LOGGER.isEnabledFor(level):
        _handle(event, level, values)


def announce(event: str, **values: object) -> None:
    """Writes one record, whatever log level is set."""
    _handle(event, logging.INFO, values)


def _handle(event: str, level: int, values: Mapping[str, object]) -> None:
    """Writes a record, without the objects of `logging` if our handler is the only one. Otherwise passes it
    to all handlers."""
    now, handlers = time.time(), logging.root.handlers
    if len(handlers) == 1 and isinstance(handler := handlers[0], LineHandler) and not LOGGER.handlers:
        try:
            handler.write(handler.format_event(now, LEVEL_NAMES[level], event, values))
        except Exception:  # noqa: BLE001, S110 - `logging` reports it below
            pass
        else:
            return
    log_record = logging.LogRecord.__new__(logging.LogRecord)
    attributes = {
        "msg": event,
        "levelno": level,
        "levelname": logging.getLevelName(level),
        FIELDS: values,
    }
    log_record.__dict__.update(_COMMON_ATTRIBUTES, **attributes, created=now, msecs=now % 1 * 1000)
    LOGGER.handle(log_record)


def record_loop_failure(_: asyncio.AbstractEventLoop, loop_context: Mapping[str, object]) -> None:
    """Logs an exception that no code in the event loop handled: its type and its place in the code. This is a
    handler for `loop.set_exception_handler`."""
    problem = loop_context.get("exception")
    location = describe_exception(problem) if isinstance(problem, BaseException) else None
    record("event_loop_failure", logging.ERROR, reason=loop_context.get("message"), problem=location)


def format_json(created: float, level: str, event: str, values: Mapping[str, object]) -> str:
    """Formats an event as one line of JSON. `created`: Unix seconds."""
    return _encode({"time": _format_time(created), "level": level, "event": event, **values})


def format_text(created: float, level: str, event: str, values: Mapping[str, object]) -> str:
    """Formats an event as `time level event name=value ...`. A value with special characters is written in
    JSON notation. `created`: Unix seconds."""
    line = f"{_format_time(created)} {level:7} {event}"
    for name, value in values.items():
        kind = type(value)
        if kind is int or kind is float:
            line += f" {name}={value!r}"
        elif isinstance(value, str):
            if value:
                line += f" {name}={value if _PLAIN(value) else _encode(value)}"
        elif value is not None and value != []:
            line += f" {name}={_format_value(value)}"
    return line


class LineHandler(logging.Handler):
    """Writes each record to standard error by one system call."""

    def __init__(self, format_event: FormatEvent) -> None:
        super().__init__()
        self.format_event = format_event

    def format(self, record: logging.LogRecord) -> str:
        """Formats a record of any logger as one line. An exception becomes its type and its place in the
        code, without its message, which can contain a caller's text."""
        event = record.getMessage()
        if record.name != LOGGER.name and self.format_event is format_text:
            event = f"{record.name}: {_format_value(event)}"
        values: Mapping[str, object] = getattr(record, FIELDS, {})
        if record.exc_info and record.exc_info[1] is not None:
            values = {**values, "exception": describe_exception(record.exc_info[1])}
        return self.format_event(record.created, record.levelname.lower(), event, values)

    def write(self, line: str) -> None:
        """Writes a line."""
        with self.lock or threading.RLock():  # `logging` makes the lock, also anew after a fork
            _write_all(STDERR, f"{line}\n".encode("utf-8", "backslashreplace"))

    def emit(self, record: logging.LogRecord) -> None:
        """Writes the record. `logging` reports a library's record whose values do not fit its text."""
        try:
            self.write(self.format(record))
        except Exception:  # noqa: BLE001 - a bad record of a library must not fail the request that caused it
            self.handleError(record)


def _format_value(value: object) -> str:
    """Formats a value for a text record."""
    if isinstance(value, list):
        return ",".join(map(_format_value, value))
    text = value if isinstance(value, str) else _encode(value)
    return text if _PLAIN(text) else _encode(text)


def _format_time(created: float) -> str:
    """Formats a Unix time in UTC, with milliseconds."""
    seconds = int(created)
    return f"{_format_second(seconds)}.{int(created * 1000) % 1000:03d}Z"


@lru_cache(maxsize=1)
def _format_second(second: int) -> str:
    """Formats a Unix second in UTC."""
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))


def configure(level: str, log_format: Literal["text", "json"]) -> None:
    """Writes the records of every logger to standard error in one format. Turns off the lookup of thread and
    process, since no format shows them."""
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    root = logging.getLogger()
    root.handlers[:] = [LineHandler(format_json if log_format == "json" else format_text)]
    root.setLevel(logging.WARNING)
    LOGGER.setLevel(level.upper())
    logging.captureWarnings(log_format == "json")
    sys.excepthook = _record_crash if log_format == "json" else sys.__excepthook__


def _record_crash(kind: type[BaseException], problem: BaseException, trace: TracebackType | None) -> None:
    """Logs an exception that ends the process: its type and its place in the code."""
    if isinstance(problem, KeyboardInterrupt):
        sys.__excepthook__(kind, problem, trace)
    else:
        record("crash", logging.ERROR, problem=describe_exception(problem))


def cut_unknown_path(path: str | None, names: Iterable[Set[str]]) -> str | None:
    """Returns the path of a field up to the first name that is in none of the sets in `names`. A caller may
    have invented that name, so the log must not contain it."""
    if path is None:
        return None
    name_sets, known_steps = tuple(names), []
    for step in path.split("."):
        match = PATH_STEP.fullmatch(step)
        if match is None or not any(match[1] in names_in_set for names_in_set in name_sets):
            break
        known_steps.append(step)
    return ".".join(known_steps) or UNKNOWN


def describe_exception(problem: BaseException) -> str:
    """Returns the type of an exception and its place in the code. Leaves out the message, which can contain a
    prompt."""
    stack = traceback.extract_tb(problem.__traceback__)
    places = " < ".join(
        f"{_shorten_path(frame.filename)}:{frame.lineno} {frame.name}" for frame in reversed(stack)
    )
    return f"{type(problem).__name__} at {places}"


def _shorten_path(filename: str) -> str:
    """Returns the part of a path below `site-packages` or `src`."""
    return re.sub(r"^.*/(?:site-packages|src)/", "", filename)


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
    _write_all(target, b"".join(convert_line(line) + b"\n" for line in lines if line.strip()))


def _write_all(target: int, data: bytes) -> None:
    """Writes all bytes, unless the reader is gone. A terminal or pipe that another program has set to
    non-blocking refuses bytes while it is full. Then this waits for the reader, as a blocking one would, but
    not forever."""
    try:
        while data:
            try:
                data = data[os.write(target, data) :]
            except BlockingIOError:
                room = select.poll()
                room.register(target, select.POLLOUT)
                if not room.poll(READER_TIMEOUT_S * 1000):
                    return
    except OSError:
        return


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
