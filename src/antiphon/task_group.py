"""A task group that raises the error of a task itself, and not an ExceptionGroup around it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


@asynccontextmanager
async def task_group() -> AsyncIterator[asyncio.TaskGroup]:
    """Yields a `TaskGroup`. If tasks fail, raises the first error itself, so that the caller can catch it by
    its class.

    An ExceptionGroup and the frame that raises it refer to each other. They would keep the request in memory
    until the garbage collector runs. So the group is dropped before the error is raised.
    """
    first_errors: list[BaseException] = []
    try:
        async with asyncio.TaskGroup() as group:
            yield group
    except BaseExceptionGroup as error_group:
        first_errors.append(error_group.exceptions[0])
        error_group.__traceback__ = None
    if first_errors:
        raise first_errors.pop()
