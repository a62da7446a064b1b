"""Work in progress, and the events that end it early: the caller leaves, the time is up, the caller's key is
ended, or the server shuts down.

No object that an error's traceback refers to stores the error. Such a reference cycle would keep the whole
request, megabytes of memory, until the garbage collector runs.
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
    """Raised when the caller has closed the connection. No answer is sent."""


class InFlight:
    """One caller's work in progress, as a context manager. `end` cancels the task, and the context then
    raises the error that was given to `end`."""

    __slots__ = ("_connection", "_errors", "_is_open", "_ongoing", "_progress", "_task", "_timer", "actor")

    def __init__(
        self,
        connection: Connection,
        ongoing: "InFlightRegistry",
        seconds: float,
        actor: Actor,
        progress: RequestProgress,
    ) -> None:
        ongoing.require_accepted(actor)
        loop = asyncio.get_running_loop()
        task = asyncio.current_task(loop)
        if task is None:
            raise RuntimeError("work belongs to a task")
        if connection.has_left:
            raise ClientLeft
        self.actor = actor
        self._connection = connection
        self._ongoing = ongoing
        self._progress = progress
        self._task = task
        self._errors: list[Exception] = []
        """The error that ended the work, until the context raises it. The list has at most one item."""
        self._is_open = True
        self._timer = loop.call_later(seconds, self._end_at_deadline, seconds)

    def __enter__(self) -> "InFlight":
        self._connection.on_leave = self._end_on_disconnect
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
        """Ends the work in the context. Only the first call has an effect."""
        if self._is_open and not self._errors:
            self._errors.append(error)
            self._progress.is_ended = isinstance(error, AntiphonError)
            self._task.cancel()

    def _end_at_deadline(self, seconds: float) -> None:
        """Ends the work with DeadlineExceeded. `seconds` is the time that the work had."""
        self.end(DeadlineExceeded(f"the answer was not finished within {seconds:g} seconds"))

    def _end_on_disconnect(self) -> None:
        """Ends the work with ClientLeft."""
        self.end(ClientLeft())


class InFlightRegistry:
    """All work in progress of this process."""

    def __init__(self, accepts: Callable[[Actor], bool] = lambda _: True) -> None:
        """`accepts` returns whether the server still accepts an actor that it has authenticated before."""
        self._accepts = accepts
        self._works: set[InFlight] = set()

    def __len__(self) -> int:
        return len(self._works)

    def add(self, work: InFlight) -> None:
        """Registers work that begins."""
        self._works.add(work)

    def discard(self, work: InFlight) -> None:
        """Removes work that has ended."""
        self._works.discard(work)

    def end(self, error: AntiphonError) -> None:
        """Ends all work with an error. The caller gets the error as the answer, or as the last event of the
        stream."""
        for work in tuple(self._works):
            work.end(error)

    def require_accepted(self, actor: Actor) -> None:
        """Raises AuthenticationFailed if the actor is not accepted any more. A key can be ended while the
        body arrives."""
        if not self._accepts(actor):
            raise AuthenticationFailed(ENDED)

    def end_unaccepted(self) -> None:
        """Ends the work of callers that are not accepted any more. Call it after every change of keys."""
        for work in tuple(self._works):
            if not self._accepts(work.actor):
                work.end(AuthenticationFailed(ENDED))


def cancel_on_disconnect(
    connection: Connection, ongoing: InFlightRegistry, seconds: float, actor: Actor, progress: RequestProgress
) -> InFlight:
    """Returns a context that ends its work with an error:

    ClientLeft if the caller leaves; DeadlineExceeded after `seconds`;
    AuthenticationFailed if the caller is not accepted any more; or the error given to `ongoing.end`.
    """
    return InFlight(connection, ongoing, seconds, actor, progress)
