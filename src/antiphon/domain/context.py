"""What a request carries besides what it asks: who, until when, and where time, ids and randomness come
from."""

import os
import secrets
import time
from collections import deque
from collections.abc import Mapping
from typing import Protocol

from antiphon.domain.identity import LOCAL_ANONYMOUS, Actor
from antiphon.domain.ledger import NOTHING
from antiphon.domain.limits import LimitStatus
from antiphon.domain.values import Value, field


class Clock(Protocol):
    """Source of time, ids and randomness, so that tests own them."""

    def monotonic(self) -> float:
        """Seconds that never jump; only differences mean something."""

    def wall(self) -> float:
        """Unix time in seconds."""

    def unique(self) -> str:
        """32 hexadecimal digits that nobody else has."""

    def seed(self) -> int:
        """A fresh seed of 63 bits for a request that names none."""


AT_ONCE = 64
"""Ids for which the kernel is asked at once: it takes longer over a question than over the answer."""

_IDS: deque[str] = deque()
"""Those that nobody has yet, in this process alone."""

os.register_at_fork(after_in_child=_IDS.clear)


class SystemClock:
    """The machine's clock and randomness."""

    def monotonic(self) -> float:
        return time.monotonic()

    def wall(self) -> float:
        return time.time()

    def unique(self) -> str:
        try:
            return _IDS.popleft()
        except IndexError:
            digits = os.urandom(AT_ONCE * 16).hex()
            first, *others = [digits[begin : begin + 32] for begin in range(0, len(digits), 32)]
            _IDS.extend(others)
            return first

    def seed(self) -> int:
        return secrets.randbits(63)


class Origin(Value, frozen=True):
    """Where a request comes from; what the records of usage say of it besides its actor."""

    dialect: str = ""
    operation: str = ""
    """Path that was asked."""
    end_user: str | None = None
    """For whom the caller says that it asks."""
    tags: Mapping[str, str] = NOTHING
    """The caller's own."""


NOWHERE = Origin()


class RequestProgress:
    """What becomes known of a request on its way; written by the pipeline and engines, read by whoever
    answers."""

    __slots__ = ("account", "attempts", "body", "embedded", "is_ended", "limit_statuses", "model", "unread")

    def __init__(self) -> None:
        self.account: Mapping[str, object] = {}
        """Of work that ends with an error: what the log says of it, together with the error."""
        self.attempts = 0
        """How often an engine was asked."""
        self.body = b""
        """What was sent, word by word."""
        self.embedded = 0
        """Tokens of the texts whose vectors were made, however the request ends."""
        self.is_ended = False
        """Whether the edge has ended it, with an error that it answers and logs."""
        self.model = ""
        """The own name of its model, once that is found."""
        self.limit_statuses: tuple[LimitStatus, ...] = ()
        """How the limits that are for it stand, as they were last told."""
        self.unread: tuple[str, ...] = ()
        """Fields of its messages that the chat template does not read."""


class Context(Value, frozen=True, gc=True):
    """One request's circumstances; goes with it through every stage and into the engine."""

    request_id: str
    actor: Actor = LOCAL_ANONYMOUS
    deadline: float | None = None
    """On the clock's monotonic scale; None is no deadline."""
    clock: Clock = field(default_factory=SystemClock)
    origin: Origin = NOWHERE
    progress: RequestProgress = field(default_factory=RequestProgress)

    def remaining(self) -> float | None:
        """Seconds left until the deadline, at least 0; None without one."""
        return None if self.deadline is None else max(0.0, self.deadline - self.clock.monotonic())
