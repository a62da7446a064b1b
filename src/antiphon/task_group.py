"""A task group for contexts that hand out something else than the group, and for what one request needs."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


@asynccontextmanager
async def task_group() -> AsyncIterator[asyncio.TaskGroup]:
    """A `TaskGroup` that an error leaves as itself, not inside an ExceptionGroup.

    So that the caller can name it; of several it is the first. And so that it is freed with the caller: the
    group's own error and the frame it is raised in hold each other, and what is in it, until the garbage
    collector looks.
    """
    passing: list[BaseException] = []
    try:
        async with asyncio.TaskGroup() as group:
            yield group
    except BaseExceptionGroup as failures:
        passing.append(failures.exceptions[0])
        failures.__traceback__ = None
    if passing:
        raise passing.pop()
