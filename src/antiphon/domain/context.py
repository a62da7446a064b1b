"""The context of a request: its actor, deadline and span, and its source of time, ids and randomness.

Without tracing, a `Context` has no span, and no stage opens one. Names of spans and attributes follow
OpenTelemetry's semantic conventions, those for generative AI included. Attributes of this server's own begin
with `antiphon.`.
"""

import os
import secrets
import time
from collections import deque
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Protocol

from antiphon.domain.identity import LOCAL_ANONYMOUS, Actor
from antiphon.domain.ledger import NOTHING, RouteTry
from antiphon.domain.limits import LimitStatus
from antiphon.domain.memory import MemoryReport
from antiphon.domain.values import Value, field, replace

AttributeValue = str | bool | int | float | Sequence[str]

Attributes = Mapping[str, AttributeValue]

IDS_PER_READ = 64
"""The number of ids that one read of random bytes makes. One read for each id would be slower."""

_IDS: deque[str] = deque()
"""Ids of this process that are not used yet."""


class SpanKind(StrEnum):
    """The process that does the work of a span."""

    SERVER = "server"
    CLIENT = "client"
    """Another process, or a vendor."""
    INTERNAL = "internal"


class Span(Protocol):
    """A step of a request, with a beginning and an end."""

    @property
    def traceparent(self) -> str:
        """The value of the header `traceparent` for requests that belong to this step."""

    @property
    def is_recorded(self) -> bool:
        """Whether the trace is sampled. If not, its attributes are not sent."""

    @property
    def records_content(self) -> bool:
        """Whether the span may contain texts of callers and models."""

    def open(self, name: str, kind: SpanKind, attributes: Attributes = NOTHING) -> "Span":
        """Begins a step within this one."""

    def add(self, attributes: Attributes) -> None:
        """Adds attributes."""

    def fail(self, code: str) -> None:
        """Notes the code of the error that ends the step."""

    def measure(self, name: str, value: float, attributes: Attributes = NOTHING) -> None:
        """Adds a value to a histogram, whether or not the trace is sampled. The operation, the models and the
        provider of this span become its attributes too."""

    def close(self) -> None:
        """Ends the step."""


class Tracer(Protocol):
    """Begins the first span of each request."""

    def open_request(self, name: str, traceparents: Sequence[bytes], attributes: Attributes) -> Span:
        """Begins a request's span. `traceparents`: the values of the caller's header `traceparent`. With one
        valid value the span continues the caller's trace."""


class Clock(Protocol):
    """A source of time, ids and randomness. Tests use `FakeClock` instead."""

    def monotonic(self) -> float:
        """Returns seconds that never jump; only differences mean something."""

    def wall(self) -> float:
        """Returns Unix time in seconds."""

    def unique(self) -> str:
        """Returns 32 hexadecimal digits that are unique."""

    def seed(self) -> int:
        """Returns a new seed of 63 bits for a request without one."""


os.register_at_fork(after_in_child=_IDS.clear)


class SystemClock:
    """The machine's clock and randomness. The clocks are the system's functions themselves, since a request
    reads them many times."""

    monotonic = staticmethod(time.monotonic)
    wall = staticmethod(time.time)

    def unique(self) -> str:
        try:
            return _IDS.popleft()
        except IndexError:
            digits = os.urandom(IDS_PER_READ * 16).hex()
            id_, *unused_ids = [digits[begin : begin + 32] for begin in range(0, len(digits), 32)]
            _IDS.extend(unused_ids)
            return id_

    def seed(self) -> int:
        return secrets.randbits(63)


class Origin(Value, frozen=True):
    """The endpoint of a request, and the end user and tags that the caller names. The ledger stores them."""

    dialect: str = ""
    operation: str = ""
    """The path of the endpoint."""
    end_user: str | None = None
    """The end user for whom the caller sends the request."""
    tags: Mapping[str, str] = NOTHING
    """The caller's own tags."""


NOWHERE = Origin()


