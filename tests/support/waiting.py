"""Functions that wait for other processes, threads or tasks."""

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable

PATIENCE = 50.0
"""Default timeout in seconds. Conditions take less than five seconds, but the machine may be busy."""

PAUSES = (0.01, 0.04)
ASYNC_PAUSES = (0.002, 0.02)
"""The first and the longest pause between two looks at a condition, in seconds. Each pause is a tenth longer
than the one before: a condition often asks another process, which costs both of them CPU time."""


def wait_until(condition: Callable[[], object], within: float = PATIENCE, what: object = "") -> float:
    """Waits until the condition is true, and returns the seconds. Raises AssertionError after `within`
    seconds."""
    began = time.monotonic()
    pause, longest = PAUSES
    while not condition():
        assert time.monotonic() - began < within, f"not within {within:g} s: {what}"
        time.sleep(pause)
        pause = min(pause * 1.1, longest)
    return time.monotonic() - began


async def await_until(
    condition: Callable[[], object | Awaitable[object]], within: float = PATIENCE, what: object = ""
) -> float:
    """Like `wait_until`, without blocking the event loop. The condition may be a coroutine function."""
    began = time.monotonic()
    pause, longest = ASYNC_PAUSES
    while not (await found if inspect.isawaitable(found := condition()) else found):
        assert time.monotonic() - began < within, f"not within {within:g} s: {what}"
        await asyncio.sleep(pause)
        pause = min(pause * 1.1, longest)
    return time.monotonic() - began


async def settle() -> None:
    """Lets the other tasks of the event loop run until they wait."""
    for _ in range(20):
        await asyncio.sleep(0)
