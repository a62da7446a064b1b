"""A request and its answers, as handlers and dialects see them: plain types without an HTTP framework."""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Protocol
from urllib.parse import parse_qsl

from antiphon.domain.context import RequestProgress, Span
from antiphon.domain.events import Event, EventGroup
from antiphon.domain.identity import LOCAL_ANONYMOUS, Actor
from antiphon.domain.ledger import NOTHING
from antiphon.domain.values import Struct, field
from antiphon.errors import AntiphonError

KEEP_ALIVE = b": keep-alive\n\n"
"""A comment. Clients of server-sent events ignore it."""

JSON = "application/json"

EVENT_STREAM = "text/event-stream"

PLAIN = "text/plain"

MULTIPART = "multipart/form-data"

Headers = tuple[tuple[bytes, bytes], ...]

PROJECT_HEADERS = (b"x-project-id", b"x-selected-account-id")
"""Headers that select one of the projects of a key."""

USER_HEADERS = (b"x-user-id",)
"""Headers that name the user for whom a key acts."""


class Request(Struct):
    """One HTTP request in plain types."""

    id: str
    method: str
    path: str
    """The decoded path."""
    headers: Mapping[bytes, list[bytes]]
    """All values of each header, in order, by lower-case name."""
    query_string: bytes = b""
    client: str | None = None
    """The client's address as trusted proxies report it, for the log and the audit. None if it is unknown."""
    actor: Actor = LOCAL_ANONYMOUS
    chosen_project: str | None = None
    """The project that the server chose because the request named none that the key can use. A header of the
    answer names it."""
    path_params: Mapping[str, str] = field(default_factory=lambda: NOTHING)
    """The values of the placeholders in the endpoint's path."""
    body: bytes = b""
    progress: RequestProgress = field(default_factory=RequestProgress)
    span: Span | None = None
    """The request's span in a trace; None without tracing."""
    peer: str | None = None
    """The address of the connection, if it has one."""

    def query(self) -> list[tuple[str, str]]:
        """Returns the names and values of the query, in order. Empty values are included."""
        return parse_qsl(self.query_string.decode("latin-1"), keep_blank_values=True)


class Response(Struct, frozen=True):
    """A complete HTTP response."""

    body: bytes = b""
    status: int = 200
    media_type: str = JSON
    headers: Headers = ()


class StreamEncoder(Protocol):
    """Encodes one stream into the bytes of server-sent events."""

    def encode(self, event: Event) -> bytes:
        """Returns the bytes for one event; empty if the event is not visible."""

    def end(self) -> bytes:
        """Returns the bytes that end a complete stream."""

    def encode_error(self, error: AntiphonError) -> bytes:
        """Returns the bytes that end a broken stream."""

    def keep_alive(self) -> bytes:
        """Returns the bytes to send after a silence, at any time before the end, even before the first
        event."""
        return KEEP_ALIVE


class EventStream(Struct, frozen=True):
    """A response of server-sent events. Its status and headers are sent with the first event."""

    events: AbstractAsyncContextManager[AsyncIterator[EventGroup]]
    encoder: StreamEncoder
    headers: Callable[[], Headers]
    """Returns further headers. It is called when the first event is sent."""


class FileStream(Struct, frozen=True):
    """A response of any length, sent in parts. If it fails midway, the connection is closed."""

    parts: AsyncIterator[bytes]
    media_type: str
    headers: Headers = ()


Answer = Response | EventStream | FileStream
