"""The pause before the supervisor restarts the knowledge process, in a file next to the process's socket. The
file contains the time of the next start. During the pause, calls fail immediately with the remaining
seconds."""

import time
from contextlib import suppress
from pathlib import Path

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
