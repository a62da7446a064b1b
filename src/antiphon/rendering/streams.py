"""Merges streams of any items, and ends them at the request's deadline.

Both close the source streams before they return, also after an error or a cancellation.
"""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import TypeVar

from antiphon.domain.context import Context
from antiphon.errors import AntiphonError, DeadlineExceeded
from antiphon.task_group import task_group

T = TypeVar("T")

MOST_WAITING = 64
"""The most items of all streams that wait for a slow reader. With more, the streams pause."""

Arrival = Sequence[T] | AntiphonError | None
"""A group of items, the error that ended a stream, or None for the end of a stream."""


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
        raise build_deadline_error()
    try:
        async with asyncio.timeout(seconds_left):
            return await anext(stream, None)
    except TimeoutError:
        raise build_deadline_error() from None


def build_deadline_error() -> DeadlineExceeded:
    """Returns the error for a request that missed its deadline."""
    return DeadlineExceeded(
        "the request's deadline passed before it was finished; ask for less, or allow more time"
    )


def merge(streams: Sequence[AsyncGenerator[Sequence[T], None]]) -> AsyncGenerator[Sequence[T], None]:
    """Yields the items of all streams as they arrive; those that arrive together are a group. The items of
    one stream stay in order. The first error ends all streams and is raised.

    A single stream is returned unchanged, because it needs no task and no queue.
    """
    return streams[0] if len(streams) == 1 else _merge_concurrently(streams)


async def _merge_concurrently(
    streams: Sequence[AsyncGenerator[Sequence[T], None]],
) -> AsyncGenerator[Sequence[T], None]:
    """Yields the items of all streams. Each stream runs in its own task."""
    queue: asyncio.Queue[Arrival[T]] = asyncio.Queue(MOST_WAITING)
    errors: list[AntiphonError] = []  # an error in a variable would keep the whole request in memory
    async with task_group() as group:
        for stream in streams:
            group.create_task(_pump(stream, queue))
        running_count = len(streams)
        while running_count:
            arrivals = [await queue.get()]
            while not queue.empty():
                arrivals.append(queue.get_nowait())
            items: list[T] = []
            while arrivals and not errors:
                arrival = arrivals.pop(0)
                if arrival is None:
                    running_count -= 1
                elif isinstance(arrival, AntiphonError):
                    errors.append(arrival)
                else:
                    items += arrival
            arrivals.clear()
            arrival = None
            if items:
                yield items
            if errors:
                raise errors.pop()


async def _pump(stream: AsyncGenerator[Sequence[T], None], queue: asyncio.Queue[Arrival[T]]) -> None:
    """Copies one stream to the queue. Errors are put into the queue too, because raising them here would
    cancel the reader. The traceback is removed, because it would refer to the queue."""
    try:
        async with aclosing(stream):
            async for items in stream:
                await queue.put(items)
    except AntiphonError as error:
        await queue.put(error.with_traceback(None))
    else:
        await queue.put(None)
