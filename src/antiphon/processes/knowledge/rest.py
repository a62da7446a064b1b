"""Tells HTTP processes until when the knowledge process is not started again, by a file beside its socket.

Calls then fail at once, with the seconds until they may be tried again, in place of waiting for the process.
"""

import time
from contextlib import suppress
from pathlib import Path

ENDING = ".rest"


def write_rest(socket: str, seconds: float) -> None:
    """Notes that the process does not start within these seconds. A failure is no error: calls then wait."""
    with suppress(OSError):
        Path(socket + ENDING).write_text(str(time.monotonic() + seconds), "ascii")


def clear_rest(socket: str) -> None:
    """Notes that the process runs."""
    with suppress(OSError):
        Path(socket + ENDING).unlink(missing_ok=True)


def read_rest(socket: str) -> float:
    """Returns the seconds until the process is started again; 0 if it does not rest."""
    try:
        return max(0.0, float(Path(socket + ENDING).read_text("ascii")) - time.monotonic())
    except (OSError, ValueError):
        return 0.0
