"""Waiting for what another process, thread or task brings about."""

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable

PATIENCE = 50.0
"""Seconds to wait for what takes less than five: the machine may be busy."""


def wait_until(condition: Callable[[], object], within: float = PATIENCE, what: object = "") -> float:
    """Seconds until the condition is true. Raises AssertionError after `within`."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < within, f"not within {within:g} s: {what}"
        time.sleep(0.01)
    return time.monotonic() - began


async def await_until(
    condition: Callable[[], object | Awaitable[object]], within: float = PATIENCE, what: object = ""
) -> float:
    """The same beside other tasks of the event loop. The condition may be a coroutine function."""
    began = time.monotonic()
    while not (await found if inspect.isawaitable(found := condition()) else found):
        assert time.monotonic() - began < within, f"not within {within:g} s: {what}"
        await asyncio.sleep(0.002)
    return time.monotonic() - began


async def settle() -> None:
    """Lets every task of the event loop go on as far as it can."""
    for _ in range(20):
        await asyncio.sleep(0)
