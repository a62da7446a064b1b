"""The work behind one answer, and all that may end it early: the caller leaves, time is up, the caller's key
is ended, the server shuts down.

An error here is held by nobody whom its traceback leads to: such a circle keeps the whole request, megabytes
of it, until the garbage collector happens to look.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from antiphon.domain.context import Progress
from antiphon.domain.identity import Actor
from antiphon.errors import AntiphonError, AuthenticationFailed, DeadlineExceeded
from antiphon.http.connection import Connection

ENDED = (
    "the key of this request is not accepted any more: it was ended, its user disabled or taken out of the "
    "project, or the project archived"
)


class ClientLeft(Exception):
    """The caller closed the connection: nobody waits for an answer, and none is sent."""


class Work:
    """One caller's work. It is ended from outside by cancelling its task, and says with which error.

    Owned by the task that runs `attended`.
    """

    def __init__(self, task: asyncio.Task[object], actor: Actor, progress: Progress) -> None:
        """`actor`: the caller."""
        self._progress = progress
        self.actor = actor
        self._task = task
        self._errors: list[Exception] = []
        """What it was ended with, until that is raised: one at most."""
        self._open = True

    def end(self, error: Exception) -> None:
        """Ends what runs inside `attended`, once; does nothing after."""
        if self._open and not self._errors:
            self._errors.append(error)
            self._progress.is_ended = isinstance(error, AntiphonError)
            self._task.cancel()

    def close(self) -> None:
        """It can not be ended any more."""
        self._open = False

    def take_error(self) -> Exception | None:
        """What it was ended with, where its task was cancelled for that."""
        if not self._errors:
            return None
        self._task.uncancel()
        return self._errors.pop()


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


@contextmanager
def attended(
    connection: Connection, ongoing: Ongoing, seconds: float, actor: Actor, progress: Progress
) -> Iterator[Work]:
    """Work that ends when the caller leaves (ClientLeft), after so many seconds (DeadlineExceeded), when the
    caller is not accepted any more (AuthenticationFailed), or with `ongoing`. Raises what it was ended
    with."""
    ongoing.require(actor)
    task = asyncio.current_task()
    if task is None:
        raise RuntimeError("work belongs to a task")
    if connection.has_left:
        raise ClientLeft
    work = Work(task, actor, progress)
    timer = asyncio.get_running_loop().call_later(seconds, _end_late, work, seconds)
    connection.on_leave = lambda: work.end(ClientLeft())
    ongoing.add(work)
    try:
        yield work
    except asyncio.CancelledError:
        if (error := work.take_error()) is None:
            raise
        try:
            raise error from None
        finally:
            del error
    finally:
        work.close()
        ongoing.discard(work)
        timer.cancel()
        connection.on_leave = None


def _end_late(work: Work, seconds: float) -> None:
    work.end(DeadlineExceeded(f"the answer was not finished within {seconds:g} seconds"))
