"""Merges streams, and applies deadlines to streams, for items of any kind.

Both functions close their source streams before they return, also after a failure or a cancellation.
"""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import TypeVar

from antiphon.domain.context import Context
from antiphon.errors import AntiphonError, DeadlineExceeded
from antiphon.task_group import task_group

T = TypeVar("T")

WAITING = 64
"""The most items of all streams together that may wait for a slow reader. At that number the streams
pause."""


async def enforce_deadline(stream: AsyncGenerator[T, None], context: Context) -> AsyncGenerator[T, None]:
    """Yields the items of the stream. Raises DeadlineExceeded when the request's deadline passes before the
    next item."""
    async with aclosing(stream):
        while (item := await _next_in_time(stream, context)) is not None:
            yield item


async def _next_in_time(stream: AsyncGenerator[T, None], context: Context) -> T | None:
    """Returns the stream's next item, or None at its end. Raises DeadlineExceeded."""
    seconds_left = context.remaining()
    if seconds_left == 0:
        raise deadline_error()
    try:
        async with asyncio.timeout(seconds_left):
            return await anext(stream, None)
    except TimeoutError:
        raise deadline_error() from None


def deadline_error() -> DeadlineExceeded:
    """Makes the error for a request that missed its deadline."""
    return DeadlineExceeded(
        "the request's deadline passed before it was finished; ask for less, or allow more time"
    )


def merge(streams: Sequence[AsyncGenerator[T, None]]) -> AsyncGenerator[T, None]:
    """Yields the items of all streams as they arrive; the items of one stream stay in order. The first error
    ends all streams and is raised.

    A single stream needs neither a task nor a queue, so the function returns it as it is.
    """
    return streams[0] if len(streams) == 1 else _merge_concurrently(streams)


Arrival = tuple[T] | AntiphonError | None
"""An item, the error that ended a stream, or its end."""


async def _merge_concurrently(streams: Sequence[AsyncGenerator[T, None]]) -> AsyncGenerator[T, None]:
    """Yields the items of all streams; each stream runs in a task of its own."""
    queue: asyncio.Queue[Arrival[T]] = asyncio.Queue(WAITING)
    async with task_group() as group:
        for stream in streams:
            group.create_task(_pump(stream, queue))
        running = len(streams)
        while running:
            item = await _take_next(queue)
            if item is None:
                running -= 1
            else:
                yield item[0]


async def _take_next(queue: asyncio.Queue[Arrival[T]]) -> tuple[T] | None:
    """Returns the next item, or None when a stream has ended. Raises the error that ended a stream."""
    arrived = await queue.get()
    try:
        if isinstance(arrived, AntiphonError):
            raise arrived
        return arrived
    finally:
        del arrived  # otherwise its traceback keeps the whole request in memory


async def _pump(stream: AsyncGenerator[T, None], queue: asyncio.Queue[Arrival[T]]) -> None:
    """Copies one stream to the queue. An error goes through the queue too, since raising it here would cancel
    the reader. Its traceback is dropped, because it leads to the queue."""
    try:
        async with aclosing(stream):
            async for item in stream:
                await queue.put((item,))
    except AntiphonError as error:
        await queue.put(error.with_traceback(None))
    else:
        await queue.put(None)
