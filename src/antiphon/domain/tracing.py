"""Spans of a request, for a tracing backend. Without tracing, a `Context` has no span, and no stage opens
one.

Names of spans and attributes follow OpenTelemetry's semantic conventions, those for generative AI included.
Attributes of this server's own begin with `antiphon.`.
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Protocol

from antiphon.domain.ledger import NOTHING

AttributeValue = str | bool | int | float | Sequence[str]

Attributes = Mapping[str, AttributeValue]


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
