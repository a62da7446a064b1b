"""Waiting for what another process changed, and saying how long it took."""

import sys
import time
from collections.abc import Awaitable, Callable

import anyio

LATEST_S = 10.0
"""Within which it must have been heard of; on a machine of its own it is a fifth of a second."""


async def heard(what: str, true: Callable[[], Awaitable[bool]]) -> float:
    """Seconds until it is true; prints them. Raises AssertionError after a while."""
    began = time.monotonic()
    while not await true():
        assert time.monotonic() - began < LATEST_S, f"{what} was not heard of"
        await anyio.sleep(0.005)
    took = time.monotonic() - began
    sys.stdout.write(f"heard of after {1000 * took:.0f} ms: {what}\n")
    return took
