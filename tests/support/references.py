"""Whether a failed operation frees its objects by reference counts alone, without the collector."""

import gc
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from weakref import ref


class Held:
    """An object that an operation holds."""


@contextmanager
def disable_collector() -> Iterator[None]:
    """Only reference counts free objects within."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


async def is_freed(operation: Callable[[], Awaitable[object]], error: type[BaseException]) -> bool:
    """Whether nothing references the locals of an operation that fails with this error."""

    async def fail() -> "ref[Held]":
        held = Held()
        reference = ref(held)
        try:
            await _await_with(held, operation)
        except error:
            return reference
        raise AssertionError("the operation did not fail")

    with disable_collector():
        return (await fail())() is None


async def _await_with(held: Held, operation: Callable[[], Awaitable[object]]) -> None:
    await operation()
