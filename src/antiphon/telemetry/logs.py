"""Structured log records on standard error, as one line for people or one JSON object.

A record is an event's name and values; the formatter quotes them, so that nothing a caller sends can break
a line. Prompts,
answers and credentials are never handed to it.
"""

import asyncio
import json
import logging
import sys
import time
from collections.abc import Mapping
from typing import Literal

from antiphon.telemetry.places import frames

LOGGER = logging.getLogger("antiphon")

FIELDS = "antiphon_fields"
"""Attribute of a LogRecord that carries the values."""


def record(event: str, level: int = logging.INFO, **values: object) -> None:
    """Writes one record. Costs nothing when the level is off."""
    if LOGGER.isEnabledFor(level):
        LOGGER.log(level, event, extra={FIELDS: values})


def record_loop_failure(_: asyncio.AbstractEventLoop, failure: Mapping[str, object]) -> None:
    """An event loop's handler of what nobody else handles: records type and place."""
    problem = failure.get("exception")
    place = frames(problem) if isinstance(problem, BaseException) else None
    record("event_loop_failure", logging.ERROR, reason=failure.get("message"), problem=place)


class PlaceFormatter(logging.Formatter):
    """Shows an exception by its type and place: its message may hold what a caller sent."""

    def formatException(  # noqa: N802 - the name is the standard library's
        self, ei: tuple[type[BaseException], BaseException, object] | tuple[None, None, None]
    ) -> str:
        return "" if ei[1] is None else frames(ei[1])


class JsonFormatter(PlaceFormatter):
    """One JSON object for each record."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": _timestamp(record.created),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
        }
        line |= getattr(record, FIELDS, {})
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


class TextFormatter(PlaceFormatter):
    """`time level event name=value ...`, values in JSON notation when they hold anything but plain
    characters."""

    def format(self, record: logging.LogRecord) -> str:
        values = getattr(record, FIELDS, {})
        said = "".join(
            f" {name}={_plain(value)}" for name, value in values.items() if value not in (None, [], "")
        )
        event = (
            record.getMessage()
            if record.name == LOGGER.name
            else f"{record.name}: {_plain(record.getMessage())}"
        )
        line = f"{_timestamp(record.created)} {record.levelname.lower():7} {event}{said}"
        return line + "\n" + self.formatException(record.exc_info) if record.exc_info else line


def _plain(value: object) -> str:
    if isinstance(value, list):
        return ",".join(_plain(item) for item in value)
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    bare = text.isascii() and text.isprintable() and " " not in text and '"' not in text
    return text if bare else json.dumps(text)


def _timestamp(created: float) -> str:
    whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(created))
    return f"{whole}.{int(created * 1000) % 1000:03d}Z"


def configure(level: str, form: Literal["text", "json"]) -> None:
    """Sends every logger of the process to standard error in one form."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    LOGGER.setLevel(level.upper())
