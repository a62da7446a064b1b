"""Whether what a piece of work had is freed when the work has failed, without the garbage collector."""

import gc
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from weakref import ref


class Held:
    """What a piece of work has."""


@contextmanager
def counting() -> Iterator[None]:
    """Only references are counted meanwhile; the collector does not look."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


async def freed(work: Callable[[], Awaitable[object]], error: type[BaseException]) -> bool:
    """Whether nothing holds what work had that fails with that error."""

    async def failing() -> "ref[Held]":
        held = Held()
        kept = ref(held)
        try:
            await _with(held, work)
        except error:
            return kept
        raise AssertionError("it was to fail")

    with counting():
        return (await failing())() is None


async def _with(held: Held, work: Callable[[], Awaitable[object]]) -> None:
    await work()
