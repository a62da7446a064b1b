"""Where an exception was raised, for logs."""

import re
import traceback


def frames(problem: BaseException) -> str:
    """Type and place of an exception without its message, which may hold a prompt."""
    stack = traceback.extract_tb(problem.__traceback__)
    places = " < ".join(f"{_short(frame.filename)}:{frame.lineno} {frame.name}" for frame in reversed(stack))
    return f"{type(problem).__name__} at {places}"


def _short(filename: str) -> str:
    return re.sub(r"^.*/(?:site-packages|src)/", "", filename)
