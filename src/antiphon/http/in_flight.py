"""The work behind one answer, and all that may end it early: the caller leaves, time is up, the caller's key
is ended, the server shuts down.

An error here is held by nobody whom its traceback leads to: such a circle keeps the whole request, megabytes
of it, until the garbage collector happens to look.
"""

import asyncio
from collections.abc import Callable

from antiphon.domain.context import RequestProgress
from antiphon.domain.identity import Actor
from antiphon.errors import AntiphonError, AuthenticationFailed, DeadlineExceeded
from antiphon.http.connection import Connection

ENDED = (
    "the key of this request is not accepted any more: it was ended, its user disabled or taken out of the "
    "project, or the project archived"
)


class ClientLeft(Exception):
    """The caller closed the connection: nobody waits for an answer, and none is sent."""


class InFlight:
    """One caller's work, and the context in which its task does it. It is ended from outside by cancelling
    the task, and raises then what it was ended with."""

    __slots__ = ("_connection", "_errors", "_is_open", "_ongoing", "_progress", "_task", "_timer", "actor")

    def __init__(
        self,
        connection: Connection,
        ongoing: "InFlightRegistry",
        seconds: float,
        actor: Actor,
        progress: RequestProgress,
    ) -> None:
        ongoing.require(actor)
        loop = asyncio.get_running_loop()
        task = asyncio.current_task(loop)
        if task is None:
            raise RuntimeError("work belongs to a task")
        if connection.has_left:
            raise ClientLeft
        self.actor = actor
        """The caller."""
        self._connection = connection
        self._ongoing = ongoing
        self._progress = progress
        self._task = task
        self._errors: list[Exception] = []
        """What it was ended with, until that is raised: one at most."""
        self._is_open = True
        self._timer = loop.call_later(seconds, self._end_late, seconds)

    def __enter__(self) -> "InFlight":
        self._connection.on_leave = self._end_left
        self._ongoing.add(self)
        return self

    def __exit__(self, kind: object, raised: BaseException | None, trace: object) -> None:
        self._is_open = False
        self._ongoing.discard(self)
        self._timer.cancel()
        self._connection.on_leave = None
        if self._errors and isinstance(raised, asyncio.CancelledError):
            self._task.uncancel()
            raise self._errors.pop() from None

    def end(self, error: Exception) -> None:
        """Ends what runs in the context, once; does nothing after."""
        if self._is_open and not self._errors:
            self._errors.append(error)
            self._progress.is_ended = isinstance(error, AntiphonError)
            self._task.cancel()

    def _end_late(self, seconds: float) -> None:
        self.end(DeadlineExceeded(f"the answer was not finished within {seconds:g} seconds"))

    def _end_left(self) -> None:
        self.end(ClientLeft())


class InFlightRegistry:
    """All work of this process."""

    def __init__(self, accepts: Callable[[Actor], bool] = lambda _: True) -> None:
        """`accepts`: whether a caller who was let in would be let in now."""
        self._accepts = accepts
        self._works: set[InFlight] = set()

    def __len__(self) -> int:
        return len(self._works)

    def add(self, work: InFlight) -> None:
        self._works.add(work)

    def discard(self, work: InFlight) -> None:
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


def cancel_on_disconnect(
    connection: Connection, ongoing: InFlightRegistry, seconds: float, actor: Actor, progress: RequestProgress
) -> InFlight:
    """Work that ends when the caller leaves (ClientLeft), after so many seconds (DeadlineExceeded), when the
    caller is not accepted any more (AuthenticationFailed), or with `ongoing`. Raises what it was ended
    with."""
    return InFlight(connection, ongoing, seconds, actor, progress)
