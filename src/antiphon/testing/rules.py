"""Shared parts of the conformance kits: checking a rule, waiting for a condition, measuring a close, opening
a stream."""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import TypeVar

from antiphon.domain.context import Context
from antiphon.domain.events import Event
from antiphon.domain.request import GenerationRequest
from antiphon.engines.base import Engine
from antiphon.errors import AntiphonError

T = TypeVar("T")

PATIENCE = 10.0
"""Seconds that a kit waits where the contract says "at once". The contract promises one second."""


def require(holds: object, rule: str) -> None:
    """Raises AssertionError with the rule's sentence unless `holds` is true. It is a function, because
    `python -O` removes `assert` statements."""
    if not holds:
        raise AssertionError(rule)


async def require_soon(
    condition: Callable[[], Awaitable[bool]], rule: str, patience: float = PATIENCE
) -> None:
    """Requires a condition to become true within `patience` seconds."""
    until = time.monotonic() + patience
    while not await condition():
        require(time.monotonic() < until, rule)
        await asyncio.sleep(0.005)


async def require_end(work: Awaitable[T], rule: str, patience: float = PATIENCE) -> T:
    """Requires some work to end within `patience` seconds, and returns its result."""
    try:
        async with asyncio.timeout(patience):
            return await work
    except TimeoutError:
        raise AssertionError(rule) from None


async def require_error(
    work: Awaitable[object], expected: type[Exception], rule: str, patience: float = PATIENCE
) -> None:
    """Requires some work to raise `expected`, and no other error, within the patience."""
    try:
        async with asyncio.timeout(patience):
            await work
    except expected:
        return
    except (AntiphonError, TimeoutError, ValueError, RuntimeError) as error:
        raise AssertionError(f"{rule} (raised {error!r})") from error
    raise AssertionError(f"{rule} (nothing was raised)")


async def interrupt(work: Awaitable[object], moment: float) -> None:
    """Starts some work and cancels it after `moment` seconds, unless it has ended by then."""
    try:
        async with asyncio.timeout(moment):
            await work
    except TimeoutError:
        pass


@asynccontextmanager
async def run_beside(*work: Coroutine[None, None, T]) -> AsyncGenerator[list[asyncio.Task[T]], None]:
    """Runs all work beside the block, and cancels the unfinished work when the block is left. Raises the
    error of failed work itself, not in a group."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(each) for each in work]
            yield tasks
            for task in tasks:
                task.cancel()
    except BaseExceptionGroup as failures:
        first: BaseException = failures
        while isinstance(first, BaseExceptionGroup):
            first = first.exceptions[0]
        raise first from None


@asynccontextmanager
async def open_stream(
    engine: Engine, request: GenerationRequest, context: Context
) -> AsyncGenerator[AsyncIterator[Event], None]:
    """Yields the events of a request; leaving the context ends the work."""
    prepared = await engine.prepare(request, context)
    async with prepared.stream(context) as events:
        yield events