class EngineReport:
    """What an engine reports about one request that it has prepared, from then to the end of the answer. The
    engine writes it. `pipeline.prepare` adds the optional parameters that it removed."""

    __slots__ = (
        "embedded_tokens",
        "has_own_schemas",
        "held_s",
        "ignored",
        "relaxed",
        "sent_at",
        "temperature",
        "top_p",
    )

    def __init__(self, ignored: tuple[str, ...] = (), has_own_schemas: bool = False) -> None:
        self.ignored = ignored
        """Fields that the engine ignores."""
        self.has_own_schemas = has_own_schemas
        """Whether the engine gets JSON Schemas as the caller wrote them. If not, keywords may be left out."""
        self.relaxed: tuple[str, ...] = ()
        """Keywords of schemas that the vendor does not enforce. They are known with the first event."""
        self.temperature: float | None = None
        self.top_p: float | None = None
        """The values that a local model uses, which can be those of its profile. None for vendors."""
        self.embedded_tokens = 0
        """Number of tokens in texts whose vectors are computed, however the request ends."""
        self.sent_at: float | None = None
        """The clock's time at which the request was sent to a vendor, which works since then; None if it was
        not."""
        self.held_s = 0.0
        """Seconds in which a vendor's answer was not read, because the caller did not read."""

    def record_sent(self, clock: Clock) -> None:
        """Records that the request is sent to a vendor now."""
        self.sent_at = clock.monotonic()


class RequestProgress:
    """Facts about a request that the HTTP edge shows and logs. The pipeline writes them while the request
    runs."""

    __slots__ = (
        "attempts",
        "end_code",
        "ignored",
        "limit_statuses",
        "log_fields",
        "memory",
        "model",
        "report",
        "route",
        "tries",
    )

    def __init__(self) -> None:
        self.log_fields: Mapping[str, object] = {}
        """The values that the log record gets if the request ends with an error."""
        self.attempts = 0
        """Number of attempts at an engine."""
        self.end_code: str | None = None
        """The code of the error with which the HTTP edge has ended the request; None otherwise. The edge
        answers and logs the error."""
        self.ignored: tuple[str, ...] = ()
        """Fields that the memory strategy ignores, besides those of the engine's report."""
        self.memory: MemoryReport | None = None
        """The result of the request's memory strategy; None without one."""
        self.model = ""
        """The model's own name, once the model is found."""
        self.limit_statuses: tuple[LimitStatus, ...] = ()
        """The latest status of the request's limits."""
        self.report = EngineReport()
        """The report of the engine that works on the request."""
        self.route = b""
        """The name of the route that serves the request, as a header's value, once it is known."""
        self.tries: tuple[RouteTry, ...] = ()
        """The routes that were tried, in order."""


class Context(Value, frozen=True, gc=True):
    """The actor, the deadline, the clock and the progress of one request. Every stage and the engine get
    it."""

    request_id: str
    actor: Actor = LOCAL_ANONYMOUS
    deadline: float | None = None
    """On the clock's monotonic scale; None is no deadline."""
    clock: Clock = field(default_factory=SystemClock)
    origin: Origin = NOWHERE
    progress: RequestProgress = field(default_factory=RequestProgress)
    parent: str | None = None
    """Id of the ledger entry of the request that started this one; None for a caller's request."""
    span: Span | None = None
    """The step of the trace that the stages of this request add their own steps to; None without tracing."""
    body: bytes = b""
    """The request's body as the caller sent it."""

    def remaining(self) -> float | None:
        """Returns the seconds until the deadline, at least 0; None if the request has no deadline."""
        return None if self.deadline is None else max(0.0, self.deadline - self.clock.monotonic())

    def limit_time(self, seconds: float) -> "Context":
        """Returns the context with a deadline at most `seconds` from now. An earlier deadline is not
        changed."""
        new_deadline = self.clock.monotonic() + seconds
        is_earlier = self.deadline is not None and self.deadline <= new_deadline
        return self if is_earlier else replace(self, deadline=new_deadline)
