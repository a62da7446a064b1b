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


def require(is_satisfied: object, rule: str) -> None:
    """Raises AssertionError with the rule's sentence unless `is_satisfied` is true. It is a function, because
    `python -O` removes `assert` statements."""
    if not is_satisfied:
        raise AssertionError(rule)


async def require_soon(
    condition: Callable[[], Awaitable[bool]], rule: str, patience: float = PATIENCE
) -> None:
    """Requires a condition to become true within `patience` seconds."""
    deadline = time.monotonic() + patience
    while not await condition():
        require(time.monotonic() < deadline, rule)
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
    """Requires some work to raise `expected`, and no other error, within `patience` seconds."""
    try:
        async with asyncio.timeout(patience):
            await work
    except expected:
        return
    except (AntiphonError, TimeoutError, ValueError, RuntimeError) as error:
        raise AssertionError(f"{rule} (raised {error!r})") from error
    raise AssertionError(f"{rule} (nothing was raised)")


async def interrupt(work: Awaitable[object], delay_s: float) -> None:
    """Starts some work and cancels it after `delay_s` seconds, unless the work has ended before."""
    try:
        async with asyncio.timeout(delay_s):
            await work
    except TimeoutError:
        pass


@asynccontextmanager
async def run_beside(*work: Coroutine[None, None, T]) -> AsyncGenerator[list[asyncio.Task[T]], None]:
    """Runs all work beside the block, and cancels the unfinished work when the block is left. If work
    fails, raises its error without a group around it."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(each) for each in work]
            yield tasks
            for task in tasks:
                task.cancel()
    except BaseExceptionGroup as failures:
        failure: BaseException = failures
        while isinstance(failure, BaseExceptionGroup):
            failure = failure.exceptions[0]
        raise failure from None


@asynccontextmanager
async def open_stream(
    engine: Engine, request: GenerationRequest, context: Context
) -> AsyncGenerator[AsyncIterator[Event], None]:
    """Yields the events of a request. The work ends when the block is left."""
    prepared = await engine.prepare(request, context)
    async with prepared.stream(context) as events:
        yield events
