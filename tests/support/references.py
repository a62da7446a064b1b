"""Whether a failed operation frees its objects by reference counts alone, without the collector."""

import gc
import warnings
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


@contextmanager
def record_left_open() -> Iterator[list[warnings.WarningMessage]]:
    """The warnings of what is left open within, when the block has ended. What others left before is none."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        gc.collect()
    with warnings.catch_warnings(record=True) as left_open:
        warnings.simplefilter("always")
        yield left_open
        gc.collect()


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
