"""Several streams as one, and a stream with a deadline. Knows nothing of what flows.

Both end what they read from when they are closed, fail or are cancelled, before they return.
"""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import TypeVar

from antiphon.domain.context import Context
from antiphon.errors import AntiphonError, DeadlineExceeded

T = TypeVar("T")

WAITING = 64
"""Items of all streams together that may wait for a slow reader; then the streams themselves wait."""


async def timely(stream: AsyncGenerator[T, None], context: Context) -> AsyncGenerator[T, None]:
    """The same items. Raises DeadlineExceeded when the next one does not come before the request's
    deadline."""
    async with aclosing(stream):
        while True:
            left = context.remaining()
            if left == 0:
                raise late()
            try:
                async with asyncio.timeout(left):
                    item = await anext(stream)
            except StopAsyncIteration:
                return
            except TimeoutError:
                raise late() from None
            yield item


def late() -> DeadlineExceeded:
    return DeadlineExceeded(
        "the request's deadline passed before it was finished; ask for less, or allow more time"
    )


async def merged(streams: Sequence[AsyncGenerator[T, None]]) -> AsyncGenerator[T, None]:
    """Items of all streams as they come, each stream's own in order. The first error ends all and is
    raised."""
    if len(streams) == 1:  # needs neither a task nor a queue
        async with aclosing(streams[0]) as only:
            async for item in only:
                yield item
        return
    try:
        async with asyncio.TaskGroup() as group:
            queue: asyncio.Queue[tuple[T] | AntiphonError | None] = asyncio.Queue(WAITING)
            for stream in streams:
                group.create_task(_pump(stream, queue))
            running = len(streams)
            while running:
                arrived = await queue.get()
                if isinstance(arrived, AntiphonError):
                    raise arrived
                if arrived is None:
                    running -= 1
                else:
                    yield arrived[0]
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None


async def _pump(
    stream: AsyncGenerator[T, None], queue: asyncio.Queue[tuple[T] | AntiphonError | None]
) -> None:
    """Carries one stream over. Its error goes the same way: raised here, it would cancel whoever reads."""
    try:
        async with aclosing(stream):
            async for item in stream:
                await queue.put((item,))
    except AntiphonError as error:
        await queue.put(error)
    else:
        await queue.put(None)
