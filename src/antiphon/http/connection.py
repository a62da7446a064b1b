"""What a request knows of the connection that it came on. The protocol makes one for each request, and calls
`leave` when nobody waits for the answer any more."""

from collections.abc import Callable
from typing import Protocol

from starlette.types import Scope

CONNECTION = "antiphon.connection"
"""Key of the Connection in the scope's state."""


class Flow(Protocol):
    """What a connection reads and writes."""

    write_paused: bool
    """Whether the client does not take what is written to it."""

    async def drain(self) -> None:
        """Waits until it does."""

    def resume_reading(self) -> None:
        """Reads on, after a large body."""


class Connection:
    """One request's connection. Belongs to the event loop."""

    __slots__ = ("_flow", "abort", "arrived_at", "has_left", "is_whole", "on_leave")

    def __init__(self, abort: Callable[[], None], arrived_at: float, flow: Flow) -> None:
        """`abort`: drops the connection at once. `arrived_at`: the loop's time of the first byte."""
        self.abort = abort
        self.arrived_at = arrived_at
        self.on_leave: Callable[[], None] | None = None
        """Called once when the client leaves before its answer is complete."""
        self.has_left = False
        self.is_whole = False
        """Whether all of the request has arrived."""
        self._flow = flow

    @property
    def is_paused(self) -> bool:
        """Whether the client does not read: what is written now would only be held."""
        return self._flow.write_paused

    def resume_reading(self) -> None:
        """Reads on: a large body stops the reading, and only who reads sees that the client leaves."""
        self._flow.resume_reading()

    async def drain(self) -> None:
        """Waits until the client reads again, or is gone."""
        await self._flow.drain()

    def leave(self) -> None:
        """The client has left."""
        self.has_left = True
        if self.on_leave is not None:
            self.on_leave()


def connection_of(scope: Scope) -> Connection:
    """The connection of a request."""
    connection: Connection = scope["state"][CONNECTION]
    return connection
