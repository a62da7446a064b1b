"""The work behind one answer, and all that may end it early: the caller leaves, time is up, the caller's key
is ended, the server shuts down.

An error here is held by nobody whom its traceback leads to: such a circle keeps the whole request, megabytes
of it, until the garbage collector happens to look.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

from starlette.types import Receive

from antiphon.domain.identity import Actor
from antiphon.errors import AntiphonError, AuthenticationFailed, DeadlineExceeded
from antiphon.ipc.tasks import task_group

ENDED = (
    "the key of this request is not accepted any more: it was ended, its user disabled or taken out of the "
    "project, or the project archived"
)


class ClientLeft(Exception):
    """The caller closed the connection: nobody waits for an answer, and none is sent."""


class Work:
    """One caller's work. It is ended from outside by cancelling its task, and says with which error.

    Owned by the task that runs `attended`; `group` holds helpers that end with it.
    """

    def __init__(self, task: asyncio.Task[object], group: asyncio.TaskGroup, actor: Actor) -> None:
        """`actor`: the caller."""
        self.group = group
        self.actor = actor
        self._task = task
        self._errors: list[Exception] = []
        """What it was ended with, until that is raised: one at most."""
        self._open = False

    def end(self, error: Exception) -> None:
        """Ends what runs inside `interruptible`, once; does nothing before and after."""
        if self._open and not self._errors:
            self._errors.append(error)
            self._task.cancel()

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """The part that may be ended. Raises what `end` was given."""
        self._open = True
        try:
            yield
        except asyncio.CancelledError:
            if not self._errors:
                raise
            self._task.uncancel()
            raise self._errors.pop() from None
        finally:
            self._open = False


class Ongoing:
    """All work of this process."""

    def __init__(self, accepts: Callable[[Actor], bool] = lambda _: True) -> None:
        """`accepts`: whether a caller who was let in would be let in now."""
        self._accepts = accepts
        self._works: set[Work] = set()

    def __len__(self) -> int:
        return len(self._works)

    def add(self, work: Work) -> None:
        self._works.add(work)

    def discard(self, work: Work) -> None:
        self._works.discard(work)

    def end(self, error: AntiphonError) -> None:
        """Ends all of it: buffered answers become the error, streams end with it."""
        for work in tuple(self._works):
            work.end(error)

    def require(self, actor: Actor) -> None:
        """Raises AuthenticationFailed for a caller who is not accepted any more, as when the key was ended
        while the body was on its way."""
        if not self._accepts(actor):
            raise AuthenticationFailed(ENDED)

    def look(self) -> None:
        """Ends the work of callers who are not accepted any more. To be called when keys have changed."""
        for work in tuple(self._works):
            if not self._accepts(work.actor):
                work.end(AuthenticationFailed(ENDED))


@asynccontextmanager
async def attended(receive: Receive, ongoing: Ongoing, seconds: float, actor: Actor) -> AsyncIterator[Work]:
    """Work that ends when the caller leaves (ClientLeft), after so many seconds (DeadlineExceeded), when the
    caller is not accepted any more (AuthenticationFailed), or with `ongoing`."""
    ongoing.require(actor)
    task = asyncio.current_task()
    if task is None:
        raise RuntimeError("work belongs to a task")
    async with task_group() as group:
        work = Work(task, group, actor)
        watcher = group.create_task(_watch(receive, work))
        timer = asyncio.get_running_loop().call_later(seconds, _end_late, work, seconds)
        ongoing.add(work)
        try:
            yield work
        finally:
            ongoing.discard(work)
            timer.cancel()
            watcher.cancel()


def _end_late(work: Work, seconds: float) -> None:
    work.end(DeadlineExceeded(f"the answer was not finished within {seconds:g} seconds"))


async def _watch(receive: Receive, work: Work) -> None:
    """The body has arrived, so what comes next is the end of the connection."""
    while (await receive())["type"] != "http.disconnect":
        pass
    work.end(ClientLeft())
