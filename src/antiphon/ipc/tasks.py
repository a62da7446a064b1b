"""A task group for contexts that hand out something else than the group."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


@asynccontextmanager
async def task_group() -> AsyncIterator[asyncio.TaskGroup]:
    """A `TaskGroup` that an error leaves as itself, not inside an ExceptionGroup.

    So that the caller can name it; of several it is the first.
    """
    try:
        async with asyncio.TaskGroup() as group:
            yield group
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None
