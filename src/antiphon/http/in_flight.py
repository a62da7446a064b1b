"""Running requests, and the events that end them early: the caller leaves, the time is up, the caller's key
ends, or the server shuts down.

An error must not be stored in an object that its traceback refers to. Such a reference cycle would keep the
whole request, megabytes of memory, until the garbage collector runs.
"""

import asyncio
from collections.abc import Callable

from antiphon.domain.context import RequestProgress
from antiphon.domain.identity import Actor
from antiphon.errors import AntiphonError, AuthenticationFailed, DeadlineExceeded
from antiphon.http.protocol import Exchange

KEY_NOT_ACCEPTED = (
    "the key of this request is not accepted any more: it was ended, its user disabled or taken out of the "
    "project, or the project archived"
)


class ClientLeft(Exception):
    """Raised when the caller has closed the connection. No answer is sent."""


class InFlight:
    """A running request, as a context manager. `end` cancels the request's task, and the context then raises
    the error that `end` got: ClientLeft if the caller leaves; DeadlineExceeded after `seconds`;
    AuthenticationFailed if the caller is no longer accepted; or the error of `InFlightRegistry.end`."""

    __slots__ = (
        "_errors",
        "_exchange",
        "_is_active",
        "_progress",
        "_registry",
        "_seconds",
        "_task",
        "actor",
    )

    def __init__(
        self,
        exchange: Exchange,
        registry: "InFlightRegistry",
        seconds: float,
        actor: Actor,
        progress: RequestProgress,
    ) -> None:
        registry.require_accepted(actor)
        if registry.loop is None:
            registry.loop = exchange.connection.loop
        task = asyncio.current_task(registry.loop)
        if task is None:
            raise RuntimeError(
                "InFlight needs a running task of its registry's event loop, which is the first one"
            )
        if exchange.has_left:
            raise ClientLeft
        self.actor = actor
        self._exchange = exchange
        self._registry = registry
        self._progress = progress
        self._task = task
        self._errors: list[Exception] = []
        """The error that ended the request, until the context raises it. The list has at most one item."""
        self._is_active = True
        self._seconds = seconds

    def __enter__(self) -> "InFlight":
        self._exchange.on_leave = lambda: self.end(ClientLeft())
        self._registry.add(self, self._exchange.connection.loop.time() + self._seconds)
        return self

    def __exit__(self, kind: object, raised: BaseException | None, trace: object) -> None:
        self._is_active = False
        self._registry.discard(self)
        self._exchange.on_leave = None
        if self._errors and isinstance(raised, asyncio.CancelledError):
            self._task.uncancel()
            raise self._errors.pop() from None

    def end(self, error: Exception) -> None:
        """Ends the request with an error. Only the first call has an effect."""
        if self._is_active and not self._errors:
            self._errors.append(error)
            self._progress.end_code = error.code if isinstance(error, AntiphonError) else None
            self._task.cancel()

    def end_late(self) -> None:
        """Ends the request because its time is up."""
        self.end(DeadlineExceeded(f"the answer was not finished within {self._seconds:g} seconds"))


class InFlightRegistry:
    """All running requests of this process."""

    def __init__(self, is_accepted: Callable[[Actor], bool] = lambda _: True) -> None:
        """`is_accepted` returns whether the server still accepts an actor that it authenticated earlier."""
        self._is_accepted = is_accepted
        self.is_stopping = False
        """Whether the server was asked to stop, and load balancers must send it no more requests."""
        self._running: dict[InFlight, float] = {}
        """The event loop's time at which each request must have ended."""
        self.loop: asyncio.AbstractEventLoop | None = None
        """The event loop of all requests: that of the first one."""
        self._timer: asyncio.TimerHandle | None = None
        """The timer of all requests. It is due when the first of them must have ended."""

    def __len__(self) -> int:
        return len(self._running)

    def add(self, request: InFlight, due: float) -> None:
        """Registers a request that starts, and ends it at `due`, a time of the event loop."""
        self._running[request] = due
        if self._timer is None or due < self._timer.when():
            self._set_timer(due)

    def discard(self, request: InFlight) -> None:
        """Removes a request that has ended."""
        self._running.pop(request, None)

    def _set_timer(self, due: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_at(due, self._end_late)

    def _end_late(self) -> None:
        """Ends the requests whose time is up, and sets the timer for the others."""
        self._timer, now = None, asyncio.get_running_loop().time()
        for request, due in self._running.items():
            if due <= now:
                request.end_late()
        later = [due for due in self._running.values() if due > now]
        if later:
            self._set_timer(min(later))

    def end(self, error: AntiphonError) -> None:
        """Ends all requests with an error. Each caller gets the error as the answer, or as the last event of
        the stream."""
        for request in tuple(self._running):
            request.end(error)

    def require_accepted(self, actor: Actor) -> None:
        """Raises AuthenticationFailed if the actor is no longer accepted. A key can end while the body
        arrives."""
        if not self._is_accepted(actor):
            raise AuthenticationFailed(KEY_NOT_ACCEPTED)

    def end_unaccepted(self) -> None:
        """Ends the requests of callers that are no longer accepted. Call it after every change of keys."""
        for request in tuple(self._running):
            if not self._is_accepted(request.actor):
                request.end(AuthenticationFailed(KEY_NOT_ACCEPTED))
