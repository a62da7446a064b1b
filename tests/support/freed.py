"""What a request held is freed when it ends."""

import asyncio
import gc
from collections.abc import Iterator

import pytest

from antiphon.dialects.http_types import Request

SOON = 600
"""Looks, each after five milliseconds, in which what a request held is freed; stated: as it ends."""


@pytest.fixture
def earlier() -> Iterator[set[int]]:
    """Requests of other tests, by their ids; the collector does not look while this one runs.

    What was there before is frozen, so that only what is new has to be looked through.
    """
    gc.collect()
    gc.freeze()
    gc.disable()
    yield requests()
    gc.enable()


def requests() -> set[int]:
    """All that are held, by their ids: whoever has one of them holds it."""
    return {id(found) for found in gc.get_objects() if isinstance(found, Request)}


async def require_freed(earlier: set[int]) -> None:
    """Nothing of a request is held, now or soon."""
    for _ in range(SOON):
        if requests() <= earlier:
            return
        await asyncio.sleep(0.005)
    assert requests() <= earlier
