"""A task group for contexts that hand out something else than the group."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


@asynccontextmanager
async def task_group() -> AsyncIterator[asyncio.TaskGroup]:
    """A `TaskGroup` that an error leaves as itself, not inside an ExceptionGroup.

    For groups whose tasks raise nothing, so that the error is the body's own and its caller can name it.
    """
    try:
        async with asyncio.TaskGroup() as group:
            yield group
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None
