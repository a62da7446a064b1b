"""The interface of dialects. A dialect converts between one product's wire format and domain values.

A dialect declares endpoints. Each endpoint has a method, a path, a right, a body, answers and a handler. The
HTTP layer serves the declared endpoints and has no code for single products. A dialect does not depend on an
engine or an HTTP framework, and does no I/O. A handler uses the server only through `Services`.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol, Self

from antiphon.dialects.http_types import JSON, Answer, Headers, Request
from antiphon.dialects.services import Services
from antiphon.domain.identity import Right
from antiphon.domain.ledger import NOTHING
from antiphon.domain.limits import LimitStatus
from antiphon.domain.values import Struct, field
from antiphon.errors import AntiphonError

Handler = Callable[[Request, "Services"], Awaitable[Answer]]


class RequestBody(Struct, frozen=True):
    """The body of an endpoint's requests."""

    media_type: str = JSON
    """JSON or MULTIPART."""
    limit: int | None = None
    """The largest size in bytes; None means the server's limit."""
    shape: object = None
    """The wire type of the body, for the OpenAPI document."""


class Endpoint(Struct, frozen=True, kw_only=True, eq=False):
    """One operation of the API: its path, the required right, and its handler.

    The application, the authenticator, the OpenAPI document and the metrics' labels use the endpoints.
    """

    method: str
    path: str
    """The whole path. `{name}` matches one segment; `{name:path}` matches several."""
    handler: Handler
    right: Right | None
    """The right that the caller needs; None means that the endpoint is public."""
    aliases: tuple[str, ...] = ()
    """Other paths of the same endpoint."""
    body: RequestBody | None = None
    summary: str = ""
    """A summary for the OpenAPI document. The document omits endpoints without a summary."""
    tag: str = ""
    description: str = ""
    answers: Mapping[str, object] = field(default_factory=lambda: NOTHING)
    """Wire types or JSON schemas of the answers, by media type."""
    statuses: tuple[int, ...] = (200,)
    parameters: tuple[Mapping[str, Any], ...] = ()
    """Query parameters in OpenAPI's form."""
    ends_with_caller: bool = True
    """Whether the server cancels the work if the caller disconnects. False for changes that must be
    complete."""
    is_suggested: bool = True
    """Whether an error about an unknown path can suggest this one."""

    @property
    def paths(self) -> tuple[str, ...]:
        """The path and its aliases."""
        return (self.path, *self.aliases)


class Description(Struct, frozen=True):
    """A dialect's part of the OpenAPI document, in addition to its endpoints."""

    schemas: Mapping[str, Any] = field(default_factory=dict)
    prefix: str = ""
    """The prefix of the dialect's schema names."""
    error_schema: str = ""
    """The name of the schema of all errors of the dialect."""


class CodecOptions:
    """The options with which a codec decodes requests."""

    def __init__(self, report_unknown: bool, strict: bool = False) -> None:
        """`report_unknown`: a response header names unknown fields, and they are not refused. `strict`: a
        schema with a keyword that is not enforced is refused."""
        self._reports_unknown = report_unknown
        self._strict = strict


class DialectOptions(Struct, frozen=True):
    """The settings of all dialects."""

    report_unknown: bool = False
    """Whether the answer names unknown fields, which are not refused."""
    strict_schemas: bool = False
    """Whether a schema with a keyword that is not enforced is refused."""
    has_keys: bool = True
    """Whether there are access tokens."""
    max_file_bytes: int | None = None
    """The largest file of a knowledge table; None means the server's limit of bodies."""
    refuses_hosted: bool = False
    """Whether tools of Responses and Messages that the vendor would run are refused, not left out."""


class DialectDefaults:
    """What is the same in most dialects."""

    placeholder_project: str | None = None
    chooses_project = False
    aliases: Mapping[str, str] = NOTHING
    """Names of models that callers of this product use. Aliases of the settings override them."""

    def __init__(self, report_unknown: bool = False, strict_schemas: bool = False) -> None:
        """The parameters are those of `DialectOptions`."""

    @classmethod
    def create(cls, options: DialectOptions) -> Self:
        """Creates the dialect of a server."""
        return cls(options.report_unknown, options.strict_schemas)

    def get_status(self, error: AntiphonError) -> int:
        """Returns the error's own status."""
        return error.status

    def build_error_headers(self, error: AntiphonError, request: Request, now: float) -> Headers:
        """Returns no headers."""
        return ()

    def build_limit_headers(self, measure: str, status: LimitStatus, now: float) -> Headers:
        """Returns no headers besides those that all dialects have."""
        return ()


class Dialect(Protocol):
    """One product's wire format."""

    @property
    def name(self) -> str:
        """The dialect's name in settings, docs and schema names."""

    @property
    def prefix(self) -> str:
        """The prefix of the dialect's paths, such as `/fireworks`. Errors of these paths have this dialect's
        form. The server's own dialect has an empty prefix, and all other paths."""

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        """All endpoints of the dialect."""

    def get_status(self, error: AntiphonError) -> int:
        """Returns the HTTP status of an error: the error's own, unless the product uses another one."""

    @property
    def placeholder_project(self) -> str | None:
        """The project that the product's clients send if their user has chosen no project. A key that cannot
        use this project then acts in its own project. None if the clients send no such project."""

    @property
    def chooses_project(self) -> bool:
        """Whether a user with several projects may name none: the request then acts in the oldest one."""

    def encode_error(self, error: AntiphonError, request: Request | None = None) -> bytes:
        """Returns the body of an error response. `request`: None if the request could not be read."""

    def build_error_headers(self, error: AntiphonError, request: Request, now: float) -> Headers:
        """Returns the product's own headers of an error response. `now`: Unix seconds."""

    def build_limit_headers(self, measure: str, status: LimitStatus, now: float) -> Headers:
        """Returns the product's own headers of the tightest limit of a `measure`: `requests` or `tokens`.
        `now`: Unix seconds."""

    def describe(self) -> Description:
        """Returns the schemas for the OpenAPI document, made from the wire types."""

    def list_fields(self) -> frozenset[str]:
        """Returns the names of all fields of the dialect's requests. Logs contain no other field names."""
