"""A task group's errors: each as itself, and freed when its caller is done with it."""

import asyncio

import pytest

from antiphon.errors import EngineDied
from antiphon.task_group import task_group
from tests.support.references import is_freed


async def failing():
    raise EngineDied("gone")


async def from_its_body():
    async with task_group() as group:
        group.create_task(asyncio.sleep(60))
        await failing()


async def from_a_task():
    async with task_group() as group:
        group.create_task(failing())
        await asyncio.sleep(60)


async def from_outside():
    async with task_group() as group:
        group.create_task(asyncio.sleep(60))
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        task.uncancel()
        await asyncio.sleep(60)


@pytest.mark.parametrize(
    ("work", "error"),
    [(from_its_body, EngineDied), (from_a_task, EngineDied), (from_outside, asyncio.CancelledError)],
)
async def test_an_error_comes_as_itself_and_nothing_stays_of_the_work(work, error):
    assert await is_freed(work, error)
