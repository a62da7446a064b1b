"""The configuration of the knowledge process, which the supervisor writes to it, and the pause before a
restart.

The pause is a file next to the process's socket, with the time of the next start. During the pause, calls
fail immediately with the remaining seconds.
"""

import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from antiphon.retrieval.base import IndexLimits


@dataclass(frozen=True, slots=True)
class KnowledgeConfig:
    """The configuration of the knowledge process. Its only secret is the database's password."""

    socket: str
    """The path on which it listens; its directory is the runtime directory."""
    status_fd: int
    directory: str
    """Where the files of knowledge tables are."""
    database: str | None = field(repr=False)
    """The address of the PostgreSQL database that contains the tables; None if files contain them."""
    limits: IndexLimits
    memory_bytes: int
    """The most bytes of vectors that stay in memory."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["text", "json"] = "text"


SUFFIX = ".rest"


def write_pause(socket: str, seconds: float) -> None:
    """Writes that the process does not start within these seconds. If the file cannot be written, calls wait
    for the process instead of failing immediately."""
    with suppress(OSError):
        Path(socket + SUFFIX).write_text(str(time.monotonic() + seconds), "ascii")


def clear_pause(socket: str) -> None:
    """Removes the file, because the process runs."""
    with suppress(OSError):
        Path(socket + SUFFIX).unlink(missing_ok=True)


def read_pause(socket: str) -> float:
    """Returns the seconds until the process starts again; 0 if there is no pause."""
    try:
        return max(0.0, float(Path(socket + SUFFIX).read_text("ascii")) - time.monotonic())
    except (OSError, ValueError):
        return 0.0
