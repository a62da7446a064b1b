"""A file next to the knowledge process's socket with the time of its next start. During this pause, calls
fail immediately with the remaining seconds."""

import time
from contextlib import suppress
from pathlib import Path

ENDING = ".rest"


def write_pause(socket: str, seconds: float) -> None:
    """Writes that the process does not start within these seconds. Ignores errors of the disk: calls then
    wait."""
    with suppress(OSError):
        Path(socket + ENDING).write_text(str(time.monotonic() + seconds), "ascii")


def clear_pause(socket: str) -> None:
    """Ends the pause: the process runs."""
    with suppress(OSError):
        Path(socket + ENDING).unlink(missing_ok=True)


def read_pause(socket: str) -> float:
    """Returns the seconds until the process starts again; 0 if there is no pause."""
    try:
        return max(0.0, float(Path(socket + ENDING).read_text("ascii")) - time.monotonic())
    except (OSError, ValueError):
        return 0.0
